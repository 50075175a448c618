// The C++ library that the drop-in holds names arc4random, which glibc has from 2.36 on. Nothing
// here calls it; with this the drop-in loads on older systems too.
#include <sys/random.h>

#include <cstdint>

extern "C" [[gnu::visibility("hidden")]] std::uint32_t arc4random() noexcept {
  std::uint32_t word = 0;
  while (::getrandom(&word, sizeof word, 0) != sizeof word) {
  }
  return word;
}
