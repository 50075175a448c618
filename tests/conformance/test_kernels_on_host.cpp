// The very kernels one_shot, two_shot and hop, on a host's threads: all_reduces one behind the
// other, of any size and type, with no barrier between ranks but the kernels' own. Results are the
// reference's bits; a rank that never comes is named. Not where races are looked for: kernels'
// volatile words are none to CUDA.
#include <doctest/doctest.h>

#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "conformance/device_on_host.hpp"
// After it, as it says what a device has.
#include "base/text.hpp"
#include "exec/cuda/kernels/hop.cuh"
#include "exec/cuda/tiled_shape.hpp"
#include "exec/reference/reduce.hpp"
#include "unit/scale.hpp"

using namespace plait;
using namespace plait::cuda;

namespace {

constexpr std::uint64_t kHalfBytes = 1 << 20;
constexpr unsigned kBlocks = 2, kThreads = 3;
using Buffer = std::vector<ulonglong2>;  // aligned

Buffer buffer_of(std::uint64_t bytes) { return Buffer(bytes / 16 + 2); }
char* bytes_of(Buffer& buffer) { return reinterpret_cast<char*>(buffer.data()); }

struct PlayedGpu {
  DeviceState state{};
  Lifeline lifeline{};
  Buffer flagged = buffer_of(2 * kHalfBytes), bare = buffer_of(2 * kHalfBytes);
};

enum class Kernel { one_shot_bare, one_shot_flagged, two_shot_bare, two_shot_flagged, hop };

/// One call of all ranks.
struct Call {
  Kernel kernel;
  DataType type;
  std::uint64_t count = 0;
  int ahead = 0;
  bool in_place = false, aligned = true;
  std::vector<Buffer> inputs, outputs;  // by rank

  std::uint64_t bytes() const { return count * plait::bytes_of(type); }
  std::uint64_t offset() const { return aligned ? 0 : plait::bytes_of(type); }
  std::string print() const {
    return text("kernel ", static_cast<int>(kernel), ", ", count, " ", name_of(type), ", ahead ",
                ahead, in_place ? ", in place" : "", aligned ? "" : ", not aligned");
  }
};

template <class Kind>
void tell(Kind& args, Call& call, std::vector<std::unique_ptr<PlayedGpu>>& devices,
          std::size_t rank, double wait_s) {
  Buffer& to = call.in_place ? call.inputs[rank] : call.outputs[rank];
  args.input = bytes_of(call.inputs[rank]) + call.offset();
  args.output = bytes_of(to) + call.offset();
  args.state = &devices[rank]->state;
  args.lifeline = &devices[rank]->lifeline;
  args.wait_ns = static_cast<std::uint64_t>(wait_s * 1e9);
  for (double& scalar : args.scalars) scalar = 1.0;
  args.rank = static_cast<int>(rank);
  args.ranks = static_cast<int>(devices.size());
  args.op = static_cast<int>(ReduceOp::sum);
  args.half_bytes = kHalfBytes;
  const bool bare = call.kernel == Kernel::one_shot_bare || call.kernel == Kernel::two_shot_bare;
  for (std::size_t r = 0; r < devices.size(); ++r)
    args.inbox[r] = bytes_of(bare ? devices[r]->bare : devices[r]->flagged);
}

/// kRanks: 0 = known at run time only, as for any op.
template <DataType kType, int kRanks>
void run(Call& call, std::vector<std::unique_ptr<PlayedGpu>>& devices, std::size_t rank,
         double wait_s) {
  constexpr int kOp = kRanks == 0 ? kAnyOp : static_cast<int>(ReduceOp::sum);
  if (call.kernel == Kernel::hop) {
    HopArgs args{};
    tell(args, call, devices, rank, wait_s);
    Request request;
    request.type = kType;
    request.count = call.count;
    request.ranks = static_cast<int>(devices.size());
    args.shape = hop_shape(request, static_cast<int>(rank));
    return hop<kType>(args);
  }
  FusedArgs args{};
  tell(args, call, devices, rank, wait_s);
  args.ahead = call.ahead;
  args.count = call.count;
  switch (call.kernel) {
    case Kernel::one_shot_flagged: return one_shot<kType, kOp, kRanks, FlaggedLine>(args);
    case Kernel::two_shot_flagged: return two_shot<kType, kOp, kRanks, FlaggedLine>(args);
    default: break;
  }
  if constexpr (Number<kType>::kFloat) {
    if (call.kernel == Kernel::one_shot_bare) return one_shot<kType, kOp, kRanks, BareLine>(args);
    two_shot<kType, kOp, kRanks, BareLine>(args);
  }
}

template <int kRanks>
void run_typed(Call& call, std::vector<std::unique_ptr<PlayedGpu>>& devices, std::size_t rank,
               double wait_s) {
  if (call.type == DataType::fp32) return run<DataType::fp32, kRanks>(call, devices, rank, wait_s);
  if (call.type == DataType::bf16) return run<DataType::bf16, kRanks>(call, devices, rank, wait_s);
  if constexpr (kRanks == 0) run<DataType::uint8, 0>(call, devices, rank, wait_s);
}

void run_any(Call& call, std::vector<std::unique_ptr<PlayedGpu>>& devices, std::size_t rank,
             double wait_s) {
  switch (call.type == DataType::uint8 ? 0 : devices.size()) {
    case 2: return run_typed<2>(call, devices, rank, wait_s);
    case 4: return run_typed<4>(call, devices, rank, wait_s);
    case 8: return run_typed<8>(call, devices, rank, wait_s);
    default: return run_typed<0>(call, devices, rank, wait_s);
  }
}

/// Every rank's threads take the calls one after the other; ranks meet in kernels alone. Those of
/// `missing` never come.
void run_calls(std::vector<Call>& calls, std::vector<std::unique_ptr<PlayedGpu>>& devices,
               double wait_s, int missing = -1) {
  std::vector<std::unique_ptr<std::barrier<>>> blocks, grids;
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < devices.size(); ++rank) {
    if (static_cast<int>(rank) == missing) continue;
    grids.push_back(std::make_unique<std::barrier<>>(kBlocks * kThreads));
    for (unsigned block = 0; block < kBlocks; ++block) {
      blocks.push_back(std::make_unique<std::barrier<>>(kThreads));
      for (unsigned thread = 0; thread < kThreads; ++thread)
        threads.emplace_back(
            [&, rank, block, thread, grid = grids.back().get(), meets = blocks.back().get()] {
              threadIdx.x = thread, blockDim.x = kThreads;
              blockIdx.x = block, gridDim.x = kBlocks;
              plait_test::block_meets = meets;
              for (Call& call : calls) {
                run_any(call, devices, rank, wait_s);
                grid->arrive_and_wait();  // a kernel ends before the next begins
              }
            });
    }
  }
  for (std::thread& thread : threads) thread.join();
}

