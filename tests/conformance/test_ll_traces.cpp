// Checks LL kernels against plans: every load and store of a run on host threads is part of
// ll_plan(), unit by unit in order; all data of the plan is moved; and results match the plan's
// results in the reference executor.
#include <doctest/doctest.h>

#include "conformance/chain_flags.hpp"
#include "conformance/ll_trace.hpp"
#include "conformance/shot_flags.hpp"
// Needs device_on_host.hpp first, for the definitions of a device.
#include "conformance/conformance.hpp"
#include "cpu/reference.hpp"
#include "plait/report.hpp"
#include "plans/cases.hpp"
#include "unit/scale.hpp"
#if __has_include("mutants/faults.def")
namespace plait_test {
inline int fault = 0;  ///< number of the fault; 0 = none
}
#include "mutants/direct_ll.cuh"
#include "mutants/ll_chain.cuh"
#include "mutants/long_chain.cuh"
#include "mutants/long_two_shot.cuh"
#define PLAIT_HAS_MUTANTS
#endif

using namespace plait_test;

namespace {

std::string print(const LlRun& run) {
  const Request& request = run.request;
  return text(
      "{}, kind {}, {} of {} {}, {} ranks, root {}, half of {}, {} x {}, ahead {}, late {}, calls "
      "before {}",
      cuda::name_of(run.kernel), static_cast<int>(run.kind), plait::name_of(request.collective),
      request.count, plait::name_of(request.type), request.ranks, request.root, run.half_bytes,
      run.blocks, run.threads, run.ahead, run.late, run.calls_before);
}

/// Returns the faults of a run of the kernels; empty = nothing.
template <class Kernels>
std::string fault_of(const LlRun& run, const Plan& plan) {
  LlTraces traces = LlEmulation<Kernels>(run).emulate();
  const std::vector<std::string> faults = LlTraceCheck(run, traces, plan).faults();
  if (!faults.empty()) return text("trace: {}", faults[0]);
  const std::string words = ChainFlagsCheck(run, traces).fault();
  if (!words.empty()) return text("trace: {}", words);
  const std::string shot_flags = ShotFlagsCheck(run, traces).fault();
  if (!shot_flags.empty()) return text("trace: {}", shot_flags);
  for (const unsigned failed : traces.failed)
    if (failed != 0) return "a wait was given up";
  for (const unsigned calls : traces.calls)
    if (!is_escaped(run.kernel) && calls != run.calls_before + 1)
      return "trace: wanted one call counted";
  std::vector<const void*> in;
  std::vector<void*> out;
  std::vector<std::vector<std::uint8_t>> expected;
  for (int rank = 0; rank < run.request.ranks; ++rank) {
    expected.emplace_back(output_bytes(run.request, rank));
    in.push_back(traces.inputs[static_cast<std::size_t>(rank)].data());
  }
  for (auto& one : expected) out.push_back(one.data());
  run_reference(plan, in, out, run.scalars);
  for (std::size_t rank = 0; rank < expected.size(); ++rank)
    if (!expected[rank].empty() &&  // otherwise no memory could be compared
        std::memcmp(expected[rank].data(), traces.outputs[rank].data(), expected[rank].size()) != 0)
      return text("other bits at rank {}", rank);
  return "";
}

/// Half an inbox that holds enough steps.
void lay_out_arena(LlRun& run) {
  const auto slots = 2 * static_cast<std::uint64_t>(run.request.ranks - 1);
  run.half_bytes = std::max(run.half_bytes, slots * static_cast<unsigned>(shot_ring(run.ahead)) *
                                                run.step_units() * cuda::bytes_of(run.kind));
}

void config(LlRun& run, std::mt19937& random) {
  run.blocks = 1 + static_cast<unsigned>(random() % 3);
  run.threads = 1 + static_cast<unsigned>(random() % 3);
  run.ahead = static_cast<int>(random() % 3);
  run.calls_before = std::vector{0u, 1u, 0u - 1u, 0u - 2u}[random() % 4];
  run.late = static_cast<int>(random() % static_cast<unsigned>(run.request.ranks + 1)) - 1;
  if (run.kernel == LlKernel::two_shot) lay_out_arena(run);
  if (run.kernel != LlKernel::ll_chain) return;
  run.resident = random() % 2 == 0 ? 1 : ~0u;
  if (random() % 3 == 0) run.ahead = 1 << 20;  // a whole piece of a chain
  if (run.step.units == 1 && random() % 2 == 0) run.step.units = run.blocks * run.threads * 2;
}

LlRun run_of(LlKernel kernel, PacketFormat kind, Collective collective, int ranks,
             std::uint64_t count, std::mt19937& random) {
  LlRun run;
  run.kernel = kernel;
  run.kind = kind;
  run.request.collective = collective;
  run.request.ranks = ranks;
  run.request.count = count;
  run.request.root = static_cast<int>(random() % static_cast<unsigned>(ranks));
  run.request.peer = (run.request.root + 1 + static_cast<int>(random() % 2)) % ranks;
  if (kernel == LlKernel::ll_chain && reduces(collective) && run.request.root != 0)
    run.request.root = ranks - 1;  // an end of the chain
  const bool moves = is_escaped(kernel) && !reduces(collective);
  run.request.type = moves ? (random() % 2 == 0 ? DataType::bf16 : DataType::uint8)
                     : is_escaped(kernel) || random() % 3 != 0 ? DataType::fp32
                                                               : DataType::bf16;
  const std::uint64_t units = count * plait::bytes_of(run.request.type) / 16 + 1;
  const std::uint64_t pieces = 1 + random() % 4;
  run.half_bytes =
      (units / pieces + 2) * static_cast<std::uint64_t>(2 * ranks) * cuda::bytes_of(kind) / 16 * 16;
  if (kernel == LlKernel::ll_chain)
    run.half_bytes =
        (units / pieces + static_cast<std::uint64_t>(ranks) + 2) * cuda::bytes_of(kind) / 16 * 16;
  config(run, random);
  return run;
}

constexpr std::pair<LlKernel, PacketFormat> kKinds[] = {
    {LlKernel::one_shot, PacketFormat::nan_sentinel}, {LlKernel::one_shot, PacketFormat::flag},
    {LlKernel::two_shot, PacketFormat::nan_sentinel}, {LlKernel::two_shot, PacketFormat::flag},
    {LlKernel::direct_ll, PacketFormat::escaped},     {LlKernel::ll_chain, PacketFormat::escaped}};

Plan plan_of(LlRun& run, const Topology& topology) {
  run.request = checked(run.request, topology);
  return ll_plan(topology, run.request, run.kernel, run.kind, run.half_bytes, run.ll_step());
}

std::string trace_ll(const conformance::EngineRun& one, const Plan& plan) {
  LlRun run;
  run.request = one.request;
  run.kernel = plan.kernel == "direct_ll"  ? LlKernel::direct_ll
               : plan.kernel == "ll_chain" ? LlKernel::ll_chain
               : plan.kernel == "one_shot" ? LlKernel::one_shot
                                           : LlKernel::two_shot;
  run.kind = is_escaped(run.kernel)        ? PacketFormat::escaped
             : plan.params.at("bare") != 0 ? PacketFormat::nan_sentinel
                                           : PacketFormat::flag;
  run.half_bytes =
      bytes_of_call(one.group, run.kind == PacketFormat::flag ? kFlagPackets : kSentinelPackets);
  std::mt19937 random(static_cast<unsigned>(run.request.count) * 16 +
                      static_cast<unsigned>(run.request.ranks));
  config(run, random);
  if (run.kernel == LlKernel::ll_chain && plan.params.contains("piece_bytes"))
    run.step = {1, static_cast<std::uint64_t>(plan.params.at("piece_bytes")) / 16};
  // A host has too few threads for the engine's steps, hence the steps are for fewer threads.
  const Plan traced = run.is_long_shot() ? ll_plan(cases::wide_machine(), run.request, run.kernel,
                                                   run.kind, run.half_bytes, run.ll_step())
                                         : plan;
  const std::string fault = fault_of<RealKernels>(run, traced);
  return fault.empty() ? "" : text("{} ({})", fault, print(run));
}

const conformance::Traced kOneShot{"one_shot", trace_ll}, kTwoShot{"two_shot", trace_ll},
    kDirectLl{"direct_ll", trace_ll}, kLlChain{"ll_chain", trace_ll};

}  // namespace

