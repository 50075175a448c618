// The lane kernel (all of a plan's lanes on a rank) on host threads: plans of any strategy and
// collective, calls in a row, with no barrier between ranks but the plans' own. Outputs match the
// reference. If a rank comes after the deadline or is aborted, no other rank ends a call with a
// wrong result unless that rank's stream has failed. All flags begin near wrap-around, like the
// counters of block barriers.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "conformance/device_on_host.hpp"
// Needs device_on_host.hpp first, for the definitions of a device.
#include "base/text.hpp"
#include "conformance/executors.hpp"
#include "conformance/sum_orders.hpp"
#include "gpu/engine/kernel_types.hpp"
#include "gpu/lanes/bound_plan.hpp"
#include "gpu/lanes/lane.cuh"
#include "gpu/lanes/plan_memory.hpp"
#include "plait/error.hpp"
#include "plan/sum_order.hpp"
#include "unit/scale.hpp"

using namespace plait;
using namespace plait_test;
using namespace plait::cuda;

namespace {

constexpr std::uint64_t kRingBytes = 256 << 10;
constexpr unsigned kThreads = 2;
constexpr std::uint32_t kEpoch = 0u - 9;         // flags wrap around
constexpr LaneLaunchConfig kConfig{3, 3, 2, 7};  // blocks: no power of two
using Buffer = std::vector<ulonglong2>;          // aligned

DeviceArenaSizes arena_sizes() {
  DeviceArenaSizes sizes;
  sizes[kPlanInbox] = 256 << 10;
  sizes[kPlanScratch] = 1 << 20;
  return sizes;
}
Buffer buffer_of(std::uint64_t bytes) { return Buffer(bytes / 16 + 1); }
char* bytes_of(Buffer& buffer) { return reinterpret_cast<char*>(buffer.data()); }

struct LaneGpu {
  LaneGpu() { state.plan_epoch = kEpoch, state.inbox_calls = 0u - 2; }
  DeviceState state{};
  StopPage stop_page{};
  std::uint32_t poisoned = 0;
  std::atomic<bool> stream_failed{false};
  std::vector<bool> failed_after;  // by call
  LateStores late_stores;
  Buffer scratch = buffer_of(arena_sizes()[kPlanScratch]);
  Buffer inbox = buffer_of(2 * arena_sizes()[kPlanInbox]), ring = buffer_of(kRingBytes);
  std::vector<std::uint32_t> flags =
      std::vector<std::uint32_t>(kMaxCudaRanks * kFlagsPerPair, kEpoch);
};

/// A plan as bound on each rank.
struct PlanTables {
  Plan plan;
  std::vector<std::unique_ptr<LaneTables>> ranks;
  std::vector<std::vector<char>> images;
};

struct LaneCall {
  const PlanTables* tables;
  Inputs inputs;
  std::vector<Bytes> outputs, expected;
  int late = -1;  // rank that comes to this call after the deadline
};

/// All ranks, with plans and calls.
class LaneEmulation {
 public:
  LaneEmulation(int ranks, unsigned seed) : LaneEmulation(machine(ranks), {}, ranks, seed) {}
  /// islands: by rank; scratch of another island cannot be addressed. Empty = all can be.
  LaneEmulation(const Topology& topology, std::vector<int> islands, int ranks, unsigned seed)
      : topology_(topology), islands_(std::move(islands)), random_(seed) {
    for (int rank = 0; rank < ranks; ++rank) gpus.push_back(std::make_unique<LaneGpu>());
    // Flags lie in host memory, and data in the memory of GPUs: the two may pass each other.
    for (int rank = 0; rank < ranks && !islands_.empty(); ++rank)
      for (const auto& gpu : gpus)
        gpus[static_cast<std::size_t>(rank)]->late_stores.cover(
            ::bytes_of(gpu->scratch), gpu->scratch.size() * sizeof(ulonglong2));
    while (plans_.size() < 3) propose_one();
    for (std::size_t i = 0; i < 6; ++i) {
      LaneCall call;
      call.tables = plans_[random_() % plans_.size()].get();
      call.inputs = random_inputs(call.tables->plan.request, seed * 8 + i);
      ReferenceExecutor reference(call.tables->plan);
      call.expected = reference.run(call.inputs);
      call.outputs = ReferenceExecutor::poisoned(call.tables->plan);
      calls.push_back(std::move(call));
    }
  }

