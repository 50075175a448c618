// Counts the users of each registered piece of host memory.
#include "gpu/arena/pinned_memory.hpp"

#include <sys/mman.h>

#include <map>
#include <mutex>

#include "base/text.hpp"
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

PinnedPages::PinnedPages(std::uint64_t bytes) : bytes_(bytes) {
  void* const pages =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED)
    throw Error(ErrorCode::out_of_memory, text("no {} bytes of host memory to pin", bytes));
  base_ = static_cast<std::byte*>(pages);
  try {
    register_pinned(base_, bytes);
  } catch (...) {
    ::munmap(base_, bytes);
    throw;
  }
}

PinnedPages::~PinnedPages() {
  unregister_pinned(base_);
  ::munmap(base_, bytes_);
}

}  // namespace plait::cuda
