// The kernels one_shot, two_shot and direct_ll on host threads: calls in a row of any size and type
// (for direct_ll any collective), with no barrier between ranks but the barriers in the kernels.
// Results match the reference bit for bit; a rank that never comes is named. ThreadSanitizer does
// not run this file: the kernels' volatile accesses are no races in CUDA.
#include <doctest/doctest.h>

#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "conformance/device_on_host.hpp"
// Needs device_on_host.hpp first, for the definitions of a device.
#include "base/text.hpp"
#include "conformance/sum_orders.hpp"
#include "cpu/reference.hpp"
#include "gpu/engine/kernel_types.hpp"
#include "gpu/ll/direct_ll.cuh"
#include "gpu/tile/tiled_shape.hpp"
#include "plait/topology.hpp"
#include "plan/sum_order.hpp"
#include "unit/scale.hpp"

using namespace plait;
using namespace plait::cuda;

namespace {

constexpr std::uint64_t kHalfBytes = 1 << 20;
constexpr unsigned kBlocks = 2, kThreads = 3;
using Buffer = std::vector<ulonglong2>;  // aligned

Buffer buffer_of(std::uint64_t bytes) { return Buffer(bytes / 16 + 2); }
char* bytes_of(Buffer& buffer) { return reinterpret_cast<char*>(buffer.data()); }

struct LlGpu {
  std::atomic<bool> stream_failed{false};
  std::vector<bool> failed_after;  // by call
  DeviceState state{};
  StopPage stop_page{};
  Buffer flag = buffer_of(2 * kHalfBytes), nan_sentinel = buffer_of(2 * kHalfBytes);
  plait_test::LateClears late_clears;
};

enum class Kernel {
  one_shot_nan_sentinel,
  one_shot_flag,
  two_shot_nan_sentinel,
  two_shot_flag,
  direct_ll
};

/// A call of all ranks.
struct LlCall {
  Kernel kernel;
  Request request;
  int ahead = 0;
  SumOrder order = SumOrder::rank_order;
  bool in_place = false, aligned = true;
  int late = -1;                        // rank that comes to this call after the deadline
  std::vector<Buffer> inputs, outputs;  // by rank
  std::vector<std::vector<std::uint8_t>> expected;

