// one_shot, two_shot and chains as plans: parts are pushed straight into inboxes, and nobody waits
// for another to enter the call, but in a chain of several pieces. Strategies of these names write
// them for lanes, and engines by lines (exec/cuda/lines) for kernels, in which each line of a part
// is its own signal.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "plait/builder.hpp"
#include "plan/chain_shape.hpp"
#include "plan/hop_shape.hpp"

namespace plait {

/// Where a rank's inbox takes what others send: a slot a sender, and after these as many again for
/// results.
struct Shot {
  std::string lane;  ///< of each rank, all in one
  std::uint64_t slots_at = 0;
  std::uint64_t slot_bytes = 0;  ///< from one slot to the next
};

/// Any collective in one hop, of `part` of every part. Ranks of which one sends the other nothing
/// tell each other that they are in this call, so that every call is a full exchange.
void write_one_shot(Builder& builder, const Shot& shot, Range part);

/// A broadcast or a reduce along a chain, piece by piece, each with a shot of its own, of which
/// only the place counts: one slot, and behind that of a single piece a line of 16 bytes for each
/// rank that greets. Several pieces take two places by turns.
void write_chain(Builder& builder, const std::vector<std::pair<Shot, Range>>& pieces);

/// Of an all_reduce or a reduce: shards to their owners, each of which reduces its own to
/// sums[owner].
void write_shards(Builder& builder, const Shot& shot, const std::vector<Range>& shards,
                  const std::vector<Region>& sums);
/// The results, which owners have in their outputs, to all by way of their inboxes.
void write_results(Builder& builder, const Shot& shot, const std::vector<Range>& shards);
/// An all_reduce by steps whose lines lie in `places` of every slot by turns. Pushes run twice
/// `ahead` steps ahead of results' being taken, reductions half as many. A rank that is through
/// with a step tells all others, who then may use its place again. Reads of a step come before what
/// its place takes next by the data alone. What is told orders the stores that clear lines, which
/// no plan has: traces hold kernels to it (tests/conformance/shot_words.hpp).
struct ShotSteps {
  int places;
  int ahead;
  std::uint64_t place_bytes;
};
/// parts: of each step, of each shard.
void write_long_two_shot(Builder& builder, const Shot& shot,
                         const std::vector<std::vector<Range>>& parts, const ShotSteps& steps);
/// Where so many ranks' shot has the result of `owner` for `reader`.
Region result_slot(const Shot& shot, int reader, int owner, int ranks, std::uint64_t bytes);
/// The results, which owners have put there for the root, to its output.
void write_results_at_root(Builder& builder, const Shot& shot, const std::vector<Range>& shards);

}  // namespace plait
