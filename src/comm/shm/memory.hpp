// Nameless shared memory: a sealed memfd, committed before peers get it, mapped by every rank.
// Without a name, nothing is left behind after a kill.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

#include "comm/bootstrap/socket.hpp"

namespace plait {

/// A mapping that unmaps itself.
class Mapping {
 public:
  Mapping() = default;
  Mapping(std::byte* base, std::uint64_t bytes) : base_(base), bytes_(bytes) {}
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;
  ~Mapping();
  std::byte* base() const { return base_; }
  std::uint64_t bytes() const { return bytes_; }

 private:
  std::byte* base_ = nullptr;
  std::uint64_t bytes_ = 0;
};

/// Makes zeroed memory of that size, fully committed (so that no store can raise SIGBUS) and sealed
/// against resizing. `others`: how many more pieces of this size the machine is about to need.
/// Throws Error(out_of_memory) if the machine lacks the memory.
Fd make_shared_memory(std::uint64_t bytes, int others);
enum class MapAccess { read, write };
/// Maps a peer's memory. Throws Error(mismatch) unless the memory is sealed and of exactly that
/// size, so that no access can raise SIGBUS. A read-only mapping only needs a descriptor open for
/// reading.
Mapping map_shared_memory(const Fd& fd, std::uint64_t bytes, MapAccess access = MapAccess::write);
/// Opens a file by descriptor number in another process of this machine; invalid on failure. Never
/// blocks, whatever file has that number by then.
Fd open_of_process(int process, int file, MapAccess access);
/// Bytes that can still be committed on this machine or in this container.
std::uint64_t available_bytes();
/// Bytes that the limits of a control group (version 2), "/NAME/NAME", and of all parents leave.
/// root: the mount point of the control group files.
std::uint64_t available_in_groups(const std::string& root, std::string group);

}  // namespace plait
