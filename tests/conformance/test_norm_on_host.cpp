// Kernels of all_reduce_rms_norm on host threads: several calls in a row on the same inboxes, with
// no barrier between ranks but the packets. Results equal, bit for bit, the reference's all_reduce
// with the norm of CPU ranks behind it. Packets are cleared when a call has ended. If a rank comes
// after the deadline, no other rank ends a call with a wrong result unless that rank's stream has
// failed.
#include <doctest/doctest.h>

#include <memory>
#include <random>
#include <vector>

#include "conformance/device_on_host.hpp"
// Needs device_on_host.hpp first, for the definitions of a device.
#include "base/text.hpp"
#include "conformance/executors.hpp"
#include "conformance/lanes_on_host.hpp"
#include "cpu/numbers.hpp"
#include "cpu/rms_norm.hpp"
#include "gpu/engine/kernel_types.hpp"
#include "gpu/ll/ll_cut.hpp"
#include "gpu/norm/sum_norm.cuh"
#include "gpu/select/engine_cases.hpp"
#include "plait/topology.hpp"
#include "plan/sum_order.hpp"
#include "unit/scale.hpp"

using namespace plait;
using namespace plait_test;
using namespace plait::cuda;

namespace {

constexpr std::uint32_t kCalls = 0u - 3;  // calls wrap around
constexpr std::uint64_t kHalfPackets = 8192;
/// Of waits that end well: thousands of threads share few cores, and sanitized code is slow.
constexpr double kPatienceS = 120;
using Buffer = std::vector<ulonglong2>;  // aligned

Buffer buffer_of(std::uint64_t bytes, unsigned long long word = 0) {
  return Buffer(bytes / 16 + 1, ulonglong2{word, word});
}
char* bytes_in(Buffer& buffer) { return reinterpret_cast<char*>(buffer.data()); }

struct NormGpu {
  NormGpu() { state.fused_calls = kCalls; }
  DeviceState state{};
  StopPage stop_page{};
  std::atomic<bool> stream_failed{false};
  std::vector<bool> failed_after;  // by call
  Buffer inbox = buffer_of(2 * kHalfPackets * 16, ~0ull);
  LateClears late_clears;
};
using NormGpus = std::vector<std::unique_ptr<NormGpu>>;

/// A rank's memory of a call, and the memory that the call must leave.
struct NormMemory {
  Buffer input, residual, weight, output;
  Buffer residual_wanted, output_wanted;
};

struct NormRun {
  RmsNorm norm;
  NormKernel kernel = NormKernel::one_shot;
  SumOrder order = SumOrder::rank_order;
  bool in_place = false;
  int units = 2, ahead = 0;
  unsigned blocks = 1, cluster = 1;  // blocks: teams of a grid
  unsigned slot_blocks = 1;          // blocks of a two_shot that share a slot of rows
  unsigned resident = ~0u;           // blocks that run at once
  float scale = 0.5f;
  int late = -1;  // rank that comes to this call after the deadline
  std::vector<NormMemory> memory;