TEST_CASE("a chain takes each rank's factor once, and divides at its end") {
  const Topology topology = cases::wide_machine();
  std::mt19937 random(5);
  for (const ReduceOp op : {ReduceOp::premul_sum, ReduceOp::avg, ReduceOp::prod, ReduceOp::max})
    for (const int ranks : {2, 3, 4, 5})
      for (const int root : {0, ranks - 1}) {
        LlRun run = run_of(LlKernel::ll_chain, PacketFormat::escaped, Collective::reduce, ranks,
                           301, random);
        run.request.op = op;
        run.request.root = root;
        run.request.type = DataType::fp32;
        if (op == ReduceOp::premul_sum)
          for (int rank = 0; rank < ranks; ++rank) run.scalars.push_back(1.5 - 0.7 * rank);
        const Plan plan = plan_of(run, topology);
        CAPTURE(print(run));
        CHECK(fault_of<RealKernels>(run, plan) == "");
      }
}

TEST_CASE("two_shot reuses packets once all of the step before in their slot have been taken") {
  const Topology topology = cases::wide_machine();
  std::mt19937 random(7);
  int again = 0;
  for (const PacketFormat kind : {PacketFormat::nan_sentinel, PacketFormat::flag})
    for (const int ranks : {2, 3, 4, 5, 8})
      for (int i = 0; i < plait_test::rounds(12); ++i) {
        LlRun run = run_of(LlKernel::two_shot, kind, Collective::all_reduce, ranks,
                           1 + random() % 2000, random);
        run.ahead = static_cast<int>(random() % (kMostShotAhead + 1));
        run.half_bytes = 0;
        lay_out_arena(run);
        const Plan plan = plan_of(run, topology);
        again += run.is_long_shot();
        CAPTURE(print(run));
        CHECK(fault_of<RealKernels>(run, plan) == "");
        CHECK(verify(plan).proved());
      }
  CHECK(plait_test::seen(again));
}

