// Cuts messages into tiles and packs groups of messages into launches (MessageArgs).
#include "gpu/p2p/messages.hpp"

#include <algorithm>
#include <deque>
#include <map>
#include <utility>

#include "base/text.hpp"
#include "gpu/ll/ll_cut.hpp"
#include "plait/error.hpp"

namespace plait::cuda {
namespace {

/// Least packets per channel: more channels gain nothing.
constexpr std::uint64_t kLeastPackets = kMessageTeamThreads;
/// A tile is several bulk copies long, to keep flags few; small messages spread over all channels
/// instead.
constexpr std::uint64_t kLeastTileUnits = kBulkBytes / 16;

/// Long messages use fewer slots: in both directions at once, the data in all slots no longer fits
/// the cache beside source and destination. Shared messages keep all channels, since a fence takes
/// longer beside stores to host memory (E-0153, E-0261).
constexpr std::uint64_t kLongBytes = 512ull << 20;
constexpr std::uint32_t kLongChannels = 16;

std::uint64_t rounded_up(std::uint64_t value, std::uint64_t grain) {
  return (value + grain - 1) / grain * grain;
}

/// Widest access, up to 8 bytes, that suits both addresses and the size combined in `bits`.
std::uint32_t element_of(std::uint64_t bits) {
  const std::uint64_t lowest = bits & (~bits + 1);
  return static_cast<std::uint32_t>(lowest == 0 ? 8 : std::min<std::uint64_t>(lowest, 8));
}

std::uint64_t address(const void* at) { return reinterpret_cast<std::uintptr_t>(at); }

MessageWork work_of(const MessageEnd& message, const MessageEnd* kept,
                    const MessageLaunchConfig& config) {
  MessageWork work{};
  const MessageCut cut = cut_message(message.bytes, config);
  work.memory = static_cast<char*>(message.memory);
  work.bytes = message.bytes;
  work.channels = cut.channels;
  work.tile_units = cut.tile_units;
  work.by_packets = cut.by_packets ? 1 : 0;
  work.shared = cut.shared ? 1 : 0;
  work.peer = static_cast<std::uint32_t>(message.peer);
  work.side = message.sends ? kSend : kReceive;
  std::uint64_t bits = address(message.memory) | message.bytes;
  if (kept != nullptr) {
    work.side = kKeep;
    work.kept = static_cast<const char*>(kept->memory);
    bits |= address(kept->memory);
  }
  work.element = element_of(bits) & 0xffff;
  return work;
}

/// Messages by peer and direction, in order.
using Queues = std::map<std::pair<int, bool>, std::deque<MessageEnd>>;

Queues queues_of(const std::vector<MessageEnd>& messages, int ranks) {
  Queues queues;
  for (const MessageEnd& message : messages) {
    if (message.peer < 0 || message.peer >= ranks)
      throw Error(ErrorCode::invalid_argument,
                  text("peer of a message: wanted 0 to {}, found {}", ranks - 1, message.peer));
    if (message.bytes != 0) queues[{message.peer, message.sends}].push_back(message);
  }
  return queues;
}

MessageEnd take_first(std::deque<MessageEnd>& queue) {
  const MessageEnd first = queue.front();
  queue.pop_front();
  return first;
}

/// Works of a launch, with the arguments that describe the works.
struct MessageBatch {
  std::vector<MessageWork> works;
  MessageArgs args{};
};

void check_kept(const std::deque<MessageEnd>& out, const std::deque<MessageEnd>& in, int rank) {
  if (out.empty() != in.empty() || (!out.empty() && out.front().bytes != in.front().bytes))
    throw Error(ErrorCode::invalid_argument,
                text("rank {} sends itself {} bytes and receives {}: both must be in one group and "
                     "of one size",
                     rank, out.empty() ? 0 : out.front().bytes, in.empty() ? 0 : in.front().bytes));
}

/// Adds at most `most` messages of each direction with a peer.
void add_peer(MessageBatch& all, Queues& queues, int peer, int rank, std::size_t most,
              const MessageLaunchConfig& config) {
  std::deque<MessageEnd>& out = queues[{peer, true}];
  std::deque<MessageEnd>& in = queues[{peer, false}];
  MessageArgs& args = all.args;
  const auto count = [&] { return static_cast<std::uint16_t>(all.works.size()); };
  const std::uint16_t before = count();
  const auto add = [&](MessageSide side, std::deque<MessageEnd>& queue) {
    args.first[side][args.peers] = count();
    for (std::size_t i = 0; i < most && !queue.empty(); ++i)
      all.works.push_back(work_of(take_first(queue), nullptr, config));
    args.end[side][args.peers] = count();
  };
  if (peer != rank) {
    add(kSend, out);
    add(kReceive, in);
  } else {  // Both teams of a block serve messages to this rank itself.
    check_kept(out, in, rank);
    for (std::size_t i = 0; i < most && !out.empty(); ++i, check_kept(out, in, rank)) {
      const MessageEnd kept = take_first(out);
      all.works.push_back(work_of(take_first(in), &kept, config));
    }
    for (const MessageSide side : {kSend, kReceive}) {
      args.first[side][args.peers] = before;
      args.end[side][args.peers] = count();
    }
  }
  if (count() != before) args.peer[args.peers++] = static_cast<std::uint8_t>(peer);
}

/// Sets each peer's range of blocks. Messages to this rank itself get fewer blocks by the number of
/// host channels, so that all ranges fit the launch.
void set_blocks(MessageArgs& args, int rank, std::uint32_t host_channels) {
  std::uint32_t end = 0;
  for (std::uint32_t place = 0; place < args.peers; ++place) {
    if (args.peer[place] != rank)
      end += args.channels + host_channels;
    else
      end += args.channels > host_channels ? args.channels - host_channels : 1;
    args.block_end[place] = static_cast<std::uint8_t>(end);
  }
}

/// Takes the next messages of all peers. A GPU may run only a few blocks at a time, in this order.
/// Therefore ranks come in pairs, each rank in a single pair per turn, and all ranks take the turns
/// alike. If all ranks are in the same group, the first blocks can then make progress, and no team
/// need abandon an endpoint (message_ends.cuh).
MessageBatch next_batch(Queues& queues, int rank, int ranks, const MessageLaunchConfig& config) {
  MessageBatch all;
  std::size_t most = 0;
  for (const auto& [whose, queue] : queues) most += queue.size();
  // If not all messages fit, each direction with a peer gets the same number however few peers a
  // rank has. Hence two ranks with groups that are too large move the same messages.
  constexpr std::size_t kMostWorks = kMessageNoted + kMessageWorks;
  if (most > kMostWorks) most = kMostWorks / static_cast<std::size_t>(2 * ranks - 1);
  for (int turn = 0; turn < ranks; ++turn)
    add_peer(all, queues, (turn - rank + ranks) % ranks, rank, most, config);
  all.args.all_channels = config.channels;
  bool is_shared = false;
  for (const MessageWork& work : all.works) {
    all.args.channels = std::max(all.args.channels, work.channels);
    if (work.side != kKeep && work.by_packets == 0) all.args.bulk = 1;
    is_shared = is_shared || (work.side != kKeep && work.shared != 0);
  }
  set_blocks(all.args, rank, is_shared ? config.host_channels : 0);
  return all;
}

/// Works that do not fit the last launch are stored by preceding launches.
void add_launches(std::vector<MessageArgs>& launches, const MessageBatch& all) {
  for (std::size_t begin = 0; begin < all.works.size(); begin += kMessageWorks) {
    const bool is_last = all.works.size() - begin <= kMessageWorks;
    MessageArgs args = is_last ? all.args : MessageArgs{};
    if (!is_last) args.notes = args.channels = args.peers = args.block_end[0] = 1;  // One block.
    args.noted = static_cast<std::uint32_t>(begin);
    args.work_count =
        static_cast<std::uint32_t>(std::min<std::size_t>(all.works.size() - begin, kMessageWorks));
    std::copy_n(all.works.data() + begin, args.work_count, args.works);
    launches.push_back(args);
  }
}

}  // namespace

std::uint32_t message_channels(int ranks, unsigned most_blocks) {
  constexpr unsigned kMostBlocks = 60;  // Leaves SMs to another communicator's calls.
  const unsigned blocks = std::min(most_blocks == 0 ? kMostBlocks : most_blocks, kMostBlocks);
  const unsigned fit = blocks / static_cast<unsigned>(std::max(ranks - 1, 1));
  unsigned channels = 1;
  while (channels * 2 <= std::min<unsigned>(fit, kMessageChannels)) channels *= 2;
  return channels;
}

bool has_host_channels(int ranks, unsigned most_blocks) {
  return ranks == 2 && (most_blocks == 0 || most_blocks >= unsigned{kMessageRows});
}

bool messages_beat_nccl(int ranks, unsigned most_blocks) {
  return ranks == 2 && message_channels(ranks, most_blocks) == kMessageChannels;
}

MessageCut cut_message(std::uint64_t bytes, const MessageLaunchConfig& config) {
  MessageCut cut;
  const std::uint64_t units = (bytes + 15) / 16;
  // A shared message has tiles for all channels, so that each team counts it.
  cut.shared = config.host_channels != 0 && bytes >= config.tuning.shared_from &&
               units >= std::uint64_t{config.channels} * config.tuning.tile_units;
  const std::uint64_t channels =
      bytes < kLongBytes || cut.shared ? config.channels : std::min(config.channels, kLongChannels);
  const std::uint64_t share = (units + channels - 1) / channels;
  cut.by_packets =
      !cut.shared && bytes <= config.tuning.packets_upto && share <= kMessagePacketUnits;
  cut.tile_units = static_cast<std::uint32_t>(
      cut.by_packets
          ? std::max(share, kLeastPackets)
          : std::min<std::uint64_t>(rounded_up(share, kLeastTileUnits), config.tuning.tile_units));
  cut.channels =
      static_cast<std::uint32_t>(std::min(channels, (units + cut.tile_units - 1) / cut.tile_units));
  return cut;
}

unsigned message_blocks(const MessageArgs& args) { return args.block_end[args.peers - 1]; }

std::uint64_t message_slot_bytes(int ranks, std::uint32_t channels) {
  return static_cast<std::uint64_t>(ranks - 1) * channels * kMessageSlots * kMessageSlotBytes;
}

std::uint64_t message_packet_bytes(int ranks, std::uint32_t channels) {
  return static_cast<std::uint64_t>(ranks - 1) * channels * kMessagePacketDepth *
         kMessagePacketUnits * kFlagPacketBytes;
}

std::vector<MessageArgs> plan_messages(const std::vector<MessageEnd>& messages, int rank, int ranks,
                                       const MessageLaunchConfig& config) {
  Queues queues = queues_of(messages, ranks);
  std::vector<MessageArgs> launches;
  while (true) {
    const MessageBatch next = next_batch(queues, rank, ranks, config);
    if (next.works.empty()) return launches;
    add_launches(launches, next);
  }
}

}  // namespace plait::cuda
