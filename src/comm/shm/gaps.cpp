// Copies blocks between a buffer with gaps and a buffer without.
#include "comm/shm/gaps.hpp"

#include <cstring>

#include "base/text.hpp"
#include "plait/error.hpp"

namespace plait {

bool BlocksAt::has_gaps() const {
  if (counts == nullptr || displs == nullptr) return false;
  std::size_t next = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    if (counts[rank] != 0 && displs[rank] != next) return true;
    next += counts[rank];
  }
  return false;
}

std::uint64_t BlocksAt::bytes() const {
  std::uint64_t elements = 0;
  for (int rank = 0; rank < ranks; ++rank) elements += counts[rank];
  return elements * element_bytes;
}

void BlocksAt::check(const char* what, bool written) const {
  constexpr std::uint64_t kMost = 1ULL << 58;  // elements of 8 bytes: below 2^62 bytes
  std::uint64_t elements = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    if (counts[rank] > kMost || displs[rank] > kMost)
      throw Error(ErrorCode::invalid_argument,
                  text("{}: wanted a count and a displacement of at most 2^58 for rank {}, found "
                       "{} and {} (overflowing or negative)",
                       what, rank, static_cast<std::int64_t>(counts[rank]),
                       static_cast<std::int64_t>(displs[rank])));
    elements += counts[rank];
    if (elements > kMost)
      throw Error(ErrorCode::invalid_argument,
                  text("{}: wanted at most 2^58 elements in all blocks, found {} in those of ranks "
                       "0 to {}",
                       what, elements, rank));
    for (int other = 0; other < rank && written; ++other)
      if (counts[rank] != 0 && counts[other] != 0 && displs[rank] < displs[other] + counts[other] &&
          displs[other] < displs[rank] + counts[rank])
        throw Error(ErrorCode::invalid_argument,
                    text("{}: wanted blocks apart, found those of ranks {} and {} overlapping",
                         what, other, rank));
  }
}

std::vector<std::byte> BlocksAt::packed(const void* buffer) const {
  std::vector<std::byte> made(bytes());
  std::byte* to = made.data();
  for (int rank = 0; rank < ranks; ++rank) {
    const std::uint64_t size = counts[rank] * element_bytes;
    if (size == 0) continue;
    std::memcpy(to, static_cast<const std::byte*>(buffer) + displs[rank] * element_bytes, size);
    to += size;
  }
  return made;
}

void BlocksAt::unpack(const std::vector<std::byte>& packed, void* buffer) const {
  const std::byte* from = packed.data();
  for (int rank = 0; rank < ranks; ++rank) {
    const std::uint64_t size = counts[rank] * element_bytes;
    if (size == 0) continue;
    std::memcpy(static_cast<std::byte*>(buffer) + displs[rank] * element_bytes, from, size);
    from += size;
  }
}

}  // namespace plait
