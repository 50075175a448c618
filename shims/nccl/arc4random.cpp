// Defines arc4random: the linked C++ library references the function, and glibc has arc4random
// since 2.36. Never called; lets the drop-in load on older systems.
#include <sys/random.h>

#include <cstdint>

extern "C" [[gnu::visibility("hidden")]] std::uint32_t arc4random() noexcept {
  std::uint32_t word = 0;
  while (::getrandom(&word, sizeof word, 0) != sizeof word) {
  }
  return word;
}
