// Runs the simulator on random machines and plans: a simulation ends exactly if the verifier finds
// no deadlock, never exceeds a resource or the lower bound, gets no faster when a link slows down,
// and moves every byte once. Seeds are printed; TEST_SEED=n repeats a run.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <random>

#include "plait/error.hpp"
#include "plait/report.hpp"
#include "plait/timeline.hpp"

using namespace plait;

namespace {

using Random = std::mt19937_64;

int pick(Random& random, int least, int most) {
  return std::uniform_int_distribution<int>(least, most)(random);
}

double speed(Random& random) { return static_cast<double>(pick(random, 10, 400)); }

std::vector<unsigned> seeds(int count) {
  if (const char* given = std::getenv("TEST_SEED"))
    return {static_cast<unsigned>(std::atoi(given))};
  std::vector<unsigned> all;
  for (int i = 1; i <= count; ++i) all.push_back(static_cast<unsigned>(i));
  return all;
}

// GPUs that are all linked; links share ports in about half of the machines.
Topology random_topology(Random& random) {
  Topology topology;
  topology.name = "random";
  const int gpus = pick(random, 2, 6);
  const bool has_ports = pick(random, 0, 1) == 1;
  for (int i = 0; i < gpus; ++i) {
    topology.devices.push_back({DeviceKind::gpu, i, 0, 0, "GPU", "", ""});
    if (!has_ports) continue;
    topology.resources.push_back({"gpu" + std::to_string(i) + ".nvlink.out", speed(random)});
    topology.resources.push_back({"gpu" + std::to_string(i) + ".nvlink.in", speed(random)});
  }
  for (int i = 0; i < gpus; ++i)
    for (int j = 0; j < gpus; ++j)
      if (i != j)
        topology.links.push_back(
            {LinkKind::nvlink, i, j, 1, speed(random), static_cast<double>(pick(random, 0, 2000)),
             has_ports ? std::vector<int>{2 * i, 2 * j + 1} : std::vector<int>{}});
  topology.parameters["copy_engines"] = {static_cast<double>(pick(random, 1, 4)), "test"};
  return topology;
}

int path_index(Plan& plan, const Topology& topology, int src, int dst) {
  const Path path = paths_between(topology, src, dst).front();
  const auto found = std::find(plan.paths.begin(), plan.paths.end(), path);
  if (found != plan.paths.end()) return static_cast<int>(found - plan.paths.begin());
  plan.paths.push_back(path);
  return static_cast<int>(plan.paths.size()) - 1;
}

// Lanes of random copies, signals and waits. In an ordered plan each wait names a signal written
// earlier, hence every wait ends; in unordered plans some waits come before the signals.
Plan random_plan(Random& random, const Topology& topology, bool ordered, bool is_engine) {
  Plan plan;
  const int ranks = static_cast<int>(topology.devices.size());
  plan.request.ranks = ranks;
  plan.request.count = 1 << 20;
  for (int i = 0; i < ranks; ++i) plan.request.devices.push_back(i);
  plan.strategy = "random";
  plan.topology = topology.name;
  plan.scratch_bytes.assign(static_cast<std::size_t>(ranks), 1 << 30);
  plan.inbox_bytes.assign(static_cast<std::size_t>(ranks), 0);
  plan.ring_bytes.assign(static_cast<std::size_t>(ranks), 0);
  for (int rank = 0; rank < ranks; ++rank)
    for (int lane = 0; lane < 2; ++lane)
      plan.lanes.push_back({rank,
                            is_engine ? LaneKind::copy_engine : LaneKind::kernel,
                            "lane" + std::to_string(lane),
                            {}});
  struct RaisedFlag {
    Flag flag;
    std::uint32_t value;
  };
  std::vector<RaisedFlag> raised;
  std::map<std::pair<int, int>, RaisedFlag> flag_of;  // (lane, owner)
  std::map<std::pair<int, int>, int> flags;           // (owner, writer)
  const int steps = pick(random, 4, 60);
  for (int step = 0; step < steps; ++step) {
    const int index = pick(random, 0, static_cast<int>(plan.lanes.size()) - 1);
    Lane& lane = plan.lanes[static_cast<std::size_t>(index)];
    const int peer = (lane.rank + pick(random, 1, ranks - 1)) % ranks;
    Op op;
    switch (pick(random, 0, 2)) {
      case 0: {
        const auto bytes = static_cast<std::uint64_t>(4 * pick(random, 1, 1 << 20));
        op.dst = {Space::scratch, peer, 0, bytes};
        op.srcs = {{Space::scratch, lane.rank, 0, bytes}};
        op.path = path_index(plan, topology, lane.rank, peer);
        break;
      }
      case 1: {
        const auto key = std::pair(index, peer);
        if (!flag_of.count(key)) flag_of[key] = {{peer, lane.rank, flags[{peer, lane.rank}]++}, 0};
        op.kind = OpKind::signal;
        op.flag = flag_of[key].flag;
        op.value = ++flag_of[key].value;
        raised.push_back({op.flag, op.value});
        break;
      }
      default: {
        std::vector<RaisedFlag> mine;
        for (const RaisedFlag& one : raised)
          if (one.flag.owner == lane.rank) mine.push_back(one);
        if (mine.empty()) continue;
        const RaisedFlag one =
            mine[static_cast<std::size_t>(pick(random, 0, static_cast<int>(mine.size()) - 1))];
        op.kind = OpKind::wait;
        op.flag = one.flag;
        op.value = one.value;
        // Out of order: the wait moves to the front of its lane, or waits for the next value.
        if (!ordered && pick(random, 0, 2) == 0) {
          op.value += static_cast<std::uint32_t>(pick(random, 0, 1));
          lane.ops.insert(lane.ops.begin(), op);
          continue;
        }
      }
    }
    lane.ops.push_back(op);
  }
  std::erase_if(plan.lanes, [](const Lane& lane) { return lane.ops.empty(); });
  return plan;
}

// Returns the bytes that a resource carried, by the resource's rates.
double over_time(const ResourceLoad& load) {
  double bytes = 0.0;
  for (std::size_t i = 0; i + 1 < load.rates.size(); ++i)
    bytes += load.rates[i].gb_per_s * (load.rates[i + 1].at_ns - load.rates[i].at_ns);
  CHECK(load.rates.back().gb_per_s == 0.0);
  return bytes;
}

bool ends(const Plan& plan, const Topology& topology) {
  try {
    simulate(plan, topology);
    return true;
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::invalid_argument);
    return false;
  }
}

}  // namespace

