// GPU memory of a rank and of its peers at fixed addresses. The memory behind the addresses can go
// and come back, so calls and captured graphs that hold addresses stay right. Peers map the memory
// by file descriptors, and memory goes once no process maps it, in any order of the ranks.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "driver/cuda/api.hpp"

namespace plait::cuda {

class FixedMemory {
 public:
  /// Returns why the device has no such memory; empty = it has.
  static std::string why_none(Device device);
  /// Reserves addresses for `bytes` and, behind, for `more_bytes`, multiples of kArenaGrainBytes.
  /// Makes memory at the first `bytes`.
  FixedMemory(Device device, std::uint64_t bytes, std::uint64_t more_bytes = 0);
  /// Makes memory at the addresses that `front` has reserved behind its own. front: has mapped each
  /// peer before this object does, and outlives this object.
  FixedMemory(const FixedMemory& front, std::uint64_t bytes);
  ~FixedMemory();
  FixedMemory(const FixedMemory&) = delete;
  FixedMemory& operator=(const FixedMemory&) = delete;

  DevicePointer base() const { return own_.address; }
  /// Makes memory behind this rank's addresses, unless there is some.
  void make();
  bool is_made() const { return own_.memory != 0; }
  /// Returns the file descriptor that shows this rank's memory to other processes. The descriptor
  /// closes when the memory goes, since closing may take a millisecond of a set-up (E-0484).
  int show();
  /// Maps a peer's memory, shown by `file`, at the peer's addresses; the same addresses each time.
  DevicePointer map_peer(std::size_t peer, int file);
  /// Unmaps the peers' memory. Keeps the addresses.
  void unmap_peers() noexcept;
  /// unmap_peers(), and gives this rank's memory up. No kernel may use either.
  void give_up() noexcept;

 private:
  struct FixedBlock {
    DevicePointer address = 0;
    PhysicalMemory memory = 0;  // 0 = none is mapped
  };
  DevicePointer behind(std::size_t peer) const;
  void reserve(FixedBlock& block) const;
  void map(FixedBlock& block, PhysicalMemory memory) const;
  void unmap(FixedBlock& block) const noexcept;

  Device device_;
  std::uint64_t bytes_, more_bytes_ = 0;
  const FixedMemory* front_ = nullptr;  // has reserved the addresses; null = this object has
  FixedBlock own_;
  int file_ = -1;  // of show(); holds the memory too
  std::vector<FixedBlock> peers_;  // by rank
};

}  // namespace plait::cuda
