// Messages cut for several nodes: pieces one behind another, each in shards, a shard for each rail.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "planner/node_calls.hpp"

namespace plait {

/// Ranks that sum and spread a message together: those of a node, or the leaders of its sockets.
/// The first ones carry the shards: rail p is the ranks at place p of all groups.
using Groups = std::vector<std::vector<int>>;

/// Elements [begin, begin + shards * each) of the message.
struct Portion {
  std::uint64_t begin = 0;
  std::uint64_t each = 0;  ///< of a shard
  int shards = 1;
};

class Rails {
 public:
  Rails(Builder& builder, const Params& params, Groups groups);

  NodeCalls& calls() { return calls_; }
  const Groups& groups() const { return groups_; }
  int shards() const { return shards_; }
  bool averages() const;
  /// An average's last step.
  void divide(const Region& sum) { calls_.sum(sum, {sum}, true); }
  /// The piece, or one shard of it, in a rank's input or output.
  Region in(int rank, const Portion& piece, int shard = -1) const;
  Region out(int rank, const Portion& piece, int shard = -1) const;
  /// Pieces as the parameter `pieces` wants them, or more where a rank's scratch has no room for
  /// fewer: the message in one piece would lie there `times` times, plans in nodes included. What
  /// is left over is a piece of one shard.
  std::vector<Portion> pieces(const Params& params, std::uint64_t count, int shards, double times);
  /// Of what plans in a node want for sums of a message.
  double times_of_sums() const;

  using Where = std::function<Region(int rank, int shard)>;  ///< shard -1: all of the piece
  /// A group's ranks sum a piece: what they have at `src` to the carriers' shards at `dst`.
  /// Where the last sums are made, they are `finish`; they may go on from what lies `before`.
  void sum_in(const std::vector<int>& group, const Portion& piece, const Where& src,
              const Where& dst, bool finish = false, const Where& before = {});
  /// Each rank of a group gets the carriers' shards.
  void spread_in(const std::vector<int>& group, const Portion& piece, const Where& src,
                 const Where& dst);
  /// The shards of one rank to the carriers, or (`gathers`) of the carriers to it.
  void deal_in(const std::vector<int>& group, int root, const Portion& piece, const Where& src,
               const Where& dst, bool gathers);
  /// A collective on each rail of a piece; root: the group that has or gets it.
  std::vector<int> across(Collective collective, const Portion& piece, int root, const Where& src,
                          const Where& dst, bool finish = false, int peer = 0);
  /// From the carriers of one group to those of another.
  std::vector<int> across_pair(const Portion& piece, int from, int to, const Where& src,
                               const Where& dst);
  /// The same on one rail.
  int across_on(int rail, Collective collective, const Portion& piece, int root, const Where& src,
                const Where& dst, bool finish = false, int peer = 0);
  int across_pair_on(int rail, const Portion& piece, int from, int to, const Where& src,
                     const Where& dst);
  /// Portion i + 1 goes in while piece i is between nodes; then that goes out.
  void run(const std::vector<Portion>& pieces,
           const std::function<void(const Portion&, std::size_t)>& in,
           const std::function<std::vector<int>(const Portion&, std::size_t)>& across,
           const std::function<void(const Portion&, std::size_t)>& out);
  /// Scratch for two pieces in turn at each carrier, `shards` of them side by side.
  void stage(const std::vector<Portion>& pieces, int shards = 1);
  Region staged(int rank, std::size_t piece, std::uint64_t bytes) const;

  /// The all-reduce of groups: `before` and `after` are done to each piece by others. Sums to begin
  /// with lie in the inputs, or (`sums_in_output`) in the outputs.
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

/// The ranks of a group follow each other, and groups do; all groups have as many besides.
bool are_in_turn(const Groups& groups);
bool are_alike(const Groups& groups);
/// Collectives of blocks, by rails where all nodes are alike (blocks.cpp).
void write_blocks(Builder& builder, Rails& rails, const Params& params);
/// Parameter sets: as many pieces as are worth their steps.
std::vector<Params> piece_candidates(const Topology& topology, const Request& request);

}  // namespace plait
