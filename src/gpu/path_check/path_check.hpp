// Checks every path between ranks' GPUs when a communicator is made. A driver's grant of peer
// access is no proof: behind an IOMMU or PCIe access control, stores may be dropped, or go to a
// copy that only the writer sees, while every call succeeds. Therefore each rank writes to every
// other, by a kernel and by copy engines, and the owner of the memory reads the data back.
#pragma once
#include <memory>
#include <vector>

#include "gpu/abi/path_args.hpp"
#include "gpu/arena/arena.hpp"
#include "gpu/device/kernels.hpp"

namespace plait::cuda {

/// Used by the path check only.
inline constexpr ArenaFlags<PathInbox> kPathFlags{"path check"};
/// The same within islands of ranks whose arenas lie in host memory.
inline constexpr ArenaPart kIslandPaths{
    .name = "island_paths", .what = "path check of islands", .is_own = true};

/// A rank's part of the check, on the rank's GPU or emulated by a test.
class PathSide {
 public:
  virtual ~PathSide() = default;
  /// Writes this rank's bodies of a round to the place where copy engines read.
  virtual void offer(unsigned round) = 0;
  /// Forgets a check whose kernels have ended on all ranks: clears this rank's flags and faults.
  /// Later bodies carry the nonce.
  virtual void reset(std::uint64_t nonce) = 0;
  virtual void start() = 0;        ///< Launches the kernel.
  virtual bool is_resident() = 0;  ///< True once all blocks run.
  /// kPathGo: all ranks' kernels run. kPathStop: running kernels end.
  virtual void set_command(PathCommand command) noexcept = 0;
  virtual void copy(unsigned round) = 0;  ///< Copies to and from every peer.
  virtual bool is_done() = 0;             ///< True once all started work has ended.
  virtual PathInbox read() = 0;           ///< Reads this rank's own memory through this rank's GPU.
};

struct PathTimeouts {
  double start_s = 60;  ///< Until this rank's GPU, possibly busy, runs the kernel.
  double wait_s = 2;    ///< For a peer's data.
  double copy_s = 10;   ///< For copies, among copies of other ranks.
};

/// Fills a PathMail body that this rank's copy engine pushes or offers to `peer` in a round.
void fill_path_body(PathBody& body, std::uint64_t nonce, int writer, int reader, PathMethod method,
                    unsigned round);

/// Collective over all ranks. Returns the first fault that a rank has found, the same on all ranks,
/// or "" if all paths work. The fault names the ranks, the path that fails and the remedy. If data
/// was late and nothing else was wrong, all ranks check once more, since a rank's host may have
/// stalled. Error(timeout) if this rank's GPU does not get to the check. rank, ranks: of an island,
/// if only its paths are checked, all islands at once; `names` are the ranks' numbers then.
std::string broken_path(PathSide& side, const Exchange& exchange, int rank, int ranks,
                        std::uint64_t nonce, const PathTimeouts& timeouts = {},
                        const std::vector<int>& names = {});

/// Inputs of a check on a GPU: every rank's inbox as mapped here, a zeroed signal in pinned host
/// memory, a separate stream. Used in the GPU's context.
struct PathPlace {
  std::vector<PathInbox*> inboxes;
  Kernels* kernels;
  Stream stream;
  PathSignal* signal;           ///< Host address.
  DevicePointer device_signal;  ///< The same for kernels.
  int rank;
  int ranks;
};
std::unique_ptr<PathSide> path_side(const PathPlace& place, std::uint64_t nonce,
                                    const PathTimeouts& timeouts = {});

}  // namespace plait::cuda
