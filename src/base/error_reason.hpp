// The reason in the message of an Error, for messages that quote another error.
#pragma once
#include <string>

#include "plait/error.hpp"

namespace plait {

/// Returns an error's text without the code's prefix.
std::string reason_of(const Error& error);

}  // namespace plait
