// Plans of several nodes: 2 to 8 nodes of equal and unequal size, odd sizes, 64 ranks. The
// reference executor runs the plans and compares with plans of a single node, bit for bit for sums
// in rank order. verify() must find mistakes in the use of a library.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <string>

#include "comm/choose/calls_in_nodes.hpp"
#include "comm/choose/what_runs.hpp"
#include "cpu/reference.hpp"
#include "plait/error.hpp"
#include "plait/report.hpp"
#include "plait/timeline.hpp"
#include "plan/blocks.hpp"
#include "plan/library_price.hpp"
#include "plans/cases.hpp"
#include "unit/cpu_time.hpp"

namespace {

using namespace plait;
using Bytes = std::vector<std::byte>;

const std::vector<const char*> kStrategies{"multi_node", "leaders", "node_order", "library"};
const std::vector<std::uint64_t> kCounts{1, 3, 127, 1009};
const Collective kCollectives[] = {Collective::all_reduce, Collective::reduce_scatter,
                                   Collective::all_gather, Collective::broadcast,
                                   Collective::reduce,     Collective::all_to_all,
                                   Collective::gather,     Collective::scatter,
                                   Collective::send_recv,  Collective::copy};

/// The first `size` GPUs of each node.
std::vector<int> devices_of(const Topology& topology, const std::vector<int>& sizes) {
  std::vector<int> devices, taken(sizes.size(), 0);
  for (const int device : rank_devices(topology)) {
    const auto node =
        static_cast<std::size_t>(topology.devices[static_cast<std::size_t>(device)].node);
    if (node < sizes.size() && taken[node]++ < sizes[node]) devices.push_back(device);
  }
  return devices;
}

std::vector<std::string> outputs_of(const Plan& plan) {
  std::vector<Bytes> inputs, outputs;
  std::vector<const void*> sources;
  std::vector<void*> results;
  for (int rank = 0; rank < plan.request.ranks; ++rank) {
    Bytes& in = inputs.emplace_back(input_bytes(plan.request, rank));
    for (std::size_t i = 0; i < in.size(); ++i)  // small numbers, some far apart
      in[i] = static_cast<std::byte>((i * 31 + static_cast<std::size_t>(rank) * 17 + i / 4) % 61);
    outputs.emplace_back(output_bytes(plan.request, rank));
  }
  for (Bytes& one : inputs) sources.push_back(one.data());
  for (Bytes& one : outputs) results.push_back(one.data());
  std::vector<double> scalars;
  for (int rank = 0; rank < plan.request.ranks; ++rank) scalars.push_back(1.0 + rank);
  run_reference(plan, sources, results, scalars);
  std::vector<std::string> found;
  for (const Bytes& one : outputs)
    found.emplace_back(reinterpret_cast<const char*>(one.data()), one.size());
  return found;
}

struct NodeTally {
  std::uint64_t proved = 0, ran = 0;
};

void check(const Topology& topology, Request request, const std::string& strategy, int pieces,
           NodeTally& tally) {
  Plan plan;
  try {
    Params params;
    if (strategy != "library" && pieces > 0) params["pieces"] = pieces;
    if (strategy == std::string("multi_node") && pieces == 2) params["rails"] = 1;
    plan = propose_one(topology, request, strategy, params);
  } catch (const Error& refusal) {
    CHECK(refusal.code() == ErrorCode::unsupported);
    return;
  }
  CAPTURE(label(plan));
  CAPTURE(to_json(plan.request));
  const Report report = verify(plan);
  INFO(print(report));
  REQUIRE(report.proved());
  CHECK(plan_from_json(to_json(plan)) == plan);
  ++tally.proved;
  CHECK(simulate(plan, topology).total_ns > 0);
  const bool exact = !reduces(request.collective) || plan.sum_order == SumOrder::rank_order ||
                     !is_float(request.type);
  if (!exact || request.collective == Collective::send_recv) return;
  const Topology wide = cases::wide_machine();  // all in a single node
  request.devices.clear();
  CHECK(outputs_of(plan) == outputs_of(propose_one(wide, checked(request, wide), "direct")));
  ++tally.ran;
}

}  // namespace

