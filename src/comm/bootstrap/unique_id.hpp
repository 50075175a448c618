// The unique id of a communicator: text that the program sends from a rank to all peers.
#pragma once
#include <string>

namespace plait {

struct ParsedUniqueId {
  std::string word;  ///< random, unique to this id
  std::string host;  ///< hash of host_name() on the host that made the id
};

/// Returns 16 random hexadecimal digits.
std::string random_token();
/// Throws Error(invalid_argument) if unique_id() did not make this text.
ParsedUniqueId parse_unique_id(const std::string& id);
/// Whether this process can share memory with the process that made the id.
bool is_made_here(const ParsedUniqueId& id);

}  // namespace plait
