// NodeCalls: writes a plan of several nodes as a sequence of collectives: collectives inside a node
// (embedded plans of other strategies), and calls of the library between nodes. Each rank has two
// streams: calls inside the node run in order on the first, library calls on the second. Strategies
// for several nodes use NodeCalls.
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
  /// The library is MPI if the parameter `mpi` is 1 or ranks are CPUs, else NCCL.
  NodeCalls(Builder& builder, const Params& params);

  /// Adds a collective among ranks of a node, after all earlier work of the ranks' first streams.
  /// finish: the sums are the elements' last.
  void inside(Collective collective, std::uint64_t count, int root, std::vector<Part> parts,
              bool finish = false, int peer = 0);
  /// Adds a library call, after all earlier work of the ranks' first streams. Returns the call's
  /// number.
  int across(Collective collective, std::uint64_t count, int root, std::vector<Part> parts,
             bool finish = false, int peer = 0);
  /// Adds a copy or a sum at a rank, on the rank's first stream. A sum of one source scales or
  /// divides the source.
  void copy(const Region& dst, const Region& src);
  void sum(const Region& dst, std::vector<Region> srcs, bool finish);
  /// Makes later work on the first streams of the call's ranks wait for the call.
  void await(int across);
  /// Writes the plan; all plans inside nodes share the same scratch.
  void write();

 private:
  using Step = NodeStep;
  /// A plan inside a node, and its flags in order of first use. Nodes with the same links share the
  /// plan.
  struct PlanShape {
    explicit PlanShape(Plan made);
    Plan plan;
    std::vector<Flag> flags;
    std::vector<std::uint32_t> tops;  // by flag: value that each use adds
    std::vector<int> numbers;         // flag numbers, by place_of()
    int flag_count = 0;               ///< flags of a pair of ranks
    std::size_t place_of(const Flag& flag) const;
  };
  /// A shape at one node, with this plan's numbers of lanes, paths and flags. The shape is used
  /// repeatedly: flags continue from the values of the last use.
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
  void write_lanes();
  void write_inside(Step& step);
  Op laid(const Op& op, const Inner& inner, const Step& step) const;
  Region mapped(const Region& region, const Step& step) const;
  void write_across(const Step& step);
  int first_stream(int rank);
  int second_stream(int rank);

  Builder& builder_;
  Topology inside_;  // for plans inside nodes: its links end with the last inside a node
  std::map<std::pair<int, int>, std::vector<Path>> direct_;  // cache of direct_paths() in inside_
  Library library_ = Library::nccl;
  std::vector<Step> steps_;
  // Keys: collective, count, root, peer, and the ranks; for shapes_ the number of ranks.
  std::map<std::vector<std::uint64_t>, Inner> inner_;
  std::map<std::vector<std::uint64_t>, std::deque<PlanShape>> shapes_;
  std::vector<Region> scratch_, ring_;  // by rank: shared by plans inside nodes
  std::vector<std::vector<std::pair<int, Event>>>
      joined_;  // by call: ranks, and the events of the end
  int calls_ = 0;
};

/// Returns the ranks of each node, ascending; nodes in the order of their lowest ranks.
/// Error(unsupported) if all ranks are on the same node.
std::vector<std::vector<int>> ranks_of_nodes(const Builder& builder);

/// Writes the request as a single library call among all ranks (library.cpp).
void write_by_library(Builder& builder, NodeCalls& calls);

}  // namespace plait
