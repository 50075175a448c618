// Random collectives. Each rank computes the expected result by itself, bit for bit.
#pragma once
#include <functional>
#include <memory>
#include <vector>

#include "host_or_gpu.hpp"

/// A pending call: the request, and a check of the result after the end. `right` keeps the call's
/// buffers alive.
struct PendingCall {
  MPI_Request request = MPI_REQUEST_NULL;
  std::function<bool()> right;
};

/// Pairs of ints, contiguous or with a hole in each, as this rank chooses. Holes must not change.
class IntPairs {
 public:
  static constexpr std::int32_t kHole = 0x5eed5eed;
  IntPairs(int pairs, bool strided) : pairs_(pairs), strided_(strided) {
    memory_.assign(static_cast<std::size_t>(pairs) * 3 + 1, kHole);
    if (!strided_) return;
    MPI_Type_vector(2, 1, 2, MPI_INT, &type_);
    MPI_Type_commit(&type_);
  }
  IntPairs(const IntPairs&) = delete;
  IntPairs& operator=(const IntPairs&) = delete;
  ~IntPairs() { free_type(); }

  void* data() { return device_ptr(memory_.data()); }
  MPI_Datatype type() const { return strided_ ? type_ : MPI_INT; }
  int count(int pairs) const { return strided_ ? pairs : 2 * pairs; }
  /// A program may free a type while calls that use it are pending.
  void free_type() {
    if (type_ != MPI_DATATYPE_NULL) MPI_Type_free(&type_);
  }
  std::int32_t& at(int word) {
    const int place = strided_ ? word / 2 * 3 + word % 2 * 2 : word;
    return memory_[static_cast<std::size_t>(place)];
  }
  bool holes_stand() const {
    if (!strided_) return true;
    for (int pair = 0; pair < pairs_; ++pair)
      if (memory_[static_cast<std::size_t>(pair) * 3 + 1] != kHole) return false;
    return true;
  }

 private:
  int pairs_;
  bool strided_;
  MPI_Datatype type_ = MPI_DATATYPE_NULL;
  HostOrGpuVector<std::int32_t> memory_;
};

/// The parameters of a call shared by all ranks.
struct CallSetting {
  MPI_Comm comm = MPI_COMM_NULL;
  std::uint64_t seed = 0;  ///< counts calls of this communicator
  bool blocking = true;
  bool persistent = false;  ///< implies non-blocking
  int rank = 0, ranks = 0;  ///< copies: the communicator may be freed before the call ends
};

/// Makes, starts, completes and frees a persistent request.
template <class... Arguments>
void once(const char* name, Arguments... arguments) {
  MPI_Request request;
  make(name, &request, arguments...);
  MPI_Start(&request);
  MPI_Wait(&request, MPI_STATUS_IGNORE);
  MPI_Request_free(&request);
}

/// Calls MPI_X, MPI_X_init or MPI_IX with the same arguments.
#define EITHER(setting, request, name, begin, ...)    \
  if ((setting).blocking)                             \
    name(__VA_ARGS__, (setting).comm);                \
  else if ((setting).persistent)                      \
    once(#name "_init", __VA_ARGS__, (setting).comm); \
  else                                                \
    begin(__VA_ARGS__, (setting).comm, &(request))

PendingCall mixed_reduction(const CallSetting& setting, Dice& common, Dice& own);
PendingCall mixed_movement(const CallSetting& setting, Dice& common, Dice& own);
/// MPI_Alltoallv, MPI_Gatherv and MPI_Scatterv, with counts known to two ranks alone.
PendingCall mixed_uneven(const CallSetting& setting, Dice& common, Dice& own);
