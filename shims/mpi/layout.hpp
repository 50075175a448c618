// Datatypes as far as the drop-in has to know them: how many bytes an element has, and where.
#pragma once
#include <cstddef>
#include <optional>
#include <vector>

#include "plait/error.hpp"
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

/// `count` elements behind each other, as their type has them, <-> their data alone. They throw
/// unsupported where the MPI refuses.
void pack(const void* from, Count count, const Layout& layout, std::byte* to);
void unpack(const std::byte* from, Count count, const Layout& layout, void* to);

/// From the first to the last byte of `count` elements, holes and all.
ByteRange span_of(Handle type, Count count);
/// Where data lie that a buffer and a datatype say: by a derived one that may be anywhere.
struct DataLocation {
  int gpu = -1;           ///< -1 = host memory
  bool is_split = false;  ///< some lie elsewhere
  bool in_parts = false;  ///< each of which may be an allocation of its own
};
/// Of `count` elements. Throws split_data() where they are that.
DataLocation data_location(const void* buffer, Handle type, Count count);
Error split_data();
/// Whether any of them lie on a GPU.
bool is_on_gpu(const void* buffer, Handle type, Count count);
/// The data alone: appends the pieces of `count` elements that begin at `at`. Throws out_of_memory.
void add_pieces(std::vector<ByteRange>& pieces, const Layout& layout, std::intptr_t at,
                Count count);
/// The first `bytes` of the data of `count` elements, in the order in which a message has them.
std::vector<ByteRange> first_pieces(const Layout& layout, Count count, std::uint64_t bytes);

/// A type that outlives the program's, which it may free while a call is under way.
class RetainedType {
 public:
  explicit RetainedType(Handle type);
  ~RetainedType();
  RetainedType(RetainedType&& other) noexcept;
  RetainedType(const RetainedType&) = delete;
  RetainedType& operator=(const RetainedType&) = delete;
  RetainedType& operator=(RetainedType&&) = delete;
  Handle type() const { return type_; }

 private:
  Handle type_;
  Handle made_ = 0;
};

/// A layout that outlives its type.
class RetainedLayout {
 public:
  explicit RetainedLayout(const Layout& layout);
  const Layout& operator*() const { return layout_; }
  const Layout* operator->() const { return &layout_; }

 private:
  Layout layout_;
  RetainedType retained_;
};

}  // namespace plait::mpi