  /// Runs every rank through the calls in order.
  void run(double wait_s) {
    std::vector<std::thread> ranks;
    for (std::size_t rank = 0; rank < gpus.size(); ++rank)
      ranks.emplace_back([this, rank, wait_s] {
        for (LaneCall& call : calls) {
          if (call.late == static_cast<int>(rank))
            std::this_thread::sleep_for(std::chrono::duration<double>(3 * wait_s));
          run_call(call, rank, wait_s);
          gpus[rank]->failed_after.push_back(gpus[rank]->stream_failed);
        }
      });
    for (std::thread& rank : ranks) rank.join();
  }
  bool is_right(std::size_t call, std::size_t rank) const {
    return calls[call].outputs[rank] == calls[call].expected[rank];
  }
  std::string print(std::size_t call) const {
    const Request& request = calls[call].tables->plan.request;
    return text("call {}: {} of {} {} by {}, late rank {}", call, name_of(request.collective),
                request.count, name_of(request.type), label(calls[call].tables->plan),
                calls[call].late);
  }
  unsigned random() { return static_cast<unsigned>(random_()); }

  std::vector<std::unique_ptr<LaneGpu>> gpus;
  std::vector<LaneCall> calls;
  bool ends_call = true;  // otherwise copies by engines follow each launch

 private:
  void propose_one() {
    const auto ranks = static_cast<int>(gpus.size());
    Request request;
    request.ranks = ranks;
    request.collective =
        static_cast<Collective>(random_() % (static_cast<unsigned>(Collective::copy) + 1));
    request.type = std::vector{DataType::fp32, DataType::bf16, DataType::uint8}[random_() % 3];
    request.count = 1 + random_() % (random_() % 2 == 0 ? 100 : 30000);
    request.root = static_cast<int>(random_() % static_cast<unsigned>(ranks));
    request.peer = (request.root + 1) % ranks;
    std::vector<Plan> plans = propose(topology_, checked(request, topology_));
    auto tables = std::make_unique<PlanTables>();
    tables->plan = plans[random_() % plans.size()];
    const SumOrder order = some_order(request, random_);
    if (const auto made = in_order(tables->plan, order)) tables->plan = *made;
    for (int rank = 0; rank < ranks; ++rank) {
      try {
        tables->ranks.push_back(std::make_unique<LaneTables>(
            tables->plan, rank, arena_sizes(),
            [this](int owner, int writer, int index) {
              return &gpus[static_cast<std::size_t>(owner)]
                          ->flags[static_cast<std::size_t>(writer * kFlagsPerPair + index)];
            },
            kRingBytes, kConfig));
      } catch (const Error&) {
        return;  // needs more memory
      }
      tables->images.push_back(tables->ranks.back()->image());
      const LaneImage image = tables->ranks.back()->parts_of(tables->images.back().data());
      for (std::uint32_t i = 0; i < tables->ranks.back()->whole_count(); ++i)
        image.counters[image.segments[tables->ranks.back()->first_whole() + i].first_counter] =
            random_() % 2 << 31;  // phase (0 or 1) of the block barrier
    }
    plans_.push_back(std::move(tables));
  }

