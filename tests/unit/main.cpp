// The main program of every C++ test binary.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <malloc.h>

#include <cstdlib>

int main(int argc, char** argv) {
  // Fake GPUs have no table. Tests of the first start set the variable themselves.
  ::setenv("PLAIT_AUTOTUNE", "0", 0);
  // Tests make large plans by the thousand, and would get and give back the same pages each time.
  ::mallopt(M_MMAP_THRESHOLD, 32 << 20);
  ::mallopt(M_TRIM_THRESHOLD, 1 << 30);
  return doctest::Context(argc, argv).run();
}