  std::uint64_t offset() const { return aligned ? 0 : plait::bytes_of(request.type); }
  /// In place, the smaller buffer lies inside the larger one, as in NCCL.
  char* input(std::size_t rank) {
    const int me = static_cast<int>(rank);
    const std::uint64_t in = input_bytes(request, me), out = output_bytes(request, me);
    char* const own = bytes_of(inputs[rank]) + offset();
    return in_place && out > in ? bytes_of(outputs[rank]) + offset() + rank * in : own;
  }
  char* output(std::size_t rank) {
    const int me = static_cast<int>(rank);
    const std::uint64_t in = input_bytes(request, me), out = output_bytes(request, me);
    char* const own = bytes_of(outputs[rank]) + offset();
    return in_place && out <= in ? input(rank) + (out < in ? rank * out : 0) : own;
  }
  std::string print() const {
    return text("kernel {}, {} ({}, {}) of {} {}, root {}, ahead {}{}{}, late rank {}",
                static_cast<int>(kernel), name_of(request.collective), name_of(request.op),
                name_of(order), request.count, name_of(request.type), request.root, ahead,
                in_place ? ", in place" : "", aligned ? "" : ", not aligned", late);
  }
};

template <class Kind>
void fill_args(Kind& args, LlCall& call, std::vector<std::unique_ptr<LlGpu>>& devices,
               std::size_t rank, double wait_s) {
  args.input = call.input(rank);
  args.output = call.output(rank);
  args.state = &devices[rank]->state;
  args.stop_page = &devices[rank]->stop_page;
  args.wait_ns = static_cast<std::uint64_t>(wait_s * 1e9);
  for (double& scalar : args.scalars) scalar = 1.0;
  args.rank = static_cast<int>(rank);
  args.ranks = static_cast<int>(devices.size());
  args.op = static_cast<int>(call.request.op);
  args.order = order_of(call.request, call.order);
  args.behind_bus = plait_test::late_clears != nullptr ? 1 : 0;
  args.half_bytes = args.behind_bus != 0 ? kHalfBytes / (kPartsBehindBus / 2) : kHalfBytes;
  args.ahead = call.ahead;
  const bool flag = call.kernel == Kernel::one_shot_flag || call.kernel == Kernel::two_shot_flag;
  for (std::size_t r = 0; r < devices.size(); ++r)
    args.inbox[r] = bytes_of(flag ? devices[r]->flag : devices[r]->nan_sentinel);
}

template <DataType kType, int kOp, int kHandling>
void run_direct_ll(const DirectLlArgs& args) {
  const bool is_short = (args.shape.part_bytes + 15) / 16 <= kBlocks * kThreads;
  if (!is_short || args.ranks > 8) return direct_ll<kType, kOp, kHandling>(args);
  if (args.ranks <= 4) return short_direct_ll<kType, kOp, kHandling, 4>(short_direct_ll_args(args));
  short_direct_ll<kType, kOp, kHandling, 8>(short_direct_ll_args(args));
}

/// kRanks: 0 = known at run time only, as for any op.
template <DataType kType, int kRanks>
void run(LlCall& call, std::vector<std::unique_ptr<LlGpu>>& devices, std::size_t rank,
         double wait_s) {
  constexpr int kOp = kRanks == 0 ? kAnyOp : static_cast<int>(ReduceOp::sum);
  constexpr int kTree = kRanks == 0 ? kTreeAny : kTreeSum;
  const bool in_tree = is_in_tree(call.request, call.order);
  if (call.kernel == Kernel::direct_ll) {
    DirectLlArgs args{};
    fill_args(args, call, devices, rank, wait_s);
    args.shape = direct_shape(call.request, static_cast<int>(rank));
    if constexpr (DeviceNumber<kType>::kFloat && kRanks != 2)
      if (in_tree) return run_direct_ll<kType, kTree, kReduceParts>(args);
    if (reduces(call.request.collective)) return run_direct_ll<kType, kOp, kReduceParts>(args);
    return run_direct_ll<kType, kAnyOp, kPlaceParts>(args);
  }
  FusedArgs args{};
  fill_args(args, call, devices, rank, wait_s);
  args.count = call.request.count;
  if constexpr (DeviceNumber<kType>::kFloat && kRanks != 2)
    if (in_tree) {
      if (call.kernel == Kernel::one_shot_nan_sentinel)
        return one_shot<kType, kTree, kRanks, NanSentinelPacket>(args);
      return two_shot<kType, kTree, kRanks, NanSentinelPacket>(args);
    }
  switch (call.kernel) {
    case Kernel::one_shot_flag: return one_shot<kType, kOp, kRanks, FlagPacket>(args);
    case Kernel::two_shot_flag: return two_shot<kType, kOp, kRanks, FlagPacket>(args);
    default: break;
  }
  if constexpr (DeviceNumber<kType>::kFloat) {
    if (call.kernel == Kernel::one_shot_nan_sentinel)
      return one_shot<kType, kOp, kRanks, NanSentinelPacket>(args);
    two_shot<kType, kOp, kRanks, NanSentinelPacket>(args);
  }
}

template <int kRanks>
void run_typed(LlCall& call, std::vector<std::unique_ptr<LlGpu>>& devices, std::size_t rank,
               double wait_s) {
  const DataType type = call.request.type;
  if (type == DataType::fp32) return run<DataType::fp32, kRanks>(call, devices, rank, wait_s);
  if (type == DataType::bf16) return run<DataType::bf16, kRanks>(call, devices, rank, wait_s);
  if constexpr (kRanks == 0) run<DataType::uint8, 0>(call, devices, rank, wait_s);
}

void run_any(LlCall& call, std::vector<std::unique_ptr<LlGpu>>& devices, std::size_t rank,
             double wait_s) {
  switch (call.request.type == DataType::uint8 ? 0 : devices.size()) {
    case 2: return run_typed<2>(call, devices, rank, wait_s);
    case 4: return run_typed<4>(call, devices, rank, wait_s);
    case 8: return run_typed<8>(call, devices, rank, wait_s);
    default: return run_typed<0>(call, devices, rank, wait_s);
  }
}

/// Runs every rank's threads through the calls in order; ranks synchronise only in kernels. Ranks
/// in `missing` never come. behind_bus: clears of packets land late.
void run_calls(std::vector<LlCall>& calls, std::vector<std::unique_ptr<LlGpu>>& devices,
               double wait_s, int missing = -1, bool behind_bus = false) {
  std::vector<std::unique_ptr<plait_test::ThreadBarrier>> blocks, grids;
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < devices.size(); ++rank) {
    if (static_cast<int>(rank) == missing) continue;
    grids.push_back(std::make_unique<plait_test::ThreadBarrier>(kBlocks * kThreads));
    for (unsigned block = 0; block < kBlocks; ++block) {
      blocks.push_back(std::make_unique<plait_test::ThreadBarrier>(kThreads));
      for (unsigned thread = 0; thread < kThreads; ++thread)
        threads.emplace_back(
            [&, rank, block, thread, grid = grids.back().get(), barrier = blocks.back().get()] {
              threadIdx.x = thread, blockDim.x = kThreads;
              blockIdx.x = block, gridDim.x = kBlocks;
              plait_test::block_barrier = barrier;
              plait_test::stream_failed = &devices[rank]->stream_failed;
              plait_test::late_clears = behind_bus ? &devices[rank]->late_clears : nullptr;
              for (LlCall& call : calls) {
                if (call.late == static_cast<int>(rank))
                  std::this_thread::sleep_for(std::chrono::duration<double>(3 * wait_s));
                run_any(call, devices, rank, wait_s);
                grid->arrive_and_wait();  // a kernel ends before the next begins
                if (block == 0 && thread == 0)
                  devices[rank]->failed_after.push_back(devices[rank]->stream_failed);
                grid->arrive_and_wait();
              }
            });
    }
  }
  for (std::thread& thread : threads) thread.join();
}