  unsigned row_units() const { return static_cast<unsigned>(norm.hidden / 8); }
  char* output(std::size_t rank) {
    return bytes_in(in_place ? memory[rank].input : memory[rank].output);
  }
  bool is_right(std::size_t rank) {
    NormMemory& mine = memory[rank];
    return std::memcmp(bytes_in(mine.residual), bytes_in(mine.residual_wanted),
                       input_bytes(norm)) == 0 &&
           std::memcmp(output(rank), bytes_in(mine.output_wanted), output_bytes(norm)) == 0;
  }
  std::string print() const {
    static constexpr const char* kNames[] = {"one_shot", "cluster", "two_shot"};
    return text(
        "{} rows of {} {} to {}, {}, {}, {} units, {} teams of {} blocks, ahead {}{}, late rank "
        "{}, "
        "{} blocks a slot",
        norm.rows, norm.hidden, name_of(norm.type), name_of(norm.output),
        kNames[static_cast<int>(kernel)], name_of(order), units, blocks, cluster, ahead,
        in_place ? ", in place" : "", late, slot_blocks);
  }
};

template <DataType kType, int kRanks, int kUnits>
void run_kernel(NormKernel kernel, const NormArgs& args) {
  if constexpr (kUnits == 4 && kRanks != 2)
    if (sums_in_tree(args.order)) {
      if (kernel == NormKernel::two_shot)
        return sum_norm_two_shot<kType, kRanks, kUnits, kTreeSum>(args);
      return sum_norm_one_shot<kType, kRanks, kUnits, kTreeSum>(args);
    }
  if constexpr (kUnits != 1) {
    if (kernel == NormKernel::two_shot) return sum_norm_two_shot<kType, kRanks, kUnits>(args);
    if (kernel == NormKernel::one_shot) return sum_norm_one_shot<kType, kRanks, kUnits>(args);
  }
  if constexpr (kUnits == 1) sum_norm_cluster<kType, kRanks, kUnits>(args);
}
template <DataType kType, int kUnits>
void run_ranks(NormKernel kernel, const NormArgs& args) {
  if (args.ranks == 2) return run_kernel<kType, 2, kUnits>(kernel, args);
  if (args.ranks == 4) return run_kernel<kType, 4, kUnits>(kernel, args);
  if constexpr (kUnits == 4)
    if (args.ranks == 8) return run_kernel<kType, 8, kUnits>(kernel, args);
  run_kernel<kType, 0, kUnits>(kernel, args);
}
template <DataType kType>
void run_units(const NormRun& run, const NormArgs& args) {
  if (run.units == 1) return run_ranks<kType, 1>(run.kernel, args);
  if (run.units == 2) return run_ranks<kType, 2>(run.kernel, args);
  run_ranks<kType, 4>(run.kernel, args);
}
void run_any(const NormRun& run, const NormArgs& args) {
  if (run.norm.type == DataType::bf16) return run_units<DataType::bf16>(run, args);
  run_units<DataType::fp16>(run, args);
}

void run_rank(NormRun& run, NormGpus& gpus, std::size_t rank, double wait_s, bool behind_bus) {
  NormGpu& mine = *gpus[rank];
  NormMemory& memory = run.memory[rank];
  NormArgs args{};
  args.rank = static_cast<int>(rank);
  args.ranks = static_cast<int>(gpus.size());
  set_reduction(args, all_reduce_of(run.norm, args.ranks), run.order);
  for (double& scalar : args.scalars) scalar = 1;
  args.state = &mine.state;
  args.stop_page = &mine.stop_page;
  args.wait_ns = static_cast<std::uint64_t>(wait_s * 1e9);
  for (std::size_t peer = 0; peer < gpus.size(); ++peer)
    args.inbox[peer] = bytes_in(gpus[peer]->inbox);
  args.behind_bus = behind_bus ? 1 : 0;
  args.half_bytes = kHalfPackets * 16 / (behind_bus ? kPartsBehindBus / 2 : 1);
  args.input = bytes_in(memory.input);
  args.output = run.output(rank);
  args.residual = bytes_in(memory.residual);
  args.weight = bytes_in(memory.weight);
  args.scale = &run.scale;
  args.count = run.norm.rows * run.norm.hidden;
  args.rows = static_cast<std::uint32_t>(run.norm.rows);
  args.row_units = run.row_units();
  args.lanes = std::bit_ceil(((args.row_units + kGroupUnits - 1) / kGroupUnits + 1) / 2);
  args.ahead = run.ahead;
  args.slot_blocks = run.slot_blocks;
  args.is_fp8 = run.norm.output == DataType::fp8e4m3 ? 1 : 0;
  args.inverse_length = 1.0f / static_cast<float>(run.norm.hidden);
  args.epsilon = run.norm.epsilon;
  const unsigned held = static_cast<unsigned>(run.units) * run.cluster;
  const unsigned workers = ((args.row_units + held - 1) / held + 31) / 32 * 32;
  const unsigned cluster = run.cluster * run.slot_blocks;
  Grid grid{run.blocks * cluster, workers, {1, workers}, &mine.stream_failed};
  grid.cluster = cluster;
  grid.resident = run.resident;
  launch(grid, [&] {
    late_clears = behind_bus ? &mine.late_clears : nullptr;
    run_any(run, args);
  });
}

/// Runs every rank through the calls in order; ranks synchronise only in kernels. behind_bus:
/// clears of packets land late.
void run_all(std::vector<NormRun>& runs, NormGpus& gpus, double wait_s, bool behind_bus = false) {
  std::vector<std::thread> ranks;
  for (std::size_t rank = 0; rank < gpus.size(); ++rank)
    ranks.emplace_back([&, rank] {
      for (NormRun& run : runs) {
        if (run.late == static_cast<int>(rank))
          std::this_thread::sleep_for(std::chrono::duration<double>(3 * wait_s));
        run_rank(run, gpus, rank, wait_s, behind_bus);
        gpus[rank]->failed_after.push_back(gpus[rank]->stream_failed);
      }
    });
  for (std::thread& rank : ranks) rank.join();
}

/// Values of both signs, some far from 1, now and then an infinity or a NaN in the input.
void fill(Buffer& buffer, std::uint64_t count, DataType type, bool has_nan, std::mt19937& random) {
  auto* const codes = reinterpret_cast<std::uint16_t*>(buffer.data());
  std::normal_distribution<float> normal;
  for (std::uint64_t i = 0; i < count; ++i) {
    const float value = normal(random) * (random() % 64 == 0 ? 40.0f : 1.0f);
    codes[i] = type == DataType::bf16 ? Number<DataType::bf16>::down(value)
                                      : Number<DataType::fp16>::down(value);
    if (has_nan && random() % 4096 == 0) codes[i] = 0xffff;
  }
}

void fill(NormRun& run, int ranks, std::mt19937& random) {
  const RmsNorm& norm = run.norm;
  const Topology topology = ranks <= 8 ? load_topology("hgx-h200") : linked_machine(ranks);
  const Request request = checked(all_reduce_of(norm, ranks), topology);
  const std::uint64_t count = norm.rows * norm.hidden;
  Inputs inputs = random_inputs(request, random());
  for (int rank = 0; rank < ranks; ++rank) {
    NormMemory& mine = run.memory.emplace_back();
    for (Buffer* one : {&mine.input, &mine.residual}) {
      *one = buffer_of(count * 2);
      fill(*one, count, norm.type, one == &mine.input && random() % 4 == 0, random);
    }
    mine.weight = buffer_of(norm.hidden * 2);
    fill(mine.weight, norm.hidden, norm.type, false, random);
    mine.output = buffer_of(count * 2, 0x7fc17fc17fc17fc1ull);
    std::memcpy(inputs.bytes[static_cast<std::size_t>(rank)].data(), bytes_in(mine.input),
                count * 2);
  }
  const Plan direct = propose_one(topology, request, "direct");
  const auto sums = ReferenceExecutor(in_order(direct, run.order).value()).run(inputs);
  for (std::size_t rank = 0; rank < run.memory.size(); ++rank) {
    NormMemory& mine = run.memory[rank];
    mine.residual_wanted = mine.residual;
    mine.output_wanted = buffer_of(count * 2);
    rms_norm(norm, sums[rank].data(),
             {nullptr, bytes_in(mine.residual_wanted), bytes_in(mine.weight),
              bytes_in(mine.output_wanted), norm.output == norm.type ? nullptr : &run.scale});
  }
}

NormRun random_run(int ranks, std::mt19937& random, SumOrder order = SumOrder::rank_order) {
  NormRun run;
  run.order = order;
  const bool is_tree = plait::is_tree(order);
  run.kernel = static_cast<NormKernel>(random() % 3);
  if (is_tree && run.kernel == NormKernel::cluster) run.kernel = NormKernel::one_shot;
  run.units = is_tree || random() % 3 == 0 ? 4 : 2;
  if (run.kernel == NormKernel::cluster) {
    run.units = 1;
    run.cluster = random() % 4 == 0 ? 4 : 1 + random() % 2;
  }
  run.norm.hidden = 8 * (1 + random() % (ranks == 2 ? 100 : 60));
  run.norm.rows = 1 + random() % 7;
  run.norm.type = random() % 2 == 0 ? DataType::bf16 : DataType::fp16;
  run.norm.output = random() % 3 == 0 ? DataType::fp8e4m3 : run.norm.type;
  run.norm.epsilon = 1e-5f;
  run.in_place = run.norm.output == run.norm.type && random() % 2 == 0;
  run.blocks = 1 + static_cast<unsigned>(
                       random() % std::min<std::uint64_t>(run.norm.rows, run.cluster > 1 ? 2 : 3));
  run.ahead = static_cast<int>(random() % 3);
  if (run.kernel == NormKernel::two_shot && ranks > 1 && ranks < 8) {
    run.slot_blocks = 1 + static_cast<unsigned>(random()) % static_cast<unsigned>(ranks - 1);
    run.blocks = std::max(1u, run.blocks / run.slot_blocks);  // no more threads than else
  }
  fill(run, ranks, random);
  return run;
}

NormGpus gpus_of(int ranks) {
  NormGpus gpus;
  for (int rank = 0; rank < ranks; ++rank) gpus.push_back(std::make_unique<NormGpu>());
  return gpus;
}

}  // namespace

