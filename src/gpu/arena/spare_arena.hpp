// Memory and stream of a small arena, made in a thread before the ranks of a communicator know each
// other. The drop-in under NCCL begins a spare beside the call by which NCCL makes a communicator,
// and CudaRank takes it when plait attaches.
//
// The thread cannot deadlock. It makes memory, addresses and a stream, as NCCL's call does at the
// same time in the program's thread. It launches nothing, waits for no stream, event or peer, and
// holds no lock while the driver runs. CudaRank waits for the thread only where CudaRank would make
// the same driver calls itself.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>

#include "driver/cuda/api.hpp"
#include "gpu/arena/fixed_memory.hpp"

namespace plait::cuda {

class SpareArena {
 public:
  /// Larger arenas are made by CudaRank alone, since NCCL needs memory at the same time.
  static constexpr std::uint64_t kMostBytes = 64u << 20;
  /// Free memory of the GPU below which CudaRank alone makes arenas.
  static constexpr std::uint64_t kLeastFreeBytes = 2ull << 30;

  /// Notes the bytes, at fixed addresses, that the next communicator like the latest one of `ranks`
  /// ranks makes on the GPU at its creation; 0 = none. ordinal: CUDA's number of the GPU.
  static void note(int ordinal, int ranks, std::uint64_t bytes) noexcept;
  /// Begins a spare of the noted bytes. Returns null if none are noted or no thread can be made.
  static std::unique_ptr<SpareArena> begin(int ordinal, int ranks) noexcept;

  explicit SpareArena(int ordinal, std::uint64_t bytes);
  /// Returns at once. The thread frees everything that is not taken.
  ~SpareArena();
  SpareArena(const SpareArena&) = delete;
  SpareArena& operator=(const SpareArena&) = delete;

  /// Waits for the thread. Returns the memory, or null if the GPU or the size is another, or the
  /// thread has failed.
  std::unique_ptr<FixedMemory> take_memory(Device device, std::uint64_t bytes);
  /// Waits for the thread. Returns a non-blocking stream of the greatest priority, or null.
  Stream take_stream(Device device);

 private:
  struct SpareParts {
    std::mutex guard;
    std::condition_variable changed;
    bool is_made = false;     // the thread has made the members below, or has failed
    bool is_dropped = false;  // nobody takes them any more
    Device device = -1;
    std::uint64_t bytes = 0;
    std::unique_ptr<FixedMemory> memory;
    Stream stream = nullptr;
  };
  static void make(SpareParts& parts, int ordinal) noexcept;

  const std::shared_ptr<SpareParts> parts_;
};

}  // namespace plait::cuda
