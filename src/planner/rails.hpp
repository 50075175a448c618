// Rails: cuts messages for several nodes into pieces, and each piece into a shard per rail. The
// strategies for several nodes use Rails on top of NodeCalls.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "planner/node_calls.hpp"

namespace plait {

/// Groups of ranks that sum and spread a message together: the ranks of a node, or the leaders of a
/// node's sockets. The first ranks of a group are carriers: rail p joins the ranks at place p of
/// all groups.
using Groups = std::vector<std::vector<int>>;

/// Elements [begin, begin + shards * each) of the message.
struct Portion {
  std::uint64_t begin = 0;
  std::uint64_t each = 0;  ///< elements of a shard
  int shards = 1;
};

class Rails {
 public:
  Rails(Builder& builder, const Params& params, Groups groups);

  NodeCalls& calls() { return calls_; }
  const Groups& groups() const { return groups_; }
  int shards() const { return shards_; }
  bool averages() const;
  /// Divides the sum of an average by the number of ranks.
  void divide(const Region& sum) { calls_.sum(sum, {sum}, true); }
  /// Region of a piece, or of a shard of a piece, in a rank's input or output.
  Region in(int rank, const Portion& piece, int shard = -1) const;
  Region out(int rank, const Portion& piece, int shard = -1) const;
  /// Cuts `count` elements into as many pieces as the parameter `pieces` says, or more if a rank's
  /// scratch is too small: a single piece would take `times` messages of scratch, with plans inside
  /// nodes. The remainder is a piece of a single shard.
  std::vector<Portion> pieces(const Params& params, std::uint64_t count, int shards, double times);
  /// Scratch of plans inside a node for sums, in units of the message.
  double times_of_sums() const;

  using Where = std::function<Region(int rank, int shard)>;  ///< shard -1: the whole piece
  /// Sums a piece in a group: from the ranks' `src` to the carriers' shards at `dst`. `finish`:
  /// the sums are the elements' last. `before`: partial sums that the sums continue.
  void sum_in(const std::vector<int>& group, const Portion& piece, const Where& src,
              const Where& dst, bool finish = false, const Where& before = {});
  /// Gathers the carriers' shards at each rank of a group.
  void spread_in(const std::vector<int>& group, const Portion& piece, const Where& src,
                 const Where& dst);
  /// Scatters the shards of a rank to the carriers, or (`gathers`) gathers shards at the rank.
  void deal_in(const std::vector<int>& group, int root, const Portion& piece, const Where& src,
               const Where& dst, bool gathers);
  /// Runs a collective of a piece on each rail; root: the group that has or gets the piece. Returns
  /// the numbers of the calls.
  std::vector<int> across(Collective collective, const Portion& piece, int root, const Where& src,
                          const Where& dst, bool finish = false, int peer = 0);
  /// Copies shards from a group's carriers to those of another group.
  std::vector<int> across_pair(const Portion& piece, int from, int to, const Where& src,
                               const Where& dst);
  /// The same two on a single rail.
  int across_on(int rail, Collective collective, const Portion& piece, int root, const Where& src,
                const Where& dst, bool finish = false, int peer = 0);
  int across_pair_on(int rail, const Portion& piece, int from, int to, const Where& src,
                     const Where& dst);
  /// Pipelines pieces: `in` of piece i + 1 runs while piece i is between nodes; then piece i's
  /// `out`.
  void run(const std::vector<Portion>& pieces,
           const std::function<void(const Portion&, std::size_t)>& in,
           const std::function<std::vector<int>(const Portion&, std::size_t)>& across,
           const std::function<void(const Portion&, std::size_t)>& out);
  /// Allocates scratch at each carrier for two pieces in turn, `shards` shards each.
  void stage(const std::vector<Portion>& pieces, int shards = 1);
  Region staged(int rank, std::size_t piece, std::uint64_t bytes) const;

  /// Writes the all-reduce of groups. `before` and `after` write each piece's first and last steps.
  /// The first sums are in the inputs, or (`sums_in_output`) in the outputs.
  void all_reduce(const Params& params, bool sums_in_output,
                  const std::function<void(const Portion&)>& before,
                  const std::function<void(const Portion&)>& after);

 private:
  std::uint64_t element() const;

  Builder& builder_;
  NodeCalls calls_;
  Groups groups_;
  int shards_ = 1;
  std::vector<Region> staging_[2];  // by rank
};

/// Whether ranks are numbered consecutively through the groups; are_alike(): groups have equal
/// sizes.
bool are_in_turn(const Groups& groups);
bool are_alike(const Groups& groups);
/// Writes collectives of blocks, by rails if all nodes are alike (blocks.cpp).
void write_blocks(Builder& builder, Rails& rails, const Params& params);
/// Returns parameter sets: numbers of pieces that are worth the steps.
std::vector<Params> piece_candidates(const Topology& topology, const Request& request);

}  // namespace plait