/// Random bits, including words of all ones; parts for direct_ll also include words that travel as
/// all ones or as the stand-in.
void fill(char* data, std::uint64_t bytes, std::uint64_t part_bytes, std::mt19937& random) {
  for (std::uint64_t i = 0; i < bytes; ++i) data[i] = static_cast<char>(random());
  for (std::uint64_t i = 0; i + 8 <= bytes; i += 4)
    if (random() % 16 == 0) std::memset(data + i, 0xff, random() % 2 == 0 ? 4 : 8);
  for (std::uint64_t part = 0; part < bytes; part += part_bytes)
    for (std::uint64_t i = 0; i + 8 <= part_bytes && part + i + 8 <= bytes; i += 8) {
      if (random() % 8 != 0) continue;
      const Unit travels = {EscapedPacket::kMissing, EscapedPacket::kStandIn};
      const Unit word = EscapedPacket::mixed(travels, static_cast<unsigned>(i / 16));
      std::memcpy(data + part + i, random() % 2 == 0 ? &word.lo : &word.hi, 8);
    }
}

/// Computes the result by a plan that reduces in the call's order.
void expect(LlCall& call, const Topology& topology) {
  const std::vector<Plan> plans = propose(topology, checked(call.request, topology));
  const auto plan = std::find_if(plans.begin(), plans.end(), [&](const Plan& one) {
    return !reduces(one.request.collective) || in_order(one, call.order).has_value();
  });
  REQUIRE(plan != plans.end());
  std::vector<const void*> in;
  std::vector<void*> out;
  for (std::size_t rank = 0; rank < call.inputs.size(); ++rank) {
    call.expected.emplace_back(output_bytes(call.request, static_cast<int>(rank)));
    in.push_back(call.input(rank));
  }
  for (std::vector<std::uint8_t>& one : call.expected) out.push_back(one.data());
  run_reference(in_order(*plan, call.order).value(), in, out);
}

Request random_request(int ranks, bool is_direct_ll, std::mt19937& random) {
  Request request;
  request.type = std::vector{DataType::fp32, DataType::bf16, DataType::uint8}[random() % 3];
  request.count = 1 + random() % (random() % 2 == 0 ? 40 : 3000);
  request.ranks = ranks;
  if (is_direct_ll)
    request.collective =
        static_cast<Collective>(random() % (static_cast<unsigned>(Collective::copy) + 1));
  if (reduces(request.collective) && random() % 3 == 0) request.op = ReduceOp::avg;
  request.root = static_cast<int>(random() % static_cast<unsigned>(ranks));
  request.peer = (request.root + 1) % ranks;
  return request;
}

std::vector<LlCall> random_calls(int ranks, std::mt19937& random) {
  const Topology topology = load_topology("hgx-h200");
  std::vector<LlCall> calls(6);
  for (LlCall& call : calls) {
    const bool is_direct_ll = random() % 2 == 0;
    call.request = random_request(ranks, is_direct_ll, random);
    call.order = plait_test::some_order(call.request, random);
    const bool in_tree = is_in_tree(call.request, call.order);  // by sentinels alone
    const bool nan_sentinel = is_float(call.request.type) && (in_tree || random() % 4 != 0);
    call.kernel = is_direct_ll ? Kernel::direct_ll
                  : random() % 3 == 0
                      ? (nan_sentinel ? Kernel::one_shot_nan_sentinel : Kernel::one_shot_flag)
                      : (nan_sentinel ? Kernel::two_shot_nan_sentinel : Kernel::two_shot_flag);
    call.ahead = static_cast<int>(random() % 3);
    const Collective what = call.request.collective;
    call.in_place =
        random() % 3 == 0 && (what == Collective::all_reduce || what == Collective::all_gather ||
                              what == Collective::reduce_scatter);
    call.aligned = random() % 3 != 0;
    for (int rank = 0; rank < ranks; ++rank) {
      const auto at = static_cast<std::size_t>(rank);
      call.inputs.push_back(buffer_of(input_bytes(call.request, rank) + 16));
      call.outputs.push_back(buffer_of(output_bytes(call.request, rank) + 16));
      const std::uint64_t part_bytes = direct_shape(call.request, rank).part_bytes;
      fill(call.input(at), input_bytes(call.request, rank), part_bytes, random);
    }
    expect(call, topology);
  }
  return calls;
}

