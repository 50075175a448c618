// How messages are cut and brought into rounds, and the kernel's own teams on a host's threads: any
// number of messages between any ranks, by lines and by tiles, in calls that need not match, arrive
// whole and nowhere else, however few blocks a GPU has room for. Where a rank comes late or is
// aborted, no other takes what was not sent.
#include <doctest/doctest.h>

#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <vector>

#include "conformance/device_on_host.hpp"
// After it, as it says what a device has.
#include "base/text.hpp"
#include "exec/cuda/messages/message_bulk.cuh"
#include "exec/cuda/messages/messages.hpp"
#include "plait/error.hpp"
#include "unit/scale.hpp"

using namespace plait;
using namespace plait::cuda;

namespace {

constexpr std::uint32_t kChannels = 2;
constexpr unsigned kTeamThreads = 2;
constexpr std::uint64_t kArea = 1 << 20;  // of a rank's buffer

constexpr unsigned long long kUntouched = 0xa5a5a5a5a5a5a5a5;

std::span<std::uint8_t> bytes_of(std::vector<ulonglong2>& memory) {
  return {reinterpret_cast<std::uint8_t*>(memory.data()), memory.size() * sizeof(ulonglong2)};
}

struct PlayedRank {
  explicit PlayedRank(int ranks)
      : lines(message_line_bytes(ranks, kChannels) / 16),
        slots(message_slot_bytes(ranks, kChannels) / 16),
        input_memory(kArea / 16),
        output_memory(kArea / 16, {kUntouched, kUntouched}) {}
  DeviceState state{};
  Lifeline lifeline{};
  MessageFlags flags{};
  std::atomic<bool> stream_failed{false};
  std::vector<bool> failed_after;  // by call
  int late = -1;                   // the call that this rank comes to after the deadline
  std::vector<ulonglong2> lines, slots, input_memory, output_memory;  // aligned
  std::span<std::uint8_t> input = bytes_of(input_memory), output = bytes_of(output_memory);
  std::vector<std::uint8_t> expected{output.begin(), output.end()};
  std::vector<std::vector<Message>> calls;
};
using PlayedRanks = std::vector<std::unique_ptr<PlayedRank>>;

MessageArgs told(MessageArgs args, PlayedRanks& all, std::size_t rank, double wait_s) {
  args.state = &all[rank]->state;
  args.lifeline = &all[rank]->lifeline;
  args.wait_ns = static_cast<std::uint64_t>(wait_s * 1e9);
  args.rank = static_cast<int>(rank);
  args.ranks = static_cast<int>(all.size());
  for (std::size_t r = 0; r < all.size(); ++r) {
    args.flags[r] = &all[r]->flags;
    args.lines[r] = reinterpret_cast<char*>(all[r]->lines.data());
    args.slots[r] = reinterpret_cast<char*>(all[r]->slots.data());
  }
  return args;
}

/// How ranks run their launches.
struct How {
  MessageTuning tuning;
  double wait_s = 60;
  bool in_bulk = false;     // tiles by the threads that move them in bulk, and by no others
  unsigned resident = ~0u;  // blocks of a GPU at a time
};

/// Both teams of one block, of which this is a thread.
void run_team(const MessageArgs& args, bool in_bulk) {
  struct Shared {
    MessageTeamShared sides[2];
  };
  PLAIT_SHARED(Shared, shared);
  const unsigned threads = blockDim.x / 2, side = threadIdx.x / threads;
  const unsigned lane = threadIdx.x % threads;
  // In bulk one thread of each warp works: only these are there.
  const Team team =
      in_bulk ? Team{side, kMessageTeamThreads, lane * 32} : Team{side, threads, lane};
  MessageTeam end(args, shared.sides[side], team, blockIdx.x, side);
  end.run([in_bulk](MessageTeam& self, const MessageWork& work, unsigned count) {
    if (in_bulk) MessageBulk{self, work, count, nullptr}.run();
    return in_bulk;
  });
}

void run_rank(PlayedRanks& all, std::size_t rank, const How& how) {
  const int me = static_cast<int>(rank), count = static_cast<int>(all.size());
  PlayedRank& mine = *all[rank];
  const unsigned threads = how.in_bulk ? kMessageMovers + 2 : kTeamThreads;
  for (std::size_t call = 0; call < mine.calls.size(); ++call) {
    if (mine.late == static_cast<int>(call))
      std::this_thread::sleep_for(std::chrono::duration<double>(3 * how.wait_s));
    for (const MessageArgs& args :
         plan_messages(mine.calls[call], me, count, {kChannels, how.tuning})) {
      const MessageArgs whole = told(args, all, rank, how.wait_s);
      plait_test::launch({whole.channels * whole.peers,
                          2 * threads,
                          {threads, threads},
                          &mine.stream_failed,
                          how.resident},
                         [&] { run_team(whole, how.in_bulk); });
    }
    mine.failed_after.push_back(mine.stream_failed);
  }
}

void run_all(PlayedRanks& all, const How& how) {
  std::vector<std::thread> ranks;
  for (std::size_t rank = 0; rank < all.size(); ++rank)
    ranks.emplace_back([&, rank] { run_rank(all, rank, how); });
  for (std::thread& rank : ranks) rank.join();
}

/// Whether what a rank has received in a call is what was sent.
bool is_right(const PlayedRank& rank, std::size_t call) {
  return std::all_of(rank.calls[call].begin(), rank.calls[call].end(), [&](const Message& one) {
    const auto* const at = static_cast<const std::uint8_t*>(one.memory);
    if (one.sends) return true;
    return std::equal(at, at + one.bytes, rank.expected.data() + (at - rank.output.data()));
  });
}

std::uint64_t random_size(std::mt19937& random) {
  return random() % 3 == 0 ? random() % 50 : random() % 30000;
}

/// Some messages of each rank to each, itself too, all in one call a rank. kForBulk: as bulk copies
/// take them, aligned, and to others.
enum class Kind { kAny, kForBulk };
void add_group(PlayedRanks& all, std::mt19937& random, std::vector<std::uint64_t>& read,
               std::vector<std::uint64_t>& written, Kind kind = Kind::kAny) {
  for (auto& rank : all) rank->calls.emplace_back();
  for (std::size_t from = 0; from < all.size(); ++from)
    for (std::size_t to = 0; to < all.size(); ++to)
      for (auto n = random() % 3; n > 0; --n) {
        const std::uint64_t bytes = random_size(random);
        if (kind == Kind::kForBulk && from == to) continue;
        const std::uint64_t grain = kind == Kind::kForBulk ? 16 : 1;
        read[from] = (read[from] + random() % 20 + grain - 1) / grain * grain;
        written[to] = (written[to] + random() % 20 + grain - 1) / grain * grain;
        if (read[from] + bytes > kArea || written[to] + bytes > kArea) continue;
        std::uint8_t* const src = all[from]->input.data() + read[from];
        for (std::uint64_t i = 0; i < bytes; ++i) src[i] = static_cast<std::uint8_t>(random());
        std::copy_n(src, bytes, all[to]->expected.data() + written[to]);
        all[from]->calls.back().push_back({true, static_cast<int>(to), src, bytes});
        all[to]->calls.back().push_back(
            {false, static_cast<int>(from), all[to]->output.data() + written[to], bytes});
        read[from] += bytes, written[to] += bytes;
      }
}

PlayedRanks ranks_of(int count) {
  PlayedRanks all;
  for (int rank = 0; rank < count; ++rank) all.push_back(std::make_unique<PlayedRank>(count));
  for (auto& one : all)  // counts go past their end
    for (auto* words :
         {&one->flags.lines_taken, &one->flags.arrived, &one->flags.taken, &one->flags.lines[0],
          &one->flags.lines[1], &one->flags.tiles[0], &one->flags.tiles[1]})
      for (auto& row : *words)
        for (std::uint32_t& word : row) word = 0u - 8;
  return all;
}

PlayedRanks groups_of(int ranks, int seed, const How& how, int groups = 3) {
  std::mt19937 random(static_cast<unsigned>(seed * 16 + ranks));
  PlayedRanks all = ranks_of(ranks);
  std::vector<std::uint64_t> read(all.size()), written(all.size());
  for (int group = 0; group < groups; ++group)
    add_group(all, random, read, written, how.in_bulk ? Kind::kForBulk : Kind::kAny);
  return all;
}

void check_whole(const PlayedRanks& all, const std::string& what) {
  CAPTURE(what);
  for (const auto& rank : all) {
    CHECK(rank->state.failed == kNoFault);
    CHECK(std::equal(rank->output.begin(), rank->output.end(), rank->expected.begin()));
  }
}

}  // namespace

