// Sizes of the messages' memory: the full size or nothing.
#include "gpu/p2p/message_memory.hpp"

#include "gpu/p2p/messages.hpp"

namespace plait::cuda {
namespace {

std::vector<PartSize> sizes_of(const Group& group, const ArenaOptions& wish) {
  if (wish.moves_only || group.most_message_blocks == 0 || group.ranks < 2) return {};
  const std::uint32_t channels = message_channels(group.ranks, group.most_message_blocks);
  PartSize slots = whole(kMessageMemory, message_slot_bytes(group.ranks, channels));
  PartSize packets = whole(kMessagePackets, message_packet_bytes(group.ranks, channels));
  slots.turn = packets.turn = kWholeTurn;
  return {slots, packets};
}

KernelUses message_uses(int) { return {{"plait_messages", {2 * kMessageTeamThreads, 0}}}; }
KernelUses bulk_uses(int) {
  return {{"plait_messages", {2 * kMessageTeamThreads, 2 * kMessageTeamBytes}}};
}

}  // namespace

const KernelFamily kMessageKernels{"message", message_uses};
const KernelFamily kBulkMessageKernels{.name = "bulk message", .uses = bulk_uses};

std::uint64_t message_memory_bytes(int ranks, unsigned most_blocks) {
  const std::uint32_t channels = message_channels(ranks, most_blocks);
  return message_slot_bytes(ranks, channels) + message_packet_bytes(ranks, channels);
}

const Resources& message_resources() {
  static const Resources resources{{&kMessageFlags},
                                   {&kMessageMemory, &kMessagePackets},
                                   sizes_of,
                                   {&kMessageKernels, &kBulkMessageKernels},
                                   {kMessagePlanFlags}};
  return resources;
}

}  // namespace plait::cuda