std::vector<std::unique_ptr<LlGpu>> devices_of(int ranks) {
  std::vector<std::unique_ptr<LlGpu>> devices;
  for (int rank = 0; rank < ranks; ++rank) {
    devices.push_back(std::make_unique<LlGpu>());
    devices.back()->state.fused_calls = 0u - 3;  // call numbers wrap around
    std::memset(bytes_of(devices.back()->nan_sentinel), 0xff, 2 * kHalfBytes);
  }
  return devices;
}

/// Some ranks get no result.
bool is_right(LlCall& call, std::size_t rank) {
  const auto* got = reinterpret_cast<const std::uint8_t*>(call.output(rank));
  return std::equal(call.expected[rank].begin(), call.expected[rank].end(), got);
}

}  // namespace

TEST_CASE("one_shot, two_shot and direct_ll give the reference's bits on host threads") {
  for (const int ranks : {2, 3, 4, 5, 8})
    for (int seed = 1; seed <= plait_test::rounds(ranks == 8 ? 12 : 20); ++seed) {
      std::mt19937 random(static_cast<unsigned>(seed * 16 + ranks));
      std::vector<LlCall> calls = random_calls(ranks, random);
      std::vector<std::unique_ptr<LlGpu>> devices = devices_of(ranks);
      run_calls(calls, devices, 20);
      for (std::size_t at = 0; at < calls.size(); ++at)
        for (int rank = 0; rank < ranks; ++rank) {
          LlCall& call = calls[at];
          CAPTURE(text("{} ranks, seed {}, call {}: {}", ranks, seed, at, call.print()));
          CAPTURE(rank);
          CHECK(is_right(call, static_cast<std::size_t>(rank)));
          CHECK(devices[static_cast<std::size_t>(rank)]->state.failed == 0);
        }
    }
}

TEST_CASE("packets behind a bus are not written again before their clears have landed") {
  for (const int ranks : {2, 4}) {
    std::mt19937 random(static_cast<unsigned>(ranks));
    std::vector<LlCall> calls = random_calls(ranks, random), more = random_calls(ranks, random);
    calls.insert(calls.end(), more.begin(), more.end());
    std::vector<std::unique_ptr<LlGpu>> devices = devices_of(ranks);
    run_calls(calls, devices, 5, -1, true);
    for (LlCall& call : calls)
      for (int rank = 0; rank < ranks; ++rank) {
        CAPTURE(text("{} ranks, {}", ranks, call.print()));
        CHECK(is_right(call, static_cast<std::size_t>(rank)));
      }
  }
}

TEST_CASE("kernels on host threads name a rank that never comes") {
  for (const int ranks : {2, 3, 8}) {
    std::mt19937 random(static_cast<unsigned>(ranks));
    std::vector<LlCall> calls = random_calls(ranks, random);
    std::vector<std::unique_ptr<LlGpu>> devices = devices_of(ranks);
    run_calls(calls, devices, 0.05, ranks - 1);
    for (int rank = 0; rank + 1 < ranks; ++rank) {
      const LlGpu& device = *devices[static_cast<std::size_t>(rank)];
      CHECK(device.state.failed == kFaultDeadline);
      CHECK(device.stop_page.fault.code == kFaultDeadline);
      if (ranks == 2) CHECK(device.stop_page.fault.peer == 1);
    }
  }
}

TEST_CASE(
    "where a rank comes after the deadline, every rank's result is right or its stream fails") {
  int right = 0, failed = 0;
  for (const int ranks : {2, 3, 4, 8})
    for (int seed = 1; seed <= plait_test::rounds(10); ++seed) {
      std::mt19937 random(static_cast<unsigned>(seed * 16 + ranks));
      std::vector<LlCall> calls = random_calls(ranks, random);
      calls[random() % 3].late = static_cast<int>(random() % static_cast<unsigned>(ranks));
      std::vector<std::unique_ptr<LlGpu>> devices = devices_of(ranks);
      run_calls(calls, devices, 0.05);
      for (std::size_t at = 0; at < calls.size(); ++at)
        for (std::size_t rank = 0; rank < devices.size(); ++rank) {
          CAPTURE(text("{} ranks, seed {}, call {}: {}", ranks, seed, at, calls[at].print()));
          CAPTURE(rank);
          const bool has_failed = devices[rank]->failed_after[at];
          CHECK((has_failed || is_right(calls[at], rank)));
          ++(has_failed ? failed : right);
        }
    }
  CHECK(plait_test::seen(right));
  CHECK(plait_test::seen(failed));
}