TEST_CASE("groups of messages on a host's threads arrive whole" *
          doctest::skip(plait_test::kLooksForRaces)) {
  for (const int ranks : {2, 3, 5})
    for (int seed = 1; seed <= plait_test::rounds(6); ++seed)
      for (const How& how : {How{}, How{{0, 1024}}, How{{0, 1024}, 60, true}}) {
        PlayedRanks all = groups_of(ranks, seed, how);
        run_all(all, how);
        check_whole(all, text(ranks, " ranks, seed ", seed, ", lines up to ", how.tuning.lines_upto,
                              how.in_bulk ? ", in bulk" : ""));
      }
}

/// Messages are longer than their slots, so each end waits for the other.
TEST_CASE("messages of any number of ranks: one resident block a GPU is enough" *
          doctest::skip(plait_test::kLooksForRaces)) {
  for (const int ranks : {2, 3, 4, 5, 8})
    for (int seed = 1; seed <= plait_test::rounds(ranks == 8 ? 2 : 4); ++seed)
      for (const bool in_bulk : {false, true}) {
        const How how{{0, 32}, 20, in_bulk, 1};
        PlayedRanks all = groups_of(ranks, seed, how);
        run_all(all, how);
        check_whole(all, text(ranks, " ranks, seed ", seed, in_bulk ? ", in bulk" : ""));
      }
}

