// What a call by lines does on all ranks, as a plan at the grain of parts. Its inboxes lie as the
// kernels' do: line i of a rank is bytes 16 i of its inbox on, whatever a line carries beside its
// data. Nothing tells of a part but its lines, each of which is its own signal, so a plan's signal
// stands for the last line of a part, and its wait for having found all of them; the other signals
// of a chain in several pieces are words. Taking a line also
// clears it, in the same thread; the plan does not show that.
#pragma once
#include "exec/cuda/device/kernels.hpp"
#include "exec/cuda/ll/ll_cut.hpp"
#include "plait/builder.hpp"
#include "plait/plan.hpp"

namespace plait::cuda {

enum class LlKernel : std::uint8_t { one_shot, two_shot, direct_ll, ll_chain };
const char* name_of(LlKernel kernel);
bool serves(LlKernel kernel, Collective collective);
/// Whether its lines hold data of any bits.
bool is_escaped(LlKernel kernel);

enum class PacketFormat : std::uint8_t { nan_sentinel, flag, escaped };
std::uint64_t bytes_of(PacketFormat kind);  ///< of a line

/// Lines that half an inbox holds, and where the other half begins in a plan's inbox.
std::uint64_t packets_in_half(PacketFormat kind, std::uint64_t half_bytes);

/// Pieces in the halves of the inbox by turns, a launch each; all in one launch along a chain. Of
/// two_shot steps in one launch, which use the lines of one half again. Only
/// of all_reduces for one_shot and two_shot, of reduces for two_shot too, of broadcasts and reduces
/// for ll_chain; escaped lines are its and hop's, which have no others. step: of a chain, and of
/// two_shot. Throws Error(unsupported) where half an inbox is too small for any piece, or for steps
/// of so many units.
Plan ll_plan(const Topology& topology, const Request& request, LlKernel kernel, PacketFormat kind,
             std::uint64_t half_bytes, LlStep step = {});

/// The pieces of so many bytes that go along a chain. The first one is shorter: ranks may leave
/// once the last one alone is left for all, which a long last piece hides.
std::vector<Range> chain_pieces(std::uint64_t bytes, const LlCut& cut);

/// What its price goes by: units that a thread moves together, and bytes of a line.
void set_launch(Plan& plan, const KernelLaunchConfig& config, int together,
                std::uint64_t packet_bytes);

}  // namespace plait::cuda