/// Makes five calls in a row. orders: a call takes one of them.
void check_in_a_row(int ranks, unsigned seed, const std::vector<SumOrder>& orders) {
  std::mt19937 random(seed);
  std::vector<NormRun> runs;
  for (int call = 0; call < 5; ++call)
    runs.push_back(random_run(ranks, random, orders[random() % orders.size()]));
  NormGpus gpus = gpus_of(ranks);
  run_all(runs, gpus, kPatienceS);
  for (std::size_t rank = 0; rank < gpus.size(); ++rank) {
    REQUIRE(gpus[rank]->state.failed == kNoFault);
    for (std::size_t at = 0; at < runs.size(); ++at) {
      CAPTURE(
          text("{} ranks, seed {}, call {}: {}, rank {}", ranks, seed, at, runs[at].print(), rank));
      CHECK(runs[at].is_right(rank));
    }
    CHECK(gpus[rank]->state.fused_calls == static_cast<std::uint32_t>(kCalls + runs.size()));
    CHECK(std::all_of(
        gpus[rank]->inbox.begin(), gpus[rank]->inbox.end(),
        [](const ulonglong2& packet) { return packet.x == ~0ull && packet.y == ~0ull; }));
  }
}

TEST_CASE("kernels of all_reduce_rms_norm give the bits of the calls one behind the other") {
  for (const int ranks : {2, 3, 4})
    for (int seed = 1; seed <= rounds(ranks == 2 ? 6 : 3); ++seed)
      check_in_a_row(ranks, static_cast<unsigned>(seed * 16 + ranks), {SumOrder::rank_order});
}

