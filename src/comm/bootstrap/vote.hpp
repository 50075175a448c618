// Votes: steps that all ranks complete together or not at all. Each rank contributes bytes or a
// failure; after a failure all ranks throw the same error. Any allgather can carry the votes.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "plait/error.hpp"

namespace plait {

/// An error that all ranks throw together: ranks stay in step, and the communicator stays usable.
class AgreedError : public Error {
 public:
  using Error::Error;
};

/// Converts an exception to an Error: out_of_memory if memory ran out, else internal.
Error as_error(const std::exception& caught);
/// Runs a local step and returns the step's Error (or out_of_memory), to be voted on.
std::optional<Error> attempt(const std::function<void()>& step);

/// Returns every rank's bytes in rank order. Called by all ranks alike.
using Allgather = std::function<std::vector<std::string>(const std::string& mine)>;
/// Encodes this rank's vote; decodes that of `rank`. decode_vote throws AgreedError for a failure.
/// The error names the rank, unless the reason begins with a rank.
std::string encode_vote(const std::optional<Error>& failure, const std::string& bytes);
std::string decode_vote(const std::string& record, const std::string& rank);
/// Allgathers the votes; throws AgreedError if a rank has a failure.
std::vector<std::string> vote(const Allgather& carry, const std::optional<Error>& failure,
                              const std::string& bytes);

/// Returns another rank's failure as thrown by this rank. A relayed failure keeps the first
/// reporter.
Error reported_by(const std::string& rank, ErrorCode code, const std::string& reason);
bool names_reporter(const std::string& reason);

/// Returns text that no other call has returned, on any rank.
std::string unique_token();

}  // namespace plait
