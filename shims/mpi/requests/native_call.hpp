// Calls a function of the native MPI: reports a missing function to the communicator, and narrows
// counts to int if the MPI has no _c function.
#pragma once
#include <climits>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/text.hpp"
#include "shims/mpi/abi/lengths.hpp"
#include "shims/mpi/requests/errors.hpp"

namespace plait::mpi {

/// Counts narrowed to int for an MPI without _c functions. Programs look up a _c name to learn
/// whether the MPI has that function, hence the drop-in exports all _c names.
class NarrowedCounts {
 public:
  /// The first half of `arrays` belongs to the send side, the second to the receive side.
  NarrowedCounts(Lengths lengths, int arrays) : lengths_(lengths), arrays_(arrays) {}
  template <class T>
  T operator()(T value) {
    return value;
  }
  int operator()(Count value) {
    fits_ = fits_ && value <= INT_MAX && value >= INT_MIN;
    return static_cast<int>(value);
  }
  const int* operator()(const Count* values) {
    const int numbers = 2 * seen_++ < arrays_ ? lengths_.in : lengths_.out;
    if (values == nullptr) return nullptr;
    std::vector<int>& made = narrowed_.emplace_back();
    made.reserve(static_cast<std::size_t>(numbers));
    for (int at = 0; at < numbers; ++at) made.push_back((*this)(values[at]));
    return made.data();
  }
  bool fits() const { return fits_; }

 private:
  Lengths lengths_;
  int arrays_, seen_ = 0;
  bool fits_ = true;
  std::vector<std::vector<int>> narrowed_;
};

/// Sets arrays to null on ranks other than the root: MPI ignores them there, so they may be
/// invalid, and narrowing would read them. On an intercommunicator the root passes MPI_ROOT.
template <class... Arrays>
void null_unless_root(int root, Handle comm, Arrays&... arrays) {
  const Abi& abi = native().abi;
  if (abi.key(comm) == abi.no_comm) return;
  int inter = 0, rank = 0;
  native().Comm_test_inter(comm, &inter);
  native().Comm_rank(comm, &rank);
  if (root != (inter != 0 ? abi.root : rank)) ((arrays = nullptr), ...);
}

/// Reports that the MPI lacks the function.
[[gnu::cold, gnu::noinline]] inline int report_missing(Handle comm) {
  return report(
      comm, Error(ErrorCode::unsupported,
                  text("this function is missing in {}: use an MPI that has it", native().path)));
}

/// A native function and the communicator whose handler gets errors.
template <class Function>
struct NativeCall {
  Function* function;
  Handle comm;
  /// A tail call becomes a jump.
  template <class... Arguments>
  [[gnu::always_inline]] int operator()(Arguments... arguments) const {
    return function != nullptr ? function(arguments...) : report_missing(comm);
  }
};

/// A native _c function, and the int function for an MPI that lacks the _c function.
template <class Large, class Small>
struct NativeLargeCall {
  Large* large;
  Small* small;
  Handle comm;
  Lengths (*lengths)(Handle);  ///< of count arrays

  template <class... Arguments>
  int operator()(Arguments... arguments) const {
    return large != nullptr ? large(arguments...) : narrowed(arguments...);
  }

 private:
  template <class... Arguments>
  [[gnu::noinline]] int narrowed(Arguments... arguments) const {
    return guarded(comm, [&] {
      constexpr int kArrays = (0 + ... + (std::is_same_v<Arguments, const Count*> ? 1 : 0));
      NarrowedCounts narrow(kArrays > 0 ? lengths(comm) : Lengths{}, kArrays);
      // Braces fix the order of evaluation, and the order tells arrays apart.
      const auto converted = std::tuple{narrow(arguments)...};
      if (narrow.fits()) return std::apply(NativeCall<Small>{small, comm}, converted);
      return report(
          comm,
          Error(ErrorCode::unsupported,
                text("counts larger than an int are not supported by {}, which has no _c functions",
                     native().path)));
    });
  }
};

/// A native function by its member of the table: the type says which, so that an exported function
/// hands its arguments on in the registers that hold them. small: for an MPI that lacks the _c
/// function. lengths: of count arrays.
template <auto kFunction, auto kSmall = nullptr, Lengths (*kLengths)(Handle) = ranks_in>
struct Native {
  /// Returns the function; comm's handler gets errors.
  [[gnu::always_inline]] auto operator()(Handle comm) const {
    if constexpr (std::is_null_pointer_v<decltype(kSmall)>)
      return NativeCall{native().*kFunction, comm};
    else
      return NativeLargeCall{native().*kFunction, native().*kSmall, comm, kLengths};
  }
  /// Whether the first call has made the table, and the MPI has the function.
  [[gnu::always_inline]] bool is_ready() const {
    const NativeMpi* const table = native_table.load(std::memory_order_acquire);
    return __builtin_expect(table != nullptr && table->*kFunction != nullptr, 1) != 0;
  }
  /// Returns the function itself. Valid if is_ready().
  [[gnu::always_inline]] auto* ready() const {
    return native_table.load(std::memory_order_acquire)->*kFunction;
  }
  [[gnu::always_inline]] bool is_missing() const { return native().*kFunction == nullptr; }
  /// Returns the offset of the member, a constant.
  [[gnu::always_inline]] std::size_t offset() const {
    static constexpr NativeFunctions kTable;
    const auto* const member = reinterpret_cast<const std::byte*>(&(kTable.*kFunction));
    return static_cast<std::size_t>(member - reinterpret_cast<const std::byte*>(&kTable));
  }
  /// Returns the exported function's name.
  const char* name() const { return name_of_function(offset()); }
};

}  // namespace plait::mpi
