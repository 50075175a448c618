// Finds the kernel families that all ranks' GPUs can run. A GPU may lack an instruction (bulk
// copies) or resources (shared memory, registers); then no rank uses the family. Every kernel is
// launched once without work, to load the code as well: a kernel loaded at first use may wait for
// kernels that wait for a peer.
#pragma once
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "gpu/arena/arena.hpp"
#include "gpu/device/kernels.hpp"
#include "plait/plan.hpp"

namespace plait::cuda {

/// Largest launch of a kernel.
struct KernelUse {
  unsigned threads = 512;
  unsigned shared_bytes = 0;
  unsigned cluster = 1;  ///< Most blocks of a thread-block cluster.
};
using KernelUses = std::map<std::string, KernelUse>;  ///< By kernel name.

/// Kernels that serve calls together, or not at all. Defined once, by the room of the kernels. Two
/// families are the same if their names are.
struct KernelFamily {
  const char* name;  ///< For messages: "no tiled kernels".
  KernelUses (*uses)(int ranks);
  /// Compute capabilities, times ten, that run the kernels: from the first to below the second.
  int from = 0, below = 1000;
  const char* wants = "";      ///< For messages about other capabilities: "tiled kernels want ...".
  bool sums_in_trees = false;  ///< Kernels for trees alone, loaded and probed on demand.
};

/// Types whose sums have an order.
inline constexpr DataType kFloatTypes[] = {DataType::fp32, DataType::fp64,    DataType::bf16,
                                           DataType::fp16, DataType::fp8e4m3, DataType::fp8e5m2};
/// Requests that together use every kernel for trees of `ranks` ranks: none, unless `ranks` is 4, 8
/// or 16.
std::vector<Request> requests_of_trees(int ranks);

/// Requests that together use every kernel of a communicator of `ranks` ranks.
std::vector<Request> requests_of_all_kernels(int ranks);

/// Families that do not run, with the GPU and the missing feature.
class FamilyLacks {
 public:
  /// Empty if the family runs.
  const std::string& of(const KernelFamily& family) const;
  void add(const KernelFamily& family, const std::string& why) {
    lacks_.emplace_back(family.name, why);
  }
  void add_all(const std::string& why) { all_ = why; }

 private:
  std::vector<std::pair<std::string, std::string>> lacks_;
  std::string all_;
};

class KernelFamilies {
 public:
  /// Collective over all ranks, in the current context of `device`. stream: returns the stream of
  /// the probes, which this constructor waits for. reuses: takes the results of an earlier probe of
  /// this process in the context, if any. Throws Error if the GPU fails.
  KernelFamilies(Kernels& kernels, const std::vector<const KernelFamily*>& families, Device device,
                 int rank, int ranks, const std::function<Stream()>& stream, bool reuses,
                 const Exchange& exchange);

  const FamilyLacks& lacks() const { return lacks_; }
  /// Blocks of any kernel of the family that run at once on the most limited GPU.
  unsigned blocks_at_once(const KernelFamily& family) const;
  /// Multiprocessors of the smallest GPU.
  unsigned least_multiprocessors() const { return multiprocessors_; }

 private:
  struct FamilySupport {
    const KernelFamily* family;
    unsigned blocks_at_once = ~0u;
  };
  std::vector<FamilySupport> found_;
  unsigned multiprocessors_ = ~0u;
  FamilyLacks lacks_;  // With the rank whose GPU lacks the family.
};

}  // namespace plait::cuda
