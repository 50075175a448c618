// The properties of datatypes that the drop-in needs: the bytes of an element, and the location of
// the data.
#pragma once
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "plait/error.hpp"
#include "shims/mpi/abi/native_mpi.hpp"
#include "shims/mpi/args/gpu_memory.hpp"

namespace plait::mpi {

/// An error that the native MPI raised in a call of plait's. The program gets the MPI's code.
class NativeError : public Error {
 public:
  NativeError(ErrorCode code, int native_code, const std::string& message)
      : Error(code, message), native_code_(native_code) {}
  int native_code() const noexcept { return native_code_; }

 private:
  int native_code_;
};

struct Layout {
  Handle type = 0;
  std::uint64_t bytes = 0;   ///< data bytes in an element
  std::intptr_t extent = 0;  ///< from element to element
  bool contiguous = false;   ///< elements lie in order, without holes
};

Layout layout_of(Handle type);
/// Returns the bytes of data in an element; nothing if the MPI does not know the type.
std::optional<std::uint64_t> size_of(Handle type);

/// Throws NativeError if the layout has holes and the program has not committed the type.
void require_committed(const Layout& layout);
/// Frees the communicator that packs data. Called before MPI_Finalize.
void free_private_self();

/// Copy `count` elements of a type to packed data and back. Throw NativeError if the MPI refuses.
void pack(const void* from, Count count, const Layout& layout, std::byte* to);
void unpack(const std::byte* from, Count count, const Layout& layout, void* to);

/// Returns the range from the first to the last byte of `count` elements, holes included.
ByteRange span_of(Handle type, Count count);
/// Location of the data of a buffer; a derived datatype may reach several allocations.
struct DataLocation {
  int gpu = -1;           ///< -1 = host memory
  bool is_split = false;  ///< some data lie elsewhere
  bool in_parts = false;  ///< parts of an element may lie in allocations of their own
};
/// Locates the data of `count` elements. Throws split_data() for split data.
DataLocation data_location(const void* buffer, Handle type, Count count);
Error split_data();
/// Returns whether any data of `count` elements lie on a GPU.
bool is_on_gpu(const void* buffer, Handle type, Count count);
/// Appends the ranges of the data of `count` elements that start at `at`. Throws out_of_memory.
void add_pieces(std::vector<ByteRange>& pieces, const Layout& layout, std::intptr_t at,
                Count count);
/// Returns the ranges of the first `bytes` of data of `count` elements, in message order.
std::vector<ByteRange> first_pieces(const Layout& layout, Count count, std::uint64_t bytes);

/// A duplicate of a type that the program may free while a call is under way.
class RetainedType {
 public:
  explicit RetainedType(Handle type);
  ~RetainedType();
  RetainedType(RetainedType&& other) noexcept;
  RetainedType(const RetainedType&) = delete;
  RetainedType& operator=(const RetainedType&) = delete;
  RetainedType& operator=(RetainedType&&) = delete;
  Handle type() const { return type_; }
  /// Commits the duplicate: MPI requires no commit of the inner types of a derived type.
  void commit();

 private:
  Handle type_;
  Handle made_ = 0;
};

/// A layout that retains the type.
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