TEST_CASE("plans of any number and size of nodes are proved and give the outputs of one node") {
  NodeTally tally;
  std::size_t turn = 0;
  const std::pair<DataType, ReduceOp> kinds[] = {
      {DataType::fp32, ReduceOp::sum},        {DataType::int32, ReduceOp::prod},
      {DataType::bf16, ReduceOp::sum},        {DataType::fp32, ReduceOp::avg},
      {DataType::fp64, ReduceOp::premul_sum}, {DataType::int8, ReduceOp::max}};
  for (const std::vector<int>& sizes : std::vector<std::vector<int>>{{1, 1},
                                                                     {2, 2},
                                                                     {3, 4},
                                                                     {4, 3},
                                                                     {1, 4},
                                                                     {4, 4},
                                                                     {2, 2, 2},
                                                                     {2, 1, 3},
                                                                     {1, 1, 1, 1, 1},
                                                                     {2, 2, 2, 2, 2, 2},
                                                                     {1, 2, 1, 2, 1, 2, 1},
                                                                     {2, 2, 2, 2, 2, 2, 2, 2}})
    for (const char* machine : {"mist", "hgx-h200"}) {
      const Topology topology =
          load_topology(std::string(machine) + "-" + std::to_string(sizes.size()));
      Request request;
      request.devices = devices_of(topology, sizes);
      request.ranks = static_cast<int>(request.devices.size());
      for (const Collective collective : kCollectives)
        for (const std::uint64_t count : kCounts) {
          const auto& [type, op] = kinds[++turn % std::size(kinds)];
          request.collective = collective;
          request.count = count;
          request.type = type;
          request.op = op;
          request.root = static_cast<int>(turn) % request.ranks;
          request.peer = (request.root + 1 + static_cast<int>(turn / 7)) % request.ranks;
          for (const char* strategy : kStrategies)
            check(topology, request, strategy, static_cast<int>(turn % 4), tally);
        }
    }
  MESSAGE(tally.proved, " proved, ", tally.ran, " compared bit by bit");
  CHECK(tally.proved > 1500);
  CHECK(tally.ran > 1000);
}

TEST_CASE("64 ranks on 8 nodes; 65 are refused") {
  const Topology topology = load_topology("hgx-h200-8");
  NodeTally tally;
  for (const Collective collective : kCollectives) {
    Request request;
    request.collective = collective;
    request.ranks = 64;
    request.count = 4099;
    request.root = 63;
    request.peer = 1;
    const Plan plan = propose_one(topology, request, "multi_node", {{"pieces", 2}});
    const Report report = verify(plan);
    INFO(print(report));
    CHECK(report.proved());
    CHECK(simulate(plan, topology).total_ns > 0);
  }
  for (const Collective collective : kCollectives) {  // with the pieces that scratch requires
    Request request;
    request.collective = collective;
    request.ranks = 16;
    request.peer = 15;
    request = of_message_bytes(request, 1ull << 30);
    const Topology two = load_topology("hgx-h200-2");
    const Report report = verify(propose_one(two, request, "multi_node", {{"pieces", 1}}));
    INFO(print(report));
    CHECK(report.proved());
  }
  Request request;
  request.ranks = 65;
  request.count = 1;
  CHECK_THROWS_WITH_AS(propose(load_topology("hgx-h200-9"), request),
                       doctest::Contains("wanted 1..64 ranks, found 65"), Error);
  request.ranks = 64;
  request.count = 16 << 20;
  const double start_s = plait_test::cpu_s();
  for (const Plan& plan : propose(topology, request)) CHECK(!plan.calls.empty());
  const double took_s = plait_test::cpu_s() - start_s;
  MESSAGE("plans for 64 GPUs in " << took_s << " s");
  CHECK(took_s < 1.0);  // takes 0.05 s on an idle machine
}

TEST_CASE("node_order takes one shard in each direction for any number of nodes") {
  for (const char* machine : {"hgx-h200-2", "hgx-h200-8"}) {
    const Topology topology = load_topology(machine);
    Request request;
    request.ranks = static_cast<int>(rank_devices(topology).size());
    request.count = 1 << 20;
    const Plan plan = propose_one(topology, request, "node_order", {{"pieces", 1}});
    CHECK(plan.sum_order == SumOrder::rank_order);
    CHECK(verify(plan).proved());
    for (const LibraryCall& call : plan.calls) CHECK(call.count == (1 << 20) / 8);
    CHECK(plan.calls.size() == 8 * static_cast<std::size_t>(topology.devices.back().node + 1));
  }
}

namespace {

Op& join_of(Plan& plan, int rank, std::size_t number = 0) {
  for (Lane& lane : plan.lanes)
    for (Op& op : lane.ops)
      if (lane.rank == rank && op.kind == OpKind::join && number-- == 0) return op;
  throw Error(ErrorCode::internal, "no such join");
}

Lane& lane_of(Plan& plan, int rank, const std::string& name) {
  return *std::find_if(plan.lanes.begin(), plan.lanes.end(),
                       [&](const Lane& lane) { return lane.rank == rank && lane.name == name; });
}

void expect(const Plan& plan, const std::string& rule, const std::string& words) {
  const Report report = verify(plan);
  INFO(print(report));
  CHECK(std::any_of(report.findings.begin(), report.findings.end(), [&](const Finding& finding) {
    return finding.rule == rule && finding.sentence.find(words) != std::string::npos;
  }));
}

}  // namespace