  LaneArgs args_of(LaneCall& call, std::size_t rank, double wait_s) {
    const PlanTables& tables = *call.tables;
    const LaneTables& mine = *tables.ranks[rank];
    const LaneImage image = mine.parts_of(const_cast<char*>(tables.images[rank].data()));
    LaneArgs args{};
    args.lanes = image.segments + mine.first_whole();
    args.ops = image.ops;
    args.sources = image.sources;
    args.counters = image.counters;
    args.inbox_half_bytes = arena_sizes()[kPlanInbox];
    args.state = &gpus[rank]->state;
    args.stop_page = &gpus[rank]->stop_page;
    args.wait_ns = static_cast<std::uint64_t>(wait_s * 1e9);
    args.lane_count = mine.whole_count();
    args.rank = static_cast<int>(rank);
    args.ranks = static_cast<int>(gpus.size());
    for (std::size_t r = 0; r < gpus.size(); ++r) args.poisoned[r] = &gpus[r]->poisoned;
    args.op = static_cast<std::int32_t>(tables.plan.request.op);
    args.order = order_of(tables.plan.request, tables.plan.sum_order);
    args.ends_call = ends_call ? 1 : 0;
    args.epochs = epochs_per_call(tables.plan);
    args.inbox_calls = mine.uses_inbox() ? 1 : 0;
    for (double& scalar : args.scalars) scalar = 1.0;
    args.bases[0] = reinterpret_cast<char*>(call.inputs.bytes[rank].data());
    args.bases[1] = reinterpret_cast<char*>(call.outputs[rank].data());
    for (int r = 0; r < args.ranks; ++r) {
      LaneGpu& gpu = *gpus[static_cast<std::size_t>(r)];
      const bool is_near =
          islands_.empty() || islands_[static_cast<std::size_t>(r)] == islands_[rank];
      args.bases[base_index(Space::scratch, r)] = is_near ? ::bytes_of(gpu.scratch) : nullptr;
      args.bases[base_index(Space::inbox, r)] = ::bytes_of(gpu.inbox);
      args.bases[base_index(Space::ring, r)] = ::bytes_of(gpu.ring);
    }
    return args;
  }
  void run_call(LaneCall& call, std::size_t rank, double wait_s) {
    const LaneArgs args = args_of(call, rank, wait_s);
    if (args.lane_count == 0) {  // as plait_end_call does
      return end_lanes({args.state, args.stop_page, args.wait_ns, args.poisoned[rank], args.epochs,
                        args.inbox_calls});
    }
    const Grid grid{
        call.tables->ranks[rank]->whole_blocks(), kThreads, {}, &gpus[rank]->stream_failed};
    constexpr int kSum = static_cast<int>(ReduceOp::sum);
    LateStores* const late = islands_.empty() ? nullptr : &gpus[rank]->late_stores;
    launch(grid, [&] {
      late_stores = late;
      switch (call.tables->plan.request.type) {
        case DataType::fp32: return run_lanes<DataType::fp32, kSum>(args);
        case DataType::bf16: return run_lanes<DataType::bf16, kAnyOp>(args);
        default: return run_lanes<DataType::uint8, kAnyOp>(args);
      }
    });
    if (late != nullptr) late->land_all();  // as a kernel ends
  }

  const Topology topology_;
  const std::vector<int> islands_;
  std::mt19937 random_;
  std::vector<std::unique_ptr<PlanTables>> plans_;
};

}  // namespace

TEST_CASE("lanes in one kernel give the reference's bits on host threads") {
  for (const int ranks : {2, 3, 4})
    for (int seed = 1; seed <= rounds(10); ++seed) {
      LaneEmulation emulation(ranks, static_cast<unsigned>(seed * 16 + ranks));
      emulation.run(20);
      for (std::size_t call = 0; call < emulation.calls.size(); ++call)
        for (std::size_t rank = 0; rank < emulation.gpus.size(); ++rank) {
          CAPTURE(text("{} ranks, seed {}, {}, rank {}", ranks, seed, emulation.print(call), rank));
          CHECK(emulation.is_right(call, rank));
          CHECK(emulation.gpus[rank]->state.failed == kNoFault);
        }
    }
}

