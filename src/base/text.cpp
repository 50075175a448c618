// Compiles {fmt}'s code, once: libraries of plait need no libfmt.so.
#define FMT_HEADER_ONLY  // templates of {fmt} are made here, not in libfmt.so
#include "base/text.hpp"

#include <fmt/format.h>

namespace plait {

std::string formatted(fmt::string_view format, fmt::format_args packed) {
  return fmt::vformat(format, packed);
}

std::string six_digits(double value) { return fmt::format("{:g}", value); }

}  // namespace plait
