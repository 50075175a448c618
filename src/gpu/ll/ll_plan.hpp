// Plans of LL calls over all ranks, at the grain of parts. Inboxes are laid out as in the kernels:
// packet i of a rank is bytes 16 i and on of the inbox, without flags and escape words. A part has
// no signal besides its packets: each packet signals itself. The plan's signal of a part therefore
// stands for the arrival of the last packet, and the plan's wait for the arrival of all. The
// remaining signals of a chain in several pieces are flags. The thread that takes a packet also
// clears the packet; the plan omits that store.
#pragma once
#include "gpu/device/kernels.hpp"
#include "gpu/ll/ll_cut.hpp"
#include "plait/builder.hpp"
#include "plait/plan.hpp"

namespace plait::cuda {

enum class LlKernel : std::uint8_t { one_shot, two_shot, direct_ll, ll_chain };
const char* name_of(LlKernel kernel);
bool serves(LlKernel kernel, Collective collective);
/// True if the kernel's packets may hold data of any bits.
bool is_escaped(LlKernel kernel);

enum class PacketFormat : std::uint8_t { nan_sentinel, flag, escaped };
std::uint64_t bytes_of(PacketFormat kind);  ///< bytes of a packet

/// Returns the packets that half an inbox holds. In a plan's inbox the second half begins after
/// that many packets.
std::uint64_t packets_in_half(PacketFormat kind, std::uint64_t half_bytes);

/// Returns the plan of a call. Pieces alternate between the halves of the inbox, a launch each; a
/// chain has all pieces in a single launch, and two_shot has steps in a single launch that reuse
/// the packets of a half. one_shot and two_shot serve all_reduce, two_shot also reduce, ll_chain
/// broadcast and reduce. Escaped packets are for direct_ll and ll_chain, which have no other
/// format. step: used by a chain and by two_shot. Throws Error(unsupported) if half an inbox is too
/// small for any piece, or for steps of `step.units`.
Plan ll_plan(const Topology& topology, const Request& request, LlKernel kernel, PacketFormat kind,
             std::uint64_t half_bytes, LlStep step = {});

/// Returns the pieces of a chain over `bytes`. The first piece is shorter, because ranks may leave
/// once only the last piece is left for all, and a long last piece hides that wait.
std::vector<Range> chain_pieces(std::uint64_t bytes, const LlCut& cut);

/// Stores the parameters that the price of a kernel depends on: launch configuration, units that a
/// thread moves together, bytes of a packet, and whether packets lie in host memory.
void set_launch(Plan& plan, const KernelLaunchConfig& config, int together,
                std::uint64_t packet_bytes, bool through_host);

}  // namespace plait::cuda
