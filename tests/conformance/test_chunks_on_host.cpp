// The direct_chunks kernel on host threads: any collective, size, type and alignment, calls in a
// row, in one piece or several, with no barrier between ranks but the kernel's own flags, starting
// near wrap-around. Results match the reference bit for bit. Each load and store of buffers and
// inboxes lies inside the plan, and each unit of an inbox is stored as often as the plan says. If a
// rank comes after the deadline, no other rank ends a call with a wrong result unless that rank's
// stream has failed.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <vector>

#include "conformance/device_on_host.hpp"
// Needs device_on_host.hpp first, for the definitions of a device.
#include "base/text.hpp"
#include "conformance/conformance.hpp"
#include "conformance/executors.hpp"
#include "conformance/sum_orders.hpp"
#include "gpu/chunk/chunk_memory.hpp"
#include "gpu/chunk/chunk_plan.hpp"
#include "gpu/chunk/direct_chunks.cuh"
#include "gpu/engine/kernel_types.hpp"
#include "gpu/select/engine_cases.hpp"
#include "plait/topology.hpp"
#include "plan/direct_shape.hpp"
#include "plan/sum_order.hpp"
#include "unit/scale.hpp"

using namespace plait;
using namespace plait_test;
using namespace plait::cuda;

namespace {

constexpr std::uint32_t kCalls = 0u - 3;  // calls wrap around
using Buffer = std::vector<ulonglong2>;   // aligned

struct FewChunkThreads {
  static constexpr unsigned kMostRanks = kMaxCudaRanks, kPush = 3, kTake = 17;
};

Buffer buffer_of(std::uint64_t bytes) { return Buffer(bytes / 16 + 2); }
char* bytes_in(Buffer& buffer) { return reinterpret_cast<char*>(buffer.data()); }

struct ChunkGpu {
  explicit ChunkGpu(std::uint64_t half_bytes) : inbox(buffer_of(2 * half_bytes)) {
    state.fused_calls = kCalls;
  }
  DeviceState state{};
  StopPage stop_page{};
  ChunkFlags flags{};
  std::atomic<bool> stream_failed{false};
  std::vector<bool> failed_after;  // by call
  Buffer inbox;
};
using ChunkGpus = std::vector<std::unique_ptr<ChunkGpu>>;

struct ChunkCall {
  Request request;
  ChunkWish wish;
  SumOrder order = SumOrder::rank_order;
  bool aligned = true, in_place = false;
  int late = -1;                        // rank that comes to this call after the deadline
  std::vector<Buffer> inputs, outputs;  // by rank
  std::vector<Bytes> expected;
  std::unique_ptr<std::mutex> guard = std::make_unique<std::mutex>();
  std::vector<std::vector<MemoryAccess>> traces;  // by rank; empty = not wanted
  std::vector<std::size_t> parities;              // by rank: number of the first piece