TEST_CASE("kernels of all_reduce_rms_norm sum in trees of 4, 8 and 16 ranks") {
  for (const int ranks : {4, 8, 16})
    for (int seed = 1; seed <= rounds(4); ++seed)
      check_in_a_row(ranks, static_cast<unsigned>(seed * 16 + ranks),
                     {SumOrder::tree, SumOrder::tree_rounded});
}

TEST_CASE("all blocks of a cluster learn that a thread was broken off") {
  NormArgs args{};
  args.row_units = 4 * 32;
  args.lanes = 2;
  std::atomic<int> told{0}, wrong{0};
  Grid grid{8, 32, {}, nullptr};
  grid.cluster = 4;
  launch(grid, [&] {
    PLAIT_SHARED(GroupSums, sums);
    ClusterTeam<1> team(sums);
    const unsigned group = team.first() / kGroupUnits;
    const auto is_told = [&](int turn, bool is_broken) {
      team.prepare(sums, turn);
      team.give(sums, turn, group, 2.0f, is_broken);
      return team.meet(sums, turn, args, is_broken);
    };
    if (is_told(0, false)) ++wrong;
    told += is_told(1, blockIdx.x == 6 && threadIdx.x == 5) ? 1 : 0;
  });
  CHECK(told == 4 * 32);  // the second cluster
  CHECK(wrong == 0);
}

