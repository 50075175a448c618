// Reserves addresses once, and maps physical memory there as often as needed.
#include "gpu/arena/fixed_memory.hpp"

#include <unistd.h>

#include "base/env.hpp"
#include "base/text.hpp"
#include "gpu/arena/arena_layout.hpp"
#include "plait/error.hpp"

namespace plait::cuda {
namespace {

MemoryProperties properties_on(Device device) {
  MemoryProperties properties{};
  properties.type = kPinnedMemory;
  properties.handle_types = kShownByFile;
  properties.location[0] = kOnDevice;
  properties.location[1] = device;
  return properties;
}

bool has(Device device, int attribute) {
  int value = 0;
  return api().device_attribute(&value, attribute, device) == kSuccess && value != 0;
}

}  // namespace

std::string FixedMemory::why_none(Device device) {
  // NCCL has no memory at fixed addresses under this setting, and plait follows NCCL.
  if (foreign_env("NCCL_CUMEM_ENABLE") == "0") return "NCCL_CUMEM_ENABLE is 0";
  if (!has(device, kAttributeMapsMemory)) return "the GPU maps no physical memory";
  if (!has(device, kAttributeSharesFiles)) return "the driver shows memory by no file";
  std::size_t grain = 0;
  const MemoryProperties properties = properties_on(device);
  if (api().physical_granularity(&grain, &properties, kLeastGranularity) != kSuccess ||
      grain == 0 || kArenaGrainBytes % grain != 0)
    return text("the driver maps pieces of {} bytes, wanted {}", grain, kArenaGrainBytes);
  return "";
}

FixedMemory::FixedMemory(Device device, std::uint64_t bytes, std::uint64_t more_bytes)
    : device_(device), bytes_(bytes), more_bytes_(more_bytes) {
  reserve(own_);
  try {
    make();
  } catch (const Error&) {
    api().address_free(own_.address, bytes_ + more_bytes_);
    throw;
  }
}

FixedMemory::FixedMemory(const FixedMemory& front, std::uint64_t bytes)
    : device_(front.device_), bytes_(bytes), front_(&front) {
  own_.address = front.own_.address + front.bytes_;
  make();
}

FixedMemory::~FixedMemory() {
  give_up();
  if (front_ != nullptr) return;
  peers_.push_back(own_);
  for (const FixedBlock& block : peers_)
    if (block.address != 0) api().address_free(block.address, bytes_ + more_bytes_);
}

void FixedMemory::make() {
  if (is_made()) return;
  PhysicalMemory memory = 0;
  const MemoryProperties properties = properties_on(device_);
  PLAIT_CUDA_CALL(physical_create, &memory, bytes_, &properties, 0);
  map(own_, memory);
}

int FixedMemory::show() {
  if (file_ < 0) PLAIT_CUDA_CALL(physical_show, &file_, own_.memory, kShownByFile, 0);
  return file_;
}

DevicePointer FixedMemory::map_peer(std::size_t peer, int file) {
  if (peers_.size() <= peer) peers_.resize(peer + 1);
  FixedBlock& block = peers_[peer];
  unmap(block);
  if (front_ != nullptr)
    block.address = front_->behind(peer);
  else
    reserve(block);
  PhysicalMemory memory = 0;
  PLAIT_CUDA_CALL(physical_open, &memory, reinterpret_cast<void*>(static_cast<std::intptr_t>(file)),
                  kShownByFile);
  map(block, memory);
  return block.address;
}

void FixedMemory::unmap_peers() noexcept {
  for (FixedBlock& block : peers_) unmap(block);
}

void FixedMemory::give_up() noexcept {
  unmap_peers();
  if (file_ >= 0) ::close(file_);
  file_ = -1;
  unmap(own_);
}

/// Returns the peer's addresses behind this object's. Another thread may map this object's memory
/// again meanwhile, at the same addresses.
DevicePointer FixedMemory::behind(std::size_t peer) const {
  if (peer >= peers_.size() || peers_[peer].address == 0)
    throw Error(ErrorCode::internal, text("no addresses are reserved for memory of rank {}", peer));
  return peers_[peer].address + bytes_;
}

void FixedMemory::reserve(FixedBlock& block) const {
  if (block.address == 0)
    PLAIT_CUDA_CALL(address_reserve, &block.address, bytes_ + more_bytes_, kArenaGrainBytes, 0, 0);
}

/// Takes the memory over, also if it cannot be mapped.
void FixedMemory::map(FixedBlock& block, PhysicalMemory memory) const {
  const Result mapped = api().memory_map(block.address, bytes_, 0, memory, 0);
  const MemoryAccessRights access{{kOnDevice, device_}, kReadAndWrite};
  const Result allowed =
      mapped == kSuccess ? api().memory_set_access(block.address, bytes_, &access, 1) : kSuccess;
  if (mapped == kSuccess && allowed == kSuccess) {
    block.memory = memory;
    return;
  }
  if (mapped == kSuccess) api().memory_unmap(block.address, bytes_);
  api().physical_release(memory);
  require(mapped, "memory_map");
  require(allowed, "memory_set_access");
}

void FixedMemory::unmap(FixedBlock& block) const noexcept {
  if (block.memory == 0) return;
  api().memory_unmap(block.address, bytes_);
  api().physical_release(block.memory);
  block.memory = 0;
}

}  // namespace plait::cuda
