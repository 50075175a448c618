// Mistakes that a change of the copy engines' code could make (mutant_queue.hpp), a mistake per row
// of engine_mutants.def, made on all ranks, and mistakes between the halves of scatter_ring, made
// in a copy of the text. verify() rejects each plan recorded with a mistake by the rule of the row;
// a plan that looks right alone is rejected in a row with a correct call.
#include <doctest/doctest.h>

#include <cstddef>
#include <map>
#include <memory>

#include "base/text.hpp"
#include "conformance/mutant_queue.hpp"
#include "gpu/host_path/with_host_part.hpp"
#include "gpu/select/engine_cases.hpp"
#include "gpu/select/engines.hpp"
#include "plait/report.hpp"
#if __has_include("mutants/faults.def")
namespace plait_test {
inline int fault = 0;  ///< number of the fault; 0 = none
}
#include "mutants/scatter_ring.cpp"
#define PLAIT_HAS_MUTANTS
#endif

using namespace plait_test;
using namespace plait;
using namespace plait::cuda;

namespace {

constexpr int word_at(std::size_t bytes) { return static_cast<int>(bytes / 4); }

#define WORDS(field)                     \
  word_at(offsetof(EngineFlags, field)), \
      word_at(offsetof(EngineFlags, field) + sizeof EngineFlags::field)
#define HOST_WORDS(field)                                     \
  kHostPlanFlags.first + word_at(offsetof(HostFlags, field)), \
      kHostPlanFlags.first + word_at(offsetof(HostFlags, field) + sizeof HostFlags::field)

/// The calls, each in many pieces.
enum MutantCall {
  sums,
  places,
  passes,
  batched,
  ring,
  chain,
  exchange,
  gather,
  cores,
  hosted,
  beside,
  summed,
  rooted,
  scattered,
#ifdef PLAIT_HAS_MUTANTS
  kCallKinds
#else  // nothing can be damaged between scatter_ring and its plan without the text
  kCallKinds = scattered
#endif
};

struct MutantRow {
  MutantCall call;
  const char* rule;
  const char* mistake;
  Mutant mutant;
};

const MutantRow kRows[] = {
#define PLAIT_MUTANT(call, rule, mistake, slip, ...) \
  {call, #rule, mistake, Mutant{Slip::slip __VA_OPT__(, ) __VA_ARGS__}},
#include "conformance/engine_mutants.def"
#undef PLAIT_MUTANT
};

#ifdef PLAIT_HAS_MUTANTS
/// Tiles state a plan of the tiles' half; the ring's work goes through the queue.
Plan plan_of_scatter_ring(const Topology& topology, const QueueOf& through) {
  Request request;
  request.ranks = 4;
  request.count = 440003;
  const Group group = tiny_group(request.ranks);
  request = checked(request, topology);
  if (!through) return mutants::ScatterRingEngine().plan(topology, request, {}, group);
  PlanBook book(topology, request, group);
  const PlannedEngine tiles(book, topology, tiled_engine());
  const auto prepare = [&](EngineRank& rank) {
    return std::make_unique<mutants::ScatterRingReady>(tiles, request, Tuning{}, rank);
  };
  write_down(book, group, prepare, through);
  return book.plan("scatter_ring", {});
}
#endif

/// Kind of ring; in most, equal parts go to all ranks.
enum class RingOf { parts, uneven_parts, sends, turns, uneven_turns };
constexpr RingOf kOtherRings[] = {RingOf::uneven_parts, RingOf::sends, RingOf::turns,
                                  RingOf::uneven_turns};

Plan plan_of(MutantCall call, const QueueOf& through, RingOf ring_of = RingOf::parts) {
  static const Topology topology = load_topology("hgx-h200");
#ifdef PLAIT_HAS_MUTANTS
  if (call == scattered) return plan_of_scatter_ring(topology, through);
#endif
  Request request;
  request.ranks = call == exchange || call == hosted || call == beside ? 2 : 4;
  request.root = request.ranks - 1;
  request.count = call == gather   ? 400000
                  : call == places ? 20000
                  : call == ring   ? 110000  // the last slot lies among the engines' own
                  : call == chain  ? 220000
                                   : 100000;
  request.collective = call == ring                       ? Collective::all_gather
                       : call == places                   ? Collective::all_to_all
                       : call == rooted || call == beside ? Collective::reduce
                       : call == passes || call == chain  ? Collective::broadcast
                                                          : Collective::all_reduce;
  if (ring_of == RingOf::uneven_parts) request.counts = {110000, 7, 45001, 110000};
  if (ring_of == RingOf::sends) request.collective = Collective::send_recv, request.count = 330000;
  if (ring_of == RingOf::turns || ring_of == RingOf::uneven_turns)
    request.collective = Collective::all_to_all;
  if (ring_of == RingOf::uneven_turns)  // by sender in rows, by receiver in columns
    request.counts = {5,     110000, 0, 70000, 110000, 7, 90000,  1,
                      45001, 110000, 3, 20000, 110000, 0, 110000, 110000};
  request = checked(request, topology);
  Tuning tuning;
  if (call == exchange || call == gather || call == beside) tuning.host_permille = 300;
  if (call == batched) tuning.batch = 1;
  if (call == cores) tuning.host_cpu_permille = 300;
  const bool by_cores = call == summed || call == rooted, in_host = by_cores || call == hosted;
  const char* const engine = by_cores                        ? "host_cores"
                             : call == ring || call == chain ? "copy_ring"
                             : call == beside                ? "tiled"
                                                             : "rotation";
  return plan_through(*engine_named(engine, request), topology, request, tuning,
                      in_host ? host_group(request.ranks) : tiny_group(request.ranks), through);
}

std::vector<Plan> right_plans() {
  std::vector<Plan> plans;
  for (int call = 0; call < kCallKinds; ++call)
    plans.push_back(plan_of(static_cast<MutantCall>(call), nullptr));
  return plans;
}

Plan plan_with(const MutantRow& row, RingOf ring_of = RingOf::parts) {
  std::vector<std::unique_ptr<MutantQueue>> queues;
  const auto through = [&](PlanBook& book, int rank) -> EngineQueue& {
    queues.push_back(std::make_unique<MutantQueue>(book, rank, row.mutant));
    return *queues.back();
  };
  return plan_of(row.call, through, ring_of);
}

/// Returns the rule that rejects the plan; empty = none does.
std::string rejected_by(const Plan& plan, const std::vector<Plan>& right) {
  const Report alone = verify(plan);
  if (!alone.proved()) return alone.findings.front().rule;
  for (const Plan& other : right) {
    if (other.request.ranks != plan.request.ranks) continue;
    if (!verify_in_a_row({&plan, &other}).proved() || !verify_in_a_row({&other, &plan}).proved())
      return "row";
  }
  return verify_in_a_graph({&plan, &plan}).proved() ? "" : "graph";
}

}  // namespace

TEST_CASE("calls by copy engines with a mistake are rejected, each by its rule") {
  const std::vector<Plan> right = right_plans();
  std::map<std::string, int> by_rule;
  for (const MutantRow& row : kRows) {
    if (row.call >= kCallKinds) continue;
    CAPTURE(std::string(row.mistake));
    const Plan plan = plan_with(row);
    CHECK(plan != right[row.call]);
    const std::string rule = rejected_by(plan, right);
    CHECK(rule == std::string(row.rule));
    ++by_rule[rule];
  }
  std::string table;
  for (const auto& [rule, count] : by_rule) table += text(" {} {}", rule, count);
  MESSAGE(std::size(kRows), " mistakes, rejected by:", table);
}

TEST_CASE("other rings of copy engines are proved, with mistakes rejected") {
  for (const RingOf ring_of : kOtherRings) {
    std::vector<Plan> right = right_plans();
    right.push_back(plan_of(ring, nullptr, ring_of));
    CHECK(rejected_by(right.back(), right) == "");
    int rejected = 0;
    for (const MutantRow& row : kRows) {
      if (row.call != ring) continue;
      CAPTURE(row.mistake);
      CHECK(rejected_by(plan_with(row, ring_of), right) != "");
      ++rejected;
    }
    CHECK(rejected == 14);
  }
}

TEST_CASE("the same calls without a mistake are proved, in a row and in graphs") {
  const std::vector<Plan> right = right_plans();
  for (const Plan& plan : right) {
    CAPTURE(label(plan));
    const bool has_host_part =
        plan.params.contains("host_permille") || plan.params.contains("host_cpu_permille");
    CHECK(rejected_by(plan, right) == (has_host_part ? "graph" : ""));
  }
}

#ifdef PLAIT_HAS_MUTANTS
TEST_CASE("mistakes between the halves of scatter_ring are rejected") {
  struct ExpectedFinding {
    int number;
    std::string file;
    const char* what;
  };
  const std::vector<ExpectedFinding> faults{
#define PLAIT_FAULT(number, file, what) {number, #file, what},
#include "mutants/faults.def"
#undef PLAIT_FAULT
  };
  const std::vector<Plan> right = right_plans();
  const Plan& plan = right[scattered];
  CHECK(plan == scatter_ring_engine().plan(load_topology("hgx-h200"), plan.request, {},
                                           tiny_group(plan.request.ranks)));
  int made = 0;
  for (const ExpectedFinding& one : faults) {
    if (one.file != "scatter_ring") continue;
    ++made;
    fault = one.number;
    const std::string rule = rejected_by(plan_of(scattered, nullptr), right);
    fault = 0;
    CAPTURE(std::string(one.what));
    CHECK(rule != "");
    MESSAGE(std::string(one.what), ": ", rule);
  }
  CHECK(made > 0);
}
#endif  // PLAIT_HAS_MUTANTS
