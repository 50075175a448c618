// Offsets and sizes of the blocks that ranks send and receive, equal or with a count each. Used by
// strategies, the verifier and executors.
#pragma once
#include <string>

#include "plait/builder.hpp"

namespace plait {

/// Range of `from`'s input that `to` receives; in a reduction, that `to` reduces.
Range sent_block(const Request& request, int from, int to);
/// Range of `to`'s output that `from` fills; in a reduction, all of `to`'s result.
Range received_block(const Request& request, int from, int to);

/// The intersection of `block` with `range`, where `range` counts from the start of the block. A
/// short block gives fewer bytes or none.
Range part_of(Range block, Range range);

/// Bytes that `rank` sends to peers, or (with `gets`) receives from peers.
std::uint64_t outside_bytes(const Request& request, int rank, bool gets);

/// Returns the request with as many elements as a message of `bytes` has room for, by
/// message_bytes(); at least one. The request has no counts.
Request of_message_bytes(Request request, std::uint64_t bytes);

/// Returns whether one rank of the collective has a part of its own.
inline bool has_root(Collective collective) {
  return collective == Collective::broadcast || collective == Collective::reduce ||
         collective == Collective::gather || collective == Collective::scatter;
}

/// Returns the fault of the request's counts; empty = valid and normal().
std::string counts_fault(const Request& request);

}  // namespace plait
