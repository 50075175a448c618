// The message kernel on host threads: any number of messages between any ranks, by LL packets and
// by tiles, in calls that need not match, arrive complete and in the right place, however few
// blocks a GPU has room for. If a rank comes late or is aborted, no peer takes data that was not
// sent.
#include <doctest/doctest.h>

#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <vector>

#include "conformance/device_on_host.hpp"
// Needs device_on_host.hpp first, for the definitions of a device.
#include "base/text.hpp"
#include "gpu/p2p/message_bulk.cuh"
#include "gpu/p2p/messages.hpp"
#include "unit/scale.hpp"

using namespace plait;
using namespace plait::cuda;

namespace {

constexpr std::uint32_t kChannels = 2;
constexpr unsigned kTeamThreads = 2;
constexpr std::uint64_t kArea = 1 << 20;  // size of a rank's buffer

constexpr unsigned long long kUntouched = 0xa5a5a5a5a5a5a5a5;

std::span<std::uint8_t> bytes_of(std::vector<ulonglong2>& memory) {
  return {reinterpret_cast<std::uint8_t*>(memory.data()), memory.size() * sizeof(ulonglong2)};
}

struct MessageRank {
  explicit MessageRank(int ranks)
      : packets(message_packet_bytes(ranks, kChannels) / 16),
        slots(message_slot_bytes(ranks, kChannels) / 16),
        host_slots(ranks == 2 ? kMessageHostBytes / 16 : 0),
        input_memory(kArea / 16),
        output_memory(kArea / 16, {kUntouched, kUntouched}) {}
  DeviceState state{};
  StopPage stop_page{};
  MessageFlags flags{};
  std::atomic<bool> stream_failed{false};
  std::vector<bool> failed_after;  // by call
  int late = -1;                   // call that this rank comes to after the deadline
  std::vector<ulonglong2> packets, slots, host_slots, input_memory, output_memory;  // aligned
  std::span<std::uint8_t> input = bytes_of(input_memory), output = bytes_of(output_memory);
  std::vector<std::uint8_t> expected{output.begin(), output.end()};
  std::vector<std::vector<MessageEnd>> calls;
  std::uint64_t read = 0, written = 0;  // bytes of input and output used up to now
};
using MessageRanks = std::vector<std::unique_ptr<MessageRank>>;

MessageArgs with_context(MessageArgs args, MessageRanks& all, std::size_t rank, double wait_s) {
  args.state = &all[rank]->state;
  args.stop_page = &all[rank]->stop_page;
  args.wait_ns = static_cast<std::uint64_t>(wait_s * 1e9);
  args.rank = static_cast<int>(rank);
  args.ranks = static_cast<int>(all.size());
  args.host_slots = reinterpret_cast<char*>(all[0]->host_slots.data());
  for (std::size_t r = 0; r < all.size(); ++r) {
    args.flags[r] = &all[r]->flags;
    args.packets[r] = reinterpret_cast<char*>(all[r]->packets.data());
    args.slots[r] = reinterpret_cast<char*>(all[r]->slots.data());
  }
  return args;
}

/// How ranks run launches.
struct How {
  MessageTuning tuning;
  double wait_s = 60;
  bool in_bulk = false;     // tiles by the threads that move tiles in bulk, and no more
  unsigned resident = ~0u;  // blocks of a GPU at a time
  bool has_host_channels = false;
  bool is_mixed = false;  // in bulk, but on the last rank by all threads
  MessageLaunchConfig config() const {
    return {kChannels, tuning, has_host_channels ? std::uint32_t{kMessageHostChannels} : 0};
  }
};

/// Both teams of a block, as a thread of the block sees them.
void run_team(const MessageArgs& args, bool in_bulk) {
  if (args.notes != 0) return note_works(args);
  struct SharedMessages {
    MessageTeamShared sides[2];
  };
  PLAIT_SHARED(SharedMessages, shared);
  const unsigned threads = blockDim.x / 2, side = threadIdx.x / threads;
  const unsigned lane = threadIdx.x % threads;
  // In bulk mode a single thread of each warp works, and no more threads exist.
  const Team team =
      in_bulk ? Team{side, kMessageTeamThreads, lane * 32} : Team{side, threads, lane};
  MessageTeam end(args, shared.sides[side], team, blockIdx.x, side);
  end.run([in_bulk](MessageTeam& self, const MessageWork& work, unsigned count) {
    if (in_bulk) MessageBulk{self, work, count, nullptr}.run();
    return in_bulk;
  });
}

void run_rank(MessageRanks& all, std::size_t rank, const How& how) {
  const int me = static_cast<int>(rank), count = static_cast<int>(all.size());
  MessageRank& mine = *all[rank];
  const bool in_bulk = how.in_bulk && !(how.is_mixed && rank + 1 == all.size());
  const unsigned threads = in_bulk ? kMessageMovers + 2 : kTeamThreads;
  for (std::size_t call = 0; call < mine.calls.size(); ++call) {
    if (mine.late == static_cast<int>(call))
      std::this_thread::sleep_for(std::chrono::duration<double>(3 * how.wait_s));
    for (const MessageArgs& args : plan_messages(mine.calls[call], me, count, how.config())) {
      const MessageArgs whole = with_context(args, all, rank, how.wait_s);
      plait_test::launch({message_blocks(whole),
                          2 * threads,
                          {threads, threads},
                          &mine.stream_failed,
                          how.resident},
                         [&] { run_team(whole, in_bulk); });
    }
    mine.failed_after.push_back(mine.stream_failed);
  }
}

void run_all(MessageRanks& all, const How& how) {
  std::vector<std::thread> ranks;
  for (std::size_t rank = 0; rank < all.size(); ++rank)
    ranks.emplace_back([&, rank] { run_rank(all, rank, how); });
  for (std::thread& rank : ranks) rank.join();
}

/// Returns true if a rank has received the sent data in a call.
bool is_right(const MessageRank& rank, std::size_t call) {
  return std::all_of(rank.calls[call].begin(), rank.calls[call].end(), [&](const MessageEnd& one) {
    const auto* const at = static_cast<const std::uint8_t*>(one.memory);
    if (one.sends) return true;
    return std::equal(at, at + one.bytes, rank.expected.data() + (at - rank.output.data()));
  });
}

std::uint64_t random_size(std::mt19937& random) {
  return random() % 3 == 0 ? random() % 50 : random() % 30000;
}

/// Adds a message of random bytes from a rank's buffer to another rank's, behind earlier messages;
/// each end goes into its rank's last call. Buffers begin at multiples of `grain`. Returns false if
/// a buffer is full.
bool add_message(MessageRanks& all, std::mt19937& random, std::size_t from, std::size_t to,
                 std::uint64_t bytes, std::uint64_t grain = 1) {
  MessageRank &sender = *all[from], &receiver = *all[to];
  const auto begin = [&](std::uint64_t end) {
    return (end + random() % 20 + grain - 1) / grain * grain;
  };
  const std::uint64_t read = begin(sender.read), written = begin(receiver.written);
  if (read + bytes > kArea || written + bytes > kArea) return false;
  std::uint8_t* const src = sender.input.data() + read;
  for (std::uint64_t i = 0; i < bytes; ++i) src[i] = static_cast<std::uint8_t>(random());
  std::copy_n(src, bytes, receiver.expected.data() + written);
  sender.calls.back().push_back({true, static_cast<int>(to), src, bytes});
  receiver.calls.back().push_back(
      {false, static_cast<int>(from), receiver.output.data() + written, bytes});
  sender.read = read + bytes, receiver.written = written + bytes;
  return true;
}

/// Adds some messages from each rank to each rank (including the sender), all in a single call per
/// rank. kForBulk: aligned, and between different ranks, as bulk copies need.
enum class MessageSizes { kAny, kForBulk };
void add_group(MessageRanks& all, std::mt19937& random, MessageSizes kind = MessageSizes::kAny) {
  for (auto& rank : all) rank->calls.emplace_back();
  for (std::size_t from = 0; from < all.size(); ++from)
    for (std::size_t to = 0; to < all.size(); ++to)
      for (auto n = random() % 3; n > 0; --n) {
        const std::uint64_t bytes = random_size(random);
        if (kind == MessageSizes::kForBulk && from == to) continue;
        add_message(all, random, from, to, bytes, kind == MessageSizes::kForBulk ? 16 : 1);
      }
}

MessageRanks ranks_of(int count) {
  MessageRanks all;
  for (int rank = 0; rank < count; ++rank) all.push_back(std::make_unique<MessageRank>(count));
  for (auto& one : all)  // counts wrap around
    for (auto* words : {&one->flags.packets_taken, &one->flags.arrived, &one->flags.taken,
                        &one->flags.packets[0], &one->flags.packets[1], &one->flags.tiles[0],
                        &one->flags.tiles[1], &one->flags.shares[0], &one->flags.shares[1]})
      for (auto& row : *words)
        for (std::uint32_t& word : row) word = 0u - 8;
  for (auto& one : all)
    for (auto& row : one->flags.claims)
      for (unsigned long long& word : row) word = MessageClaims{0u - 8, 0, 0}.word();
  return all;
}

MessageRanks groups_of(int ranks, int seed, const How& how, int groups = 3) {
  std::mt19937 random(static_cast<unsigned>(seed * 16 + ranks));
  MessageRanks all = ranks_of(ranks);
  for (int group = 0; group < groups; ++group)
    add_group(all, random, how.in_bulk ? MessageSizes::kForBulk : MessageSizes::kAny);
  return all;
}

void check_whole(const MessageRanks& all, const std::string& what) {
  CAPTURE(what);
  for (const auto& rank : all) {
    CHECK(rank->state.failed == kNoFault);
    CHECK(std::equal(rank->output.begin(), rank->output.end(), rank->expected.begin()));
  }
}

}  // namespace

