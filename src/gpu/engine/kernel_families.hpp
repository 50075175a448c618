// Finds the kernel families that all ranks' GPUs can run. A GPU may lack an instruction (bulk
// copies) or resources (shared memory, registers); then no rank uses the family. Every kernel is
// launched once without work, to load the code as well: a kernel loaded at first use may wait for
// kernels that wait for a peer.
#pragma once
#include <array>
#include <string>

#include "gpu/arena/arena.hpp"
#include "gpu/device/kernels.hpp"

namespace plait::cuda {

enum class KernelFamily { shots, direct_ll, tiled, messages, bulk_messages, engines, lanes };
inline constexpr std::size_t kKernelFamilies = 7;

class KernelFamilies {
 public:
  /// Collective over all ranks, in the current context of `device`; waits for the stream. Throws
  /// Error if the GPU fails.
  KernelFamilies(Kernels& kernels, Device device, int rank, int ranks, Stream stream,
                 const Exchange& exchange);

  bool runs(KernelFamily family) const { return blocks_at_once(family) != 0; }
  /// Blocks of any kernel of the family that run at once on the most limited GPU.
  unsigned blocks_at_once(KernelFamily family) const { return of(family).blocks_at_once; }
  /// Rank with a GPU that lacks the family, and the reason; empty if the family runs.
  const std::string& why_not(KernelFamily family) const { return of(family).why_not; }

 private:
  struct FamilySupport {
    unsigned blocks_at_once = ~0u;
    std::string why_not;
  };
  const FamilySupport& of(KernelFamily family) const {
    return found_[static_cast<std::size_t>(family)];
  }
  std::array<FamilySupport, kKernelFamilies> found_;
};

}  // namespace plait::cuda
