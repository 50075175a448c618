// The main program of every C++ test binary.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cstdlib>

int main(int argc, char** argv) {
  // Fake GPUs have no table. Tests of the first start set the variable themselves.
  ::setenv("PLAIT_AUTOTUNE", "0", 0);
  return doctest::Context(argc, argv).run();
}