  std::uint64_t offset() const { return aligned ? 0 : bytes_of(request.type); }
  char* input(std::size_t rank) { return bytes_in(inputs[rank]) + offset(); }
  char* output(std::size_t rank) {
    return in_place ? input(rank) : bytes_in(outputs[rank]) + offset();
  }
  bool is_right(std::size_t rank) {
    const Bytes& wanted = expected[rank];  // some ranks get no result
    return std::equal(wanted.begin(), wanted.end(),
                      reinterpret_cast<const std::byte*>(output(rank)));
  }
  std::string print() const {
    return text("{} ({}) of {} {}, root {}, {} blocks, chunks of {}, half of {}{}{}, late rank {}",
                name_of(request.collective), name_of(order), request.count, name_of(request.type),
                request.root, wish.most_blocks, wish.chunk_units, wish.half_bytes,
                in_place ? ", in place" : "", aligned ? "" : ", not aligned", late);
  }
};

template <DataType kType, int kOp, int kHandling>
void run_kernel(const DirectChunksArgs& args) {
  REQUIRE(args.ranks <= static_cast<int>(FewChunkThreads::kMostRanks));
  direct_chunks<kType, kOp, kHandling, FewChunkThreads>(args);
}
/// Pure moves go as integers, as in the library.
void run_any(const Request& request, SumOrder order, const DirectChunksArgs& args) {
  constexpr int kSum = static_cast<int>(ReduceOp::sum);
  const DataType type = moved_type(request);
  if (!reduces(request.collective)) {
    if (type == DataType::uint32) return run_kernel<DataType::uint32, kAnyOp, kPlaceParts>(args);
    if (type == DataType::uint16) return run_kernel<DataType::uint16, kAnyOp, kPlaceParts>(args);
    return run_kernel<DataType::uint8, kAnyOp, kPlaceParts>(args);
  }
  if (is_in_tree(request, order)) {
    if (type == DataType::fp32) return run_kernel<DataType::fp32, kTreeAny, kReduceParts>(args);
    return run_kernel<DataType::bf16, kTreeAny, kReduceParts>(args);
  }
  const bool sums = has_sum_kernels(type, request.op, request.ranks);
  if (sums && type == DataType::fp32) return run_kernel<DataType::fp32, kSum, kReduceParts>(args);
  if (sums && type == DataType::bf16) return run_kernel<DataType::bf16, kSum, kReduceParts>(args);
  if (type == DataType::fp32) return run_kernel<DataType::fp32, kAnyOp, kReduceParts>(args);
  if (type == DataType::bf16) return run_kernel<DataType::bf16, kAnyOp, kReduceParts>(args);
  run_kernel<DataType::uint8, kAnyOp, kReduceParts>(args);
}

/// The launches of a call, as the engine makes them.
void run_rank(ChunkCall& call, ChunkGpus& gpus, std::size_t rank, double wait_s) {
  ChunkGpu& mine = *gpus[rank];
  const ChunkCut cut = cut_chunks(call.request, call.wish);
  const DirectShape whole = direct_shape(call.request, static_cast<int>(rank));
  DirectChunksArgs args{};
  args.rank = static_cast<int>(rank);
  args.ranks = call.request.ranks;
  args.op = static_cast<std::int32_t>(call.request.op);
  args.order = order_of(call.request, call.order);
  args.state = &mine.state;
  args.stop_page = &mine.stop_page;
  args.wait_ns = static_cast<std::uint64_t>(wait_s * 1e9);
  for (std::size_t peer = 0; peer < gpus.size(); ++peer) {
    args.inbox[peer] = bytes_in(gpus[peer]->inbox);
    args.flags[peer] = &gpus[peer]->flags;
  }
  args.half_bytes = call.wish.half_bytes;
  args.slot_units = static_cast<std::uint32_t>(cut.units);
  args.chunk_units = cut.chunk_units;
  args.shape = whole;
  for (std::uint64_t at = 0; at < whole.part_bytes; at += cut.units * 16) {
    args.input = call.input(rank) + at;
    args.output = call.output(rank) + at;
    args.shape.part_bytes = std::min(cut.units * 16, whole.part_bytes - at);
    if (whole.own_bytes != 0) args.shape.own_bytes = args.shape.part_bytes;
    launch({cut.blocks,
            FewChunkThreads::kPush + FewChunkThreads::kTake,
            {0, FewChunkThreads::kPush, FewChunkThreads::kTake},
            &mine.stream_failed},
           [&] {
             Trace accesses;
             trace = call.traces.empty() ? nullptr : &accesses;
             run_any(call.request, call.order, args);
             trace = nullptr;
             if (call.traces.empty()) return;
             const std::lock_guard<std::mutex> hold(*call.guard);
             for (const MemoryAccess& access : accesses.taken())
               call.traces[rank].push_back(access);
           });
  }
}

/// Runs every rank through the calls in order; ranks synchronise only in kernels.
void run_calls(std::vector<ChunkCall>& calls, ChunkGpus& gpus, double wait_s) {
  std::vector<std::thread> ranks;
  for (std::size_t rank = 0; rank < gpus.size(); ++rank)
    ranks.emplace_back([&, rank] {
      for (ChunkCall& call : calls) {
        if (call.late == static_cast<int>(rank))
          std::this_thread::sleep_for(std::chrono::duration<double>(3 * wait_s));
        if (!call.parities.empty()) call.parities[rank] = gpus[rank]->state.fused_calls + 1;
        run_rank(call, gpus, rank, wait_s);
        gpus[rank]->failed_after.push_back(gpus[rank]->stream_failed);
      }
    });
  for (std::thread& rank : ranks) rank.join();
}

Topology machine_of(int ranks) {
  return ranks <= 8 ? load_topology("hgx-h200") : linked_machine(ranks);
}

void fill(ChunkCall& call, std::uint64_t seed) {
  const Inputs inputs = random_inputs(call.request, seed);
  const Plan direct = propose_one(machine_of(call.request.ranks), call.request, "direct");
  const Plan plan = in_order(direct, call.order).value();
  call.expected = ReferenceExecutor(plan).run(inputs);
  for (std::size_t rank = 0; rank < inputs.bytes.size(); ++rank) {
    call.inputs.push_back(buffer_of(inputs.bytes[rank].size() + 16));
    call.outputs.push_back(buffer_of(call.expected[rank].size() + 16));
    std::copy(inputs.bytes[rank].begin(), inputs.bytes[rank].end(),
              reinterpret_cast<std::byte*>(call.input(rank)));
  }
}

ChunkGpus gpus_of(int ranks, std::uint64_t half_bytes) {
  ChunkGpus gpus;
  for (int rank = 0; rank < ranks; ++rank) gpus.push_back(std::make_unique<ChunkGpu>(half_bytes));
  return gpus;
}

/// Bytes of half an inbox: large calls take several pieces.
std::uint64_t half_of(int ranks) { return static_cast<std::uint64_t>(ranks - 1) * 8192; }

std::vector<ChunkCall> random_calls(int ranks, std::mt19937& random) {
  const Topology topology = machine_of(ranks);
  std::vector<ChunkCall> calls(6);
  for (ChunkCall& call : calls) {
    Request& request = call.request;
    request.ranks = ranks;
    request.collective =
        static_cast<Collective>(random() % (static_cast<unsigned>(Collective::copy) + 1));
    if (random() % 3 == 0) request.collective = Collective::all_reduce;
    request.type = std::vector{DataType::fp32, DataType::bf16, DataType::uint8}[random() % 3];
    if (request.type == DataType::uint8 || random() % 4 == 0) request.op = ReduceOp::max;
    if (request.op == ReduceOp::sum && random() % 4 == 0) request.op = ReduceOp::avg;
    request.count = 1 + random() % (random() % 3 == 0 ? 40 : 9000);
    request.root = static_cast<int>(random() % static_cast<unsigned>(ranks));
    request.peer = (request.root + 1) % ranks;
    request = checked(request, topology);
    call.wish.most_blocks = 1 + static_cast<unsigned>(random() % 3);
    call.wish.chunk_units = 16 + static_cast<std::uint32_t>(random() % 49);
    call.wish.half_bytes = half_of(ranks);
    call.order = some_order(request, random);
    call.aligned = random() % 3 != 0;
    call.in_place = request.collective == Collective::all_reduce && random() % 2 == 0;
    fill(call, random());
  }
  return calls;
}

/// Checks the loads and stores of a call against the plan.
class ChunkTraceCheck {
 public:
  ChunkTraceCheck(ChunkCall& call, ChunkGpus& gpus, const Plan& plan)
      : call_(call), gpus_(gpus), plan_(plan) {}

