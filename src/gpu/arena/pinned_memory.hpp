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

}  // namespace plait::cuda
