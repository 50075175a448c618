// Packs a caller's scattered blocks into a contiguous buffer, the layout of all calls, and unpacks
// the result.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace plait {

/// Blocks by rank: number of elements, and index of the first element. No displs: each block begins
/// at the end of the block before. No counts: a single block at the beginning of the buffer.
struct BlocksAt {
  const std::size_t* counts = nullptr;
  const std::size_t* displs = nullptr;
  int ranks = 0;
  std::uint64_t element_bytes = 1;

  bool has_gaps() const;
  /// Returns the size of all blocks.
  std::uint64_t bytes() const;
  /// Throws Error(invalid_argument) if a block's end or the size of all blocks overflows, or if two
  /// blocks that are to be `written` overlap.
  void check(const char* what, bool written) const;
  std::vector<std::byte> packed(const void* buffer) const;
  void unpack(const std::vector<std::byte>& packed, void* buffer) const;
};

}  // namespace plait