TEST_CASE("messages: a rank that is late or aborted leaves nobody with what was not sent" *
          doctest::skip(plait_test::kLooksForRaces)) {
  int right = 0, failed = 0;
  for (const bool is_aborted : {false, true})
    for (const int ranks : {2, 3, 4})
      for (int seed = 1; seed <= plait_test::rounds(6); ++seed)
        for (const How& how : {How{{}, 0.05}, How{{0, 64}, 0.05}, How{{0, 64}, 0.05, true}}) {
          PlayedRanks all = groups_of(ranks, seed, how, 7);  // more than there are places for
          const auto one = static_cast<std::size_t>(seed % ranks);
          all[is_aborted ? (one + 1) % all.size() : one]->late = seed % 3;
          std::thread program([&] {
            if (!is_aborted) return;
            std::this_thread::sleep_for(std::chrono::microseconds(seed * 1700));
            std::atomic_ref(all[one]->lifeline.stop).store(kFaultAborted);
          });
          run_all(all, how);
          program.join();
          for (std::size_t rank = 0; rank < all.size(); ++rank)
            for (std::size_t call = 0; call < all[rank]->calls.size(); ++call) {
              if (is_aborted && rank == one) continue;
              CAPTURE(text(ranks, " ranks, seed ", seed, ", lines up to ", how.tuning.lines_upto,
                           ", rank ", rank, ", call ", call));
              const bool has_failed = all[rank]->failed_after[call];
              CHECK((has_failed || is_right(*all[rank], call)));
              ++(has_failed ? failed : right);
            }
        }
  CHECK(plait_test::seen(right));
  CHECK(plait_test::seen(failed));
}

