// Which of a program's buffers lie on GPUs, and host memory in place of those: what the MPI cannot
// reach by itself it gets from there, whether it knows CUDA or not.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "driver/cuda/api.hpp"
#include "shims/mpi/libraries.hpp"

namespace plait::mpi {

/// Whether a buffer of any rank of the job may lie on a GPU; since MPI_Init, on all ranks alike.
extern constinit std::atomic<bool> gpus_in_job;
inline bool job_uses_gpus() { return gpus_in_job.load(std::memory_order_relaxed); }

/// This process's own part of that: it has loaded CUDA's driver, or the node has one.
bool sees_gpus();
bool detect_gpu_use();
/// The program has initialised CUDA in this process, so that a buffer of its may lie on a GPU.
inline bool uses_gpus() { return may_have_loaded_more() && detect_gpu_use(); }
/// This rank's own part of a call may lie on one.
inline bool may_hold_gpu_memory() { return job_uses_gpus() && uses_gpus(); }
/// Ordinal of the GPU whose memory it is, or -1. The first asks the driver, once that is in use.
int gpu_holding(const void* pointer);
inline int gpu_of(const void* pointer) {
  return pointer != nullptr && uses_gpus() ? gpu_holding(pointer) : -1;
}

/// The GPU's primary context, which CUDA's runtime and those who build on it use.
cuda::Context context_of(int gpu);
/// A non-blocking stream on that GPU. Throws driver_error.
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
/// That of a process's copies. What waits for other ranks has another: it would hold these up.
cuda::Stream copy_stream(int gpu);

/// Tells when all copies that were put on that stream so far have ended. Throws driver_error.
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

/// Part of a buffer, in bytes from its begin.
struct ByteRange {
  std::intptr_t at = 0;
  std::uint64_t bytes = 0;
};

/// Host memory that stands in for GPUs'. Pinned, it is taken for good; else a page is taken when it
/// is first written to, and copies are slower.
struct HostBlock {
  std::byte* memory = nullptr;
  std::uint64_t bytes = 0;
  bool is_pinned = true;
};

/// Host memory that stands in for a piece of a GPU's. Throws out_of_memory, driver_error.
class StagingBuffer {
 public:
  /// Of [at, at + bytes) from `buffer` on.
  StagingBuffer(int gpu, const void* buffer, ByteRange whole, bool is_pinned = true);
  ~StagingBuffer();
  StagingBuffer(StagingBuffer&& other) noexcept;
  StagingBuffer(const StagingBuffer&) = delete;
  StagingBuffer& operator=(const StagingBuffer&) = delete;
  StagingBuffer& operator=(StagingBuffer&&) = delete;

  const void* buffer() const { return buffer_; }
  /// What to pass instead of `buffer`.
  std::byte* host() const { return block_.memory - whole_.at; }
  /// Waits until the twin holds what the GPU's memory does.
  void fetch();
  /// The same of these pieces alone, which may lie in several allocations.
  void fetch(const std::vector<ByteRange>& pieces);
  /// Begins that, on the copy stream.
  void begin_fetch();
  /// Waits until these pieces of the GPU's memory hold what the twin does; others stay untouched.
  void put(const std::vector<ByteRange>& pieces);

 private:
  int gpu_;
  const void* buffer_;
  ByteRange whole_;
  HostBlock block_;
};

}  // namespace plait::mpi
