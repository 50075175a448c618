// A single body of tests for every engine. Each call is either refused with a reason, or its plan
// is proved, alone and twice in a row, gives the reference's bits, and matches the engine's code:
// calls through the queue are emulated in host memory, kernels are traced on host threads.
#pragma once
#include <doctest/doctest.h>

#include <map>
#include <set>

#include "conformance/engine_calls.hpp"
#include "gpu/chunk/chunk_memory.hpp"
#include "gpu/ll/ll_memory.hpp"
#include "gpu/tile/tile_memory.hpp"
#include "gpu/tile/tiled_shape.hpp"
#include "plait/report.hpp"
#include "plans/uneven.hpp"
#include "unit/scale.hpp"

namespace plait_test::conformance {

using namespace plait;
using namespace plait::cuda;

struct EngineRun {
  const Engine& engine;
  Request request;
  Tuning tuning;
  Group group;
};

/// Runs the kernel on host threads; returns the first fault in loads, stores or results, empty =
/// none.
using Trace = std::function<std::string(const EngineRun& run, const Plan& plan)>;
using Traces = std::map<std::string, Trace>;  ///< by Plan::kernel
inline Traces& traces() {
  static Traces all;
  return all;
}
/// Adds the trace of a kernel: a constant in the file of the kernel's tests.
struct Traced {
  Traced(const char* kernel, const Trace& trace) { traces()[kernel] = trace; }
};
std::string trace_tiles(const EngineRun& run, const Plan& plan);
/// Runs both halves of a scatter_ring in a single call, on host threads and on emulated engines.
std::string emulate_scatter_ring(const EngineRun& run);

/// Tiled kernels of all ranks on host threads, call after call in the same slots.
class TileKernels {
 public:
  explicit TileKernels(int ranks);
  ~TileKernels();
  /// A call, with each rank's buffers.
  void run(const Request& request, const TileWish& wish, const std::vector<CallBuffers>& buffers);

