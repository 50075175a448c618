// Flags, memory and kernels of messages.
#pragma once
#include "gpu/abi/message_args.hpp"
#include "gpu/engine/resources.hpp"

namespace plait::cuda {

inline constexpr ArenaFlags<MessageFlags> kMessageFlags{"messages"};
inline constexpr ArenaPart kMessageMemory{"message_slots", "slots of messages"};
inline constexpr ArenaPart kMessagePackets{"message_packets", "LL packets of messages"};
/// Most bytes of both parts of a rank.
std::uint64_t message_memory_bytes(int ranks, unsigned most_blocks);
extern const KernelFamily kMessageKernels;
extern const KernelFamily kBulkMessageKernels;
inline constexpr PlanFlagRange kMessagePlanFlags{1 << 11, 1 << 13};
const Resources& message_resources();

}  // namespace plait::cuda
