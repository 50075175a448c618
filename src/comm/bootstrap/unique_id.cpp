// A unique id is "plait1-WORD-HOST-CHECK" in hexadecimal digits: random numbers, a hash of the
// host's name, and a hash of all the text before, so that a truncated or mistyped id is detected.
#include "comm/bootstrap/unique_id.hpp"

#include <random>
#include <vector>

#include "base/env.hpp"
#include "base/hash.hpp"
#include "base/text.hpp"
#include "comm/bootstrap/host_name.hpp"
#include "plait/communicator.hpp"
#include "plait/error.hpp"

namespace plait {
namespace {

constexpr const char* kKind = "plait1";

std::string hash_of(const std::string& bytes) {
  return hex(hash_bytes(bytes.data(), bytes.size()));
}

}  // namespace

std::string random_token() {
  std::random_device device;
  return hex(static_cast<std::uint64_t>(device()) << 32 | device());
}

std::string unique_id() {
  const std::string made =
      text("{}-{}{}-{}", kKind, random_token(), random_token(), hash_of(host_name()));
  return text("{}-{}", made, hash_of(made));
}

ParsedUniqueId parse_unique_id(const std::string& id) {
  const std::vector<std::string> parts = split(id, '-');
  if (parts.size() != 4 || parts[0] != kKind ||
      parts[3] != hash_of(text("{}-{}-{}", parts[0], parts[1], parts[2])))
    throw Error(
        ErrorCode::invalid_argument,
        text("unique_id: wanted the whole text that unique_id() made on one rank, found '{}'",
             id.substr(0, 120)));
  return {parts[1], parts[2]};
}

bool is_made_here(const ParsedUniqueId& id) { return id.host == hash_of(host_name()); }

}  // namespace plait