TEST_CASE("groups of messages on host threads arrive complete") {
  for (const int ranks : {2, 3, 5})
    for (int seed = 1; seed <= plait_test::rounds(6); ++seed)
      for (const How& how : {How{}, How{{0, 1024}}, How{{0, 1024}, 60, true}}) {
        MessageRanks all = groups_of(ranks, seed, how);
        run_all(all, how);
        check_whole(all, text("{} ranks, seed {}, LL packets up to {}{}", ranks, seed,
                              how.tuning.packets_upto, how.in_bulk ? ", in bulk" : ""));
      }
}

/// Messages are longer than the slots, hence both ends wait for each other.
TEST_CASE("messages of any number of ranks: one resident block a GPU is enough") {
  for (const int ranks : {2, 3, 4, 5, 8})
    for (int seed = 1; seed <= plait_test::rounds(ranks == 8 ? 2 : 4); ++seed)
      for (const bool in_bulk : {false, true}) {
        const How how{{0, 32}, 20, in_bulk, 1};
        MessageRanks all = groups_of(ranks, seed, how);
        run_all(all, how);
        check_whole(all, text("{} ranks, seed {}{}", ranks, seed, in_bulk ? ", in bulk" : ""));
      }
}

/// Ranks 0 and 2 exchange with 1 and 3 in a single group; 1 and 3 exchange with 0 and 2 in turn, in
/// opposite orders. A fixed order of ranks within the group would deadlock in one of these cycles.
TEST_CASE("messages of unlike groups that form a cycle: one resident block a GPU is enough") {
  for (const bool one_first : {false, true})
    for (const int each : {1, 40})  // 1, and more than a launch can hold
      for (const bool in_bulk : {false, true}) {
        const How how{{0, 32}, 10, in_bulk, 1};
        std::mt19937 random(1);
        MessageRanks all = ranks_of(4);
        const auto talk = [&](std::size_t a, std::size_t b) {
          const std::uint64_t bytes = each == 1 ? 30000 : 5000;
          for (int i = 0; i < each; ++i) {
            CHECK(add_message(all, random, a, b, bytes, 16));
            CHECK(add_message(all, random, b, a, bytes, 16));
          }
        };
        for (auto& rank : all) rank->calls.emplace_back();
        talk(0, one_first ? 1 : 3);
        talk(2, one_first ? 3 : 1);
        all[1]->calls.emplace_back();
        all[3]->calls.emplace_back();
        talk(0, one_first ? 3 : 1);
        talk(2, one_first ? 1 : 3);
        run_all(all, how);
        check_whole(all,
                    text("{}{} messages each{}", one_first ? "0 and 1 first, " : "0 and 3 first, ",
                         each, in_bulk ? ", in bulk" : ""));
      }
}

