// Cases of communicators that end, seen by plait or not, and of ranks that die.
#include <dlfcn.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <set>
#include <thread>

#include "tests/shims/programs/rank.hpp"

namespace program {
namespace {

using Clock = std::chrono::steady_clock;

void sleep_ms(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

std::uint64_t ms_since(Clock::time_point start) {
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - start).count());
}

/// Waits until the communicator reports an error; returns false if no error comes.
bool await_error(Comm comm) {
  const auto start = Clock::now();
  for (Result error = ncclSuccess; error == ncclSuccess; sleep_ms(1)) {
    MUST(nccl().ncclCommGetAsyncError(comm, &error));
    if (ms_since(start) > 10'000) return false;
  }
  return true;
}

std::uint64_t engines_freed() { return standin_calls("engine freed"); }

/// Waits until that many engines are freed in total.
bool await_freed(std::uint64_t count) {
  const auto start = Clock::now();
  while (engines_freed() < count && ms_since(start) < 15000) sleep_ms(1);
  return engines_freed() == count;
}

}  // namespace

/// The last rank destroys a communicator late; until then its writes must find the peers' memory.
std::string leave_late(const TestJob& job, int rank) {
  const TestRank r(job, rank);
  Comm child = nullptr;
  MUST(nccl().ncclCommSplit(r.comm, 0, rank, &child, nullptr));
  const std::uint64_t wrong = wrong_sum(r, child, r.ranks);
  const auto start = Clock::now();
  meet(job);
  if (rank == r.ranks - 1) sleep_ms(job.name == "leave_soon" ? 700 : 6000);
  MUST(nccl().ncclCommDestroy(child));
  const std::uint64_t took_ms = ms_since(start), freed = engines_freed();
  const bool later = await_freed(1);
  return number("wrong", wrong) + ", " + number("took_ms", took_ms) + ", " +
         number("freed", freed) + ", " + number("later", later);
}

/// The peers destroy a communicator whose call waits for the last rank, before or after that rank
/// dies: the call ends and the stream fails.
std::string let_go_and_die(const TestJob& job, int rank) {
  TestRank r(job, rank);
  meet(job);  // a death would fail ncclCommInitRank of a rank still inside the function
  const bool dies_first = job.name == "die_and_let_go";
  if (rank == r.ranks - 1) {
    await_counted(job, 2 * r.ranks - 1);
    sleep_ms(dies_first ? 200 : 1200);
    ::kill(::getpid(), SIGKILL);
  }
  std::vector<float> value(100, 1.f);
  MUST(nccl().ncclAllReduce(value.data(), value.data(), 100, kFloat, kSum, r.comm, r.stream));
  ++*job.attached;
  if (dies_first) await_error(r.comm);
  MUST(nccl().ncclCommDestroy(r.comm));
  r.comm = nullptr;
  const auto start = Clock::now();
  while (standin_stream_idle(r.stream) == 0 && ms_since(start) < 10'000) sleep_ms(1);
  const bool ended = standin_stream_idle(r.stream) != 0;
  if (!ended) throw std::runtime_error("the stream still waits");
  return number("failed", static_cast<std::uint64_t>(standin_stream_failed(r.stream)));
}

/// Uses a communicator that was left to NCCL, between two that plait serves.
std::string leave_new(const TestJob& job, int rank) {
  void* drop_in = ::dlopen("libplait_nccl.so", RTLD_LAZY | RTLD_NOLOAD);
  const auto leave =
      drop_in == nullptr
          ? nullptr
          : reinterpret_cast<void (*)(int)>(::dlsym(drop_in, "plait_nccl_leave_new"));
  if (leave == nullptr) throw std::runtime_error("no plait_nccl_leave_new");
  const TestRank r(job, rank);
  std::uint64_t wrong = 0;
  for (const int left : {1, 0}) {
    Comm child = nullptr;
    leave(left);
    MUST(nccl().ncclCommSplit(r.comm, 0, rank, &child, nullptr));
    std::vector<std::int32_t> value{rank};
    MUST(nccl().ncclAllReduce(value.data(), value.data(), 1, kInt32, kSum, child, r.stream));
    r.wait();
    wrong += value[0] != r.ranks * (r.ranks - 1) / 2;
    MUST(nccl().ncclCommDestroy(child));
  }
  return number("wrong", wrong) + ", " + counted("all_reduce");
}

/// The last rank dies while plait attaches. Reports the peers' result and time of making the
/// communicator.
std::string dies_attaching(const TestJob& job, int rank) {
  const TestRank r(job, rank);
  ::setenv("STANDIN_DIES", std::to_string(r.ranks - 1).c_str(), 1);
  const auto start = Clock::now();
  Comm child = nullptr;
  const Result result = nccl().ncclCommSplit(r.comm, 0, rank, &child, nullptr);
  return number("result", static_cast<std::uint64_t>(result)) + ", " +
         number("took_ms", ms_since(start));
}

/// All ranks abort a communicator (or all survivors of the last rank); the memory is freed.
std::string abort_frees(const TestJob& job, int rank) {
  const TestRank r(job, rank);
  Comm child = nullptr;
  MUST(nccl().ncclCommSplit(r.comm, 0, rank, &child, nullptr));
  const std::uint64_t wrong = wrong_sum(r, child, r.ranks);
  if (job.name == "death_frees") {
    if (rank == r.ranks - 1) ::kill(::getpid(), SIGKILL);
    await_error(child);
  }
  const auto start = Clock::now();
  MUST(nccl().ncclCommAbort(child));
  const std::uint64_t took_ms = ms_since(start);
  const bool later = await_freed(1);
  return number("wrong", wrong) + ", " + number("took_ms", took_ms) + ", " + number("later", later);
}

/// Rank 1 dies, then rank 2, a member of a second communicator with rank 0. Reports rank 0's
/// errors, and the rank's aborts of NCCL's communicator between nodes.
std::string node_deaths(const TestJob& job, int rank) {
  TestRank r(job, rank);
  Comm other = nullptr;
  MUST(nccl().ncclCommSplit(r.comm, rank == 0 || rank == 2 ? 0 : kSplitNoColor, rank, &other,
                            nullptr));
  const std::uint64_t wrong =
      wrong_sum(r, r.comm, r.ranks) + (other == nullptr ? 0 : wrong_sum(r, other, 2));
  if (rank == 1) ::kill(::getpid(), SIGKILL);
  if (rank == 2) {
    sleep_ms(900);  // while the first abort waits
    ::kill(::getpid(), SIGKILL);
  }
  if (rank != 0) {  // stays until rank 0 has seen both errors
    await_counted(job, 1);
    return number("wrong", wrong);
  }
  const auto start = Clock::now();
  const bool first = await_error(r.comm), second = await_error(other);
  const std::uint64_t noticed_ms = ms_since(start);
  for (int i = 0; i < 10'000 && standin_calls("ncclCommAbort") == 0; ++i) sleep_ms(1);
  sleep_ms(100);  // for a second abort
  const std::uint64_t aborts = standin_calls("ncclCommAbort");
  ++*job.attached;
  MUST(nccl().ncclCommAbort(r.comm));
  r.comm = nullptr;
  return number("wrong", wrong) + ", " + number("heard", first && second) + ", " +
         number("noticed_ms", noticed_ms) + ", " + number("aborts", aborts) + ", " +
         number("again", standin_calls("ncclCommAbort again"));
}

/// Non-blocking communicators, each destroyed by a call that plait does not see; NCCL reuses the
/// handles.
std::string unseen(const TestJob& job, int rank) {
  const TestRank r(job, rank);
  void* const library = ::dlopen("libnccl.so.2", RTLD_LAZY | RTLD_NOLOAD);
  const auto destroy = reinterpret_cast<Result (*)(Comm)>(::dlsym(library, "ncclCommDestroy"));
  if (destroy == nullptr) throw std::runtime_error("no libnccl.so.2 behind the drop-in");
  std::uint64_t wrong = 0, reused = 0;
  std::set<Comm> handles;
  for (int round = 0; round < 20; ++round) {
    ConfigHead config{sizeof(ConfigHead), kConfigMagic, 22809, 0};
    Comm child = nullptr;
    const Result made = nccl().ncclCommSplit(r.comm, 0, rank, &child, &config);
    if (made != ncclInProgress) MUST(made);
    // The parent is ready when the split is done: NCCL has then stored the child's handle.
    for (const Comm* asked : {&r.comm, static_cast<const Comm*>(&child)}) {
      Result state = ncclInProgress;
      for (int polls = 0; state == ncclInProgress && polls < 20000; ++polls, sleep_ms(1))
        MUST(nccl().ncclCommGetAsyncError(*asked, &state));
      MUST(state);
    }
    reused += !handles.insert(child).second;
    wrong += wrong_sum(r, child, r.ranks);
    wrong += wrong_sum(r, r.comm, r.ranks);  // no rank destroys before all have the sum
    MUST(destroy(child));
  }
  return number("wrong", wrong) + ", " + number("reused", reused) + ", " + counted("all_reduce");
}

/// Makes a thousand communicators in sequence; then the last rank dies.
std::string many_lives(const TestJob& job, int rank) {
  TestRank r(job, rank);
  std::uint64_t wrong = 0;
  for (int round = 0; round < 1030; ++round) {
    Comm child = nullptr;
    MUST(nccl().ncclCommSplit(r.comm, 0, rank, &child, nullptr));
    if (round % 100 == 0) wrong += wrong_sum(r, child, r.ranks);
    MUST(nccl().ncclCommDestroy(child));
  }
  Comm last = nullptr;
  MUST(nccl().ncclCommSplit(r.comm, 0, rank, &last, nullptr));
  MUST(nccl().ncclCommDestroy(r.comm));
  r.comm = last;
  wrong += wrong_sum(r, last, r.ranks);
  if (rank == r.ranks - 1) ::kill(::getpid(), SIGKILL);
  const auto start = Clock::now();
  const bool heard = await_error(last);
  const std::uint64_t noticed_ms = ms_since(start);
  MUST(nccl().ncclCommAbort(last));
  r.comm = nullptr;
  return number("wrong", wrong) + ", " + number("heard", heard) + ", " +
         number("noticed_ms", noticed_ms);
}

/// Rank 0 truncates its liveness page, if possible; the peers must not read beyond its end.
std::string short_page(const TestJob& job, int rank) {
  const TestRank r(job, rank);
  std::uint64_t wrong = wrong_sum(r, r.comm, r.ranks), pages = 0;
  for (int file = 0; rank == 0 && file < 1024; ++file) {
    char name[64] = {};
    const std::string link = "/proc/self/fd/" + std::to_string(file);
    if (::readlink(link.c_str(), name, sizeof name - 1) < 0) continue;
    if (std::string(name).rfind("/memfd:plait", 0) != 0) continue;
    ++pages;
    [[maybe_unused]] const int refused = ::ftruncate(file, 0);
  }
  wrong += wrong_sum(r, r.comm, r.ranks);
  Comm child = nullptr;
  MUST(nccl().ncclCommSplit(r.comm, 0, rank, &child, nullptr));
  sleep_ms(100);
  wrong += wrong_sum(r, child, r.ranks);
  MUST(nccl().ncclCommDestroy(child));
  return number("wrong", wrong) + ", " + number("pages", pages);
}

/// Makes a call that NCCL refuses, a group that NCCL refuses at the end, or a call of misaligned
/// memory that plait refuses. Returns the result.
Result refused_call(const TestRank& r, Comm comm, const std::string& how) {
  const auto& api = nccl();
  std::vector<std::int32_t> value(3, 1);
  std::int32_t* const at = value.data();
  if (how == "finalize_refused")
    return api.ncclBroadcast(at, at, 1, kInt32, r.ranks, comm, r.stream);
  if (how == "finalize_misaligned") {
    char* const between = reinterpret_cast<char*>(at) + 1;
    return api.ncclAllReduce(between, between, 1, kInt32, kSum, comm, r.stream);
  }
  ConfigHead config{sizeof(ConfigHead), kConfigMagic, 22809, 0};
  Comm other = nullptr;  // does not block, hence no group may hold calls of both
  MUST(api.ncclCommSplit(r.comm, 0, r.rank, &other, &config));
  for (Result state = ncclInProgress; state == ncclInProgress; sleep_ms(1))
    MUST(api.ncclCommGetAsyncError(r.comm, &state));
  for (Result state = ncclInProgress; state == ncclInProgress; sleep_ms(1))
    MUST(api.ncclCommGetAsyncError(other, &state));
  MUST(api.ncclGroupStart());
  MUST(api.ncclBroadcast(at, at, 1, kInt32, 0, comm, r.stream));
  MUST(api.ncclBroadcast(at, at, 1, kInt32, 0, other, r.stream));
  const Result ended = api.ncclGroupEnd();
  MUST(api.ncclCommDestroy(other));
  return ended;
}

/// Finalizes while a call waits for rank 1, which is late: all calls have ended when
/// ncclCommFinalize returns, or when a non-blocking communicator is ready again.
/// A call before may have been refused.
std::string finalize(const TestJob& job, int rank) {
  const TestRank r(job, rank);
  ConfigHead config{sizeof(ConfigHead), kConfigMagic, 22809, job.name != "finalize_later"};
  Comm child = nullptr;
  MUST(nccl().ncclCommSplit(r.comm, 0, rank, &child, &config));
  std::uint64_t wrong = wrong_sum(r, child, r.ranks);
  const bool refuses = job.name != "finalize" && job.name != "finalize_later";
  const Result refused = refuses ? refused_call(r, child, job.name) : ncclSuccess;
  std::vector<std::int32_t> value{1};
  if (rank == 1) sleep_ms(400);
  MUST(nccl().ncclAllReduce(value.data(), value.data(), 1, kInt32, kSum, child, r.stream));
  const auto start = Clock::now();
  Result state = nccl().ncclCommFinalize(child);
  const std::uint64_t took_ms = ms_since(start);
  for (int polls = 0; state == ncclInProgress && polls < 20'000; ++polls, sleep_ms(1))
    MUST(nccl().ncclCommGetAsyncError(child, &state));
  MUST(state);
  const bool has_sum = __atomic_load_n(value.data(), __ATOMIC_ACQUIRE) == r.ranks;
  r.wait();
  wrong += value[0] != r.ranks;
  MUST(nccl().ncclCommDestroy(child));
  return number("wrong", wrong) + ", " + number("has_sum", has_sum) + ", " +
         number("took_ms", took_ms) + ", " + number("refused", refused) + ", " +
         counted("all_reduce");
}

/// Aborts a communicator while an open group holds a call of the communicator, in the group's
/// thread or another: at once; the memory is freed when the group ends.
std::string abort_in_group(const TestJob& job, int rank) {
  const TestRank r(job, rank);
  Comm child = nullptr;
  MUST(nccl().ncclCommSplit(r.comm, 0, rank, &child, nullptr));
  const std::uint64_t wrong = wrong_sum(r, child, r.ranks);
  std::vector<std::int32_t> value{1};
  MUST(nccl().ncclGroupStart());
  MUST(nccl().ncclAllReduce(value.data(), value.data(), 1, kInt32, kSum, child, r.stream));
  const auto start = Clock::now();
  const auto abort = [&] { MUST(nccl().ncclCommAbort(child)); };
  if (job.name == "abort_alongside_group")
    std::thread(abort).join();
  else if (job.name == "abort_in_group")
    abort();
  else
    MUST(nccl().ncclCommDestroy(child));
  const std::uint64_t took_ms = ms_since(start);
  const Result ended = nccl().ncclGroupEnd();
  const bool later = await_freed(1);
  return number("wrong", wrong + (value[0] != 1)) + ", " + number("took_ms", took_ms) + ", " +
         number("ended", ended) + ", " + number("later", later);
}

/// Splits off communicators of a single rank. Counts the stagings of set-up exchanges that were
/// freed, since freeing waits for kernels.
std::string split_alone(const TestJob& job, int rank) {
  const TestRank r(job, rank);
  for (int round = 0; round < 3; ++round) {
    Comm alone = nullptr;
    MUST(nccl().ncclCommSplit(r.comm, rank, 0, &alone, nullptr));
    MUST(nccl().ncclCommDestroy(alone));
  }
  return number("freed", standin_calls("staging freed"));
}

/// NCCL refuses a split of rank 0 alone: there is no such colour, or no place for the handle. All
/// ranks split then.
std::string split_refused(const TestJob& job, int rank) {
  const TestRank r(job, rank);
  Comm child = nullptr;
  std::uint64_t refused = 0;
  if (rank == 0) {
    refused += nccl().ncclCommSplit(r.comm, -7, rank, &child, nullptr) == ncclInvalidArgument;
    refused += nccl().ncclCommSplit(r.comm, 0, rank, nullptr, nullptr) == ncclInvalidArgument;
  }
  MUST(nccl().ncclCommSplit(r.comm, 0, rank, &child, nullptr));
  const std::uint64_t wrong = wrong_sum(r, child, r.ranks);
  MUST(nccl().ncclCommDestroy(child));
  return number("wrong", wrong) + ", " + number("refused", refused) + ", " +
         number("freed", standin_calls("staging freed")) + ", " + counted("all_reduce");
}

/// Keeps ten communicators at once, and counts this process's descriptors of other processes.
std::string many_at_once(const TestJob& job, int rank) {
  const TestRank r(job, rank);
  std::vector<Comm> all(10);
  std::uint64_t wrong = 0, files = 0;
  for (Comm& one : all) {
    MUST(nccl().ncclCommSplit(r.comm, 0, rank, &one, nullptr));
    wrong += wrong_sum(r, one, r.ranks);
  }
  for (int file = 0; file < 1024; ++file) {
    char name[64] = {};
    const std::string link = "/proc/self/fd/" + std::to_string(file);
    if (::readlink(link.c_str(), name, sizeof name - 1) > 0)
      files += std::string(name).find("pidfd") != std::string::npos;
  }
  for (Comm one : all) MUST(nccl().ncclCommDestroy(one));
  return number("wrong", wrong) + ", " + number("files", files);
}

/// NCCL refuses rank 0 to revoke a communicator, by unknown flags or ("late") while the
/// communicator is being finalized. A call of the communicator waits for the last rank meanwhile.
std::string revoke_refused(const TestJob& job, int rank) {
  const TestRank r(job, rank);
  const bool later = job.name == "revoke_refused_late";
  ConfigHead config{sizeof(ConfigHead), kConfigMagic, 22809, later ? 0 : 1};
  Comm child = nullptr;
  const Result made = nccl().ncclCommSplit(r.comm, 0, rank, &child, &config);
  if (made != ncclInProgress) MUST(made);
  const auto settle = [&] {
    for (Result state = ncclInProgress; state == ncclInProgress; sleep_ms(1))
      MUST(nccl().ncclCommGetAsyncError(child, &state));
  };
  settle();
  std::uint64_t wrong = wrong_sum(r, child, r.ranks);
  if (rank == r.ranks - 1) sleep_ms(300);
  std::vector<std::int32_t> value{1};
  MUST(nccl().ncclAllReduce(value.data(), value.data(), 1, kInt32, kSum, child, r.stream));
  Result revoked = ncclSuccess;
  if (later) {
    const Result begun = nccl().ncclCommFinalize(child);
    if (begun != ncclInProgress) MUST(begun);
  }
  if (rank == 0) revoked = nccl().ncclCommRevoke(child, later ? 0 : 7);
  settle();
  r.wait();
  wrong += value[0] != r.ranks;
  if (!later) wrong += wrong_sum(r, child, r.ranks);
  MUST(nccl().ncclCommDestroy(child));
  return number("wrong", wrong) + ", " + number("revoked", revoked) + ", " + counted("all_reduce");
}

/// plait attaches inside NCCL's first connection, which never completes. Reports how long
/// ncclCommAbort of another thread takes, and the result of making the communicator.
std::string abort_attaching(const TestJob& job, int rank) {
  const TestRank r(job, rank);
  ::setenv("STANDIN_STUCK", "1", 1);
  Comm child = nullptr;
  Result made = ncclSuccess;
  std::thread maker([&] { made = nccl().ncclCommSplit(r.comm, 0, rank, &child, nullptr); });
  while (__atomic_load_n(&child, __ATOMIC_ACQUIRE) == nullptr) sleep_ms(1);
  sleep_ms(100);
  const auto start = Clock::now();
  MUST(nccl().ncclCommAbort(child));
  const std::uint64_t took_ms = ms_since(start);
  maker.join();
  return number("made", made) + ", " + number("took_ms", took_ms);
}

}  // namespace program