TEST_CASE("a wait that the program aborts ends without an error of its stream") {
  for (const FaultCode stop : {kFaultAborted, kFaultLost}) {
    std::mt19937 random(7);
    std::vector<LlCall> calls = random_calls(2, random);
    std::vector<std::unique_ptr<LlGpu>> devices = devices_of(2);
    devices[0]->stop_page.stop = stop;
    run_calls(calls, devices, 20, 1);
    CHECK(devices[0]->stop_page.fault.code == stop);
    CHECK(devices[0]->stop_page.fault.peer == 1);
    CHECK(devices[0]->stream_failed == (stop != kFaultAborted));
  }
}

TEST_CASE("a clock that steps back ends no wait") {
  for (const int ranks : {2, 4}) {
    std::mt19937 random(static_cast<unsigned>(ranks));
    std::vector<LlCall> calls = random_calls(ranks, random);
    std::vector<std::unique_ptr<LlGpu>> devices = devices_of(ranks);
    const plait_test::SteppingClock stepping;
    calls.front().late = 1;  // by more than the deadline, on a clock that does not step back
    run_calls(calls, devices, 0.5);
    for (std::size_t at = 0; at < calls.size(); ++at)
      for (std::size_t rank = 0; rank < devices.size(); ++rank) {
        CAPTURE(text("{} ranks, call {}, rank {}", ranks, at, rank));
        CHECK_FALSE(devices[rank]->failed_after[at]);
        CHECK(is_right(calls[at], rank));
      }
  }
}

TEST_CASE("after the clock has stepped back a wait still sees the host and has a deadline") {
  constexpr long long kHourNs = 3'600'000'000'000;
  LlGpu gpu;
  std::atomic<bool> failed{false};
  plait_test::stream_failed = &failed;
  /// Returns the code of a wait that begins now; the clock steps back during the wait.
  const auto wait = [&](std::uint64_t wait_ns, bool is_stopped) {
    gpu.state.failed = kNoFault;
    SpinTimeout timeout;
    const auto began = std::chrono::steady_clock::now();
    unsigned code = kNoFault;
    for (bool is_back = false; code == kNoFault;) {
      code = timeout.poll(&gpu.state, &gpu.stop_page, wait_ns, 1, 0, 0);
      if (timeout.began_ns == 0 || is_back) continue;
      is_back = true;
      plait_test::clock_behind_ns = kHourNs;
      if (is_stopped) gpu.stop_page.stop = kFaultLost;
    }
    plait_test::clock_behind_ns = 0;
    const auto took = std::chrono::steady_clock::now() - began;
    CHECK((is_stopped || took >= std::chrono::nanoseconds(wait_ns)));
    CHECK(took < std::chrono::seconds(20));
    return code;
  };
  CHECK(wait(10'000'000, false) == kFaultDeadline);
  CHECK(wait(30'000'000'000, true) == kFaultLost);
  plait_test::stream_failed = nullptr;
}

/// A late peer may still be in the call that used the same half of the inbox.
TEST_CASE("kernels of a rank that has given up send nothing") {
  for (const int ranks : {2, 3})
    for (int seed = 1; seed <= 10; ++seed) {
      std::mt19937 random(static_cast<unsigned>(seed * 16 + ranks));
      std::vector<LlCall> calls = random_calls(ranks, random);
      std::vector<std::unique_ptr<LlGpu>> devices = devices_of(ranks);
      for (int rank = 0; rank + 1 < ranks; ++rank)
        devices[static_cast<std::size_t>(rank)]->state.failed = kFaultAborted;
      const Buffer flag = devices.back()->flag, nan_sentinel = devices.back()->nan_sentinel;
      run_calls(calls, devices, 0.05, ranks - 1);
      CAPTURE(ranks);
      CAPTURE(seed);
      CHECK(std::memcmp(flag.data(), devices.back()->flag.data(), 2 * kHalfBytes) == 0);
      CHECK(std::memcmp(nan_sentinel.data(), devices.back()->nan_sentinel.data(), 2 * kHalfBytes) ==
            0);
    }
}