/// Messages in some order; each rank cuts the messages into groups in a different way.
TEST_CASE("messages of groups that each rank cuts for itself: one resident block a GPU is enough") {
  for (const std::size_t ranks : {2u, 3u, 4u, 6u})
    for (int seed = 1; seed <= plait_test::rounds(6); ++seed)
      for (const How& how : {How{{4096, 32}, 20, false, 1}, How{{0, 32}, 20, true, 1}}) {
        std::mt19937 random(static_cast<unsigned>(seed) * 16 + static_cast<unsigned>(ranks));
        MessageRanks all = ranks_of(static_cast<int>(ranks));
        for (auto& rank : all) rank->calls.emplace_back();
        for (int i = 0; i < 60; ++i) {
          const std::size_t from = random() % ranks,
                            to = (from + 1 + random() % (ranks - 1)) % ranks;
          for (const std::size_t rank : {from, to})
            if (random() % 4 == 0) all[rank]->calls.emplace_back();
          add_message(all, random, from, to, random_size(random), how.in_bulk ? 16 : 1);
        }
        run_all(all, how);
        check_whole(all, text("{} ranks, seed {}{}", ranks, seed, how.in_bulk ? ", in bulk" : ""));
      }
}

namespace {

/// Counts correct calls and failed calls; there may be no others.
struct Ended {
  int right = 0, failed = 0;
};
/// A rank comes late to a call, or is aborted during the call.
void run_disturbed(int ranks, int seed, const How& how, bool is_aborted, Ended& ended) {
  MessageRanks all = groups_of(ranks, seed, how, 7);  // more than the slots hold
  const auto one = static_cast<std::size_t>(seed % ranks);
  all[is_aborted ? (one + 1) % all.size() : one]->late = seed % 3;
  std::thread program([&] {
    if (!is_aborted) return;
    std::this_thread::sleep_for(std::chrono::microseconds(seed * 1700));
    std::atomic_ref(all[one]->stop_page.stop).store(kFaultAborted);
  });
  run_all(all, how);
  program.join();
  for (std::size_t rank = 0; rank < all.size(); ++rank)
    for (std::size_t call = 0; call < all[rank]->calls.size(); ++call) {
      if (is_aborted && rank == one) continue;
      CAPTURE(text("{} ranks, seed {}, LL packets up to {}, rank {}, call {}", ranks, seed,
                   how.tuning.packets_upto, rank, call));
      const bool has_failed = all[rank]->failed_after[call];
      CHECK((has_failed || is_right(*all[rank], call)));
      ++(has_failed ? ended.failed : ended.right);
    }
}

}  // namespace