namespace {

enum class Misuse { none, no_arrival, two_arrivals, early_phase, late_phase, open_phase };

/// Returns the fault that the emulation finds in the third of four uses of a byte counter by two
/// blocks; "" = no fault.
std::string fault_of(Misuse misuse) {
  struct Shared {
    float values[2];
    ByteCounter counter;
  };
  std::atomic<const char*> fault{nullptr};
  Grid grid{2, 32, {}, nullptr};
  grid.cluster = 2;
  grid.barrier_fault = &fault;
  if (misuse == Misuse::no_arrival) grid.barrier_patience = std::chrono::milliseconds(300);
  launch(grid, [&] {
    PLAIT_SHARED(Shared, shared);
    if (threadIdx.x == 0) init_bytes(&shared.counter);
    cluster_arrive();
    cluster_wait();
    for (unsigned use = 0; use < 4; ++use) {
      const bool is_wrong = use == 2 && block_of_cluster() == 1;
      const auto has = [&](Misuse one) { return is_wrong && misuse == one; };
      if (threadIdx.x == 0 && !has(Misuse::no_arrival)) expect_bytes(&shared.counter, 8);
      if (threadIdx.x == 0 && has(Misuse::two_arrivals)) expect_bytes(&shared.counter, 0);
      any_of_warp(false);
      if (threadIdx.x < 2)
        store_in_block(&shared.values[block_of_cluster()], &shared.counter, threadIdx.x, 1.0f);
      await_bytes(&shared.counter, has(Misuse::early_phase)  ? use - 2
                                   : has(Misuse::late_phase) ? use + 2
                                                             : use);
      any_of_warp(false);
    }
    if (threadIdx.x == 0 && misuse == Misuse::open_phase) expect_bytes(&shared.counter, 8);
  });
  return fault == nullptr ? "" : fault.load();
}

}  // namespace

TEST_CASE("a wrong use of an mbarrier is found on host threads") {
  CHECK(fault_of(Misuse::none) == "");
  CHECK(fault_of(Misuse::no_arrival) == "a phase of an mbarrier lacks its arrival or bytes");
  CHECK(fault_of(Misuse::two_arrivals) == "an mbarrier got two arrivals in a phase");
  CHECK(fault_of(Misuse::early_phase) == "a wait at an mbarrier names another phase");
  CHECK(fault_of(Misuse::late_phase) == "a wait at an mbarrier names another phase");
  CHECK(fault_of(Misuse::open_phase) == "a phase of an mbarrier is open at the end of the kernel");
}

TEST_CASE("packets of rows behind a bus are not written again before their clears have landed") {
  for (const int ranks : {2, 3, 4})
    for (const NormKernel kernel : {NormKernel::one_shot, NormKernel::two_shot}) {
      std::mt19937 random(static_cast<unsigned>(ranks));
      std::vector<NormRun> runs;
      for (int call = 0; call < 20; ++call) {
        runs.push_back(random_run(ranks, random));
        NormRun& run = runs.back();
        run.kernel = kernel, run.cluster = 1, run.units = 2;
        if (kernel == NormKernel::one_shot) run.slot_blocks = 1;
      }
      NormGpus gpus = gpus_of(ranks);
      run_all(runs, gpus, kPatienceS, true);
      for (std::size_t rank = 0; rank < gpus.size(); ++rank) {
        for (std::size_t at = 0; at < runs.size(); ++at) {
          CAPTURE(text("{} ranks, call {}: {}, rank {}", ranks, at, runs[at].print(), rank));
          CHECK(runs[at].is_right(rank));
        }
        CHECK(gpus[rank]->state.failed == kNoFault);
      }
    }
}