 private:
  struct Gpus;
  std::unique_ptr<Gpus> gpus_;
};

struct EngineTally {
  int refused = 0, proved = 0, emulated = 0, traced = 0;
  std::set<std::string> reasons;
};

/// A group of few blocks, as a host has few threads. LL inboxes hold a small message at once and a
/// larger one in pieces.
inline Group group_of(int ranks) {
  constexpr std::uint64_t kInbox = 8 << 10, kTileSlot = 1024;
  Group group = tiny_group(ranks);
  group.sizes[kSentinelPackets] = group.sizes[kFlagPackets] = kInbox;
  group.sizes[kTileMemory] = tile_slots(ranks, group.sizes.divided(kTileMemory)) * kTileSlot;
  return group;
}

/// The same, and a group whose GPUs do not address each other: of two ranks, and of more for an
/// engine that serves such groups alone.
inline std::vector<Group> groups_of(int ranks, const Engine& engine) {
  std::vector<Group> groups{group_of(ranks)};
  if (ranks != 2 && &engine != &host_cores_engine()) return groups;
  groups.push_back(host_group(ranks));
  for (const ArenaPart* const part : {&kSentinelPackets, &kFlagPackets, &kTileMemory})
    groups.back().sizes[*part] = groups.front().sizes[*part];
  groups.back().sizes[kChunkMemory] = 2 * groups.front().sizes[kSentinelPackets];
  return groups;
}

/// Returns tunings with the least and the most of each parameter that shows in a plan, a single
/// parameter at a time.
inline std::vector<Tuning> tunings_of(const Engine& engine, const Request& request) {
  constexpr int kFewBlocks = 3;
  std::vector<Tuning> all = corners(engine, request);
  for (Tuning& one : all) one.blocks = kFewBlocks;
  return all;
}

inline bool has_host_part(const EngineRun& run) {
  return run.tuning.host_permille > 0 || run.tuning.host_cpu_permille > 0;
}

/// Emulates two calls in a row, in any order of streams, with a single hardware queue, and in a
/// single branch of a graph if nothing goes through host memory.
inline std::string emulate(const EngineRun& run, const Topology& topology) {
  using namespace engine_calls;
  for (const QueueOrder order :
       {QueueOrder::by_chance, QueueOrder::one_queue, QueueOrder::one_branch}) {
    if (order == QueueOrder::one_branch && has_host_part(run)) continue;
    FakeEngines emulated;
    Ranks all(emulated, run.group);
    std::vector<CopyCall> calls;
    for (const unsigned seed : {1u, 2u})
      calls.push_back(call_of(topology, run.engine, run.request, run.tuning, seed,
                              run.group.sum_order));
    for (int rank = 0; rank < run.request.ranks; ++rank)
      for (CopyCall& call : calls) all.enqueue(call, rank);
    emulated.run(order, static_cast<unsigned>(run.request.count));
    if (!emulated.faults.empty()) return emulated.faults.front();
    for (const CopyCall& call : calls)
      if (call.outputs != call.expected) return "other bits than the reference's";
  }
  return "";
}

inline std::string first_finding(const Report& report) {
  return report.proved() ? ""
                         : text("{}: {}", report.findings[0].rule, report.findings[0].sentence);
}

/// done: plans of this request that have been checked; different parameters often give the same
/// plan.
inline void check_run(const EngineRun& run, const Traces& traces, std::vector<Plan>& done,
                      EngineTally& tally) {
  constexpr std::uint64_t kMostTraced = 1009;  // takes a host's threads a second
  constexpr int kMostRanksOfAllTunings = 4;
  constexpr std::uint64_t kMostOpsInJson = 1000;
  const std::string why = why_not(run.engine, run.request, run.tuning, run.group);
  if (!why.empty()) {
    ++tally.refused;
    tally.reasons.insert(why);
    return;
  }
  const Topology topology = linked_machine(run.request.ranks);
  const Plan plan = plan_of(run.engine, topology, run.request, run.tuning, run.group);
  Plan key = plan;
  if (plan.kernel.empty()) key.params.clear();  // the ops show the algorithm
  ++tally.proved;
  if (std::find(done.begin(), done.end(), key) != done.end()) return;
  done.push_back(key);
  const Report proof = verify(plan);
  CHECK(first_finding(proof) == "");
  CHECK(first_finding(verify_in_a_row({&plan, &plan})) == "");
  CHECK(plan.sum_order == SumOrder::rank_order);
  // Longer plans have no other kinds of ops. Under a sanitizer test_plan alone covers JSON.
  if (!kIsSanitized && proof.ops <= kMostOpsInJson) CHECK(plan_from_json(to_json(plan)) == plan);
  const Inputs inputs = random_inputs(run.request, run.request.count);
  const Plan direct = propose_one(topology, run.request, "direct");
  CHECK(ReferenceExecutor(plan).run(inputs) == ReferenceExecutor(direct).run(inputs));
  Tuning alone = run.tuning;
  alone.host_permille = alone.host_cpu_permille = 0;
  const std::string kernel = run.engine.plan(topology, run.request, alone, run.group).kernel;
  if (kernel.empty()) {
    CHECK(emulate(run, topology) == "");
    ++tally.emulated;
  } else if (!has_host_part(run) && run.request.count <= kMostTraced &&
             (done.size() == 1 || run.request.ranks <= kMostRanksOfAllTunings)) {
    const auto trace = traces.find(kernel);
    REQUIRE_MESSAGE(trace != traces.end(), "wanted a trace of kernel ", kernel,
                    " in tests/conformance/test_engines.cpp, found none");
    CHECK(trace->second(run, plan) == "");
    ++tally.traced;
  }
}

/// Returns the request, and another with a count per block if the collective has blocks, in one of
/// the shapes.
inline std::vector<Request> with_uneven(const Request& request) {
  const auto& has = uneven::kCollectives;
  if (std::find(has.begin(), has.end(), request.collective) == has.end()) return {request};
  const std::string& shape = uneven::kShapes[request.count % uneven::kShapes.size()];
  Request blocks = request;
  blocks.counts =
      uneven::request_of(request.collective, request.ranks, shape, request.count, 3).counts;
  blocks = normal(blocks);
  return blocks.counts.empty() ? std::vector{request} : std::vector{request, blocks};
}

/// Runs every collective, odd sizes, 2 to 8 ranks.
inline void check_engine(const Engine& engine, const Traces& traces) {
  EngineTally tally;
  Sample is_next_taken;
  for (const int ranks : {2, 3, 4, 5, 6, 7, 8})
    for (const Collective collective : all_collectives())
      for (const std::uint64_t count : {1u, 7u, 123u, 1009u, 40009u}) {
        if (kIsSanitized && count > 1009 && ranks > 3) continue;
        Request request;
        request.collective = collective;
        request.ranks = ranks;
        request.count = count;
        request.type = count % 3 == 0                          ? DataType::bf16
                       : reduces(collective) || count % 2 == 0 ? DataType::fp32
                                                               : DataType::uint8;
        request.root = static_cast<int>(count) % ranks;
        request.peer = (request.root + 1) % ranks;
        for (const Request& one : with_uneven(request)) {
          std::vector<Plan> done;
          for (const Tuning& tuning : tunings_of(engine, one)) {
            if (!is_next_taken()) continue;
            std::string tuned;
            for (const auto& [name, value] : params_of(tuning))
              tuned += text(", {} {}", name, value);
            CAPTURE(text("{}: {} of {} {}, {} ranks{}", engine.info().name, name_of(one),
                         amount_of(one), name_of(one.type), ranks, tuned));
            const Request placed = checked(one, linked_machine(ranks));
            for (const Group& group : groups_of(ranks, engine)) {
              CAPTURE(group.through_host);
              check_run({engine, placed, tuning, group}, traces, done, tally);
            }
          }
        }
      }
  MESSAGE(engine.info().name, ": ", tally.refused, " refused, ", tally.proved, " proved, ",
          tally.emulated, " of them played, ", tally.traced, " traced");
  for (const std::string& reason : tally.reasons) MESSAGE("  refused: ", reason);
  CHECK(seen(static_cast<std::uint64_t>(tally.emulated + tally.traced)));
}

}  // namespace plait_test::conformance