TEST_CASE("messages: a late or aborted rank leaves no rank with data that was not sent") {
  Ended ended;
  for (const bool is_aborted : {false, true})
    for (const int ranks : {2, 3, 4})
      for (int seed = 1; seed <= plait_test::rounds(6); ++seed)
        for (How how : {How{{}, 0.05}, How{{0, 64}, 0.05}, How{{0, 64}, 0.05, true}}) {
          if (seed % 2 == 0) how.resident = 1;
          run_disturbed(ranks, seed, how, is_aborted, ended);
        }
  CHECK(plait_test::seen(ended.right));
  CHECK(plait_test::seen(ended.failed));
}

TEST_CASE("waits for messages that no rank sends are given up, and name the peer") {
  for (const std::uint64_t bytes : {100u, 200000u})
    for (const unsigned resident : {1u, ~0u}) {  // with 1, two ends take turns
      MessageRanks all = ranks_of(2);
      all[0]->calls = {{{false, 1, all[0]->output.data(), bytes}}};
      run_all(all, {{0, 1024}, 0.05, false, resident});
      CHECK(all[0]->state.failed == kFaultDeadline);
      CHECK(all[0]->stop_page.fault.code == kFaultDeadline);
      CHECK(all[0]->stop_page.fault.peer == 1);
    }
}

