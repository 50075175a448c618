// Cases of NCCL calls, checked against computed values. Ranks report wrong elements and who served.
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstring>
#include <functional>
#include <map>
#include <stdexcept>
#include <thread>
#include <vector>

#include "tests/shims/programs/rank.hpp"

namespace program {
namespace {

template <class T>
std::uint64_t all_reduce_once(const TestRank& r, std::size_t count, int type, int op,
                              bool in_place) {
  std::vector<T> input = filled<T>(r.rank, count), output(count, T(77));
  T* to = in_place ? input.data() : output.data();
  MUST(nccl().ncclAllReduce(input.data(), to, count, type, op, r.comm, r.stream));
  r.wait();
  std::uint64_t wrong = 0;
  for (std::size_t i = 0; i < count; ++i)
    wrong += std::fabs(static_cast<double>(to[i]) -
                       static_cast<double>(expected<T>(op, r.ranks, i))) > 1e-5;
  return wrong;
}

std::string all_reduce(const TestJob& job, int rank) {
  const TestRank r(job, rank);
  std::uint64_t wrong = 0;
  for (const std::size_t count : {1, 7, 1000, 40000})
    for (const bool in_place : {false, true}) {
      for (const int op : {kSum, kMax, kMin, kProd})
        wrong += all_reduce_once<std::int32_t>(r, count, kInt32, op, in_place);
      for (const int op : {kSum, kAvg}) {
        wrong += all_reduce_once<float>(r, count, kFloat, op, in_place);
        wrong += all_reduce_once<double>(r, count, kDouble, op, in_place);
      }
    }
  return number("wrong", wrong) + ", " + counted("all_reduce") + ", " +
         number("nccl", standin_calls("ncclAllReduce"));
}

/// Makes empty calls, which NCCL serves.
std::string empty(const TestJob& job, int rank) {
  const TestRank r(job, rank);
  const std::uint64_t wrong = all_reduce_once<float>(r, 0, kFloat, kSum, false);
  return number("wrong", wrong) + ", " + counted("all_reduce");
}

/// A first call of plait runs behind earlier calls of NCCL on other streams, also in groups.
std::string served_late(const TestJob& job, int rank) {
  const TestRank r(job, rank);
  constexpr std::size_t kCount = 250000;  // fits in the small arena
  Stream passing = r.stream, serving = standin_stream_create(), other = standin_stream_create();
  const std::vector<std::int32_t> mine = filled<std::int32_t>(rank, kCount);
  std::vector<std::int32_t> received(kCount, -1), sum(kCount, -1), word(1);
  for (int i = 0; i < 8; ++i) pass_around(r, mine, received, passing);
  const bool in_group = job.name != "served_late";
  if (in_group) MUST(nccl().ncclGroupStart());
  if (in_group) pass_around(r, mine, word, other);
  MUST(nccl().ncclAllReduce(received.data(), sum.data(), kCount, kInt32, kSum, r.comm, serving));
  if (in_group) MUST(nccl().ncclGroupEnd());
  standin_stream_destroy(serving);  // waits for the stream's work
  std::uint64_t wrong = 0;
  for (std::size_t at = 0; at < kCount; ++at)
    wrong += sum[at] != expected<std::int32_t>(kSum, r.ranks, at);
  r.wait();
  standin_stream_destroy(other);
  return number("wrong", wrong) + ", " + counted("all_reduce");
}

/// Sums messages of several pieces, with a remainder outside all ranks' shares.
std::string big(const TestJob& job, int rank) {
  const TestRank r(job, rank);
  std::uint64_t wrong = all_reduce_once<float>(r, (5u << 20) + 1, kFloat, kSum, false);
  wrong += all_reduce_once<float>(r, (5u << 20) + 5, kFloat, kSum, true);
  return number("wrong", wrong) + ", " + counted("all_reduce") + ", " +
         number("nccl", standin_calls("ncclAllReduce"));
}

/// Sums bf16, which the stand-in cannot reduce: plait served it. 1.0 = 0x3f80.
std::string bf16(const TestJob& job, int rank) {
  const TestRank r(job, rank);
  std::vector<std::uint16_t> values(100, 0x3f80);
  MUST(nccl().ncclAllReduce(values.data(), values.data(), 100, kBf16, kSum, r.comm, r.stream));
  r.wait();
  std::uint64_t wrong = 0;
  for (const std::uint16_t value : values) wrong += value != 0x4000;  // 2.0, over two ranks
  Result error = ncclSuccess;
  nccl().ncclCommGetAsyncError(r.comm, &error);
  return number("wrong", wrong) + ", " + number("async", error);
}

std::uint64_t differing(const std::vector<float>& found, const std::vector<float>& wanted) {
  std::uint64_t wrong = found.size() != wanted.size();
  for (std::size_t i = 0; i < found.size() && i < wanted.size(); ++i)
    wrong += found[i] != wanted[i];
  return wrong;
}

std::vector<float> slice(const std::vector<float>& from, std::size_t first, std::size_t count) {
  return {from.begin() + static_cast<std::ptrdiff_t>(first),
          from.begin() + static_cast<std::ptrdiff_t>(first + count)};
}

std::string others(const TestJob& job, int rank) {
  const TestRank r(job, rank);
  const auto n = static_cast<std::size_t>(r.ranks), me = static_cast<std::size_t>(rank);
  const std::size_t count = 1000;
  const std::vector<float> mine = filled<float>(rank, count), wide = filled<float>(rank, count * n);
  std::vector<float> sums(count * n), gathered, exchanged;
  for (std::size_t i = 0; i < count * n; ++i) sums[i] = expected<float>(kSum, r.ranks, i);
  for (std::size_t from = 0; from < n; ++from) {
    const auto one = filled<float>(static_cast<int>(from), count);
    gathered.insert(gathered.end(), one.begin(), one.end());
    const auto part = slice(filled<float>(static_cast<int>(from), count * n), me * count, count);
    exchanged.insert(exchanged.end(), part.begin(), part.end());
  }
  std::uint64_t wrong = 0;
  std::vector<float> one(count), all(count * n);
  const auto run = [&](Result result, std::vector<float>& found, const std::vector<float>& wanted) {
    MUST(result);
    r.wait();
    wrong += differing(found, wanted);
    std::fill(found.begin(), found.end(), -1.f);
  };
  const int root = r.ranks - 1;
  const bool rooted = rank == root;
  const auto& api = nccl();
  run(api.ncclReduceScatter(wide.data(), one.data(), count, kFloat, kSum, r.comm, r.stream), one,
      slice(sums, me * count, count));
  run(api.ncclAllGather(mine.data(), all.data(), count, kFloat, r.comm, r.stream), all, gathered);
  run(api.ncclBroadcast(mine.data(), one.data(), count, kFloat, root, r.comm, r.stream), one,
      filled<float>(root, count));
  run(api.ncclAlltoAll(wide.data(), all.data(), count, kFloat, r.comm, r.stream), all, exchanged);
  run(api.ncclScatter(wide.data(), one.data(), count, kFloat, root, r.comm, r.stream), one,
      slice(filled<float>(root, count * n), me * count, count));
  one = mine;
  run(api.ncclBcast(one.data(), count, kFloat, root, r.comm, r.stream), one,
      filled<float>(root, count));
  run(api.ncclReduce(mine.data(), one.data(), count, kFloat, kSum, root, r.comm, r.stream), one,
      rooted ? slice(sums, 0, count) : one);
  run(api.ncclGather(mine.data(), all.data(), count, kFloat, root, r.comm, r.stream), all,
      rooted ? gathered : all);
  return number("wrong", wrong) + ", " + counted(nullptr);
}

/// Groups of served and forwarded calls; nested groups; a simulated group.
std::string groups(const TestJob& job, int rank) {
  const TestRank r(job, rank);
  const auto& api = nccl();
  const std::size_t count = 20000;
  const int next = (rank + 1) % r.ranks, last = (rank + r.ranks - 1) % r.ranks;
  const std::vector<float> mine = filled<float>(rank, count);
  std::vector<float> sum(count), received(count), largest(count), untouched(count, 5.f);
  MUST(api.ncclGroupStart());
  MUST(api.ncclAllReduce(mine.data(), sum.data(), count, kFloat, kSum, r.comm, r.stream));
  MUST(api.ncclGroupStart());
  MUST(api.ncclSend(mine.data(), count, kFloat, next, r.comm, r.stream));
  MUST(api.ncclRecv(received.data(), count, kFloat, last, r.comm, r.stream));
  MUST(api.ncclGroupEnd());
  MUST(api.ncclAllReduce(mine.data(), largest.data(), count, kFloat, kMax, r.comm, r.stream));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const std::uint64_t early = sum[0] != 0.f || standin_stream_idle(r.stream) == 0;
  MUST(api.ncclGroupEnd());
  r.wait();
  MUST(api.ncclGroupStart());
  MUST(api.ncclAllReduce(mine.data(), untouched.data(), count, kFloat, kMax, r.comm, r.stream));
  MUST(api.ncclGroupSimulateEnd(nullptr));
  r.wait();
  std::uint64_t wrong = differing(received, filled<float>(last, count)) +
                        differing(untouched, std::vector<float>(count, 5.f));
  for (std::size_t i = 0; i < count; ++i)
    wrong += (sum[i] != expected<float>(kSum, r.ranks, i)) +
             (largest[i] != expected<float>(kMax, r.ranks, i));
  return number("wrong", wrong) + ", " + number("early", early) + ", " + counted("all_reduce") +
         ", " + number("nccl", standin_calls("ncclAllReduce"));
}

/// Sums the parent's ranks in a child and destroys the child; null = this rank is not a member.
std::uint64_t wrong_in_child(const TestRank& r, Comm child, int rank, int sum) {
  if (child == nullptr) return 0;
  std::vector<std::int32_t> value{rank};
  MUST(nccl().ncclAllReduce(value.data(), value.data(), 1, kInt32, kSum, child, r.stream));
  r.wait();
  MUST(nccl().ncclCommDestroy(child));
  return value[0] != sum;
}

std::string split(const TestJob& job, int rank) {
  const TestRank r(job, rank);
  const bool left_out = rank == r.ranks - 1;
  Comm child = nullptr;
  MUST(nccl().ncclCommSplit(r.comm, left_out ? kSplitNoColor : 0, -rank, &child, nullptr));
  std::uint64_t wrong = left_out != (child == nullptr);
  wrong += wrong_in_child(r, child, rank, (r.ranks - 1) * (r.ranks - 2) / 2);
  wrong += all_reduce_once<float>(r, 100, kFloat, kSum, false);
  return number("wrong", wrong) + ", " + counted("all_reduce");
}

std::string shrink(const TestJob& job, int rank) {
  const TestRank r(job, rank);
  int out = 0;
  Comm child = nullptr;
  if (rank != out) MUST(nccl().ncclCommShrink(r.comm, &out, 1, &child, nullptr, 0));
  const std::uint64_t wrong = (child == nullptr) != (rank == out)
                                  ? 1
                                  : wrong_in_child(r, child, rank, r.ranks * (r.ranks - 1) / 2);
  return number("wrong", wrong) + ", " + counted("all_reduce");
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Returns whether the stream reports an error.
std::string failed(Stream stream) {
  return number("failed", static_cast<std::uint64_t>(standin_stream_failed(stream)));
}

/// Rank 0 never calls; all other ranks wait until a second thread of each aborts.
std::string abort_waiting(const TestJob& job, int rank) {
  TestRank r(job, rank);
  meet(job);  // an abort would fail ncclCommInitRank of a rank still inside the function
  std::vector<float> value(100, 1.f);
  const auto start = std::chrono::steady_clock::now();
  if (rank != 0) {
    MUST(nccl().ncclAllReduce(value.data(), value.data(), 100, kFloat, kSum, r.comm, r.stream));
    std::thread other([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      nccl().ncclCommAbort(r.comm);
    });
    r.wait();
    other.join();
    r.comm = nullptr;
  }
  const double took = seconds_since(start);
  return number("late", took > 5) + ", " + failed(r.stream) + ", " + counted("all_reduce");
}

/// Rank 1 makes three calls 1.5 s after the peers.
std::string comes_late(const TestJob& job, int rank) {
  TestRank r(job, rank);
  meet(job);
  if (rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(1500));
  std::uint64_t wrong = 0;
  for (int call = 0; call < 3; ++call) {
    std::vector<float> value(100, static_cast<float>(rank + call)), sum(100, -1.f);
    const Result given =
        nccl().ncclAllReduce(value.data(), sum.data(), 100, kFloat, kSum, r.comm, r.stream);
    if (given != ncclSuccess) break;  // error seen
    r.wait();
    const int all = r.ranks * (r.ranks - 1) / 2 + r.ranks * call;
    for (const float one : sum) wrong += one != static_cast<float>(all);
  }
  Result error = ncclSuccess;
  MUST(nccl().ncclCommGetAsyncError(r.comm, &error));
  return number("wrong", wrong) + ", " + number("async", error) + ", " + failed(r.stream);
}

/// Ends the last rank once all peers are in a call. A death during ncclCommInitRank or before the
/// call would fail that function instead.
void die_in_call(const TestJob& job, int rank) {
  meet(job);
  if (rank != job.ranks - 1) return;
  await_counted(job, 2 * job.ranks - 1);
  std::this_thread::sleep_for(std::chrono::milliseconds(150));
  ::kill(::getpid(), SIGKILL);
}

/// The last rank exits without a message; ncclCommGetAsyncError of the peers must show the loss.
std::string dies(const TestJob& job, int rank) {
  TestRank r(job, rank);
  die_in_call(job, rank);
  const auto start = std::chrono::steady_clock::now();
  std::vector<float> value(100, 1.f);
  MUST(nccl().ncclAllReduce(value.data(), value.data(), 100, kFloat, kSum, r.comm, r.stream));
  ++*job.attached;
  r.wait();
  const double noticed_s = seconds_since(start);
  Result error = ncclSuccess;
  MUST(nccl().ncclCommGetAsyncError(r.comm, &error));
  const Result next =
      nccl().ncclAllReduce(value.data(), value.data(), 100, kFloat, kSum, r.comm, r.stream);
  nccl().ncclCommAbort(r.comm);
  r.comm = nullptr;
  return number("async", error) + ", " + number("next", next) + ", " + failed(r.stream) + ", " +
         number("noticed_ms", static_cast<std::uint64_t>(noticed_s * 1e3));
}

/// The last rank's first call fails while being enqueued (STANDIN_BREAKS); the peers wait.
std::string breaks_off(const TestJob& job, int rank) {
  TestRank r(job, rank);
  meet(job);  // the failure of a rank fails ncclCommInitRank of a rank still inside the function
  const auto start = std::chrono::steady_clock::now();
  std::vector<float> value(100, 1.f);
  const auto call = [&] {
    return nccl().ncclAllReduce(value.data(), value.data(), 100, kFloat, kSum, r.comm, r.stream);
  };
  const Result first = call();
  r.wait();
  const double noticed_s = seconds_since(start);
  Result error = ncclSuccess;
  MUST(nccl().ncclCommGetAsyncError(r.comm, &error));
  const Result next = call();
  nccl().ncclCommAbort(r.comm);
  r.comm = nullptr;
  return number("first", first) + ", " + number("async", error) + ", " + number("next", next) +
         ", " + failed(r.stream) + ", " +
         number("noticed_ms", static_cast<std::uint64_t>(noticed_s * 1e3));
}

/// The last rank is killed in a call; the peers poll for errors as watchdogs do, and abort.
std::string dies_and_others_abort(const TestJob& job, int rank) {
  TestRank r(job, rank);
  die_in_call(job, rank);
  std::vector<float> value(100, 1.f);
  MUST(nccl().ncclAllReduce(value.data(), value.data(), 100, kFloat, kSum, r.comm, r.stream));
  ++*job.attached;
  Result error = ncclSuccess;
  for (int look = 0; look < 100 && error == ncclSuccess; ++look) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    MUST(nccl().ncclCommGetAsyncError(r.comm, &error));
  }
  MUST(nccl().ncclCommAbort(r.comm));
  r.comm = nullptr;
  r.wait();
  std::this_thread::sleep_for(std::chrono::seconds(1));
  return number("async", error) + ", " + failed(r.stream);
}

/// The last rank destroys its communicator and exits, without an error on the peers.
std::string leaves(const TestJob& job, int rank) {
  auto r = std::make_unique<TestRank>(job, rank);
  const std::uint64_t wrong = all_reduce_once<float>(*r, 100, kFloat, kSum, false);
  if (rank == r->ranks - 1) {
    r.reset();
    return number("async", 0) + ", " + number("wrong", wrong);
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(700));
  Result error = ncclSuccess;
  MUST(nccl().ncclCommGetAsyncError(r->comm, &error));
  return number("async", error) + ", " + number("wrong", wrong);
}

/// Uses four communicators at once, each in a thread, in every rank.
std::string many_threads(const TestJob& job, int rank) {
  const TestRank r(job, rank);
  constexpr int kComms = 4;
  Comm children[kComms] = {};
  for (Comm& child : children) MUST(nccl().ncclCommSplit(r.comm, 0, rank, &child, nullptr));
  std::vector<std::thread> threads;
  std::atomic<std::uint64_t> wrong{0};
  for (Comm child : children)
    threads.emplace_back([&, child] {
      Stream stream = standin_stream_create();
      for (int round = 0; round < 50; ++round) {
        std::vector<std::int32_t> value(64, rank + round);
        if (nccl().ncclAllReduce(value.data(), value.data(), 64, kInt32, kSum, child, stream) != 0)
          wrong += 1000;
        standin_stream_synchronize(stream);
        const int wanted = r.ranks * round + r.ranks * (r.ranks - 1) / 2;
        for (const std::int32_t found : value) wrong += found != wanted;
      }
      standin_stream_destroy(stream);
    });
  for (std::thread& thread : threads) thread.join();
  for (Comm child : children) MUST(nccl().ncclCommDestroy(child));
  return number("wrong", wrong.load()) + ", " + counted("all_reduce");
}

/// A single thread drives all ranks, in the first "rank" of the job only.
std::string init_all(const TestJob& job, int rank) {
  if (rank != 0) return "\"wrong\": 0";
  const auto n = static_cast<std::size_t>(job.ranks);
  std::vector<Comm> comms(n);
  const bool is_grouped = job.name == "init_all_in_group";
  if (is_grouped) MUST(nccl().ncclGroupStart());
  const Result made = nccl().ncclCommInitAll(comms.data(), job.ranks, nullptr);
  if (made != ncclInProgress) MUST(made);
  const Result ended = is_grouped ? nccl().ncclGroupEnd() : ncclSuccess;
  if (ended != ncclInProgress) MUST(ended);
  for (Comm comm : comms)
    for (Result state = ncclInProgress; state == ncclInProgress; ::usleep(100))
      MUST(nccl().ncclCommGetAsyncError(comm, &state));
  std::vector<Stream> streams(n);
  std::vector<std::vector<float>> values;
  MUST(nccl().ncclGroupStart());
  for (std::size_t i = 0; i < n; ++i) {
    streams[i] = standin_stream_create();
    values.push_back(filled<float>(static_cast<int>(i), 5000));
    MUST(nccl().ncclAllReduce(values[i].data(), values[i].data(), 5000, kFloat, kSum, comms[i],
                              streams[i]));
  }
  MUST(nccl().ncclGroupEnd());
  std::uint64_t wrong = 0;
  for (std::size_t i = 0; i < n; ++i) {
    standin_stream_destroy(streams[i]);
    for (std::size_t at = 0; at < 5000; ++at)
      wrong += values[i][at] != expected<float>(kSum, job.ranks, at);
  }
  for (Comm comm : comms) MUST(nccl().ncclCommDestroy(comm));
  return number("wrong", wrong) + ", " + counted("all_reduce");
}

/// A single thread makes three calls of each rank in a single group, rank by rank.
std::string several_each(const TestJob& job, int rank) {
  if (rank != 0) return "\"wrong\": 0";
  const auto n = static_cast<std::size_t>(job.ranks);
  constexpr std::size_t kCount = 500;
  std::vector<Comm> comms(n);
  MUST(nccl().ncclCommInitAll(comms.data(), job.ranks, nullptr));
  std::vector<Stream> streams(n);
  std::vector<std::vector<float>> mine(n), sums(n), roots(n), all(n);
  MUST(nccl().ncclGroupStart());
  for (std::size_t i = 0; i < n; ++i) {
    streams[i] = standin_stream_create();
    mine[i] = filled<float>(static_cast<int>(i), kCount);
    sums[i].resize(kCount);
    roots[i].resize(kCount);
    all[i].resize(kCount * n);
    const float* from = mine[i].data();
    Comm comm = comms[i];
    Stream on = streams[i];
    MUST(nccl().ncclAllReduce(from, sums[i].data(), kCount, kFloat, kSum, comm, on));
    MUST(nccl().ncclAllGather(from, all[i].data(), kCount, kFloat, comm, on));
    MUST(nccl().ncclBroadcast(from, roots[i].data(), kCount, kFloat, 0, comm, on));
  }
  MUST(nccl().ncclGroupEnd());
  std::vector<float> everyone;
  for (const auto& one : mine) everyone.insert(everyone.end(), one.begin(), one.end());
  std::uint64_t wrong = 0;
  for (std::size_t i = 0; i < n; ++i) {
    standin_stream_destroy(streams[i]);
    wrong += differing(all[i], everyone) + differing(roots[i], mine[0]);
    for (std::size_t at = 0; at < kCount; ++at)
      wrong += sums[i][at] != expected<float>(kSum, job.ranks, at);
    MUST(nccl().ncclCommDestroy(comms[i]));
  }
  return number("wrong", wrong) + ", " + counted(nullptr);
}

/// Only rank 1 has the setting that ONE_SETS names.
std::string one_forbids(const TestJob& job, int rank) {
  if (rank == 1) ::setenv(std::getenv("ONE_SETS"), "1", 1);
  const TestRank r(job, rank);
  const std::uint64_t wrong = all_reduce_once<float>(r, 100, kFloat, kSum, false);
  return number("wrong", wrong) + ", " + counted("all_reduce");
}

/// A single thread makes the communicators of all ranks in a group.
std::string init_in_group(const TestJob& job, int rank) {
  if (rank != 0) return "\"wrong\": 0";
  const auto n = static_cast<std::size_t>(job.ranks);
  std::vector<Comm> comms(n);
  MUST(nccl().ncclGroupStart());
  for (std::size_t i = 0; i < n; ++i)
    MUST(nccl().ncclCommInitRank(&comms[i], job.ranks, job.id, static_cast<int>(i)));
  MUST(nccl().ncclGroupEnd());
  std::vector<Stream> streams(n);
  std::vector<std::vector<std::int32_t>> values(n, {1});
  for (std::size_t i = 0; i < n; ++i) {
    streams[i] = standin_stream_create();
    MUST(nccl().ncclAllReduce(values[i].data(), values[i].data(), 1, kInt32, kSum, comms[i],
                              streams[i]));
  }
  std::uint64_t wrong = 0;
  for (std::size_t i = 0; i < n; ++i) {
    standin_stream_destroy(streams[i]);
    wrong += values[i][0] != job.ranks;
    MUST(nccl().ncclCommDestroy(comms[i]));
  }
  return number("wrong", wrong) + ", " + counted("all_reduce");
}

/// Wrong arguments get NCCL's error.
std::string errors(const TestJob& job, int rank) {
  const TestRank r(job, rank);
  float value[8] = {};
  const auto& api = nccl();
  const int bad_type = api.ncclAllReduce(value, value, 1, 99, kSum, r.comm, r.stream);
  const int bad_op = api.ncclAllReduce(value, value, 1, kFloat, 77, r.comm, r.stream);
  const int bad_root = api.ncclBroadcast(value, value, 1, kFloat, 9, r.comm, r.stream);
  const int no_comm = api.ncclAllReduce(value, value, 1, kFloat, kSum, nullptr, r.stream);
  const int end = api.ncclGroupEnd();
  return number("bad_type", bad_type) + ", " + number("bad_op", bad_op) + ", " +
         number("bad_root", bad_root) + ", " + number("no_comm", no_comm) + ", " +
         number("end", end);
}

std::size_t open_files() {
  std::size_t files = 0;
  for (int file = 0; file < 1024; ++file) files += ::fcntl(file, F_GETFD) >= 0;
  return files;
}

/// Makes and destroys communicators repeatedly; no resource may leak.
std::string churn(const TestJob& job, int rank) {
  const TestRank r(job, rank);
  std::size_t before = 0;
  for (int round = 0; round < 60; ++round) {
    if (round == 10) before = open_files();
    Comm child = nullptr;
    MUST(nccl().ncclCommSplit(r.comm, 0, rank, &child, nullptr));
    std::vector<std::int32_t> value{1};
    MUST(nccl().ncclAllReduce(value.data(), value.data(), 1, kInt32, kSum, child, r.stream));
    r.wait();
    if (value[0] != r.ranks) throw std::runtime_error("wrong sum");
    MUST(nccl().ncclCommDestroy(child));
  }
  const auto more = static_cast<std::int64_t>(open_files()) - static_cast<std::int64_t>(before);
  return "\"files\": " + std::to_string(more) + ", " + counted("all_reduce");
}

/// Returns the time of the fastest of many batches, ns a call.
double least_ns(const std::function<void()>& call) {
  constexpr int kBatches = 4000, kCalls = 100;
  double least = 1e9;
  for (int batch = 0; batch < kBatches; ++batch) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < kCalls; ++i) call();
    least = std::min(least, seconds_since(start) / kCalls * 1e9);
  }
  return least;
}