TEST_CASE("a cluster of a two_shot with norm waits for peers' clusters of its own number alone") {
  // Clusters run in turn, as on GPUs where a second communicator's call holds most SMs.
  for (const int ranks : {2, 3, 4, 8})
    for (const unsigned slot_blocks : {1u, 2u, 4u}) {
      if (slot_blocks >= static_cast<unsigned>(ranks) || (ranks == 8 && slot_blocks == 4)) continue;
      std::mt19937 random(static_cast<unsigned>(ranks) * 8 + slot_blocks);
      std::vector<NormRun> runs(2);
      for (NormRun& run : runs) {
        run.kernel = NormKernel::two_shot;
        run.slot_blocks = run.resident = slot_blocks;
        run.blocks = 1 + random() % 5;
        run.norm.hidden = 8 * (1 + random() % 30);
        run.norm.rows = 1 + random() % (8 * static_cast<unsigned>(ranks));
        fill(run, ranks, random);
      }
      NormGpus gpus = gpus_of(ranks);
      run_all(runs, gpus, kPatienceS);
      for (std::size_t rank = 0; rank < gpus.size(); ++rank) {
        CHECK(gpus[rank]->state.failed == kNoFault);
        for (NormRun& run : runs) {
          CAPTURE(text("{} ranks: {}, rank {}", ranks, run.print(), rank));
          CHECK(run.is_right(rank));
        }
      }
    }
}

TEST_CASE("a row of several warps, and of the most units that a thread holds") {
  for (const int units : {2, 4}) {
    std::mt19937 random(static_cast<unsigned>(units));
    NormRun run;
    run.units = units;
    run.norm.hidden = 8 * (64 * static_cast<unsigned>(units) + 33 * static_cast<unsigned>(units));
    run.norm.rows = 2;
    fill(run, 2, random);
    std::vector<NormRun> runs;
    runs.push_back(std::move(run));
    NormGpus gpus = gpus_of(2);
    run_all(runs, gpus, 30);
    for (std::size_t rank = 0; rank < 2; ++rank) CHECK(runs[0].is_right(rank));
  }
}

/// Runs the norm alone on rank 0's memory.
void run_alone(NormRun& run) {
  NormMemory& memory = run.memory[0];
  NormArgs args{};
  args.input = bytes_in(memory.input);
  args.output = run.output(0);
  args.residual = bytes_in(memory.residual);
  args.weight = bytes_in(memory.weight);
  args.scale = &run.scale;
  args.rows = static_cast<std::uint32_t>(run.norm.rows);
  args.row_units = run.row_units();
  args.lanes = std::bit_ceil(((args.row_units + kGroupUnits - 1) / kGroupUnits + 1) / 2);
  args.is_fp8 = run.norm.output == DataType::fp8e4m3 ? 1 : 0;
  args.inverse_length = 1.0f / static_cast<float>(run.norm.hidden);
  args.epsilon = run.norm.epsilon;
  launch({run.blocks, (args.row_units / 4 + 32) / 32 * 32, {}, nullptr}, [&] {
    run.norm.type == DataType::bf16 ? cuda::rms_norm<DataType::bf16, 4>(args)
                                    : cuda::rms_norm<DataType::fp16, 4>(args);
  });
}

TEST_CASE("the norm alone gives the bits of CPU ranks, also in place") {
  for (int seed = 1; seed <= rounds(8); ++seed) {
    std::mt19937 random(static_cast<unsigned>(seed));
    NormRun run = random_run(1, random);
    run_alone(run);
    CAPTURE(run.print());
    CHECK(run.is_right(0));
  }
}

