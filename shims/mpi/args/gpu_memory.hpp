// Finds the buffers of the program that lie on GPUs, and stages them in host memory, so that the
// native MPI needs no CUDA support.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "driver/cuda/api.hpp"
#include "shims/mpi/abi/libraries.hpp"

namespace plait::mpi {

/// Whether any rank of the job may pass GPU memory; set by MPI_Init, the same on all ranks.
extern constinit std::atomic<bool> gpus_in_job;
inline bool job_uses_gpus() { return gpus_in_job.load(std::memory_order_relaxed); }

/// Returns whether this process has loaded CUDA's driver or this node has one.
bool sees_gpus();
bool detect_gpu_use();
/// Returns whether the program has initialised CUDA in this process: buffers may be on a GPU.
inline bool uses_gpus() { return may_have_loaded_more() && detect_gpu_use(); }
/// Returns whether this rank may pass GPU memory.
inline bool may_hold_gpu_memory() { return job_uses_gpus() && uses_gpus(); }
/// Returns the ordinal of the GPU that holds the memory, or -1. gpu_holding() asks the driver; CUDA
/// must be initialised.
int gpu_holding(const void* pointer);
inline int gpu_of(const void* pointer) {
  return pointer != nullptr && uses_gpus() ? gpu_holding(pointer) : -1;
}

/// The GPU that holds a range of memory.
struct MemoryOwner {
  int gpu = -1;             ///< ordinal; -1 = host memory
  bool in_primary = false;  ///< kernels of the GPU's primary context reach the memory
};
/// Asks the driver, once the program has initialised CUDA. Throws driver_error.
MemoryOwner owner_of(const void* pointer);

/// Returns the GPU's primary context, the context of CUDA's runtime.
cuda::Context context_of(int gpu);
/// A non-blocking stream on a GPU. Throws driver_error.
class GpuStream {
 public:
  explicit GpuStream(int gpu);
  ~GpuStream();
  GpuStream(const GpuStream&) = delete;
  GpuStream& operator=(const GpuStream&) = delete;
  cuda::Stream stream() const { return stream_; }

 private:
  int gpu_;
  cuda::Stream stream_ = nullptr;
};
/// Returns the process's stream for copies. Work that waits for peers needs another stream, since
/// waiting would block the copies.
cuda::Stream copy_stream(int gpu);

/// Completion of all copies enqueued on copy_stream() so far. Throws driver_error.
class CopyEvent {
 public:
  explicit CopyEvent(int gpu);
  ~CopyEvent();
  CopyEvent(const CopyEvent&) = delete;
  CopyEvent& operator=(const CopyEvent&) = delete;
  bool has_ended() const;

 private:
  int gpu_;
  cuda::Event event_ = nullptr;
};

/// Part of a buffer, in bytes from the start.
struct ByteRange {
  std::intptr_t at = 0;
  std::uint64_t bytes = 0;
};

/// A block of the pool of host memory. Pinned memory is resident; in pageable memory a page becomes
/// resident at the first write, and copies are slower.
struct HostBlock {
  std::byte* memory = nullptr;
  std::uint64_t bytes = 0;
  bool is_pinned = true;
};

/// Host memory in the place of a range of GPU memory. Throws out_of_memory, driver_error.
class StagingBuffer {
 public:
  /// Stands for [at, at + bytes) from `buffer` on.
  StagingBuffer(int gpu, const void* buffer, ByteRange whole, bool is_pinned = true);
  ~StagingBuffer();
  StagingBuffer(StagingBuffer&& other) noexcept;
  StagingBuffer(const StagingBuffer&) = delete;
  StagingBuffer& operator=(const StagingBuffer&) = delete;
  StagingBuffer& operator=(StagingBuffer&&) = delete;

  const void* buffer() const { return buffer_; }
  /// Returns the address to pass in the place of `buffer`.
  std::byte* host() const { return block_.memory - whole_.at; }
  /// Copies the GPU's memory into the staging buffer and waits.
  void fetch();
  /// The same for ranges alone, possibly of several allocations.
  void fetch(const std::vector<ByteRange>& pieces);
  /// Enqueues that copy on copy_stream().
  void begin_fetch();
  /// Copies the ranges back to the GPU and waits; bytes between ranges stay untouched.
  void put(const std::vector<ByteRange>& pieces);

 private:
  int gpu_;
  const void* buffer_;
  ByteRange whole_;
  HostBlock block_;
};

}  // namespace plait::mpi