TEST_CASE("two_shot that reuses packets ends with an error if a rank never comes") {
  const Topology topology = cases::wide_machine();
  std::mt19937 random(8);
  for (const int absent : {0, 3}) {
    LlRun run = run_of(LlKernel::two_shot, PacketFormat::nan_sentinel, Collective::all_reduce, 4,
                       2000, random);
    run.half_bytes = 0;
    lay_out_arena(run);
    run.wait_s = 0.3;
    run.late = -1;
    run.absent = absent;
    (void)plan_of(run, topology);
    REQUIRE(run.is_long_shot());
    const LlTraces traces = LlEmulation<RealKernels>(run).emulate();
    CAPTURE(print(run));
    for (int rank = 0; rank < 4; ++rank) {
      CAPTURE(rank);
      CHECK((traces.failed[static_cast<std::size_t>(rank)] != 0) == (rank != absent));
    }
  }
}

TEST_CASE("a chain in several pieces ends with an error if a rank never comes") {
  const Topology topology = cases::wide_machine();
  std::mt19937 random(6);
  for (const Collective collective : {Collective::broadcast, Collective::reduce})
    for (const int absent : {0, 1, 3}) {
      LlRun run = run_of(LlKernel::ll_chain, PacketFormat::escaped, collective, 4, 301, random);
      run.request.root = 0;
      run.request.count = 1204 / plait::bytes_of(run.request.type);
      run.half_bytes = 30 * 24;  // in several pieces
      run.resident = ~0u;
      run.ahead = 1 << 20;
      run.wait_s = 0.3;
      run.late = -1;
      run.absent = absent;
      (void)plan_of(run, topology);
      const LlTraces traces = LlEmulation<RealKernels>(run).emulate();
      CAPTURE(print(run));
      REQUIRE(traces.accesses[0].size() > 2);
      for (int rank = 0; rank < 4; ++rank) {
        CAPTURE(rank);
        CHECK((traces.failed[static_cast<std::size_t>(rank)] != 0) == (rank != absent));
      }
    }
}