namespace {

/// Returns the tiles that a rank has sent to the peer, by host channels and by other channels. The
/// end of a shared message takes a slot and counts.
struct SentMessage {
  std::uint32_t by_host = 0, by_others = 0;
};
SentMessage sent_by(const MessageRank& rank, int peer) {
  SentMessage sent;
  for (int row = 0; row < kMessageRows; ++row)
    (row < kMessageChannels ? sent.by_others : sent.by_host) +=
        rank.flags.tiles[kSend][row][peer] + 8;
  return sent;
}

}  // namespace

/// The number of tiles on each path is random here.
TEST_CASE("shared messages: host channels take a part, and every tile goes once") {
  std::uint32_t by_host = 0, by_others = 0;
  const std::uint32_t rows = kMessageHostChannels + kChannels;
  for (int seed = 1; seed <= plait_test::rounds(12); ++seed)
    for (const bool in_bulk : {false, true})
      for (const std::uint64_t shared_from : {1u, 2000u}) {
        const How how{{0, 64, shared_from}, 60, in_bulk, ~0u, true, seed % 3 == 0};
        MessageRanks all = groups_of(2, seed, how);
        run_all(all, how);
        check_whole(all, text("seed {}{}", seed, in_bulk ? ", in bulk" : ""));
        for (int rank = 0; rank < 2; ++rank) {
          const MessageRank& mine = *all[static_cast<std::size_t>(rank)];
          std::uint32_t tiles = 0, shares = 0;
          for (const auto& call : mine.calls)
            for (const MessageEnd& one : call) {
              if (!one.sends || one.peer == rank || one.bytes == 0) continue;
              const MessageCut cut = cut_message(one.bytes, how.config());
              tiles += static_cast<std::uint32_t>(((one.bytes + 15) / 16 + cut.tile_units - 1) /
                                                  cut.tile_units);
              shares += cut.shared ? 1 : 0;
            }
          const SentMessage sent = sent_by(mine, 1 - rank);
          CHECK(sent.by_host + sent.by_others == tiles + shares * rows);
          by_host += sent.by_host - shares * kMessageHostChannels;
          by_others += sent.by_others - shares * kChannels;
        }
      }
  CHECK(plait_test::seen(static_cast<int>(by_host)));
  CHECK(plait_test::seen(static_cast<int>(by_others)));
}

TEST_CASE(
    "shared messages of groups that each rank cuts for itself: any number of blocks will do") {
  for (int seed = 1; seed <= plait_test::rounds(8); ++seed)
    for (const bool in_bulk : {false, true})
      for (const unsigned resident : {1u, 3u}) {
        const How how{{0, 32, 3000}, 20, in_bulk, resident, true};
        std::mt19937 random(static_cast<unsigned>(seed));
        MessageRanks all = ranks_of(2);
        for (auto& rank : all) rank->calls.emplace_back();
        for (int i = 0; i < 40; ++i) {
          const std::size_t from = random() % 2;
          for (auto& rank : all)
            if (random() % 4 == 0) rank->calls.emplace_back();
          add_message(all, random, from, 1 - from, random_size(random), in_bulk ? 16 : 1);
        }
        run_all(all, how);
        check_whole(all,
                    text("seed {}{}{} blocks", seed, in_bulk ? ", in bulk, " : ", ", resident));
      }
}

TEST_CASE("shared messages: a late or aborted rank leaves no rank with data that was not sent") {
  Ended ended;
  for (const bool is_aborted : {false, true})
    for (int seed = 1; seed <= plait_test::rounds(8); ++seed)
      for (const bool in_bulk : {false, true})
        run_disturbed(2, seed, How{{0, 64, 1}, 0.05, in_bulk, seed % 2 == 0 ? 1u : ~0u, true},
                      is_aborted, ended);
  CHECK(plait_test::seen(ended.right));
  CHECK(plait_test::seen(ended.failed));
}
