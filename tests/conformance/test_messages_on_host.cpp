// How messages are cut and brought into rounds, and the kernel's own teams on a host's threads: any
// number of messages between any ranks, by lines and by tiles, in calls that need not match, arrive
// whole and nowhere else. Bulk copies alone are left to GPUs.
#include <doctest/doctest.h>

#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "conformance/device_on_host.hpp"
// After it, as it says what a device has.
#include "base/text.hpp"
#include "exec/cuda/kernels/messages.cuh"
#include "exec/cuda/messages.hpp"
#include "plait/error.hpp"
#include "unit/scale.hpp"

using namespace plait;
using namespace plait::cuda;

namespace {

constexpr std::uint32_t kChannels = 2;
constexpr unsigned kTeamThreads = 2;
constexpr std::uint64_t kArea = 1 << 20;  // of a rank's buffer

struct PlayedRank {
  explicit PlayedRank(int ranks)
      : lines(message_line_bytes(ranks, kChannels) / 16),
        slots(message_slot_bytes(ranks, kChannels) / 16),
        input(kArea),
        output(kArea, 0xa5) {}
  DeviceState state{};
  Lifeline lifeline{};
  MessageFlags flags{};
  std::vector<ulonglong2> lines, slots;
  std::vector<std::uint8_t> input, output, expected = output;
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

/// One launch: as many threads as it has blocks, directions and threads of a team.
void launch(const MessageArgs& args) {
  std::vector<std::unique_ptr<plait_test::TeamMeet>> meets;
  std::vector<std::thread> threads;
  for (unsigned block = 0; block < args.channels * args.peers; ++block)
    for (unsigned side : {0u, 1u}) {
      meets.push_back(std::make_unique<plait_test::TeamMeet>(kTeamThreads));
      for (unsigned thread = 0; thread < kTeamThreads; ++thread)
        threads.emplace_back([&args, block, side, thread, meet = meets.back().get()] {
          plait_test::team_meets = meet;
          MessageTeamShared shared;
          MessageTeam end(args, shared, {0, kTeamThreads, thread}, block, side);
          end.run([](MessageTeam&, const MessageWork&, unsigned) { return false; });
        });
    }
  for (std::thread& thread : threads) thread.join();
}

void run_all(PlayedRanks& all, const MessageTuning& tuning, double wait_s) {
  std::vector<std::thread> ranks;
  for (std::size_t rank = 0; rank < all.size(); ++rank)
    ranks.emplace_back([&, rank] {
      const int me = static_cast<int>(rank), count = static_cast<int>(all.size());
      for (const std::vector<Message>& call : all[rank]->calls)
        for (const MessageArgs& args : plan_messages(call, me, count, {kChannels, tuning}))
          launch(told(args, all, rank, wait_s));
    });
  for (std::thread& rank : ranks) rank.join();
}

std::uint64_t random_size(std::mt19937& random) {
  return random() % 3 == 0 ? random() % 50 : random() % 30000;
}

/// Some messages of each rank to each, itself too, all in one call a rank.
void add_group(PlayedRanks& all, std::mt19937& random, std::vector<std::uint64_t>& read,
               std::vector<std::uint64_t>& written) {
  for (auto& rank : all) rank->calls.emplace_back();
  for (std::size_t from = 0; from < all.size(); ++from)
    for (std::size_t to = 0; to < all.size(); ++to)
      for (auto n = random() % 3; n > 0; --n) {
        const std::uint64_t bytes = random_size(random);
        read[from] += random() % 20, written[to] += random() % 20;
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

}  // namespace

TEST_CASE("groups of messages on a host's threads arrive whole" *
          doctest::skip(plait_test::kLooksForRaces)) {
  for (const int ranks : {2, 3, 5})
    for (int seed = 1; seed <= plait_test::rounds(6); ++seed)
      for (const MessageTuning& tuning : {MessageTuning{}, MessageTuning{0, 1024}}) {
        std::mt19937 random(static_cast<unsigned>(seed * 16 + ranks));
        PlayedRanks all = ranks_of(ranks);
        std::vector<std::uint64_t> read(all.size()), written(all.size());
        for (int group = 0; group < 3; ++group) add_group(all, random, read, written);
        run_all(all, tuning, 60);
        CAPTURE(text(ranks, " ranks, seed ", seed, ", lines up to ", tuning.lines_upto));
        for (auto& rank : all) {
          CHECK(rank->state.failed == 0);
          CHECK(rank->output == rank->expected);
        }
      }
}

TEST_CASE("messages that nobody sends are given up, and name the peer" *
          doctest::skip(plait_test::kLooksForRaces)) {
  for (const std::uint64_t bytes : {100u, 200000u}) {
    PlayedRanks all = ranks_of(2);
    all[0]->calls = {{{false, 1, all[0]->output.data(), bytes}}};
    run_all(all, {0, 1024}, 0.05);
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
  CHECK(launches[0].works[0].side == kKeep);
  CHECK(launches[0].works[0].kept == memory);
  CHECK_THROWS_AS(plan_messages({{true, 3, memory, 8}}, 1, 3, {32, {}}), Error);
  CHECK_THROWS_AS(plan_messages({{true, 1, memory, 8}}, 1, 3, {32, {}}), Error);
  CHECK_THROWS_AS(plan_messages({{true, 1, memory, 8}, {false, 1, memory, 16}}, 1, 3, {32, {}}),
                  Error);
}