TEST_CASE("verify finds mistakes in the use of a library") {
  const Topology topology = load_topology("hgx-h200-2");
  Request request;
  request.devices = devices_of(topology, {2, 2});
  request.ranks = 4;
  request.count = 256;
  const auto right = [&](const char* strategy = "multi_node") {
    Plan made = propose_one(topology, request, strategy, {{"pieces", 2}});
    REQUIRE(verify(made).proved());
    return made;
  };
  Plan plan = right();
  plan.calls[0].ranks.pop_back();
  expect(plan, "plan", "wanted two ranks or more, found 1");
  plan = right();
  plan.calls[0].ranks[1] = 7;
  expect(plan, "plan", "call 0: wanted ranks in 0..3, each once, found 7");
  plan = right();
  plan.calls[0].collective = Collective::all_gather;
  expect(plan, "bounds", "bytes as what rank 0 gets of call 0");
  plan = right();
  plan.calls[0].collective = Collective::broadcast;
  expect(plan, "bounds", "wanted 0 bytes as what rank 2 gives to call 0");
  plan = right();
  join_of(plan, 0).call = 9;
  expect(plan, "lane", "wanted one of the plan's 4 calls, found 9");
  plan = right();
  std::swap(join_of(plan, 0, 0).call, join_of(plan, 0, 1).call);  // another order than the peer
  expect(plan, "deadlock", "wanted all ranks of call");
  plan = right();
  join_of(plan, 2).dst.rank = 3;
  expect(plan, "privacy", "wanted rank 2 to touch its own buffers only");
  plan = right();
  join_of(plan, 2).finish = false;
  expect(plan, "contract", "whose last reduction is not marked finish");
  plan = right();
  join_of(plan, 1, 0).srcs[0].offset += 128;  // another piece's shard
  expect(plan, "contract", "wanted operands that are the same bytes of the message");
  plan = right();
  std::erase_if(lane_of(plan, 3, "across").ops,  // joins before the node's sums are ready
                [](const Op& op) { return op.kind == OpKind::wait; });
  expect(plan, "hazard", "wanted an order between");
  plan = right();
  const Lane ends =
      lane_of(plan, 3, "across");  // the node continues before the library call has ended
  std::erase_if(lane_of(plan, 3, "node").ops, [&](const Op& op) {
    return op.kind == OpKind::wait &&
           std::any_of(ends.ops.begin(), ends.ops.end(), [&](const Op& one) {
             return one.kind == OpKind::signal && one.flag == op.flag;
           });
  });
  expect(plan, "hazard", "wanted an order between");
  plan = right();
  plan.lanes.push_back({3, LaneKind::kernel, "twice", {join_of(plan, 3)}});
  expect(plan, "lane", "wanted rank 3 to join call");
}

TEST_CASE("verify finds sums in a wrong order") {
  const Topology topology = load_topology("hgx-h200-2");
  Request request;
  request.devices = devices_of(topology, {2, 2});
  request.ranks = 4;
  request.count = 256;
  const auto right = [&](const char* strategy) {
    Plan made = propose_one(topology, request, strategy);
    REQUIRE(verify(made).proved());
    return made;
  };
  Plan plan = right("node_order");
  std::swap(plan.calls[0].ranks[0], plan.calls[0].ranks[1]);
  expect(plan, "bounds", "bytes as what rank");
  plan = right("library");
  plan.sum_order = SumOrder::rank_order;  // a library's order is the library's own
  expect(plan, "contract", "where rank order is one reduction");
  request.type = DataType::bf16;
  plan = propose_one(topology, request, "node_order");
  CHECK(plan.calls[0].ranks.size() == 4);  // a partial sum would be rounded, so all ranks exchange
  request.type = DataType::fp32;
  plan = right("node_order");
  plan.request.type = DataType::bf16;
  plan.request.count *= 2;
  for (LibraryCall& call : plan.calls) call.count *= 2;
  expect(plan, "contract", "where rank order is one reduction");
}

