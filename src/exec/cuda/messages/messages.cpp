// Cuts, rounds and launches of messages.
#include "exec/cuda/messages/messages.hpp"

#include <algorithm>
#include <deque>
#include <map>
#include <utility>

#include "base/text.hpp"
#include "exec/cuda/lines/line_cut.hpp"
#include "plait/error.hpp"

namespace plait::cuda {
namespace {

static_assert(kMessageWorks >= 2 * kMaxCudaRanks - 1);  // a round of all ranks

/// Least lines of a channel: more channels gain nothing.
constexpr std::uint64_t kLeastLines = kMessageTeamThreads;
/// A tile is some bulk copies long, so that flags are few; small messages rather take all channels.
constexpr std::uint64_t kLeastTileUnits = kBulkBytes / 16;

/// Long messages want fewer slots: in both directions at once, what lies in all of them no longer
/// fits the cache beside what is read and written (bench/NOTES.md).
constexpr std::uint64_t kLongBytes = 512ull << 20;
constexpr std::uint32_t kLongChannels = 16;

std::uint64_t rounded_up(std::uint64_t value, std::uint64_t grain) {
  return (value + grain - 1) / grain * grain;
}

/// What loads and stores of both ends of `bits` may be wide, 8 bytes at most.
std::uint32_t element_of(std::uint64_t bits) {
  const std::uint64_t lowest = bits & (~bits + 1);
  return static_cast<std::uint32_t>(lowest == 0 ? 8 : std::min<std::uint64_t>(lowest, 8));
}

std::uint64_t address(const void* at) { return reinterpret_cast<std::uintptr_t>(at); }

MessageWork work_of(const Message& message, const Message* kept, const MessageSpread& spread) {
  MessageWork work{};
  const MessageCut cut = cut_message(message.bytes, spread);
  work.memory = static_cast<char*>(message.memory);
  work.bytes = message.bytes;
  work.channels = cut.channels;
  work.tile_units = cut.tile_units;
  work.by_lines = cut.by_lines ? 1 : 0;
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

/// Messages of one direction with each peer, in order.
using Queues = std::map<std::pair<int, bool>, std::deque<Message>>;

Queues queues_of(const std::vector<Message>& messages, int ranks) {
  Queues queues;
  for (const Message& message : messages) {
    if (message.peer < 0 || message.peer >= ranks)
      throw Error(ErrorCode::invalid_argument,
                  text("a message with rank ", message.peer, ": wanted 0 to ", ranks - 1));
    if (message.bytes != 0) queues[{message.peer, message.sends}].push_back(message);
  }
  return queues;
}

Message take_first(std::deque<Message>& queue) {
  const Message first = queue.front();
  queue.pop_front();
  return first;
}

/// The first of each peer and direction. A GPU gives its SMs to blocks in this order, perhaps to
/// one at a time: so ranks come in pairs, each in one pair a turn, and all go through the turns
/// alike. Of all blocks that have not ended, those of the first pair can then go on.
std::vector<MessageWork> next_round(Queues& queues, int rank, int ranks,
                                    const MessageSpread& spread) {
  std::vector<MessageWork> round;
  for (int turn = 0; turn < ranks; ++turn) {
    const int peer = (turn - rank + ranks) % ranks;
    std::deque<Message>& out = queues[{peer, true}];
    std::deque<Message>& in = queues[{peer, false}];
    if (peer == rank) {
      if (out.empty() != in.empty() || (!out.empty() && out.front().bytes != in.front().bytes))
        throw Error(ErrorCode::invalid_argument,
                    text("rank ", rank, " sends itself ", out.empty() ? 0 : out.front().bytes,
                         " bytes and receives ", in.empty() ? 0 : in.front().bytes,
                         ": both must be in one group, and alike"));
      if (out.empty()) continue;
      const Message kept = take_first(out);
      round.push_back(work_of(take_first(in), &kept, spread));
      continue;
    }
    if (!out.empty()) round.push_back(work_of(take_first(out), nullptr, spread));
    if (!in.empty()) round.push_back(work_of(take_first(in), nullptr, spread));
  }
  return round;
}

void add(MessageArgs& args, const MessageWork& work) {
  args.works[args.work_count++] = work;
  args.channels = std::max(args.channels, work.channels);
  const std::uint8_t* const end = args.peer + args.peers;
  if (std::find<const std::uint8_t*>(args.peer, end, work.peer) == end)
    args.peer[args.peers++] = static_cast<std::uint8_t>(work.peer);
}

}  // namespace

std::uint32_t message_channels(int ranks, unsigned most_blocks) {
  constexpr unsigned kMostBlocks = 60;  // so that another communicator's calls fit beside
  const unsigned blocks = std::min(most_blocks == 0 ? kMostBlocks : most_blocks, kMostBlocks);
  const unsigned fit = blocks / static_cast<unsigned>(std::max(ranks - 1, 1));
  unsigned channels = 1;
  while (channels * 2 <= std::min<unsigned>(fit, kMessageChannels)) channels *= 2;
  return channels;
}

bool messages_ahead(int ranks, unsigned most_blocks) {
  return ranks == 2 && message_channels(ranks, most_blocks) == kMessageChannels;
}

MessageCut cut_message(std::uint64_t bytes, const MessageSpread& spread) {
  MessageCut cut;
  const std::uint64_t units = (bytes + 15) / 16;
  const std::uint64_t channels =
      bytes < kLongBytes ? spread.channels : std::min(spread.channels, kLongChannels);
  const std::uint64_t share = (units + channels - 1) / channels;
  cut.by_lines = bytes <= spread.tuning.lines_upto && share <= kMessageLineUnits;
  cut.tile_units = static_cast<std::uint32_t>(
      cut.by_lines
          ? std::max(share, kLeastLines)
          : std::min<std::uint64_t>(rounded_up(share, kLeastTileUnits), spread.tuning.tile_units));
  cut.channels =
      static_cast<std::uint32_t>(std::min(channels, (units + cut.tile_units - 1) / cut.tile_units));
  return cut;
}

std::uint64_t message_slot_bytes(int ranks, std::uint32_t channels) {
  return static_cast<std::uint64_t>(ranks - 1) * channels * kMessageSlots * kMessageSlotBytes;
}

std::uint64_t message_line_bytes(int ranks, std::uint32_t channels) {
  return static_cast<std::uint64_t>(ranks - 1) * channels * kMessageLineDepth * kMessageLineUnits *
         kFlaggedLineBytes;
}

std::vector<MessageArgs> plan_messages(const std::vector<Message>& messages, int rank, int ranks,
                                       const MessageSpread& spread) {
  Queues queues = queues_of(messages, ranks);
  std::vector<MessageArgs> launches;
  // As many where a rank has few peers to do with: both ends of a message give it the same launch.
  const int rounds = std::max(1, kMessageWorks / (2 * ranks - 1));
  for (int begun = 0;; ++begun) {
    const std::vector<MessageWork> round = next_round(queues, rank, ranks, spread);
    if (round.empty()) return launches;
    if (begun % rounds == 0) {
      launches.push_back(MessageArgs{});
      launches.back().all_channels = spread.channels;
    }
    for (const MessageWork& work : round) add(launches.back(), work);
  }
}

}  // namespace plait::cuda