TEST_CASE("the kernel sums the squares of a row in the stated order") {
  // Beside a square of 1, squares of 2^-24 are lost one by one and count in pairs. Rows differ, so
  // that some results lie near enough to a rounding to show.
  std::mt19937 random(7);
  for (const std::size_t every : {8, 256, 2048}) {
    NormRun run;
    run.norm.type = run.norm.output = DataType::fp16;
    run.norm.rows = 16, run.norm.hidden = 4096;
    fill(run, 1, random);
    NormMemory& memory = run.memory[0];
    auto* const sums = reinterpret_cast<std::uint16_t*>(memory.input.data());
    auto* const residual = reinterpret_cast<std::uint16_t*>(memory.residual.data());
    for (std::size_t i = 0; i < run.norm.rows * run.norm.hidden; ++i) {
      const float one = 1.0f + static_cast<float>(i / run.norm.hidden) / 16;
      sums[i] = 0;
      residual[i] = Number<DataType::fp16>::down(i % every == 0 ? one : std::ldexp(one, -12));
    }
    memory.residual_wanted = memory.residual;
    plait::rms_norm(run.norm, sums,
                    {nullptr, bytes_in(memory.residual_wanted), bytes_in(memory.weight),
                     bytes_in(memory.output_wanted), nullptr});
    run_alone(run);
    CAPTURE(every);
    CHECK(run.is_right(0));
  }
}

TEST_CASE("a rank that comes too late leaves no wrong result of all_reduce_rms_norm behind") {
  for (const int ranks : {2, 3})
    for (int late = 0; late < ranks; ++late) {
      std::mt19937 random(static_cast<unsigned>(ranks * 8 + late));
      std::vector<NormRun> runs;
      for (int call = 0; call < 3; ++call) runs.push_back(random_run(ranks, random));
      runs[1].late = late;
      NormGpus gpus = gpus_of(ranks);
      run_all(runs, gpus, 0.3);
      bool any_failed = false;
      for (std::size_t at = 0; at < runs.size(); ++at)
        for (std::size_t rank = 0; rank < gpus.size(); ++rank) {
          CAPTURE(text("{} ranks, call {}: {}, rank {}", ranks, at, runs[at].print(), rank));
          const bool failed = gpus[rank]->failed_after[at];
          CHECK((failed || runs[at].is_right(rank)));
          if (at < 1) CHECK(!failed);
          any_failed = any_failed || failed;
        }
      CHECK(any_failed);
    }
}

TEST_CASE("a rank that has given up sends no rows of all_reduce_rms_norm") {
  for (const int ranks : {2, 3})
    for (const NormKernel kernel :
         {NormKernel::one_shot, NormKernel::cluster, NormKernel::two_shot}) {
      std::mt19937 random(static_cast<unsigned>(ranks));
      std::vector<NormRun> runs;
      for (int call = 0; call < 3; ++call) {
        runs.push_back(random_run(ranks, random));
        NormRun& run = runs.back();
        run.kernel = kernel, run.cluster = 1, run.units = kernel == NormKernel::cluster ? 1 : 2;
        run.slot_blocks = 1;
      }
      NormGpus gpus = gpus_of(ranks);
      gpus[0]->state.failed = kFaultAborted;
      for (NormRun& run : runs) run_rank(run, gpus, 0, 1, false);
      for (std::size_t peer = 1; peer < gpus.size(); ++peer) {
        CAPTURE(text("{} ranks, kernel {}, peer {}", ranks, static_cast<int>(kernel), peer));
        CHECK(std::all_of(
            gpus[peer]->inbox.begin(), gpus[peer]->inbox.end(),
            [](const ulonglong2& packet) { return packet.x == ~0ull && packet.y == ~0ull; }));
      }
    }
}
