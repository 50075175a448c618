// Blocks that a caller keeps anywhere in a buffer -> the same blocks one behind another, as calls
// take them, and back.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace plait {

/// By rank: how many elements, and where the first of them lies in the buffer. No displs: each
/// block begins where the one before it ends. No counts: one block, which lies at the buffer's
/// begin.
struct BlocksAt {
  const std::size_t* counts = nullptr;
  const std::size_t* displs = nullptr;
  int ranks = 0;
  std::uint64_t element_bytes = 1;

  bool has_gaps() const;
  /// Of all blocks.
  std::uint64_t bytes() const;
  /// Error(invalid_argument) where a block's end cannot be counted, or two blocks overlap and are
  /// to be `written`.
  void check(const char* what, bool written) const;
  std::vector<std::byte> packed(const void* buffer) const;
  void unpack(const std::vector<std::byte>& packed, void* buffer) const;
};

}  // namespace plait
