// Collectives with random arguments whose results every rank works out by itself, bit for bit.
#pragma once
#include <functional>
#include <memory>
#include <vector>

#include "host_or_gpu.hpp"

/// A call under way: its request, and whether its result is right once it has ended. What it uses
/// lives as long as `right`.
struct PendingCall {
  MPI_Request request = MPI_REQUEST_NULL;
  std::function<bool()> right;
};

/// Pairs of ints, either close together or with a hole in each, as this rank likes. Holes must stay
/// as they are.
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
  /// A program may free a type while calls that use it are under way.
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

/// What a call is made of that all its ranks know.
struct CallSetting {
  MPI_Comm comm = MPI_COMM_NULL;
  std::uint64_t seed = 0;  ///< of this call on this communicator
  bool blocking = true;
  bool persistent = false;  ///< which is not blocking
  int rank = 0, ranks = 0;  ///< kept: the communicator may be freed before the call has ended
};

/// From its request's making to the end of that.
template <class... Arguments>
void once(const char* name, Arguments... arguments) {
  MPI_Request request;
  make(name, &request, arguments...);
  MPI_Start(&request);
  MPI_Wait(&request, MPI_STATUS_IGNORE);
  MPI_Request_free(&request);
}

/// MPI_X, MPI_X_init or MPI_IX with the same arguments.
#define EITHER(setting, request, name, begin, ...)    \
  if ((setting).blocking)                             \
    name(__VA_ARGS__, (setting).comm);                \
  else if ((setting).persistent)                      \
    once(#name "_init", __VA_ARGS__, (setting).comm); \
  else                                                \
    begin(__VA_ARGS__, (setting).comm, &(request))

PendingCall mixed_reduction(const CallSetting& setting, Dice& common, Dice& own);
PendingCall mixed_movement(const CallSetting& setting, Dice& common, Dice& own);
/// Of parts whose sizes only two ranks know: MPI_Alltoallv, MPI_Gatherv, MPI_Scatterv.
PendingCall mixed_uneven(const CallSetting& setting, Dice& common, Dice& own);
