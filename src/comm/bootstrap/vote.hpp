// Steps that all ranks take together or not at all: each shows a card, on which it may report
// failure instead of bytes, and then all throw alike. Whatever carries the cards.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "plait/error.hpp"

namespace plait {

/// An error that all ranks throw together: they stay in step, and the communicator stays usable.
class AgreedError : public Error {
 public:
  using Error::Error;
};

/// What was caught, as an Error: out_of_memory where memory could not be had, else internal.
Error as_error(const std::exception& caught);
/// Runs a step of this rank's own; its Error (or lack of memory) is returned, to be voted on.
std::optional<Error> attempt(const std::function<void()>& step);

/// Every rank's bytes in rank order; called alike by all ranks.
using Allgather = std::function<std::vector<std::string>(const std::string& mine)>;
/// A rank's card, and the bytes on that of `rank`: AgreedError where it reports failure, which
/// names it, unless the reason begins with a rank.
std::string encode_vote(const std::optional<Error>& failure, const std::string& bytes);
std::string decode_vote(const std::string& record, const std::string& rank);
/// An allgather of such cards.
std::vector<std::string> vote(const Allgather& carry, const std::optional<Error>& failure,
                              const std::string& bytes);

/// A rank's failure as others throw it; what it was told of itself keeps its first teller.
Error reported_by(const std::string& rank, ErrorCode code, const std::string& reason);
bool names_reporter(const std::string& reason);

/// A word that no other call has had, on any rank.
std::string unique_token();

}  // namespace plait