TEST_CASE("a simulation ends exactly if the verifier finds no deadlock") {
  int ended = 0, stuck = 0;
  for (const unsigned seed : seeds(400)) {
    CAPTURE(seed);
    Random random(seed);
    const Topology topology = random_topology(random);
    const Plan plan = random_plan(random, topology, false, true);
    const Report report = verify(plan);
    const bool deadlocks =
        std::any_of(report.findings.begin(), report.findings.end(),
                    [](const Finding& finding) { return finding.rule == "deadlock"; });
    const bool did_end = ends(plan, topology);
    INFO(print(report));
    CHECK(did_end == !deadlocks);
    ++(did_end ? ended : stuck);
  }
  MESSAGE(ended << " plans ended, " << stuck << " could not");
  if (std::getenv("TEST_SEED") == nullptr) CHECK(std::min(ended, stuck) > 20);
}

TEST_CASE("no resource exceeds its capacity, and every byte moves once") {
  for (const unsigned seed : seeds(400)) {
    CAPTURE(seed);
    Random random(seed);
    const Topology topology = random_topology(random);
    const Plan plan = random_plan(random, topology, true, true);
    const Timeline timeline = simulate(plan, topology);
    double moved = 0.0, carried = 0.0;
    for (const Lane& lane : plan.lanes)
      for (const Op& op : lane.ops) moved += static_cast<double>(op.dst.bytes);
    for (const ResourceLoad& load : timeline.resources) {
      CHECK(load.busy_ns <= timeline.total_ns * (1 + 1e-9));
      carried += load.bytes;
      CHECK(over_time(load) == doctest::Approx(load.bytes).epsilon(1e-6));
    }
    // Each copy crosses a link, with a separate capacity or with a port out and a port in.
    CHECK(carried == doctest::Approx(moved * (topology.resources.empty() ? 1.0 : 2.0)));
    for (const Span& span : timeline.spans) {
      const Op& op =
          plan.lanes[static_cast<std::size_t>(span.lane)].ops[static_cast<std::size_t>(span.op)];
      CHECK(span.end_ns >= span.start_ns);
      if (op.kind != OpKind::copy) continue;
      const Link& link = topology.links[static_cast<std::size_t>(
          plan.paths[static_cast<std::size_t>(op.path)].links[0])];
      const double least_ns = static_cast<double>(op.dst.bytes) / link.gb_per_s;
      CHECK(span.end_ns - span.start_ns >= least_ns * (1 - 1e-9) - 1e-3);
    }
  }
}

TEST_CASE("nothing gets faster when a link slows down") {
  // If lanes compete for engines or ports, a delay can free a port for another lane (Graham's
  // anomaly), hence the plan may gain a little. Without competition the plan must not gain.
  int anomalies = 0;
  for (const unsigned seed : seeds(300)) {
    CAPTURE(seed);
    Random random(seed);
    Topology topology = random_topology(random);
    const bool competes = !topology.resources.empty();
    topology.parameters["copy_engines"].value = competes ? 2 : 1000;
    const Plan plan = random_plan(random, topology, true, competes);
    const double before_ns = simulate(plan, topology).total_ns;
    Link& slowed = topology.links[static_cast<std::size_t>(
        pick(random, 0, static_cast<int>(topology.links.size()) - 1))];
    slowed.gb_per_s /= 2;
    const double after_ns = simulate(plan, topology).total_ns;
    if (!competes) {
      // Two lanes of a rank may share a link; max-min sharing of a link delays no lane.
      CHECK(after_ns >= before_ns * (1 - 1e-6) - 1.0);
    } else {
      CHECK(after_ns >= before_ns * 0.7);
      anomalies += after_ns < before_ns * (1 - 1e-9);
    }
  }
  MESSAGE(anomalies << " of 300 plans gained from a slower link (Graham's anomaly)");
  CHECK(anomalies < 30);
}

TEST_CASE("no proposed plan beats the lower bound") {
  int plans = 0;
  for (const char* name : {"hgx-h200", "mist", "cedar", "daisy", "dgx1v"})
    for (const Collective collective :
         {Collective::all_reduce, Collective::reduce_scatter, Collective::all_gather,
          Collective::broadcast, Collective::reduce, Collective::all_to_all, Collective::gather,
          Collective::scatter})
      for (const std::uint64_t count : {1000ULL, 4000000ULL}) {
        const Topology topology = load_topology(name);
        Request request;
        request.collective = collective;
        request.count = count;
        request.ranks = std::min(4, static_cast<int>(rank_devices(topology).size()));
        for (const Plan& plan : propose(topology, request)) {
          const Timeline timeline = simulate(plan, topology);
          INFO(name, " ", name_of(collective), " ", label(plan));
          CHECK(timeline.lower_bound_ns > 0.0);
          CHECK(timeline.total_ns >= timeline.lower_bound_ns * (1 - 1e-9));
          ++plans;
        }
      }
  MESSAGE(plans << " plans");
  CHECK(plans > 100);
}
