// Nameless shared memory: a sealed memfd, committed before it is shown, mapped by every rank.
// Nothing has a name, so nothing is left behind whatever is killed when.
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

/// Zeroed memory of exactly that size, all of it committed (so that no store can meet SIGBUS) and
/// sealed against resizing. `others` = how many more of this size the machine is about to need.
/// Error(out_of_memory) where the machine has not that much left.
Fd make_shared_memory(std::uint64_t bytes, int others);
/// Maps what a peer sent. Error(mismatch) unless it is sealed memory of exactly that size, so that
/// no access can meet SIGBUS. A mapping that is only read may be of a descriptor open for reading.
enum class MapAccess { read, write };
Mapping map_shared_memory(const Fd& fd, std::uint64_t bytes, MapAccess access = MapAccess::write);
/// Opens a file that another process of this machine has open under that number; invalid where it
/// cannot. Whatever the number is by then, opening it does not wait.
Fd open_of_process(int process, int file, MapAccess access);
/// Bytes that can still be committed on this machine or in this container.
std::uint64_t available_bytes();
/// What the limits of a control group (version 2), "/NAME/NAME", and of those that it lies in
/// leave; root: where their files are mounted.
std::uint64_t available_in_groups(const std::string& root, std::string group);

}  // namespace plait
