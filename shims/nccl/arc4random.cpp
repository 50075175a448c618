// Defines arc4random, which the linked C++ library references and glibc has since 2.36. Never
// called; the drop-in loads on older systems with it.
#include <sys/random.h>

#include <cstdint>

extern "C" [[gnu::visibility("hidden")]] std::uint32_t arc4random() noexcept {
  std::uint32_t word = 0;
  while (::getrandom(&word, sizeof word, 0) != sizeof word) {
  }
  return word;
}
