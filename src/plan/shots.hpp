// Writes one_shot, two_shot and chain plans: ranks push parts straight into peers' inboxes, and no
// rank waits for a peer to enter the call, except in a chain of several pieces. The strategies of
// the same names write their lanes with this file. LL engines (gpu/ll) describe the traffic of
// their kernels with this file, though in a kernel each packet of a part carries its own flag.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "plait/builder.hpp"
#include "plan/chain_shape.hpp"
#include "plan/direct_shape.hpp"

namespace plait {

/// Layout of a rank's inbox: a slot per sender, then as many slots for results.
struct Shot {
  std::string lane;  ///< name of each rank's single lane
  std::uint64_t slots_at = 0;
  std::uint64_t slot_bytes = 0;  ///< from a slot to the next
};

/// Writes any collective in a single hop, for the range `part` of every block. A rank without data
/// for a peer signals the peer instead, so that every call is a full exchange.
void write_one_shot(Builder& builder, const Shot& shot, Range part);

/// Writes a broadcast or a reduce along a chain, piece by piece. Each piece has its own Shot,
/// of which only slots_at is used: a single slot. A single piece has 16 bytes behind the slot for
/// each rank that greets(). Several pieces alternate between two slots.
void write_chain(Builder& builder, const std::vector<std::pair<Shot, Range>>& pieces);

/// Writes the first half of an all_reduce or reduce: ranks push shards to the shards' owners, and
/// each owner reduces its shard to sums[owner].
void write_shards(Builder& builder, const Shot& shot, const std::vector<Range>& shards,
                  const std::vector<Region>& sums);
/// Writes the second half: each owner pushes its result from its output to all ranks' inboxes,
/// and each rank copies the results to its output.
void write_results(Builder& builder, const Shot& shot, const std::vector<Range>& shards);
/// An all_reduce in steps that take turns in `places` parts of every slot. Pushes run 2 * `ahead`
/// steps before the results of a step are taken, reductions run `ahead` steps before. A rank that
/// has finished a step signals all other ranks, and these may then write to that place again. The
/// data alone orders a step's reads before the next writes to the same place. The signals order the
/// stores that clear LL packets. Plans do not show those stores: traces check kernels for them
/// (tests/conformance/shot_flags.hpp).
struct ShotSteps {
  int places;
  int ahead;
  std::uint64_t place_bytes;
};
/// parts[step][owner]: range of the message.
void write_long_two_shot(Builder& builder, const Shot& shot,
                         const std::vector<std::vector<Range>>& parts, const ShotSteps& steps);
/// Region of `reader`'s inbox that takes the result of `owner`.
Region result_slot(const Shot& shot, int reader, int owner, int ranks, std::uint64_t bytes);
/// Copies the results, which owners have pushed to the root's inbox, to the root's output.
void write_results_at_root(Builder& builder, const Shot& shot, const std::vector<Range>& shards);

}  // namespace plait
