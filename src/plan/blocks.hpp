// Where ranks' blocks lie in inputs and outputs, whether they are all of one size or not.
#pragma once
#include <string>

#include "plait/builder.hpp"

namespace plait {

/// What `from` has for `to`, in from's input. Of reductions: its part of to's result.
Range sent_block(const Request& request, int from, int to);
/// What `to` gets of `from`, in to's output. Of reductions: all that it gets.
Range received_block(const Request& request, int from, int to);

/// The part of a block that `range`, counted from a block's begin, covers: less or nothing where
/// the block is short.
Range part_of(Range block, Range range);

/// Bytes that `rank` has to send to others, or (with `gets`) to get from them.
std::uint64_t outside_bytes(const Request& request, int rank, bool gets);

/// Empty where a request's counts can be meant and are normal(); else what was wanted and found.
std::string counts_fault(const Request& request);

}  // namespace plait
