// Timeline: the result of simulating a plan. A timeline has a span per op, the load of every
// resource, and the bottleneck. simulate() makes timelines (src/sim, src/comm/choose/as_run.cpp).
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "plait/plan.hpp"

namespace plait {

/// When an op runs, in ns of the simulated clock.
struct Span {
  int lane = 0;  ///< index into Plan::lanes
  int op = 0;    ///< index into Lane::ops
  double start_ns = 0.0;
  double end_ns = 0.0;
  bool operator==(const Span&) const = default;
};

/// The rate of a resource from `at_ns` until the next Rate.
struct Rate {
  double at_ns = 0.0;
  double gb_per_s = 0.0;
  bool operator==(const Rate&) const = default;
};

struct ResourceLoad {
  std::string name;
  double bytes = 0.0;
  double busy_ns = 0.0;     ///< bytes over capacity: least time for the bytes
  std::vector<Rate> rates;  ///< rates of all jobs together, on the common clock; the integral is
                            ///< `bytes`; not in the JSON
  bool operator==(const ResourceLoad&) const = default;
};

struct Timeline {
  std::string plan;
  std::string topology;
  double total_ns = 0.0;
  std::vector<Span> spans;
  std::vector<ResourceLoad> resources;
  std::string bound_by;         ///< name of the busiest resource, or "latency"
  double lower_bound_ns = 0.0;  ///< lower_bound_ns() of the request
  double algbw_gb_per_s = 0.0;
  double busbw_gb_per_s = 0.0;
  bool operator==(const Timeline&) const = default;
};

/// Simulates a plan alone on the machine. Deterministic. Over nodes of GPUs a call inside a node
/// takes the predicted time of the engine that runs the call. Error(invalid_argument) if the plan
/// cannot end (verify() says why).
Timeline simulate(const Plan& plan, const Topology& topology);

/// A plan that starts at `start_ns` of the common clock.
struct Job {
  Plan plan;
  double start_ns = 0.0;
};

struct SimulateOptions {
  bool one_thread = false;  ///< a single host thread enqueues for all ranks
};

/// Simulates plans that run at once and share the machine; returns a Timeline for each, with spans
/// on the common clock. A call inside a node has the time that the call takes alone.
std::vector<Timeline> simulate(const std::vector<Job>& jobs, const Topology& topology,
                               const SimulateOptions& options = {});
/// Whether calls are replayed from a CUDA graph, or each launched by the host.
enum class Launch : std::uint8_t { graph, eager };
/// Predicts the time of a call in a sequence of equal calls; engines are ranked by this time. A
/// plan by lanes is simulated alone.
double predicted_ns(const Plan& plan, const Topology& topology, Launch launch = Launch::graph);
/// A time that no plan for the request can beat: the maximum, over every cut of the machine, of the
/// bytes that must cross the cut divided by the cut's bandwidth (docs/simulator.md). 0 if nothing
/// must move.
double lower_bound_ns(const Request& request, const Topology& topology);
std::string print(const Timeline& timeline);
std::string to_json(const Timeline& timeline);
/// Returns a trace for Chrome or Perfetto: pid = rank, tid = lane, a counter per resource.
std::string to_trace_json(const Timeline& timeline, const Plan& plan);

}  // namespace plait
