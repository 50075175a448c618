// Forwards a call to the native function: with the program's arguments, with counts narrowed to int
// if the MPI has no _c function, and with staging buffers in the place of GPU memory.
#pragma once
#include <climits>
#include <cstring>
#include <tuple>
#include <utility>
#include <vector>

#include "base/text.hpp"
#include "shims/mpi/abi/lengths.hpp"
#include "shims/mpi/abi/status.hpp"
#include "shims/mpi/requests/persistent.hpp"
#include "shims/mpi/requests/requests.hpp"

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

/// Returns null on ranks other than the root, where MPI ignores the argument, which may be invalid.
template <class T>
const T* only_at_root(const T* numbers, int root, Handle comm) {
  const Abi& abi = native().abi;
  if (abi.key(comm) == abi.no_comm) return numbers;
  int inter = 0, rank = 0;
  native().Comm_test_inter(comm, &inter);
  native().Comm_rank(comm, &rank);
  return (inter != 0 ? root < 0 : root == rank) ? numbers : nullptr;
}

/// Reports that the MPI lacks the function.
[[gnu::cold, gnu::noinline]] inline int report_missing(Handle comm) {
  return report(
      comm, Error(ErrorCode::unsupported,
                  text("this function is missing in ", native().path, ": use an MPI that has it")));
}

/// Calls a function that not every MPI has; a tail call becomes a jump.
template <class Function, class... Arguments>
[[gnu::always_inline]] inline int call_or_report(Function function, Handle comm,
                                                 Arguments... arguments) {
  return function != nullptr ? function(arguments...) : report_missing(comm);
}

/// Calls the _c function, or the int function if the MPI lacks it. lengths(): of count arrays.
template <class Function, class Narrow, class LengthsOf, class... Arguments>
int large_or_narrowed(Function large, Narrow small, Handle comm, const LengthsOf& lengths,
                      Arguments... arguments) {
  if (large != nullptr) return large(arguments...);
  return guarded(comm, [&] {
    constexpr int kArrays = (0 + ... + (std::is_same_v<Arguments, const Count*> ? 1 : 0));
    NarrowedCounts narrowed(kArrays > 0 ? lengths() : Lengths{}, kArrays);
    // Braces fix the order of evaluation, and the order tells arrays apart.
    const auto converted = std::tuple{narrowed(arguments)...};
    if (narrowed.fits())
      return std::apply([&](auto... given) { return call_or_report(small, comm, given...); },
                        converted);
    return report(
        comm, Error(ErrorCode::unsupported, text("counts larger than an int are not supported by ",
                                                 native().path, ", which has no _c functions")));
  });
}

/// The same for a call with an array entry per rank.
template <class Function, class Narrow, class... Arguments>
int large_or_small(Function large, Narrow small, Handle comm, Arguments... arguments) {
  return large_or_narrowed(large, small, comm, [&] { return ranks_in(comm); }, arguments...);
}

/// Displacements that are MPI_Aint in both variants of a function.
inline CountArray addresses(const void* displs) {
  return CountArray(static_cast<const std::intptr_t*>(displs));
}

/// Calls a blocking native function with staging buffers for GPU memory; add(staging) names the
/// buffers. If staging fails, the communicator's error handler is called.
template <class Add, class Function, class... Arguments>
int staged(Handle comm, const Add& add, const Function& function, Arguments... arguments) {
  if (!may_hold_gpu_memory()) return function(arguments...);
  return guarded(comm, [&] {
    CallStaging staging;
    add(staging);
    const int code = function(staging.substitute(arguments)...);
    if (code == 0) staging.put_back();
    return code;
  });
}

/// The same for a function whose last argument receives a request. With staging buffers,
/// taken(native_request, staging) stores the program's request.
template <class Taken, class Add, class Function, class... Arguments>
int request_staged(Handle comm, void* request, const Taken& taken, const Add& add,
                   const Function& function, Arguments... arguments) {
  if (!may_hold_gpu_memory()) return function(arguments..., request);
  return guarded(comm, [&] {
    CallStaging staging;
    add(staging);
    if (staging.is_empty()) return function(arguments..., request);
    Handle native_request = 0;
    const int code =
        function(staging.substitute(arguments)..., static_cast<void*>(&native_request));
    if (code != 0) return code;
    return taken(native().abi.at(&native_request, 0), std::move(staging));
  });
}

/// A non-blocking function.
template <class... Rest>
int start_staged(Handle comm, void* request, const Rest&... rest) {
  const auto taken = [&](Handle native_request, CallStaging staging) {
    return start_native(comm, native_request, std::move(staging), request);
  };
  return request_staged(comm, request, taken, rest...);
}

/// A function that makes a persistent request.
template <class... Rest>
int init_staged(Handle comm, void* request, const Rest&... rest) {
  const auto taken = [&](Handle native_request, CallStaging staging) {
    add_persistent(comm, native_request, std::move(staging));
    std::memcpy(request, &native_request, static_cast<std::size_t>(native().abi.handle_bytes));
    return 0;
  };
  return request_staged(comm, request, taken, rest...);
}

}  // namespace plait::mpi
