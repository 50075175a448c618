// Values -> one string: the little formatting that plait needs (GCC 12 has no <format>).
#pragma once
#include <sstream>
#include <string>

namespace plait {

/// All parts printed one after the other, as an ostream prints them.
template <class... Parts>
std::string text(const Parts&... parts) {
  std::ostringstream stream;
  (stream << ... << parts);
  return stream.str();
}

}  // namespace plait
