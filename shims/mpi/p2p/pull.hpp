// Reads a message's payload from the sender's GPU memory, which the owner has exported (CUDA IPC),
// without the sender's help. comm/p2p/pull.hpp reads host memory.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>

#include "shims/mpi/args/gpu_memory.hpp"

namespace plait::mpi {

/// A range of an exported allocation.
struct ExportedMemory {
  cuda::IpcHandle handle;
  std::uint64_t allocation;  ///< unique in the exporting process, never reused
  std::uint64_t bytes;       ///< of the allocation
  std::uint64_t at;
  std::uint64_t address;  ///< valid in the exporting process
};
/// Returns false if the driver cannot export the memory (pools, virtual memory).
bool export_memory(int gpu, const void* memory, ExportedMemory& exported);

/// A copy under way from exported memory to a GPU of this process.
class Pull {
 public:
  /// Returns null if the memory cannot be opened here, or if NCCL_P2P_DISABLE=1 or
  /// PLAIT_THROUGH_HOST=1 forbid that. Throws driver_error.
  static std::unique_ptr<Pull> begin(int process, const ExportedMemory& from, int gpu, void* to,
                                     std::uint64_t bytes);
  ~Pull();
  Pull(const Pull&) = delete;
  Pull& operator=(const Pull&) = delete;
  /// Throws driver_error.
  bool has_ended();

 private:
  Pull() = default;
  std::optional<CopyEvent> copied_;
  struct OpenedAllocation* opened_ = nullptr;
};

/// Closes opened allocations that no copy reads, so that their owners can free them.
void close_opened();

}  // namespace plait::mpi
