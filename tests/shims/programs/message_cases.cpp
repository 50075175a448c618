// Cases of sends and receives: groups over several streams, and matching ends in different groups.
#include <chrono>
#include <map>
#include <random>
#include <thread>

#include "tests/shims/programs/rank.hpp"

namespace program {
namespace {

/// Returns the count of message `which` from a rank to another: two messages a pair, a single
/// message to the same rank.
std::size_t sent_count(int from, int to, int which) {
  return static_cast<std::size_t>((from * 5 + to * 3 + which) % 4) * 3000 + (from == to ? 7u : 0u);
}

void pause_of(void*) { std::this_thread::sleep_for(std::chrono::milliseconds(5)); }

/// All-to-all of different sizes, including the rank itself; sends on a stream, receives on a
/// second, and a third used before and after.
std::uint64_t all_to_all_once(const TestRank& r, Stream out, Stream in) {
  struct PeerTraffic {
    int peer;
    std::vector<std::int32_t> mine, got, late;
  };
  std::vector<PeerTraffic> parts;
  for (int peer = 0; peer < r.ranks; ++peer)
    for (int which = 0; which < (peer == r.rank ? 1 : 2); ++which) {
      const std::size_t gets = sent_count(peer, r.rank, which);
      parts.push_back({peer, filled<std::int32_t>(r.rank + which, sent_count(r.rank, peer, which)),
                       std::vector<std::int32_t>(gets, -1), std::vector<std::int32_t>(gets)});
    }
  const auto wipe = [](void* part) {  // a pause first, so that a missing wait shows
    pause_of(nullptr);
    for (std::int32_t& one : static_cast<PeerTraffic*>(part)->got) one = -2;
  };
  const auto read = [](void* part) {
    static_cast<PeerTraffic*>(part)->late = static_cast<PeerTraffic*>(part)->got;
  };
  for (PeerTraffic& part : parts) standin_stream_push(in, wipe, &part);
  MUST(nccl().ncclGroupStart());
  for (PeerTraffic& part : parts)
    MUST(nccl().ncclSend(part.mine.data(), part.mine.size(), kInt32, part.peer, r.comm, out));
  for (PeerTraffic& part : parts)
    MUST(nccl().ncclRecv(part.got.data(), part.got.size(), kInt32, part.peer, r.comm, in));
  MUST(nccl().ncclGroupEnd());
  for (PeerTraffic& part : parts) standin_stream_push(out, read, &part);
  standin_stream_synchronize(out);
  standin_stream_synchronize(in);
  std::uint64_t wrong = 0;
  std::map<int, int> which;
  for (const PeerTraffic& part : parts)
    wrong += part.late != filled<std::int32_t>(part.peer + which[part.peer]++, part.got.size());
  return wrong;
}

}  // namespace

/// Sends and receives: in groups over several streams, in groups matched by single calls, and
/// between collectives.
std::string messages(const TestJob& job, int rank) {
  const TestRank r(job, rank);
  const auto& api = nccl();
  Stream out = standin_stream_create(), in = standin_stream_create();
  std::uint64_t wrong = all_to_all_once(r, out, in) + all_to_all_once(r, in, out);
  const std::size_t count = 9000;
  const std::vector<float> mine = filled<float>(rank, count);
  std::vector<float> got(count), sum(count);
  const int peer = rank ^ 1;
  if (peer < r.ranks) {
    const bool together = rank % 2 == 0;
    if (together) MUST(api.ncclGroupStart());
    if (together) MUST(api.ncclSend(mine.data(), count, kFloat, peer, r.comm, r.stream));
    MUST(api.ncclRecv(got.data(), count, kFloat, peer, r.comm, r.stream));
    if (!together) MUST(api.ncclSend(mine.data(), count, kFloat, peer, r.comm, r.stream));
    if (together) MUST(api.ncclGroupEnd());
    r.wait();
    wrong += got != filled<float>(peer, count);
  }
  const std::vector<std::int32_t> around = filled<std::int32_t>(rank, 100);
  std::vector<std::int32_t> came(100);
  pass_around(r, around, came, r.stream);
  MUST(api.ncclAllReduce(mine.data(), sum.data(), count, kFloat, kSum, r.comm, in));
  standin_stream_destroy(out);
  standin_stream_destroy(in);
  r.wait();
  wrong += came != filled<std::int32_t>((rank + r.ranks - 1) % r.ranks, 100);
  for (std::size_t i = 0; i < count; ++i) wrong += sum[i] != expected<float>(kSum, r.ranks, i);
  return number("wrong", wrong) + ", " + counted("send") + ", " +
         number("nccl", standin_calls("ncclSend") + standin_calls("ncclRecv"));
}

/// Groups of any number of messages of random bytes and sizes, between any two ranks, and single
/// messages.
std::string random_messages(const TestJob& job, int rank) {
  constexpr int kGroups = 30;
  struct Traffic {
    int from, to;
    std::vector<std::int32_t> data, got;
  };
  const TestRank r(job, rank);
  std::mt19937 random(static_cast<unsigned>(r.ranks));  // alike on all ranks
  std::uint64_t wrong = 0;
  for (int group = 0; group < kGroups; ++group) {
    std::vector<Traffic> all;
    const bool is_single = group % 5 == 4;
    for (int from = 0; from < r.ranks; ++from)
      for (int to = 0; to < r.ranks; ++to)
        for (auto left = is_single ? 0 : random() % 3; left > 0; --left)
          all.push_back({from, to, {}, {}});
    if (is_single) all.push_back({static_cast<int>(random() % 2), 0, {}, {}});
    if (is_single) all.back().to = 1 - all.back().from;
    for (Traffic& one : all) {
      one.data.resize(random() % 3 == 0 ? random() % 20 : random() % 40'000);
      for (std::int32_t& word : one.data) word = static_cast<std::int32_t>(random());
      one.got.assign(one.data.size(), -1);
    }
    if (!is_single) MUST(nccl().ncclGroupStart());
    for (Traffic& one : all) {
      if (one.from == rank)
        MUST(nccl().ncclSend(one.data.data(), one.data.size(), kInt32, one.to, r.comm, r.stream));
      if (one.to == rank)
        MUST(nccl().ncclRecv(one.got.data(), one.got.size(), kInt32, one.from, r.comm, r.stream));
    }
    if (!is_single) MUST(nccl().ncclGroupEnd());
    r.wait();
    for (const Traffic& one : all) wrong += one.to == rank && one.got != one.data;
  }
  return number("wrong", wrong) + ", " + counted("send") + ", " +
         number("nccl", standin_calls("ncclSend") + standin_calls("ncclRecv"));
}

}  // namespace program
