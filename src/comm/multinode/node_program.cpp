// Lowers a request over nodes to the steps of a rank. The nodes are described by a topology without
// links: decisions made here must be the same on all ranks, independent of each rank's knowledge of
// its machine.
#include "comm/multinode/node_program.hpp"

#include <algorithm>
#include <set>

#include "base/text.hpp"
#include "comm/choose/calls_in_nodes.hpp"
#include "comm/choose/multinode_choice.hpp"
#include "plait/error.hpp"
#include "planner/strategy.hpp"

namespace plait {
namespace {

std::size_t at(int index) { return static_cast<std::size_t>(index); }

/// A topology without links and with unlimited scratch: the executor of the steps limits scratch.
Topology bare(const Nodes& nodes) {
  Topology made;
  made.name = text("{} nodes", nodes.count());
  made.devices.resize(at(nodes.ranks()));
  for (std::size_t node = 0; node < nodes.members.size(); ++node)
    for (const int rank : nodes.members[node]) {
      made.devices[at(rank)].index = rank;
      made.devices[at(rank)].node = static_cast<int>(node);
    }
  made.parameters["arena_scratch_bytes"] = {static_cast<double>(1ull << 50), ""};
  return made;
}

const Strategy& strategy_named(const std::string& name, const Request& request) {
  for (const Strategy* one : own_strategies()) {
    const std::vector<Collective>& does = one->info.collectives;
    if (one->info.name == name && one->uses_library &&
        std::find(does.begin(), does.end(), request.collective) != does.end())
      return *one;
  }
  throw Error(ErrorCode::unsupported,
              text("wanted a strategy over nodes for {} (multi_node or library), found \"{}\"",
                   name_of(request.collective), name));
}

class ProgramBuilder {
 public:
  ProgramBuilder(const Nodes& nodes, const Request& request)
      : nodes_(nodes), request_(request), me_(nodes.peers()[at(nodes.place)]) {}

  void take(const std::vector<NodeStep>& steps, NodeProgram& program) {
    for (const NodeStep& step : steps) {
      using Kind = NodeStep::Action;
      if (step.kind == Kind::sum)
        throw Error(ErrorCode::unsupported,
                    "step sums on one GPU between calls: streams run no such step");
      const bool is_mine = step.kind == Kind::inside   ? inside(step)
                           : step.kind == Kind::across ? across(step)
                           : step.kind == Kind::copy   ? copy(step)
                                                       : awaited_.contains(step.across);
      if (step.kind == Kind::await) made_.kind = Kind::await, made_.call = step.across;
      if (is_mine) program.steps.push_back(made_);
      made_ = {};
    }
  }

 private:
  void set_part(const NodePart& part) {
    made_.src = part.src;
    made_.dst = part.dst;
  }

  /// Adds a call of all ranks of a node. Ranks without a part take part without data.
  bool inside(const NodeStep& step) {
    made_.kind = NodeStep::Action::inside;
    made_.request = call_in_node(step, nodes_, request_);
    for (const NodePart& part : step.parts)
      if (part.rank == me_) set_part(part);
    return group_position_of(nodes_.members, step.parts.front().rank).group == nodes_.mine;
  }

  /// Adds a call among the ranks of equal place in all nodes, or a copy between two ranks of equal
  /// place.
  bool across(const NodeStep& step) {
    const int place = group_position_of(nodes_.members, step.parts.front().rank).place;
    const bool is_pair = step.collective == Collective::copy;
    bool is_mine = false;
    for (std::size_t i = 0; i < step.parts.size(); ++i) {
      const GroupPosition seat = group_position_of(nodes_.members, step.parts[i].rank);
      if (seat.place != place || (!is_pair && at(seat.group) != i))
        throw Error(
            ErrorCode::unsupported,
            "call between nodes joins ranks with different local indices: rails need equal ones");
      if (step.parts[i].rank == me_) set_part(step.parts[i]), is_mine = true;
    }
    made_.kind = NodeStep::Action::across;
    made_.call = step.across;
    made_.request = call_of(step, request_, nodes_.count());
    if (is_pair) {
      made_.request.root = group_position_of(nodes_.members, step.parts.front().rank).group;
      made_.request.peer = group_position_of(nodes_.members, step.parts.back().rank).group;
    }
    if (is_mine) awaited_.insert(step.across);
    return is_mine;
  }

  bool copy(const NodeStep& step) {
    made_.kind = NodeStep::Action::copy;
    made_.src = step.srcs.front();
    made_.dst = step.dst;
    return step.dst.rank == me_;
  }

