// Counts failed expectations of a test program. expect() prints each with the rank on stderr. The
// program prints the count, `wrong`, in the rank's line.
#pragma once
#include <cstdio>

#include "program.hpp"

inline long wrong = 0;

inline void expect(bool is_true, const char* what) {
  if (is_true) return;
  ++wrong;
  std::fprintf(stderr, "rank %d: expectation failed: %s\n", rank_in(MPI_COMM_WORLD), what);
}

/// The same for two numbers, printed if these differ.
inline void expect_equal(long found, long wanted, const char* what) {
  if (found == wanted) return;
  ++wrong;
  std::fprintf(stderr, "rank %d: expectation failed: %s: wanted %ld, found %ld\n",
               rank_in(MPI_COMM_WORLD), what, wanted, found);
}