  std::string fault() {
    for (std::size_t rank = 0; rank < gpus_.size(); ++rank)
      if (std::string found = fault_of_rank(rank); !found.empty()) return found;
    return "";
  }

 private:
  std::optional<Region> region_of(const MemoryAccess& access, std::size_t by) {
    const auto inside = [&](Buffer& buffer, std::uint64_t skip) -> std::optional<std::uint64_t> {
      const char* const begin = bytes_in(buffer) + skip;
      if (access.at < begin || access.at >= begin + buffer.size() * 16) return std::nullopt;
      return static_cast<std::uint64_t>(access.at - begin);
    };
    for (std::size_t rank = 0; rank < gpus_.size(); ++rank) {
      const int owner = static_cast<int>(rank);
      if (const auto at = inside(call_.inputs[rank], call_.offset()))
        return Region{Space::input, owner, *at, access.bytes};
      if (const auto at = inside(call_.outputs[rank], call_.offset()))
        return Region{Space::output, owner, *at, access.bytes};
      const auto at = inside(gpus_[rank]->inbox, 0);
      if (!at) continue;
      // The plan begins with the first half, whatever the number of the call.
      const std::uint64_t half = call_.wish.half_bytes, first = call_.parities[by] % 2;
      return Region{Space::inbox, owner, (*at / half + first) % 2 * half + *at % half,
                    access.bytes};
    }
    return std::nullopt;
  }

