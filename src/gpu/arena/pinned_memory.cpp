// Counts the users of each registered piece of host memory.
#include "gpu/arena/pinned_memory.hpp"

#include <map>
#include <mutex>

#include "plait/error.hpp"

namespace plait::cuda {
namespace {

std::mutex guard;
std::map<std::byte*, int> users;

}  // namespace

void register_pinned(std::byte* base, std::uint64_t bytes) {
  const std::lock_guard<std::mutex> hold(guard);
  int& count = users[base];
  if (count == 0)
    PLAIT_CUDA_CALL(host_register, base, bytes, kHostRegisterPortable | kHostRegisterMapped);
  ++count;  // Counts after the driver has accepted the memory.
}

void unregister_pinned(std::byte* base) noexcept {
  const std::lock_guard<std::mutex> hold(guard);
  const auto found = users.find(base);
  if (found == users.end() || --found->second != 0) return;
  users.erase(found);
  api().host_unregister(base);
}

DevicePointer pinned_on_device(std::byte* base) {
  DevicePointer mapped = 0;
  PLAIT_CUDA_CALL(host_device_pointer, &mapped, base, 0);
  return mapped;
}

}  // namespace plait::cuda
