// Host memory that the driver has pinned and mapped for the GPUs of this process. A process
// registers a piece once, however many ranks (threads) of the process map the piece.
#pragma once
#include <cstddef>
#include <cstdint>

#include "driver/cuda/api.hpp"

namespace plait::cuda {

/// Registers the memory, or counts one more user. Throws Error(driver_error) if the driver refuses.
void register_pinned(std::byte* base, std::uint64_t bytes);
/// Unregisters the memory after the last user.
void unregister_pinned(std::byte* base) noexcept;
/// Returns the address of registered memory for kernels and copies.
DevicePointer pinned_on_device(std::byte* base);

/// Pinned host memory of this rank alone, zeroed. Needs the rank's context when it is made and when
/// it ends.
class PinnedPages {
 public:
  /// Throws Error(out_of_memory) if the machine lacks the memory, driver_error if the driver
  /// refuses.
  explicit PinnedPages(std::uint64_t bytes);
  ~PinnedPages();
  PinnedPages(const PinnedPages&) = delete;
  PinnedPages& operator=(const PinnedPages&) = delete;
  std::byte* on_host() const { return base_; }
  DevicePointer on_device() const { return pinned_on_device(base_); }

 private:
  std::uint64_t bytes_;
  std::byte* base_ = nullptr;
};

}  // namespace plait::cuda