/// Returns the median time with cold caches, as between calls of real programs.
double cold_ns(const std::function<void()>& call) {
  constexpr int kCalls = 3000;
  std::vector<char> other(512 << 10);
  std::vector<double> took;
  for (int i = 0; i < kCalls; ++i) {
    for (std::size_t at = 0; at < other.size(); at += 64)
      *const_cast<volatile char*>(&other[at]) = static_cast<char>(i);
    const auto start = std::chrono::steady_clock::now();
    call();
    took.push_back(seconds_since(start) * 1e9);
  }
  std::nth_element(took.begin(), took.begin() + kCalls / 2, took.end());
  return took[kCalls / 2];
}

/// Times calls that NCCL answers at once, in ns: a group pair, a refused call, and a refused send
/// in a group of 1 and of 8; cold: a group of a send and a receive.
std::string overhead(const TestJob& job, int rank) {
  const TestRank r(job, rank);
  if (rank != 0) return "";
  const auto& api = nccl();
  float value = 0;
  const double pair = least_ns([&] {
    api.ncclGroupStart();
    api.ncclGroupEnd();
  });
  const double call =
      least_ns([&] { api.ncclAllReduce(&value, &value, 1, kFloat, 77, r.comm, r.stream); });
  const auto sends = [&](int count) {
    return least_ns([&] {
             api.ncclGroupStart();
             for (int i = 0; i < count; ++i)
               api.ncclSend(&value, 1, kFloat, r.ranks, r.comm, r.stream);  // no such rank
             api.ncclGroupEnd();
           }) /
           (count + 2);
  };
  const double cold_call =
      cold_ns([&] { api.ncclAllReduce(&value, &value, 1, kFloat, 77, r.comm, r.stream); });
  const double cold_group = cold_ns([&] {
    api.ncclGroupStart();
    api.ncclSend(&value, 1, kFloat, r.ranks, r.comm, r.stream);
    api.ncclRecv(&value, 1, kFloat, r.ranks, r.comm, r.stream);
    api.ncclGroupEnd();
  });
  return "\"pair_ns\": " + std::to_string(pair) + ", \"call_ns\": " + std::to_string(call) +
         ", \"one_send_ns\": " + std::to_string(sends(1)) +
         ", \"eight_sends_ns\": " + std::to_string(sends(8)) +
         ", \"cold_call_ns\": " + std::to_string(cold_call) +
         ", \"cold_group_ns\": " + std::to_string(cold_group);
}