  std::string fault_of_rank(std::size_t rank) {
    std::vector<Region> reads, writes;
    std::map<std::pair<int, std::uint64_t>, int> stored;  // times, by rank and unit of inboxes
    const auto count = [&](const Region& region, int by) {
      for (std::uint64_t at = region.offset; at < region.offset + region.bytes; at += 16)
        stored[{region.rank, at}] += by;
    };
    for (const Lane& lane : plan_.lanes)
      for (const Op& op : lane.ops) {
        if (lane.rank != static_cast<int>(rank) || op.srcs.empty()) continue;
        reads.insert(reads.end(), op.srcs.begin(), op.srcs.end());
        writes.push_back(op.dst);
        if (op.dst.space == Space::inbox) count(op.dst, 1);
      }
    for (const MemoryAccess& access : call_.traces[rank]) {
      if (access.touch != Touch::load && access.touch != Touch::store) continue;
      const std::optional<Region> at = region_of(access, rank);
      if (!at) continue;  // a flag
      const std::vector<Region>& allowed = access.touch == Touch::load ? reads : writes;
      const bool is_allowed = std::any_of(allowed.begin(), allowed.end(), [&](const Region& one) {
        const std::uint64_t end =  // units that a part's end truncates travel whole
            one.space == Space::inbox ? (one.offset + one.bytes + 15) / 16 * 16
                                      : one.offset + one.bytes;
        return one.space == at->space && one.rank == at->rank && at->offset >= one.offset &&
               at->offset + at->bytes <= end;
      });
      if (!is_allowed)
        return text("rank {}{}{}", rank, access.touch == Touch::load ? " reads " : " writes ",
                    plait::print(*at));
      if (access.touch == Touch::store && at->space == Space::inbox) count(*at, -1);
    }
    for (const auto& [unit, times] : stored)
      if (times != 0)
        return text("rank {} stores unit {} of rank {} {} times too few", rank, unit.second,
                    unit.first, times);
    return "";
  }

  ChunkCall& call_;
  ChunkGpus& gpus_;
  const Plan& plan_;
};

/// Three calls in a row.
std::string fault_of(const Request& request, const ChunkWish& wish, const Plan& plan) {
  std::vector<ChunkCall> calls(3);
  for (ChunkCall& call : calls) {
    call.request = request;
    call.wish = wish;
    call.aligned = &call != &calls[1];
    fill(call, request.count);
    call.traces.resize(static_cast<std::size_t>(request.ranks));
    call.parities.resize(static_cast<std::size_t>(request.ranks));
  }
  ChunkGpus gpus = gpus_of(request.ranks, wish.half_bytes);
  run_calls(calls, gpus, 30);
  for (ChunkCall& call : calls) {
    for (std::size_t rank = 0; rank < gpus.size(); ++rank)
      if (!call.is_right(rank)) return text("other bits at rank {}", rank);
    if (std::string fault = ChunkTraceCheck(call, gpus, plan).fault(); !fault.empty()) return fault;
  }
  return "";
}

std::string trace_chunks(const conformance::EngineRun& run, const Plan& plan) {
  ChunkWish wish;
  wish.most_blocks = static_cast<unsigned>(plan.params.at("blocks"));
  wish.chunk_units = static_cast<std::uint32_t>(plan.params.at("chunk_units"));
  wish.half_bytes = run.group.sizes[kChunkMemory];
  return fault_of(run.request, wish, plan);
}

const conformance::Traced kChunks{"direct_chunks", trace_chunks};

}  // namespace