/// Any bits at all, words of ones among them.
void fill(Call& call, std::mt19937& random) {
  for (Buffer& input : call.inputs) {
    char* const data = bytes_of(input) + call.offset();
    for (std::uint64_t i = 0; i < call.bytes(); ++i) data[i] = static_cast<char>(random());
    for (std::uint64_t i = 0; i + 4 <= call.bytes(); i += 4)
      if (random() % 16 == 0) std::memset(data + i, 0xff, 4);
  }
}

std::vector<Call> random_calls(int ranks, std::mt19937& random) {
  std::vector<Call> calls(6);
  for (Call& call : calls) {
    call.type = std::vector{DataType::fp32, DataType::bf16, DataType::uint8}[random() % 3];
    const bool bare = is_float(call.type) && random() % 4 != 0;
    call.kernel = random() % 5 == 0   ? Kernel::hop
                  : random() % 3 == 0 ? (bare ? Kernel::one_shot_bare : Kernel::one_shot_flagged)
                                      : (bare ? Kernel::two_shot_bare : Kernel::two_shot_flagged);
    call.count = 1 + random() % (random() % 2 == 0 ? 40 : 3000);
    call.ahead = static_cast<int>(random() % 3);
    call.in_place = random() % 3 == 0;
    call.aligned = random() % 3 != 0;
    for (auto* buffers : {&call.inputs, &call.outputs})
      for (int rank = 0; rank < ranks; ++rank) buffers->push_back(buffer_of(call.bytes() + 16));
    fill(call, random);
  }
  return calls;
}

std::vector<std::unique_ptr<PlayedGpu>> devices_of(int ranks) {
  std::vector<std::unique_ptr<PlayedGpu>> devices;
  for (int rank = 0; rank < ranks; ++rank) {
    devices.push_back(std::make_unique<PlayedGpu>());
    devices.back()->state.fused_calls = 0u - 3;  // numbers go past their end
    std::memset(bytes_of(devices.back()->bare), 0xff, 2 * kHalfBytes);
  }
  return devices;
}

}  // namespace

TEST_CASE("one_shot, two_shot and hop give the reference's bits on a host's threads" *
          doctest::skip(plait_test::kLooksForRaces)) {
  for (const int ranks : {2, 3, 4, 8})
    for (int seed = 1; seed <= plait_test::rounds(ranks == 8 ? 12 : 20); ++seed) {
      std::mt19937 random(static_cast<unsigned>(seed * 16 + ranks));
      std::vector<Call> calls = random_calls(ranks, random);
      std::vector<Buffer> expected;
      for (Call& call : calls) {
        std::vector<const void*> sources;
        for (Buffer& input : call.inputs) sources.push_back(bytes_of(input) + call.offset());
        expected.push_back(buffer_of(call.bytes()));
        reduce_reference(call.type, ReduceOp::sum, bytes_of(expected.back()), sources, call.count,
                         ranks, true, {});
      }
      std::vector<std::unique_ptr<PlayedGpu>> devices = devices_of(ranks);
      run_calls(calls, devices, 60);
      for (std::size_t at = 0; at < calls.size(); ++at)
        for (int rank = 0; rank < ranks; ++rank) {
          Call& call = calls[at];
          CAPTURE(text(ranks, " ranks, seed ", seed, ", call ", at, ": ", call.print()));
          CAPTURE(rank);
          auto& buffers = call.in_place ? call.inputs : call.outputs;
          const char* const got = bytes_of(buffers[static_cast<std::size_t>(rank)]) + call.offset();
          CHECK(std::memcmp(got, bytes_of(expected[at]), call.bytes()) == 0);
          CHECK(devices[static_cast<std::size_t>(rank)]->state.failed == 0);
        }
    }
}

TEST_CASE("kernels on a host's threads name a rank that never comes" *
          doctest::skip(plait_test::kLooksForRaces)) {
  for (const int ranks : {2, 3, 8}) {
    std::mt19937 random(static_cast<unsigned>(ranks));
    std::vector<Call> calls = random_calls(ranks, random);
    std::vector<std::unique_ptr<PlayedGpu>> devices = devices_of(ranks);
    run_calls(calls, devices, 0.05, ranks - 1);
    for (int rank = 0; rank + 1 < ranks; ++rank) {
      const PlayedGpu& device = *devices[static_cast<std::size_t>(rank)];
      CHECK(device.state.failed == 1);
      CHECK(device.lifeline.fault.code == kFaultDeadline);
      if (ranks == 2) CHECK(device.lifeline.fault.peer == 1);
    }
  }
}
