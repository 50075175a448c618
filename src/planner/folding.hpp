// Any number of ranks -> a power of two of members, each a rank or two neighbours folded into one.
// What recursive doubling and halving share. Source: the pre- and post-step of MPICH's all-reduce.
#pragma once
#include "plait/courier.hpp"

namespace plait {

struct Folding {
  explicit Folding(int ranks);
  int members = 1;  ///< the largest power of two that the ranks hold
  int folded = 0;   ///< members 0..folded-1 stand for ranks 2m and 2m + 1, the others for one rank

  int steps() const;
  /// The rank that acts for a member.
  int rank(int member) const { return member < folded ? 2 * member : member + folded; }
  /// Where the member's part lies after fold(): the pair's sum in its output, or its own input.
  Region start(const Builder& builder, int member, Range range) const;
};

/// Each folded pair's sum, lower rank first, into the lower rank's output.
void fold(Builder& builder, const Folding& folding, Courier& courier, Range range);
/// The result in the lower rank's output goes to the higher rank of each pair.
void unfold(Builder& builder, const Folding& folding, Courier& courier, Range range);

}  // namespace plait
