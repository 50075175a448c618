// Maps any number of ranks to a power of two of members: each is a rank, or two folded neighbours.
// Recursive doubling and halving use this map. Source: the pre- and post-step of MPICH's
// all-reduce.
#pragma once
#include "plait/courier.hpp"

namespace plait {

struct Folding {
  explicit Folding(int ranks);
  int members = 1;  ///< the largest power of two up to the number of ranks
  int folded = 0;   ///< members 0..folded-1 stand for ranks 2m and 2m + 1, the rest for one rank

  int steps() const;  ///< log2(members)
  /// Returns the rank that acts for a member.
  int rank(int member) const { return member < folded ? 2 * member : member + folded; }
  /// Returns the member's data after fold(): the pair's sum in the output, or the member's input.
  Region start(const Builder& builder, int member, Range range) const;
};

/// Sums each folded pair, lower rank first, to the lower rank's output.
void fold(Builder& builder, const Folding& folding, Courier& courier, Range range);
/// Sends the result from the lower rank's output to the higher rank of each pair.
void unfold(Builder& builder, const Folding& folding, Courier& courier, Range range);

}  // namespace plait
