// What names one communicator: text that a program carries from one rank to the others.
#pragma once
#include <string>

namespace plait {

struct ParsedUniqueId {
  std::string word;  ///< no other id has it
  std::string host;  ///< a hash of the host_name() where it was made
};

/// 16 digits that nobody else draws.
std::string random_token();
/// Error(invalid_argument) where unique_id() made no such text.
ParsedUniqueId parse_unique_id(const std::string& id);
/// Whether this process can share memory with the one that made it.
bool is_made_here(const ParsedUniqueId& id);

}  // namespace plait
