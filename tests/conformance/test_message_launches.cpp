// Cuts of messages, and the launches that move a group of messages.
#include <doctest/doctest.h>

#include <vector>

#include "base/text.hpp"
#include "gpu/p2p/messages.hpp"
#include "plait/error.hpp"

using namespace plait;
using namespace plait::cuda;

TEST_CASE("both ends cut a message alike, and every unit goes through one channel") {
  for (const std::uint32_t channels : {1u, 2u, 16u, 32u})
    for (const std::uint64_t bytes : {1ull, 16ull, 2048ull, 2049ull, 65536ull, 262144ull, 262145ull,
                                      1048576ull, 12345678ull, 1ull << 32}) {
      const MessageCut cut = cut_message(bytes, {channels, {}});
      CAPTURE(text("{} bytes over {}", bytes, channels));
      const std::uint64_t units = (bytes + 15) / 16;
      const std::uint64_t tiles = (units + cut.tile_units - 1) / cut.tile_units;
      CHECK(cut.channels >= 1);
      CHECK(cut.channels <= channels);
      CHECK(cut.channels <= tiles);
      if (cut.by_packets) {
        CHECK(tiles == cut.channels);
        CHECK(cut.tile_units <= kMessagePacketUnits);
      } else {
        CHECK(cut.tile_units * 16 <= kMessageSlotBytes);
      }
    }
  for (const std::uint64_t bytes : {1ull, 1048576ull, 134217727ull})
    CHECK(!cut_message(bytes, {32, {}, kMessageHostChannels}).shared);
  CHECK(!cut_message(1ull << 30, {32, {}}).shared);
  // Shared messages go through all channels, and each channel counts all messages.
  for (const std::uint64_t bytes : {134217728ull, 1ull << 30, 1ull << 36})
    for (const std::uint32_t channels : {4u, 32u}) {
      const MessageCut cut = cut_message(bytes, {channels, {}, kMessageHostChannels});
      CHECK(cut.shared);
      CHECK(cut.channels == channels);
    }
  CHECK(!cut_message(5000, {32, {0, 32, 1}, kMessageHostChannels}).shared);
  CHECK(has_host_channels(2, 0));
  CHECK(has_host_channels(2, kMessageRows));
  CHECK(!has_host_channels(2, kMessageRows - 1));
  CHECK(!has_host_channels(3, 0));
  CHECK(message_channels(2, 0) == 32);
  CHECK(message_channels(4, 0) == 16);
  CHECK(message_channels(8, 0) == 8);
  CHECK(message_channels(16, 0) == 4);
  CHECK(message_channels(8, 4) == 1);
}

TEST_CASE("launches of messages: the last one moves all, by peer and direction") {
  char memory[64];
  std::vector<MessageEnd> messages;
  for (int k = 0; k < 20; ++k)
    for (const int peer : {0, 1, 2}) {
      messages.push_back({true, peer, memory, 8});
      messages.push_back({false, peer, memory + 32, 8});
    }
  messages.push_back({true, 1, memory, 0});  // no data
  const std::vector<MessageArgs> launches = plan_messages(messages, 1, 3, {32, {}});
  CHECK(launches.size() == 4);  // of 32 works
  std::vector<MessageWork> works;
  for (const MessageArgs& args : launches) {
    CHECK(args.notes == (&args == &launches.back() ? 0 : 1));
    CHECK(args.noted == works.size());
    works.insert(works.end(), args.works, args.works + args.work_count);
  }
  CHECK(works.size() == 100);
  const MessageArgs& last = launches.back();
  CHECK(last.channels == 1);
  // Ranks 1 and 2, then 0 and 1, then 1 by itself.
  CHECK(std::vector<int>(last.peer, last.peer + last.peers) == std::vector<int>{2, 0, 1});
  for (std::uint32_t place = 0; place < last.peers; ++place)
    for (const MessageSide side : {kSend, kReceive}) {
      CHECK(last.end[side][place] - last.first[side][place] == 20);
      for (std::uint32_t i = last.first[side][place]; i < last.end[side][place]; ++i) {
        CHECK(works[i].peer == last.peer[place]);
        CHECK(MessageSide{works[i].side} == (works[i].peer == 1u ? kKeep : side));
      }
    }
  CHECK(works[last.first[kSend][2]].kept == memory);
}

TEST_CASE("launches of messages: host channels are blocks beside the others") {
  char memory[64];
  const MessageLaunchConfig config{32, {}, kMessageHostChannels};
  const auto launch = [&](std::uint64_t bytes, bool keeps) {
    std::vector<MessageEnd> messages{{true, 0, memory, bytes}};
    if (keeps)
      for (const bool sends : {true, false}) messages.push_back({sends, 1, memory, 64 << 20});
    return plan_messages(messages, 1, 2, config).at(0);
  };
  CHECK(message_blocks(launch(64 << 20, false)) == 32);
  CHECK(message_blocks(launch(64 << 20, true)) == 64);
  CHECK(message_blocks(launch(1 << 30, false)) == 32 + kMessageHostChannels);
  const MessageArgs both = launch(1 << 30, true);
  CHECK(message_blocks(both) == kMessageBlocks);  // messages to the rank itself have fewer
  CHECK(both.peer[0] == 1);
  CHECK(both.block_end[0] == 32 - kMessageHostChannels);
  CHECK(both.works[0].shared == 0);
  CHECK(both.works[1].shared == 1);
}

TEST_CASE("launches of messages: no more than there is room for") {
  char memory[64];
  const auto launches = [&](int count, int ranks) {
    return plan_messages(
        std::vector<MessageEnd>(static_cast<std::size_t>(count), {true, 1, memory, 8}), 0, ranks,
        {1, {}});
  };
  CHECK(launches(0, 2).empty());
  CHECK(launches(32, 2).size() == 1);
  CHECK(launches(33, 2).size() == 2);
  CHECK(launches(2080, 2).size() == 65);
  CHECK(launches(2081, 2).size() == 22 + 44);  // 693, then the rest
  for (int ranks = 2; ranks <= kMaxCudaRanks; ++ranks) {
    CHECK(message_channels(ranks, 0) * static_cast<unsigned>(ranks) <= kMessageBlocks);
    for (const MessageArgs& args : launches(10000, ranks))
      CHECK(args.noted + args.work_count <= kMessageNoted + kMessageWorks);
  }
  CHECK_THROWS_AS(plan_messages({{true, 3, memory, 8}}, 1, 3, {32, {}}), Error);
  CHECK_THROWS_AS(plan_messages({{true, 1, memory, 8}}, 1, 3, {32, {}}), Error);
  CHECK_THROWS_AS(plan_messages({{true, 1, memory, 8}, {false, 1, memory, 16}}, 1, 3, {32, {}}),
                  Error);
}
