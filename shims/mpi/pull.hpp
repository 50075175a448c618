// A message's bytes out of its sender's memory, which the receiver reads by itself: host memory of
// another process, or memory of a GPU that its owner has shown.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>

#include "shims/mpi/gpu_memory.hpp"

namespace plait::mpi {

/// False where that process's memory cannot be read.
bool pull_from(int process, std::uint64_t address, void* to, std::uint64_t bytes);

/// Part of an allocation of a process's.
struct ExportedMemory {
  cuda::IpcHandle handle;
  std::uint64_t allocation;  ///< a number that no other of its process's ever has
  std::uint64_t bytes;       ///< of the allocation
  std::uint64_t at;
  std::uint64_t address;  ///< for that process itself
};
/// False where the driver cannot show such memory to others (pools, virtual memory).
bool export_memory(int gpu, const void* memory, ExportedMemory& exported);

/// A copy from shown memory that is on its way to memory of this process's GPU.
class Pull {
 public:
  /// Null where that memory cannot be opened here. Throws driver_error.
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

/// What others have shown is closed here, but for what a copy still reads: their owners can then
/// give it back.
void close_opened();

}  // namespace plait::mpi
