// Which kernels all ranks' GPUs can run, family by family. A GPU may lack what a family is made of
// (bulk copies), or room for it (shared memory, registers): then no rank's calls use the family.
// Found out by an empty launch of every kernel, which puts its code in place too: a kernel that is
// loaded at its first use may wait for others that wait for a peer.
#pragma once
#include <array>
#include <string>

#include "exec/cuda/device/arena.hpp"
#include "exec/cuda/device/kernels.hpp"

namespace plait::cuda {

enum class KernelFamily { lines, hop, tiled, messages, bulk_messages, engines, lanes };
inline constexpr std::size_t kKernelFamilies = 7;

class KernelFamilies {
 public:
  /// All ranks together, in the current context of `device`; waits for the stream. Error where the
  /// GPU fails at it.
  KernelFamilies(Kernels& kernels, Device device, int rank, int ranks, Stream stream,
                 const Exchange& exchange);

  bool runs(KernelFamily family) const { return blocks_at_once(family) != 0; }
  /// Blocks of any of its kernels that run at once, on the GPU that has room for the fewest.
  unsigned blocks_at_once(KernelFamily family) const { return of(family).blocks_at_once; }
  /// Which rank's GPU lacks what; empty where the family runs.
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
