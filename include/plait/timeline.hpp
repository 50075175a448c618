// What a simulated plan does when: one span an op, the load of every resource, and what bounds it.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "plait/plan.hpp"

namespace plait {

struct Span {
  int lane = 0;  ///< index into Plan::lanes
  int op = 0;    ///< index into Lane::ops
  double start_ns = 0.0;
  double end_ns = 0.0;
  bool operator==(const Span&) const = default;
};

/// What a resource carries from `at_ns` until the next one.
struct Rate {
  double at_ns = 0.0;
  double gb_per_s = 0.0;
  bool operator==(const Rate&) const = default;
};

struct ResourceLoad {
  std::string name;
  double bytes = 0.0;
  double busy_ns = 0.0;     ///< bytes over capacity: the least time it must take
  std::vector<Rate> rates;  ///< of all jobs together, on the common clock; over time they add to
                            ///< the bytes; not in the JSON
  bool operator==(const ResourceLoad&) const = default;
};

struct Timeline {
  std::string plan;
  std::string topology;
  double total_ns = 0.0;
  std::vector<Span> spans;
  std::vector<ResourceLoad> resources;
  std::string bound_by;         ///< name of the busiest resource, or "latency"
  double lower_bound_ns = 0.0;  ///< no plan for this request on this topology can be faster
  double algbw_gb_per_s = 0.0;
  double busbw_gb_per_s = 0.0;
  bool operator==(const Timeline&) const = default;
};

/// Deterministic. Error(invalid_argument) where the plan cannot end (verify() says why).
Timeline simulate(const Plan& plan, const Topology& topology);

/// A plan that starts at `start_ns` of a common clock.
struct Job {
  Plan plan;
  double start_ns = 0.0;
};

struct SimulateOptions {
  bool one_thread = false;  ///< one host thread enqueues for all ranks, as single-process tools do
};

/// Plans that run at once and share the machine; one Timeline each, spans on the common clock.
std::vector<Timeline> simulate(const std::vector<Job>& jobs, const Topology& topology,
                               const SimulateOptions& options = {});
/// How calls come to a GPU: replayed from a CUDA graph, or each launched by the host.
enum class Launch : std::uint8_t { graph, eager };
/// What a call of the plan takes where such calls follow each other: what an engine's plan is
/// ranked by. A plan by lanes is simulated, as it is alone.
double predicted_ns(const Plan& plan, const Topology& topology, Launch launch = Launch::graph);
/// A time no plan for the request can beat: over every cut of the machine, the bytes that must
/// cross it over what can (docs/simulator.md derives it). 0 where nothing must move.
double lower_bound_ns(const Request& request, const Topology& topology);
std::string print(const Timeline& timeline);
std::string to_json(const Timeline& timeline);
/// Chrome/Perfetto trace: pid = rank, tid = lane; one counter a resource.
std::string to_trace_json(const Timeline& timeline, const Plan& plan);

}  // namespace plait