  const Nodes& nodes_;
  const Request& request_;
  const int me_;
  std::set<int> awaited_;
  NodeProgram::ProgramStep made_;
};

/// Adds an NCCL call among all ranks, for the elements from `begin` on.
void add_library(const Nodes& nodes, Request request, std::uint64_t begin, NodeProgram& program) {
  const int me = nodes.peers()[at(nodes.place)];
  const std::uint64_t skipped = begin * bytes_of(request.type);
  NodeProgram::ProgramStep step;
  step.kind = NodeStep::Action::across;
  request.count -= begin;
  request.devices.clear();
  step.request = request;
  step.whole = true;
  step.src = {Space::input, me, skipped, input_bytes(request, me)};
  step.dst = {Space::output, me, skipped, output_bytes(request, me)};
  for (const NodeProgram::ProgramStep& one : program.steps)
    step.call = std::max(step.call, one.call);
  ++step.call;
  program.steps.push_back(step);
  step.kind = NodeStep::Action::await;
  program.steps.push_back(step);
}

/// Adds the sum of elements [begin, count) in a tree over two nodes: the first rank of each node
/// sums the node's, and NCCL adds two terms. The rest of multi_node, fewer elements than rails.
void add_tree_rest(const Nodes& nodes, const Request& request, std::uint64_t begin,
                   NodeProgram& program) {
  const int me = nodes.peers()[at(nodes.place)];
  const bool first = nodes.place == 0;
  const std::uint64_t element = bytes_of(request.type);
  NodeProgram::ProgramStep step;
  step.request = request;
  step.request.count = request.count - begin;
  step.request.root = 0;
  step.request.devices.clear();
  const std::uint64_t bytes = step.request.count * element;
  const Region in{Space::input, me, begin * element, bytes};
  const Region out{Space::output, me, begin * element, bytes};
  const auto inside = [&](Collective collective, const Region& src, const Region& dst) {
    step.kind = NodeStep::Action::inside;
    step.request.collective = collective;
    step.request.ranks = nodes.size();
    step.src = src;
    step.dst = dst;
    program.steps.push_back(step);
  };
  int call = 0;
  for (const NodeProgram::ProgramStep& one : program.steps) call = std::max(call, one.call + 1);
  if (nodes.size() > 1) inside(Collective::reduce, in, first ? out : Region{});
  if (first) {
    step.kind = NodeStep::Action::across;
    step.request.collective = Collective::all_reduce;
    step.request.ranks = nodes.count();
    step.call = call;
    step.src = nodes.size() > 1 ? out : in;
    step.dst = out;
    program.steps.push_back(step);
    step.kind = NodeStep::Action::await;
    program.steps.push_back(step);
    step.call = -1;
  }
  if (nodes.size() > 1) inside(Collective::broadcast, first ? out : Region{}, out);
}

// Sums in rank order over two nodes. Node 0 sums the node's ranks. NCCL adds node 1's first rank to
// that sum: an addition of two terms, equal in either order. Node 1 continues with that value as
// the input of the first rank. The cost: an extra scatter and gather in node 1 if the node has
// several ranks.
class RankOrder {
 public:
  RankOrder(const Nodes& nodes, const Request& request, NodeProgram& program)
      : nodes_(nodes),
        request_(request),
        program_(program),
        element_(bytes_of(request.type)),
        me_(nodes.peers()[at(nodes.place)]) {}

  void write() {
    const auto shards = static_cast<std::uint64_t>(nodes_.size());
    const std::uint64_t most = std::max<std::uint64_t>(kOrderedBytes / element_ / shards, 1);
    std::uint64_t done = 0;
    while (shards > 1 && request_.count - done >= shards) {
      const std::uint64_t each = std::min(most, (request_.count - done) / shards);
      piece(done, each, shards);
      done += each * shards;
    }
    if (done < request_.count) piece(done, request_.count - done, 1);
    program_.label = "node_order";
    program_.in_order = true;
  }

 private:
  static constexpr std::uint64_t kOrderedBytes = 32ull << 20;

