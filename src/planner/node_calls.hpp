// Plans of several nodes, told as collectives: those in a node, which are other strategies' plans
// laid into this one, and those of a library between nodes. Each rank has two streams, as programs
// have: what happens in its node goes on the first, one call behind another; a library's calls go
// on the second.
#pragma once
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "plan/node_step.hpp"
#include "planner/strategy.hpp"

namespace plait {

using Part = NodePart;

class NodeCalls {
 public:
  /// The library is MPI where the parameter `mpi` is 1 or ranks are CPUs, else NCCL.
  NodeCalls(Builder& builder, const Params& params);

  /// A collective among ranks of a node, behind what their first streams have so far. finish: its
  /// sums are the last ones.
  void inside(Collective collective, std::uint64_t count, int root, std::vector<Part> parts,
              bool finish = false, int peer = 0);
  /// A library's collective, behind what its ranks' first streams have so far. Returns its number.
  int across(Collective collective, std::uint64_t count, int root, std::vector<Part> parts,
             bool finish = false, int peer = 0);
  /// At one rank, on its first stream: a copy, or a sum. A sum of one source scales or divides it.
  void copy(const Region& dst, const Region& src);
  void sum(const Region& dst, std::vector<Region> srcs, bool finish);
  /// What the first streams of the call's ranks get from here on comes behind it.
  void await(int across);
  /// Writes all of it; scratch that plans in a node need is shared by all of them.
  void write();

 private:
  using Step = NodeStep;
  /// A plan in a node, and its words in the order that its lanes meet them. Nodes whose links are
  /// alike share it.
  struct PlanShape {
    explicit PlanShape(Plan made);
    Plan plan;
    std::vector<Flag> flags;
    std::vector<std::uint32_t> tops;  // by word: what one use adds to it
    std::vector<int> numbers;         // of words, by place_of()
    int words_per_pair = 0;
    std::size_t place_of(const Flag& flag) const;
  };
  /// A shape at one node, with this plan's numbers of lanes, paths and words. It is used again and
  /// again: its words go on where the last use left them.
  struct Inner {
    const PlanShape* shape = nullptr;
    std::vector<int> lanes, paths;
    std::vector<Flag> flags;
    std::uint32_t uses = 0;
  };
  Inner& inner_for(const Step& step);
  const PlanShape& shape_for(const Step& step, std::vector<Path>& paths);
  std::optional<std::vector<Path>> paths_alike(const Plan& plan, const std::vector<int>& devices);
  Inner numbered(const PlanShape& shape, const std::vector<Path>& paths,
                 const std::vector<Part>& parts);
  void reserve();
  void write_inside(const Step& step);
  Op laid(const Op& op, const Inner& inner, const Step& step) const;
  Region mapped(const Region& region, const Step& step) const;
  void write_across(const Step& step);
  int first_stream(int rank);
  int second_stream(int rank);

  Builder& builder_;
  Topology inside_;  // less the links behind the last one in a node: what plans there look through
  std::map<std::pair<int, int>, std::vector<Path>> direct_;  // direct_paths() there, as asked for
  Library library_ = Library::nccl;
  std::vector<Step> steps_;
  // By collective, count, root, peer, and the ranks; shapes by their number.
  std::map<std::vector<std::uint64_t>, Inner> inner_;
  std::map<std::vector<std::uint64_t>, std::deque<PlanShape>> shapes_;
  std::vector<Region> scratch_, ring_;                      // by rank: what plans in a node share
  std::vector<std::vector<std::pair<int, Event>>> joined_;  // by call: its ranks, when it is done
  int calls_ = 0;
};

/// The ranks of each node, ascending; nodes in the order of their lowest ranks.
/// Error(unsupported) where all are on one.
std::vector<std::vector<int>> ranks_of_nodes(const Builder& builder);

/// The request as one call of the library among all ranks (library.cpp).
void write_by_library(Builder& builder, NodeCalls& calls);

}  // namespace plait
