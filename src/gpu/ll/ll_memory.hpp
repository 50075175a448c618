// Flags, memory and kernels of the engines with LL packets.
#pragma once
#include <string>

#include "gpu/abi/ll_args.hpp"
#include "gpu/engine/resources.hpp"

namespace plait::cuda {

/// Returns the bytes of a call's packets: half of a part of the arena, or an eighth if arenas lie
/// in host memory.
inline std::uint64_t bytes_of_call(const Group& group, const ArenaPart& packets) {
  return group.sizes[packets] / (group.through_host ? kPartsBehindBus / 2 : 1);
}

inline constexpr ArenaFlags<ChainFlags> kChainFlags{"ll_chain"};
inline constexpr ArenaFlags<ShotFlags> kShotFlags{"two_shot", 64};

inline constexpr ArenaPart kFlagPackets{"flag", "LL packets with flags", 2};
inline constexpr ArenaPart kSentinelPackets{.name = "sentinel",
                                            .what = "LL packets with sentinels",
                                            .halves = 2,
                                            .byte = 0xff,
                                            .step = kPacketStep};

extern const KernelFamily kShotKernels;                            ///< one_shot, two_shot
extern const KernelFamily kDirectLlKernels;                        ///< direct_ll, ll_chain
extern const KernelFamily kShotTreeKernels, kDirectLlTreeKernels;  ///< sums in trees
const Resources& ll_resources();

/// True if no slots serve large calls (yet) and no plans do: LL packets in any number of pieces or
/// steps are the only way.
bool has_ll_only(const Group& group);

/// True if two_shot has a kernel for this reduce.
bool has_two_shot_to_root(const Request& request);
/// kernel: "one_shot" or "two_shot". order: of the group; is_in_tree() picks the kernel.
std::string shot_kernel(const std::string& kernel, const Request& request, bool nan_sentinel,
                        SumOrder order);
/// True if a short kernel exists: a thread per unit of a part, with a fixed maximum of ranks.
bool has_short_direct_ll(const Request& request, SumOrder order);
/// is_short: the name of the short kernel.
std::string direct_ll_kernel(const Request& request, bool is_short, SumOrder order);
/// True if the chain kernel of the request fits in 64 registers.
bool is_lean_chain(const Request& request);
/// is_long: the kernel for several pieces.
std::string chain_kernel(const Request& request, bool is_long);

}  // namespace plait::cuda