TEST_CASE("messages that nobody sends are given up, and name the peer" *
          doctest::skip(plait_test::kLooksForRaces)) {
  for (const std::uint64_t bytes : {100u, 200000u}) {
    PlayedRanks all = ranks_of(2);
    all[0]->calls = {{{false, 1, all[0]->output.data(), bytes}}};
    run_all(all, {{0, 1024}, 0.05});
    CHECK(all[0]->state.failed == kFaultDeadline);
    CHECK(all[0]->lifeline.fault.code == kFaultDeadline);
    CHECK(all[0]->lifeline.fault.peer == 1);
  }
}

TEST_CASE("both ends cut a message alike, and every unit goes through one channel") {
  for (const std::uint32_t channels : {1u, 2u, 16u, 32u})
    for (const std::uint64_t bytes : {1ull, 16ull, 2048ull, 2049ull, 65536ull, 262144ull, 262145ull,
                                      1048576ull, 12345678ull, 1ull << 32}) {
      const MessageCut cut = cut_message(bytes, {channels, {}});
      CAPTURE(text(bytes, " bytes over ", channels));
      const std::uint64_t units = (bytes + 15) / 16;
      const std::uint64_t tiles = (units + cut.tile_units - 1) / cut.tile_units;
      CHECK(cut.channels >= 1);
      CHECK(cut.channels <= channels);
      CHECK(cut.channels <= tiles);
      if (cut.by_lines) {
        CHECK(tiles == cut.channels);
        CHECK(cut.tile_units <= kMessageLineUnits);
      } else {
        CHECK(cut.tile_units * 16 <= kMessageSlotBytes);
      }
    }
  CHECK(message_channels(2, 0) == 32);
  CHECK(message_channels(4, 0) == 16);
  CHECK(message_channels(8, 0) == 8);
  CHECK(message_channels(16, 0) == 4);
  CHECK(message_channels(8, 4) == 1);
}

TEST_CASE("rounds have one message of each direction and peer; what a rank sends itself is kept") {
  char memory[64];
  std::vector<Message> messages;
  for (int k = 0; k < 20; ++k)
    for (const int peer : {0, 1, 2}) {
      messages.push_back({true, peer, memory, 8});
      messages.push_back({false, peer, memory + 32, 8});
    }
  messages.push_back({true, 1, memory, 0});  // nothing to do
  const std::vector<MessageArgs> launches = plan_messages(messages, 1, 3, {32, {}});
  CHECK(launches.size() == 4);  // five works a round, six rounds a launch
  std::uint32_t works = 0;
  for (const MessageArgs& args : launches) {
    works += args.work_count;
    CHECK(args.work_count <= kMessageWorks);
    CHECK(args.peers == 3);
    CHECK(args.work_count % 5 == 0);
  }
  CHECK(works == 100);
  CHECK(launches[0].works[4].side == kKeep);
  CHECK(launches[0].works[4].kept == memory);
  // Ranks 1 and 2, then 0 and 1, then 1 by itself; 20 messages to one peer are as many launches.
  CHECK(std::vector<int>(launches[0].peer, launches[0].peer + 3) == std::vector<int>{2, 0, 1});
  CHECK(plan_messages(std::vector<Message>(20, {true, 2, memory, 8}), 1, 3, {32, {}}).size() == 4);
  CHECK_THROWS_AS(plan_messages({{true, 3, memory, 8}}, 1, 3, {32, {}}), Error);
  CHECK_THROWS_AS(plan_messages({{true, 1, memory, 8}}, 1, 3, {32, {}}), Error);
  CHECK_THROWS_AS(plan_messages({{true, 1, memory, 8}, {false, 1, memory, 16}}, 1, 3, {32, {}}),
                  Error);
}
