// Helpers of the test programs: numbers that every rank can compute, and the count of served calls.
#pragma once
#include <dlfcn.h>
#include <mpi.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

/// Mixes the arguments into a number, the same on every rank.
inline std::uint64_t mixed(std::uint64_t a, std::uint64_t b = 0, std::uint64_t c = 0,
                           std::uint64_t d = 0) {
  std::uint64_t x = a;
  for (const std::uint64_t word : {b, c, d, std::uint64_t{1}}) {
    x += 0x9e3779b97f4a7c15ull + word;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    x ^= x >> 31;
  }
  return x;
}

/// Random numbers; ranks with the same seed draw the same.
class Dice {
 public:
  explicit Dice(std::uint64_t seed) : state_(seed) {}
  int below(int limit) {
    state_ = mixed(state_, 1);
    return static_cast<int>(state_ % static_cast<std::uint64_t>(limit));
  }
  bool one_in(int limit) { return below(limit) == 0; }

 private:
  std::uint64_t state_;
};

inline int rank_in(MPI_Comm comm) {
  int rank = 0;
  MPI_Comm_rank(comm, &rank);
  return rank;
}

inline int ranks_of(MPI_Comm comm) {
  int ranks = 0;
  MPI_Comm_size(comm, &ranks);
  return ranks;
}

/// Makes a persistent collective's request. The function is looked up, since headers before MPI 4
/// lack the declaration: the drop-in exports each that the MPI has under any name.
template <class... Arguments>
int make(const char* name, MPI_Request* request, Arguments... arguments) {
  using Init = int(Arguments..., MPI_Info, MPI_Request*);
  auto* const found = reinterpret_cast<Init*>(dlsym(RTLD_DEFAULT, name));
  if (found == nullptr) std::abort();
  return found(arguments..., MPI_INFO_NULL, request);
}

/// Number of calls that plait has served in this process; -1 without the drop-in.
inline long calls_served() {
  void* const found = dlsym(RTLD_DEFAULT, "plait_mpi_calls_served");
  if (found == nullptr) return -1;
  return static_cast<long>(reinterpret_cast<std::uint64_t (*)()>(found)());
}
