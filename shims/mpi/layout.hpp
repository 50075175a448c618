// Datatypes as far as the drop-in has to know them: how many bytes an element has, and where.
#pragma once
#include <optional>
#include <vector>

#include "shims/mpi/gpu_memory.hpp"
#include "shims/mpi/real.hpp"

namespace plait::mpi {

struct Layout {
  Handle type = 0;
  std::uint64_t bytes = 0;   ///< of data in one element
  std::intptr_t extent = 0;  ///< from one element to the next
  bool contiguous = false;   ///< elements lie in order, without holes
};

Layout layout_of(Handle type);
/// Bytes of data in one element; nothing where the MPI knows no such type.
std::optional<std::uint64_t> size_of(Handle type);

/// From the first to the last byte of `count` elements, holes and all.
Piece span_of(Handle type, Count count);
/// The data alone: appends the pieces of `count` elements that begin at `at`. Throws unsupported
/// where one element is too large for the MPI to unpack.
void add_pieces(std::vector<Piece>& pieces, Handle type, std::intptr_t at, Count count);

}  // namespace plait::mpi