TEST_CASE("a library call costs what the tables say, and rails on one NIC share its speed") {
  Request request;
  const auto price = [&](const char* machine, std::uint64_t count) {
    const Topology topology = load_topology(machine);
    request.ranks = static_cast<int>(rank_devices(topology).size());
    request.count = count;
    const Plan plan = propose_one(topology, request, "library");
    return *prices_of(plan, topology, plan.request.devices)[0];
  };
  CHECK(price("vista-2", 2).algorithm == "ring LL");
  CHECK(price("vista-2", 2).fixed_ns == doctest::Approx(6600 + 2 * 2700));
  CHECK(price("vista-8", 2).algorithm == "tree LL");
  CHECK(price("vista-8", 2).fixed_ns == doctest::Approx(6800 + 2 * 3 * 5000));
  CHECK(price("vista-8", 1 << 28).algorithm == "ring Simple");
  CHECK(price("vista-8", 1 << 28).alone_ns ==
        doctest::Approx(8400 + 14 * 14000 + 1.75 * (1 << 30) / 48.0));
  // Four rails of 16 MiB each, 2(N-1)/N of it in each direction, through a single NIC.
  const Topology mist = load_topology("mist-2");
  request.ranks = 8;
  request.count = 16 << 20;
  const auto total = [&](const Params& params) {
    return simulate(propose_one(mist, request, "multi_node", params), mist).total_ns;
  };
  const double alone_ns = (64 << 20) / 11.9;
  CHECK(total({{"pieces", 1}}) > alone_ns);
  CHECK(total({{"pieces", 8}}) < 1.15 * alone_ns);
  CHECK(total({{"pieces", 8}}) < total({{"pieces", 1}}) / 1.3);  // 1 in nodes, 1 between
}

TEST_CASE("steps inside nodes of GPUs have the price of engines, in the order of calls") {
  const Topology topology = load_topology("hgx-h200-2");
  Request request;
  request.ranks = 16;
  request.count = 1 << 20;
  for (const int pieces : {1, 4}) {
    const Plan plan = propose_one(topology, request, "multi_node", {{"pieces", pieces}});
    const std::vector<sim::PricedCall> calls = calls_in_nodes(plan, topology);
    REQUIRE(calls.size() == static_cast<std::size_t>(4 * pieces));  // a sum and a gather a node
    const Timeline timeline = simulate(plan, topology);
    const auto span = [&](int lane, int op) {
      return *std::find_if(timeline.spans.begin(), timeline.spans.end(),
                           [&](const Span& one) { return one.lane == lane && one.op == op; });
    };
    double in_nodes_ns = 0.0;
    std::vector<double> begins;
    for (const sim::PricedCall& call : calls) {
      const LaneOps& ops = call.ops.front();
      const Request of_plan = plan.request;
      Request here = of_plan;
      here.ranks = 8;
      here.count = of_plan.count / 8 / static_cast<std::uint64_t>(pieces);
      const int node = plan.lanes[static_cast<std::size_t>(ops.lane)].rank / 8;
      here.devices.assign(of_plan.devices.begin() + 8 * node,
                          of_plan.devices.begin() + 8 * node + 8);
      here.collective = Collective::reduce_scatter;
      const double sum_ns = predicted_call_ns(topology, here);
      here.collective = Collective::all_gather;
      const double gather_ns = predicted_call_ns(topology, here);
      CHECK((call.ns == sum_ns || call.ns == gather_ns));
      if (node == 0) in_nodes_ns += call.ns;
      const double begun_ns = span(ops.lane, ops.first).end_ns;
      if (node == 0) begins.push_back(begun_ns);
      for (const LaneOps& one : call.ops) {
        CHECK(span(one.lane, one.first).end_ns == begun_ns);  // all ranks begin together
        CHECK(span(one.lane, one.first + one.count - 1).end_ns <=
              doctest::Approx(begun_ns + call.ns));
      }
    }
    CHECK(std::is_sorted(begins.begin(), begins.end()));
    CHECK(timeline.total_ns > in_nodes_ns);
    // Lanes have the price of one kernel for all pieces; engines are launched for each.
    const double by_lanes_ns = sim::simulate(plan, sim::SimMachine(topology)).total_ns;
    if (pieces == 1) CHECK(timeline.total_ns < 0.9 * by_lanes_ns);
    for (std::size_t i = 0; i < plan.lanes.size(); ++i) {
      const Lane& lane = plan.lanes[i];
      if (lane.rank != 0 || lane.name != "across" || pieces == 1) continue;
      // NCCL carries piece 0 while the engines sum piece 1.
      CHECK(span(static_cast<int>(i), 1).start_ns < begins[1] + calls[0].ns);
      CHECK(span(static_cast<int>(i), 1).end_ns > begins[1]);
    }
  }
  // By MPI, and on CPU ranks, lanes run.
  const Plan by_mpi = propose_one(topology, request, "multi_node", {{"mpi", 1}});
  CHECK(calls_in_nodes(by_mpi, topology).empty());
  CHECK(calls_in_nodes(propose_one(topology, request, "node_order"), topology).empty());
}