using Cases = std::map<std::string, std::function<std::string(const TestJob&, int)>>;

const Cases kFurtherCases = {
    {"rank_order", rank_order},           {"shrink_abort_later", child_later},
    {"resume_fails", resume_fails},       {"overhead", overhead},
    {"nonblocking", nonblocking},         {"group_later", child_later},
    {"group_mixed_later", group_streams}, {"bf16", bf16},
    {"resume_group", resume_group},       {"launch_order", launch_order},
    {"group_mixed", group_streams},       {"grow_later", grow_later},
    {"shrink_later", child_later},        {"group_messages", group_streams},
    {"order_later", order_later},         {"big", big},
    {"group_streams", group_streams},     {"churn", churn},
    {"split_later", child_later},         {"suspend_groups", suspend_groups},
    {"always_nccls", always_nccls},       {"suspended", suspended},
    {"group_refused", group_refused},     {"group_refused_late", group_refused_late},
};

const Cases kCases = {
    {"all_reduce", all_reduce},
    {"empty", empty},
    {"streams", streams},
    {"lost_streams", lost_streams},
    {"lost_streams_late", lost_streams},
    {"forked_capture", forked_capture},
    {"forked_capture_mixed", forked_capture},
    {"forked_capture_unmixed", forked_capture},
    {"begun_capture", begun_capture},
    {"mixed_graphs", mixed_graphs},
    {"two_communicators", two_communicators},
    {"first_arena", first_arena},
    {"first_arena_alone", first_arena_alone},
    {"first_arena_lost", first_arena_lost},
    {"first_arena_simulated", first_arena_simulated},
    {"first_arena_suspended", first_arena_suspended},
    {"arenas_soak", arenas_soak},
    {"first_arena_closed_early", first_arena_closed_early},
    {"large_arena", large_arena},
    {"large_arena_simulated", large_arena},
    {"large_arena_simulated_late", large_arena_simulated_late},
    {"large_arena_misaligned", large_arena},
    {"large_arena_captured", large_arena_captured},
    {"large_arena_crossed", large_arena_crossed},
    {"large_arena_of_one_thread", large_arena_of_one_thread},
    {"large_arena_closed_early", large_arena_closed_early},
    {"served_late", served_late},
    {"served_late_in_group", served_late},
    {"others", others},
    {"groups", groups},
    {"messages", messages},
    {"random_messages", random_messages},
    {"split", split},
    {"shrink", shrink},
    {"factors", factors},
    {"factor_ended", factor_ended},
    {"abort", abort_waiting},
    {"dies", dies},
    {"breaks_off", breaks_off},
    {"dies_and_others_abort", dies_and_others_abort},
    {"comes_late", comes_late},
    {"leaves", leaves},
    {"leave_new", leave_new},
    {"many_threads", many_threads},
    {"init_all", init_all},
    {"init_all_in_group", init_all},
    {"init_in_group", init_in_group},
    {"several_each", several_each},
    {"one_forbids", one_forbids},
    {"limited", limited},
    {"errors", errors},
    {"strict", strict},
    {"node_deaths", node_deaths},
    {"unseen", unseen},
    {"many_lives", many_lives},
    {"dies_attaching", dies_attaching},
    {"short_page", short_page},
    {"leave_soon", leave_late},
    {"leave_late", leave_late},
    {"die_and_let_go", let_go_and_die},
    {"let_go_and_die", let_go_and_die},
    {"abort_frees", abort_frees},
    {"death_frees", abort_frees},
    {"finalize", finalize},
    {"finalize_later", finalize},
    {"finalize_refused", finalize},
    {"finalize_group_refused", finalize},
    {"finalize_misaligned", finalize},
    {"group_mixed_refused", group_streams},
    {"group_refused_by_nccl", group_refused_by_nccl},
    {"abort_in_group", abort_in_group},
    {"destroy_in_group", abort_in_group},
    {"abort_alongside_group", abort_in_group},
    {"abort_attaching", abort_attaching},
    {"revoke_refused", revoke_refused},
    {"split_alone", split_alone},
    {"many_at_once", many_at_once},
    {"split_refused", split_refused},
    {"revoke_refused_late", revoke_refused},
    {"child_beside_calls", child_beside_calls},
};

}  // namespace

std::string run_case(const TestJob& job, int rank) {
  if (job.name.starts_with("hang_")) return hang(job, rank);
  return (kFurtherCases.contains(job.name) ? kFurtherCases : kCases).at(job.name)(job, rank);
}

}  // namespace program
