// Proving every path between ranks' GPUs when a communicator is made. The driver's word that GPUs
// may address each other is no proof: behind an IOMMU or PCIe access control stores may be dropped,
// or go to a copy that only the writer sees, while every call succeeds. So each rank writes for
// each other, by a kernel and by copy engines, and who owns the memory reads it back.
#pragma once
#include <memory>

#include "exec/cuda/device/arena.hpp"
#include "exec/cuda/device/kernels.hpp"
#include "exec/cuda/paths/path_args.hpp"

namespace plait::cuda {

/// What one rank does for the proof, on its GPU or as a test plays it.
class PathSide {
 public:
  virtual ~PathSide() = default;
  /// This rank's own bodies of a round of copies are put where copy engines will take them.
  virtual void offer(unsigned round) = 0;
  virtual void start() = 0;        ///< the kernel is launched
  virtual bool is_resident() = 0;  ///< all of it runs
  /// kPathGo: all ranks' kernels run. kPathStop: what still runs ends.
  virtual void set_command(PathCommand command) noexcept = 0;
  virtual void copy(unsigned round) = 0;  ///< to and from every peer
  virtual bool is_done() = 0;             ///< all that was begun has ended
  virtual PathInbox read() = 0;           ///< this rank's own memory, by its own GPU
};

struct PathTimeouts {
  double start_s = 60;  ///< until this rank's GPU, which may be busy, runs the kernel
  double wait_s = 2;    ///< for what a peer has written
  double copy_s = 10;   ///< for copies to end, among those of others
};

/// What this rank's copy engine sends `peer`, or offers to it, in a round: bodies of PathMail.
void fill_path_body(PathBody& body, std::uint64_t nonce, int writer, int reader, PathMethod method,
                    unsigned round);

/// All ranks together. Error(driver_error) names the ranks, what did not arrive, and what to do.
/// A rank that finds nothing wrong learns of what others found by the caller's next exchange.
void prove_paths(PathSide& side, const Exchange& exchange, int rank, int ranks, std::uint64_t nonce,
                 const PathTimeouts& timeouts = {});

/// On a GPU: the words in `arena`, a signal in pinned host memory (zeros), a stream of its own. In
/// the GPU's context.
struct PathPlace {
  const DeviceArena* arena;
  Kernels* kernels;
  Stream stream;
  PathSignal* signal;           ///< host address
  DevicePointer device_signal;  ///< the same for kernels
  int rank;
  int ranks;
};
std::unique_ptr<PathSide> path_side(const PathPlace& place, std::uint64_t nonce,
                                    const PathTimeouts& timeouts = {});

}  // namespace plait::cuda
