// The arguments of a collective in a single form, for all functions, count widths and modes
// (blocking, non-blocking, persistent).
#pragma once
#include <type_traits>

#include "shims/mpi/abi/native_mpi.hpp"

namespace plait::mpi {

/// A program's array of counts or displacements, 4 or 8 bytes each; may be null.
class CountArray {
 public:
  CountArray() = default;
  template <class T>
  explicit CountArray(const T* data) : data_(data), wide_(sizeof(T) == 8) {}
  Count operator[](int index) const {
    return wide_ ? static_cast<const Count*>(data_)[index] : static_cast<const int*>(data_)[index];
  }
  explicit operator bool() const { return data_ != nullptr; }

 private:
  const void* data_ = nullptr;
  bool wide_ = false;
};

struct CollectiveArgs {
  Collective collective = Collective::all_reduce;
  const void* in = nullptr;
  void* out = nullptr;
  Count in_count = 0, out_count = 0;
  Handle in_type = 0, out_type = 0;
  Handle op = 0;
  int root = 0;
  Handle comm = 0;
  CountArray counts, displs;        ///< per rank, if parts differ; else null
  CountArray in_counts, in_displs;  ///< send side, if `own_counts`
  bool own_counts = false;          ///< a count is known to its two ranks alone (v-collectives)
};

/// Sum of the positive counts; the program's array may hold wrong counts.
inline Count sum_of(const CountArray& counts, int ranks) {
  Count sum = 0;
  for (int rank = 0; rank < ranks; ++rank) sum += counts[rank] > 0 ? counts[rank] : 0;
  return sum;
}

/// Returns whether the parts lie in rank order from the start of the buffer, without gaps.
inline bool are_contiguous(const CountArray& counts, const CountArray& displs, int ranks) {
  Count before = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    if (counts[rank] != 0 && displs[rank] != before) return false;
    before += counts[rank];
  }
  return true;
}

inline bool is_in_place(const void* buffer) { return buffer == native().abi.in_place; }

/// A function object for each collective, from MPI's arguments. Objects, since an object without
/// members takes no register as an argument.
namespace args_of {

inline CollectiveArgs reduction(Collective collective, const void* in, void* out, Count count,
                                Handle type, Handle op, Handle comm) {
  CollectiveArgs call;
  call.collective = collective;
  call.in = in;
  call.out = out;
  call.in_count = call.out_count = count;
  call.in_type = call.out_type = type;
  call.op = op;
  call.comm = comm;
  return call;
}

inline CollectiveArgs movement(Collective collective, const void* in, Count in_count,
                               Handle in_type, void* out, Count out_count, Handle out_type,
                               Handle comm) {
  CollectiveArgs call;
  call.collective = collective;
  call.in = in;
  call.in_count = in_count;
  call.in_type = in_type;
  call.out = out;
  call.out_count = out_count;
  call.out_type = out_type;
  call.comm = comm;
  return call;
}

inline constexpr auto Allreduce = [](const void* in, void* out, Count count, Handle type, Handle op,
                                     Handle comm) {
  return reduction(Collective::all_reduce, in, out, count, type, op, comm);
};

inline constexpr auto Reduce = [](const void* in, void* out, Count count, Handle type, Handle op,
                                  int root, Handle comm) {
  CollectiveArgs call = reduction(Collective::reduce, in, out, count, type, op, comm);
  call.root = root;
  return call;
};

inline constexpr auto Reduce_scatter_block = [](const void* in, void* out, Count count, Handle type,
                                                Handle op, Handle comm) {
  return reduction(Collective::reduce_scatter, in, out, count, type, op, comm);
};

inline constexpr auto Reduce_scatter = [](const void* in, void* out, const auto* counts,
                                          Handle type, Handle op, Handle comm) {
  CollectiveArgs call = reduction(Collective::reduce_scatter, in, out, 0, type, op, comm);
  call.counts = CountArray(counts);
  return call;
};

inline constexpr auto Bcast = [](void* buffer, Count count, Handle type, int root, Handle comm) {
  CollectiveArgs call =
      movement(Collective::broadcast, buffer, count, type, buffer, count, type, comm);
  call.root = root;
  return call;
};

inline constexpr auto Allgather = [](const void* in, Count in_count, Handle in_type, void* out,
                                     Count out_count, Handle out_type, Handle comm) {
  return movement(Collective::all_gather, in, in_count, in_type, out, out_count, out_type, comm);
};

inline constexpr auto Allgatherv = [](const void* in, Count in_count, Handle in_type, void* out,
                                      const auto* counts, const auto* displs, Handle out_type,
                                      Handle comm) {
  CollectiveArgs call =
      movement(Collective::all_gather, in, in_count, in_type, out, 0, out_type, comm);
  call.counts = CountArray(counts);
  call.displs = CountArray(displs);
  return call;
};

inline constexpr auto Alltoall = [](const void* in, Count in_count, Handle in_type, void* out,
                                    Count out_count, Handle out_type, Handle comm) {
  return movement(Collective::all_to_all, in, in_count, in_type, out, out_count, out_type, comm);
};

/// Counts and displacements may be null on ranks where MPI ignores the arguments.
inline constexpr auto Alltoallv = [](const void* in, const auto* in_counts, const auto* in_displs,
                                     Handle in_type, void* out, const auto* counts,
                                     const auto* displs, Handle out_type, Handle comm) {
  CollectiveArgs call = movement(Collective::all_to_all, in, 0, in_type, out, 0, out_type, comm);
  call.in_counts = CountArray(in_counts);
  call.in_displs = CountArray(in_displs);
  call.counts = CountArray(counts);
  call.displs = CountArray(displs);
  call.own_counts = true;
  return call;
};

inline constexpr auto Gatherv = [](const void* in, Count in_count, Handle in_type, void* out,
                                   const auto* counts, const auto* displs, Handle out_type,
                                   int root, Handle comm) {
  CollectiveArgs call = movement(Collective::gather, in, in_count, in_type, out, 0, out_type, comm);
  call.counts = CountArray(counts);
  call.displs = CountArray(displs);
  call.own_counts = true;
  call.root = root;
  return call;
};

inline constexpr auto Scatterv = [](const void* in, const auto* in_counts, const auto* in_displs,
                                    Handle in_type, void* out, Count out_count, Handle out_type,
                                    int root, Handle comm) {
  CollectiveArgs call =
      movement(Collective::scatter, in, 0, in_type, out, out_count, out_type, comm);
  call.in_counts = CountArray(in_counts);
  call.in_displs = CountArray(in_displs);
  call.own_counts = true;
  call.root = root;
  return call;
};

inline constexpr auto Gather = [](const void* in, Count in_count, Handle in_type, void* out,
                                  Count out_count, Handle out_type, int root, Handle comm) {
  CollectiveArgs call =
      movement(Collective::gather, in, in_count, in_type, out, out_count, out_type, comm);
  call.root = root;
  return call;
};

inline constexpr auto Scatter = [](const void* in, Count in_count, Handle in_type, void* out,
                                   Count out_count, Handle out_type, int root, Handle comm) {
  CollectiveArgs call =
      movement(Collective::scatter, in, in_count, in_type, out, out_count, out_type, comm);
  call.root = root;
  return call;
};

}  // namespace args_of
}  // namespace plait::mpi