#ifdef PLAIT_HAS_MUTANTS
namespace {

struct MutantKernels {
  using NanSentinel = mutants::NanSentinelPacket;
  using Flag = mutants::FlagPacket;
  using ClearedFlag = mutants::ClearedFlagPacket;
  template <DataType kType, int kOp, int kRanks, class Packet>
  static void one_shot(const FusedArgs& args) {
    mutants::one_shot<kType, kOp, kRanks, Packet>(args);
  }
  template <DataType kType, int kOp, int kRanks, class Packet>
  static void two_shot(const FusedArgs& args) {
    mutants::two_shot<kType, kOp, kRanks, Packet>(args);
  }
  template <DataType kType, int kOp, int kRanks, class Packet>
  static void long_two_shot(const LongShotArgs& args) {
    mutants::long_two_shot<kType, kOp, kRanks, Packet>(args);
  }
  template <DataType kType, int kOp, int kRanks, class Packet>
  static void two_shot_to_root(const FusedArgs& args) {
    mutants::two_shot_to_root<kType, kOp, kRanks, Packet>(args);
  }
  template <DataType kType, int kOp, int kHandling>
  static void direct_ll(const DirectLlArgs& args) {
    mutants::direct_ll<kType, kOp, kHandling>(args);
  }
  template <DataType kType, int kOp, int kHandling, int kMostRanks>
  static void short_direct_ll(const ShortDirectLlArgs& args) {
    mutants::short_direct_ll<kType, kOp, kHandling, kMostRanks>(args);
  }
  template <DataType kType, int kOp, int kHandling>
  static void ll_chain(const ChainArgs& args) {
    mutants::ll_chain<kType, kOp, kHandling>(args);
  }
  template <DataType kType, int kOp, int kHandling>
  static void long_chain(const LongChainArgs& args) {
    mutants::long_chain<kType, kOp, kHandling>(args);
  }
};

struct KernelMutant {
  int number;
  std::string file;
  const char* what;
};
const std::vector<KernelMutant> kFaults{
#define PLAIT_FAULT(number, file, what) {number, #file, what},
#include "mutants/faults.def"
#undef PLAIT_FAULT
};

const std::set<std::string> kLlFiles{"fused",    "escaped",    "direct_ll",
                                     "ll_chain", "long_chain", "long_two_shot"};

/// Runs that reveal faults in a file's text: four pieces if a call is cut, call numbers that wrap
/// around, and alternately a late rank.
std::vector<LlRun> runs_for(const std::string& file) {
  const auto is_in = [&](LlKernel kernel) {
    const bool is_chain = kernel == LlKernel::ll_chain;
    if (file == "long_two_shot") return kernel == LlKernel::two_shot;
    return !is_escaped(kernel) ? file == "fused"
                               : file == "escaped" || file == cuda::name_of(kernel) ||
                                     (is_chain && file == "long_chain");
  };
  std::vector<LlRun> runs;
  std::mt19937 random(1);
  std::vector<int> numbers{2, 3, 4};
  if (file == "fused") numbers.push_back(8);  // the threads load all parts first
  for (const int ranks : numbers)
    for (const int late : {0, ranks - 1})
      for (const auto& [kernel, kind] : kKinds)
        for (const Collective what :
             {Collective::all_reduce, Collective::all_gather, Collective::all_to_all,
              Collective::scatter, Collective::broadcast, Collective::reduce}) {
          const bool is_long_shot = file == "long_two_shot";
          if (!is_in(kernel) || !serves(kernel, what)) continue;
          if (is_long_shot && what == Collective::reduce) continue;
          const bool to_root = kernel == LlKernel::two_shot && what == Collective::reduce;
          if (to_root && kind == PacketFormat::flag) continue;
          LlRun run = run_of(kernel, kind, what, ranks, is_escaped(kernel) ? 500 : 245, random);
          run.request.type = reduces(what) ? DataType::fp32 : DataType::uint8;
          const std::uint64_t packets =
              (run.request.count * plait::bytes_of(run.request.type) / 16 + 1) / 4 + 3;
          run.half_bytes =
              packets * static_cast<std::uint64_t>(2 * ranks) * cuda::bytes_of(kind) / 16 * 16;
          if (kernel == LlKernel::one_shot) run.half_bytes /= 2;
          if (to_root) run.half_bytes *= 8;  // in one piece
          if (what == Collective::reduce) run.request.root = late == 0 ? 0 : ranks - 1;
          if (kernel == LlKernel::ll_chain)
            run.half_bytes = packets * cuda::bytes_of(kind) / 16 * 16;
          if (file == "ll_chain") run.half_bytes *= 8;  // in one piece
          if (file == "fused") run.half_bytes *= 8;     // at once
          run.blocks = file.starts_with("long") ? 2 : 1;
          run.threads = 3;
          run.ahead = 1;
          if (is_long_shot) {
            run.request.count = 245 * static_cast<unsigned>(ranks);
            run.half_bytes = 0;
            lay_out_arena(run);
          }
          run.calls_before = late == 0 ? 0u - 2u : 0u - 1u;  // the next number is the last, or 0
          run.late = late;
          run.wait_s = 0.3;
          runs.push_back(run);
          if (kernel != LlKernel::direct_ll) continue;
          run.request.count =
              3 * 16 / plait::bytes_of(run.request.type);  // short_direct_ll, whole units
          runs.push_back(run);
          --run.request.count;  // and others
          runs.push_back(run);
        }
  return runs;
}

}  // namespace

TEST_CASE("faults in LL kernels are found by their loads and stores") {
  const Topology topology = cases::wide_machine();
  for (const KernelMutant& one : kFaults) {
    if (!kLlFiles.contains(one.file)) continue;  // test_engine_mutants.cpp has the others
    std::string found;
    for (LlRun& run : runs_for(one.file)) {
      const Plan plan = plan_of(run, topology);
      fault = one.number;
      if (found.empty()) found = fault_of<MutantKernels>(run, plan);
      fault = 0;
      if (!found.empty()) break;
    }
    MESSAGE(std::string(one.what), ": ", found);
    CAPTURE(std::string(one.what));
    CHECK(found.starts_with("trace: "));
  }
  for (const std::string& file : kLlFiles)
    for (LlRun& run : runs_for(file)) {
      const Plan plan = plan_of(run, topology);
      run.wait_s = 20;  // without a fault no wait lasts, except on a busy machine
      CAPTURE(print(run));
      CHECK(fault_of<MutantKernels>(run, plan) == "");
    }
}
#endif  // PLAIT_HAS_MUTANTS