namespace {

/// Four GPUs that NVLinks join, without the links of GPU 3: ranks 0 to 2 are an island.
Topology three_and_one() {
  const Topology joined = load_topology("narval");
  std::vector<std::string> links;
  for (int gpu = 0; gpu < 3; ++gpu)
    for (const auto& [from, to] : {std::pair(gpu, 3), std::pair(3, gpu)})
      links.push_back(text("nvlink:{}>{}", from, to));
  return without(joined, links);
}

}  // namespace

TEST_CASE("lanes on islands, whose GPUs address no GPU outside, give the reference's bits") {
  const std::vector<std::pair<Topology, std::vector<int>>> machines{
      {load_topology("a100-pcie-x4"), {0, 0, 1, 1}}, {three_and_one(), {0, 0, 0, 1}}};
  for (const auto& [topology, islands] : machines)
    for (int seed = 1; seed <= rounds(12); ++seed) {
      LaneEmulation emulation(topology, islands, 4, static_cast<unsigned>(seed));
      emulation.run(20);
      for (std::size_t call = 0; call < emulation.calls.size(); ++call)
        for (std::size_t rank = 0; rank < emulation.gpus.size(); ++rank) {
          CAPTURE(
              text("{}, seed {}, {}, rank {}", topology.name, seed, emulation.print(call), rank));
          CHECK(emulation.is_right(call, rank));
          CHECK(emulation.gpus[rank]->state.failed == kNoFault);
        }
    }
}

TEST_CASE("lanes: a late or aborted rank leaves no rank with a wrong result and no error") {
  int right = 0, failed = 0;
  for (const bool is_aborted : {false, true})
    for (const int ranks : {2, 3, 4})
      for (int seed = 1; seed <= rounds(8); ++seed) {
        constexpr double kWait = 0.05;
        LaneEmulation emulation(ranks, static_cast<unsigned>(seed * 16 + ranks));
        const auto one = emulation.random() % static_cast<unsigned>(ranks);
        const auto late = (one + (is_aborted ? 1 : 0)) % static_cast<unsigned>(ranks);
        emulation.calls[1 + emulation.random() % 3].late = static_cast<int>(late);
        std::thread program([&, pause = emulation.random() % 10000] {
          if (!is_aborted) return;
          std::this_thread::sleep_for(std::chrono::microseconds(pause));
          std::atomic_ref(emulation.gpus[one]->stop_page.stop).store(kFaultAborted);
        });
        emulation.run(kWait);
        program.join();
        for (std::size_t call = 0; call < emulation.calls.size(); ++call)
          for (std::size_t rank = 0; rank < emulation.gpus.size(); ++rank) {
            if (is_aborted && rank == one) continue;
            CAPTURE(text("{} ranks, seed {}, {}, rank {}{}{}", ranks, seed, emulation.print(call),
                         rank, is_aborted ? ", aborted rank " : ", late rank ", one));
            const bool has_failed = emulation.gpus[rank]->failed_after[call];
            CHECK((has_failed || emulation.is_right(call, rank)));
            ++(has_failed ? failed : right);
          }
      }
  CHECK(plait_test::seen(right));
  CHECK(plait_test::seen(failed));
}

/// Started copies cannot be stopped, and may write into memory that the peer reads.
TEST_CASE("lanes: an aborted rank whose copies follow poisons its peer, which completes no call") {
  LaneEmulation emulation(2, 3);
  emulation.gpus[0]->stop_page.stop = kFaultAborted;
  for (LaneCall& call : emulation.calls) call.late = 1;  // by a second
  emulation.ends_call = false;
  emulation.run(0.3);
  CHECK(emulation.gpus[0]->state.failed == kFaultAborted);
  CHECK_FALSE(emulation.gpus[0]->stream_failed);
  CHECK(emulation.gpus[1]->poisoned == 1);

  LaneEmulation other(2, 3);
  other.gpus[1]->poisoned = 1;
  other.run(0.3);
  CHECK(other.gpus[1]->failed_after[0]);
  CHECK(other.gpus[1]->stop_page.fault.peer == 0);
}