TEST_CASE("plans of direct_chunks are proved, and the kernel does what they say") {
  for (const int ranks : {2, 3, 4, 8, 16}) {
    const Topology topology = machine_of(ranks);
    for (const Collective collective : conformance::all_collectives())
      for (const std::uint64_t count : {1u, 1009u, 5000u}) {
        if (ranks > 4 && count > 1009) continue;
        Request request;
        request.collective = collective;
        request.ranks = ranks;
        request.count = count;
        request.type = count == 1009 || reduces(collective) ? DataType::fp32 : DataType::uint8;
        request.root = ranks - 1;
        request.peer = 0;
        request = checked(request, topology);
        const ChunkWish wish{.most_blocks = 2, .chunk_units = 40, .half_bytes = half_of(ranks)};
        const Plan plan = chunk_plan(topology, request, wish);
        CAPTURE(text("{} of {}, {} ranks", name_of(collective), count, ranks));
        CHECK(conformance::first_finding(verify(plan)) == "");
        CHECK(conformance::first_finding(verify_in_a_row({&plan, &plan})) == "");
        const Inputs inputs = random_inputs(request, count);
        CHECK(ReferenceExecutor(plan).run(inputs) ==
              ReferenceExecutor(propose_one(topology, request, "direct")).run(inputs));
        CHECK(fault_of(request, wish, plan) == "");
      }
  }
}

TEST_CASE("direct_chunks in the slots of other chunks does not match its plan") {
  const Topology topology = load_topology("hgx-h200");
  Request request;
  request.ranks = 3;
  request.count = 1009;
  request = checked(request, topology);
  const ChunkWish wish{.most_blocks = 2, .chunk_units = 32, .half_bytes = half_of(3)};
  Plan plan = chunk_plan(topology, request, wish);
  CHECK(fault_of(request, wish, plan) == "");
  for (Lane& lane : plan.lanes)
    for (Op& op : lane.ops) {
      const auto move = [](Region& region) {
        if (region.space == Space::inbox) region.offset += 16;
      };
      move(op.dst);
      for (Region& src : op.srcs) move(src);
    }
  CHECK(fault_of(request, wish, plan) != "");
}

TEST_CASE("direct_chunks gives the reference's bits on host threads") {
  for (const int ranks : {2, 3, 4, 6, 8, 16})
    for (int seed = 1; seed <= rounds(ranks > 4 ? 2 : 6); ++seed) {
      std::mt19937 random(static_cast<unsigned>(seed * 16 + ranks));
      std::vector<ChunkCall> calls = random_calls(ranks, random);
      ChunkGpus gpus = gpus_of(ranks, half_of(ranks));
      run_calls(calls, gpus, 30);
      for (std::size_t at = 0; at < calls.size(); ++at)
        for (std::size_t rank = 0; rank < gpus.size(); ++rank) {
          CAPTURE(text("{} ranks, seed {}, call {}: {}, rank {}", ranks, seed, at,
                       calls[at].print(), rank));
          CHECK(calls[at].is_right(rank));
          CHECK(gpus[rank]->state.failed == kNoFault);
        }
    }
}

TEST_CASE("a rank that comes too late leaves no wrong result of direct_chunks behind") {
  for (const int ranks : {2, 3})
    for (int late = 0; late < ranks; ++late) {
      std::mt19937 random(static_cast<unsigned>(ranks + late));
      std::vector<ChunkCall> calls = random_calls(ranks, random);
      calls[2].late = late;
      ChunkGpus gpus = gpus_of(ranks, half_of(ranks));
      run_calls(calls, gpus, 0.1);
      bool any_failed = false;
      for (std::size_t at = 0; at < calls.size(); ++at)
        for (std::size_t rank = 0; rank < gpus.size(); ++rank) {
          CAPTURE(text("{} ranks, call {}: {}, rank {}", ranks, at, calls[at].print(), rank));
          const bool failed = gpus[rank]->failed_after[at];
          CHECK((failed || calls[at].is_right(rank)));
          if (at < 2) CHECK(!failed);
          any_failed = any_failed || failed;
        }
      CHECK(any_failed);
    }
}