  void piece(std::uint64_t begin, std::uint64_t each, std::uint64_t shards) {
    const bool cut = shards > 1, first = nodes_.place == 0, last = nodes_.mine == 1;
    const bool carries = cut || first;
    const auto place = static_cast<std::uint64_t>(cut ? nodes_.place : 0);
    const Region in = at_bytes(Space::input, begin, each * shards);
    const Region shard = at_bytes(Space::output, begin + place * each, each);
    const Region own = cut ? at_bytes(Space::scratch, 0, each) : in;
    const std::uint64_t behind = (each + 127) / 128 * 128;
    const Region sum = at_bytes(Space::scratch, behind, each * shards);
    const Collective reduce = cut ? Collective::reduce_scatter : Collective::reduce;
    program_.scratch_bytes = std::max(program_.scratch_bytes, sum.offset + sum.bytes);
    if (!last) inside(reduce, each, in, carries ? shard : Region{});
    if (last && cut) inside(Collective::scatter, each, first ? in : Region{}, own);
    if (carries)
      across(Collective::reduce, each, last ? own : shard, !last ? Region{} : cut ? own : sum);
    if (last && cut) inside(Collective::gather, each, own, first ? sum : Region{});
    if (last) inside(reduce, each, first ? sum : in, carries ? shard : Region{});
    if (carries) across(Collective::broadcast, each, shard, shard);
    inside(cut ? Collective::all_gather : Collective::broadcast, each, carries ? shard : Region{},
           at_bytes(Space::output, begin, each * shards));
  }
  Region at_bytes(Space space, std::uint64_t begin, std::uint64_t count) const {
    return {space, me_, begin * element_, count * element_};
  }
  NodeProgram::ProgramStep step(Collective collective, std::uint64_t count, Region src,
                                Region dst) const {
    NodeProgram::ProgramStep made;
    made.request = request_;
    made.request.collective = collective;
    made.request.count = count;
    made.request.root = made.request.peer = 0;
    made.request.devices.clear();
    made.src = src;
    made.dst = dst;
    return made;
  }
  void inside(Collective collective, std::uint64_t count, Region src, Region dst) {
    if (nodes_.size() == 1 && src == dst) return;
    NodeProgram::ProgramStep made = step(collective, count, src, dst);
    made.request.ranks = nodes_.size();
    program_.steps.push_back(made);
  }
  /// Adds a transfer from the first node to the second, or back. The piece's own next step waits
  /// for the transfer.
  void across(Collective collective, std::uint64_t count, Region src, Region dst) {
    NodeProgram::ProgramStep made = step(collective, count, src, dst);
    made.kind = NodeStep::Action::across;
    made.request.ranks = 2;
    made.request.root = 1;
    made.call = calls_++;
    program_.steps.push_back(made);
    made.kind = NodeStep::Action::await;
    program_.steps.push_back(made);
  }

  const Nodes& nodes_;
  const Request& request_;
  NodeProgram& program_;
  std::uint64_t element_;
  int me_ = 0, calls_ = 0;
};

bool has_rest(Collective collective) {
  return collective == Collective::all_reduce || collective == Collective::broadcast ||
         collective == Collective::reduce;
}

}  // namespace

NodeProgram node_program(const Nodes& nodes, const Request& given, const CallOptions& options,
                         SumOrder order) {
  const Topology topology = bare(nodes);
  Request request = given;
  request.devices.clear();
  request = checked(request, topology);
  NodeProgram program;
  const auto rails = static_cast<std::uint64_t>(rails_of(nodes));
  Request even = request;
  if (has_rest(request.collective)) even.count = request.count / rails * rails;
  const Strategy& strategy = strategy_named(options.strategy, request);
  const bool in_tree = options.strategy == "multi_node" && serves_node_tree(nodes, request, order);
  program.label = options.strategy;
  if (options.strategy != "library" && reduces(request.collective) &&
      request.op == ReduceOp::premul_sum)
    throw Error(
        ErrorCode::unsupported,
        text("{}: only NCCL applies the scalars of premul_sum across nodes; use strategy library",
             options.strategy));
  if (options.strategy == "node_order") {
    if (!serves_node_order(nodes, request))
      throw Error(ErrorCode::unsupported,
                  "node_order on GPUs: wanted a sum or product of fp32 or fp64 by all_reduce over "
                  "two nodes of as many ranks, numbered in turn");
    if (is_tree(order) && !has_one_order(request))
      throw Error(ErrorCode::unsupported,
                  text("node_order sums in rank order, wanted the order {}", name_of(order)));
    RankOrder(nodes, request, program).write();
  } else if (options.strategy == "library" || (even.count == 0 && !in_tree)) {
    add_library(nodes, request, 0, program);
  } else if (even.count == 0) {
    add_tree_rest(nodes, request, 0, program);
  } else {
    std::vector<NodeStep> steps;
    Plan plan = plan_and_steps(strategy, topology, even, options.params, steps);
    plan.params.erase("mpi");  // the executor chooses the transport
    program.label = label(plan);
    for (const std::uint64_t bytes : plan.scratch_bytes)
      program.scratch_bytes = std::max(program.scratch_bytes, bytes);
    ProgramBuilder(nodes, request).take(steps, program);
    if (even.count < request.count && in_tree)
      add_tree_rest(nodes, request, even.count, program);
    else if (even.count < request.count)
      add_library(nodes, request, even.count, program);
  }
  program.in_order = program.in_order || in_tree;
  for (const NodeProgram::ProgramStep& step : program.steps)
    if (step.kind == NodeStep::Action::across) program.bytes_between += step.src.bytes;
  return program;
}

}  // namespace plait
