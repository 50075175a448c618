// The tiled kernel on host threads: any collective, size, type and alignment, calls in a row, with
// no barrier between ranks but the kernel's own flags, starting near wrap-around. Results match the
// reference bit for bit. If a rank comes after the deadline or is aborted, no other rank ends a
// call with a wrong result unless that rank's stream has failed.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
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
#include "conformance/tile_threads.hpp"
#include "gpu/engine/kernel_types.hpp"
#include "gpu/select/engine_cases.hpp"
#include "gpu/tile/tile_plan.hpp"
#include "gpu/tile/tiled_shape.hpp"
#include "plait/topology.hpp"
#include "plan/sum_order.hpp"
#include "unit/scale.hpp"

using namespace plait;
using namespace plait_test;
using namespace plait::cuda;

namespace {

constexpr std::uint32_t kTiles = 0u - 5;  // flags wrap around
constexpr std::uint64_t kSlotBytes = 1024;
constexpr unsigned kMostBlocks = 3;
using Buffer = std::vector<ulonglong2>;  // aligned

Buffer buffer_of(std::uint64_t bytes) { return Buffer(bytes / 16 + 2); }
char* bytes_in(Buffer& buffer) { return reinterpret_cast<char*>(buffer.data()); }

/// Memory for slots of kSlotBytes, even if a few blocks all-reduce.
std::uint64_t slot_memory(int ranks) { return tile_slots(ranks, kMostBlocks) * 2 * kSlotBytes; }
void lay_slots(TileWish& wish, int ranks) {
  wish.slot_memory_bytes = slot_memory(ranks);
  wish.slot_blocks = kMostBlocks;
}

struct TiledGpu {
  explicit TiledGpu(int ranks) : slots(buffer_of(slot_memory(ranks))) {
    for (TileFlags& block : flags)
      std::fill_n(reinterpret_cast<std::uint32_t*>(&block), sizeof block / 4, kTiles);
  }
  DeviceState state{};
  StopPage stop_page{};
  TileFlags flags[kMostBlocks]{};  // by block
  std::uint32_t poisoned = 0;
  std::atomic<bool> stream_failed{false};
  std::vector<bool> failed_after;  // by call
  Buffer slots;
};
using TiledGpus = std::vector<std::unique_ptr<TiledGpu>>;

struct TiledCall {
  Request request;
  TileWish wish;
  SumOrder order = SumOrder::rank_order;
  bool aligned = true, in_place = false;
  int late = -1;                        // rank that comes to this call late
  double late_by_s = 0;                 // 0 = after the deadline
  std::vector<Buffer> inputs, outputs;  // by rank
  std::vector<Bytes> expected;
  std::unique_ptr<std::mutex> guard = std::make_unique<std::mutex>();
  std::vector<std::vector<MemoryAccess>> traces;  // by rank; empty = not wanted

  std::uint64_t offset() const { return aligned ? 0 : bytes_of(request.type); }
  char* input(std::size_t rank) { return bytes_in(inputs[rank]) + offset(); }
  /// In place only if nothing but sums goes back to the origin.
  char* output(std::size_t rank) {
    return in_place ? input(rank) : bytes_in(outputs[rank]) + offset();
  }
  bool is_right(std::size_t rank) {
    const Bytes& wanted = expected[rank];  // some ranks get no result
    return std::equal(wanted.begin(), wanted.end(),
                      reinterpret_cast<const std::byte*>(output(rank)));
  }
  std::string print() const {
    return text(
        "{} of {} {}, root {}, tiles of {}, window {}, order {}, turns {}, pieces of {}, at {} "
        "GB/s{}{}, late rank {}",
        name_of(request.collective), request.count, name_of(request.type), request.root,
        wish.tile_units, wish.window, wish.order, wish.turns, wish.piece_bytes, wish.send_gb_per_s,
        in_place ? ", in place" : "", aligned ? "" : ", not aligned", late);
  }
};

TiledArgs args_of(const Request& request, const TileWish& wish, const CallBuffers& buffers,
                  TiledGpus& gpus, std::size_t rank, double wait_s) {
  TiledGpu& mine = *gpus[rank];
  TiledArgs args = tiled_shape(request, static_cast<int>(rank));
  args.input = buffers.input;
  args.output = buffers.output;
  args.state = &mine.state;
  args.stop_page = &mine.stop_page;
  args.wait_ns = static_cast<std::uint64_t>(wait_s * 1e9);
  set_scalars(args, buffers.scalars);
  for (std::size_t r = 0; r < gpus.size(); ++r) {
    args.flags[r] = gpus[r]->flags;
    args.slots[r] = bytes_in(gpus[r]->slots);
  }
  args.poisoned = &mine.poisoned;
  spread_tiles(args, wish);
  REQUIRE(args.blocks <= kMostBlocks);
  return args;
}

template <DataType kType, int kRanks>
void run_kernel(const TiledArgs& args) {
  constexpr int kOp = kRanks == 0 ? kAnyOp : static_cast<int>(ReduceOp::sum);
  tiled_on_host<kType, kOp, kRanks>(args);
}

/// Pure moves go as integers, as in the library.
void run_any(const Request& request, const TiledArgs& args) {
  const DataType type = moved_type(request);
  const bool sums = request.op == ReduceOp::sum || has_sum_kernels(type, request.op, args.ranks);
  if (reduces(request.collective) && !sums) {
    if (type == DataType::fp32) return run_kernel<DataType::fp32, 0>(args);
    REQUIRE(type == DataType::bf16);
    return run_kernel<DataType::bf16, 0>(args);
  }
  if (type == DataType::fp32 && args.ranks == 2) return run_kernel<DataType::fp32, 2>(args);
  if (type == DataType::fp32 && args.ranks == 4) return run_kernel<DataType::fp32, 4>(args);
  if (type == DataType::fp32 && args.ranks == 8) return run_kernel<DataType::fp32, 8>(args);
  if (type == DataType::fp32) return run_kernel<DataType::fp32, 0>(args);
  if (type == DataType::bf16 && args.ranks == 8) return run_kernel<DataType::bf16, 8>(args);
  if (type == DataType::bf16) return run_kernel<DataType::bf16, 0>(args);
  if (type == DataType::uint32) return run_kernel<DataType::uint32, 0>(args);
  if (type == DataType::uint16) return run_kernel<DataType::uint16, 0>(args);
  run_kernel<DataType::uint8, 0>(args);
}

/// The kernel of a rank.
template <class Body>
void launch_on(TiledGpu& gpu, const TiledArgs& args, Body&& body) {
  launch(tiled_grid(args.blocks, args.ranks, &gpu.stream_failed), body);
}

/// Runs every rank through the calls in order; ranks synchronise only in kernels.
void run_calls(std::vector<TiledCall>& calls, TiledGpus& gpus, double wait_s) {
  std::vector<std::thread> ranks;
  for (std::size_t rank = 0; rank < gpus.size(); ++rank)
    ranks.emplace_back([&, rank] {
      for (TiledCall& call : calls) {
        if (call.late == static_cast<int>(rank))
          std::this_thread::sleep_for(
              std::chrono::duration<double>(call.late_by_s != 0 ? call.late_by_s : 3 * wait_s));
        TiledArgs args = args_of(call.request, call.wish, {call.input(rank), call.output(rank), {}},
                                 gpus, rank, wait_s);
        args.order = order_of(call.request, call.order);
        launch_on(*gpus[rank], args, [&] {
          Trace mine;
          trace = call.traces.empty() ? nullptr : &mine;
          run_any(call.request, args);
          trace = nullptr;
          if (call.traces.empty()) return;
          const std::lock_guard<std::mutex> hold(*call.guard);
          for (const MemoryAccess& access : mine.taken()) call.traces[rank].push_back(access);
        });
        gpus[rank]->failed_after.push_back(gpus[rank]->stream_failed);
      }
    });
  for (std::thread& rank : ranks) rank.join();
}

Topology topology_of(int ranks) {
  return ranks <= 8 ? load_topology("hgx-h200") : linked_machine(ranks);
}

void fill(TiledCall& call, std::uint64_t seed) {
  const Inputs inputs = random_inputs(call.request, seed);
  const Plan direct = propose_one(topology_of(call.request.ranks), call.request, "direct");
  call.expected = ReferenceExecutor(in_order(direct, call.order).value()).run(inputs);
  for (std::size_t rank = 0; rank < inputs.bytes.size(); ++rank) {
    call.inputs.push_back(buffer_of(inputs.bytes[rank].size() + 16));
    call.outputs.push_back(buffer_of(call.expected[rank].size() + 16));
    std::copy(inputs.bytes[rank].begin(), inputs.bytes[rank].end(),
              reinterpret_cast<std::byte*>(call.input(rank)));
  }
}

std::vector<TiledCall> random_calls(int ranks, std::mt19937& random, unsigned most = 9000) {
  const Topology topology = topology_of(ranks);
  std::vector<TiledCall> calls(6);
  for (TiledCall& call : calls) {
    Request& request = call.request;
    request.ranks = ranks;
    request.collective =
        static_cast<Collective>(random() % (static_cast<unsigned>(Collective::copy) + 1));
    if (random() % 3 == 0) request.collective = Collective::all_reduce;
    request.type = std::vector{DataType::fp32, DataType::bf16, DataType::uint8}[random() % 3];
    if (reduces(request.collective) && is_float(request.type) && random() % 4 == 0)
      request.op = ReduceOp::avg;
    request.count = 1 + random() % (random() % 3 == 0 ? 40 : most);
    request.root = static_cast<int>(random() % static_cast<unsigned>(ranks));
    request.peer = (request.root + 1) % ranks;
    request = checked(request, topology);
    call.wish.most_blocks = ranks > 8 ? 1 : 1 + static_cast<unsigned>(random() % kMostBlocks);
    call.wish.tile_units = 16 + static_cast<std::uint32_t>(random() % 49);
    lay_slots(call.wish, ranks);
    call.order = some_order(request, random);
    if (random() % 3 == 0) call.wish.window = 1 + static_cast<std::uint32_t>(random() % 6);
    call.wish.order = random() % 2 == 0 ? kByRank : kQuadratic;
    call.wish.turns = random() % 2 == 0;
    call.wish.piece_bytes = random() % 2 == 0 ? 0 : 16 << random() % 5;
    if (random() % 3 == 0) call.wish.send_gb_per_s = 1 + static_cast<std::uint32_t>(random() % 9);
    call.aligned = random() % 3 != 0;
    call.in_place = request.collective == Collective::all_reduce && random() % 2 == 0;
    fill(call, random());
  }
  return calls;
}

TiledGpus gpus_of(int ranks) {
  TiledGpus gpus;
  for (int rank = 0; rank < ranks; ++rank) gpus.push_back(std::make_unique<TiledGpu>(ranks));
  return gpus;
}

}  // namespace

namespace {

/// Checks the loads and stores of a call against the plan, with the tiles of all blocks: nothing
/// outside, and each unit of a slot as often as the plan says. No slot of parts is read after the
/// sender has got the signal that the slot is free, a signal without a fence.
class TileTraceCheck {
 public:
  TileTraceCheck(TiledCall& call, TiledGpus& gpus, const Plan& plan)
      : call_(call), gpus_(gpus), plan_(plan) {}

  std::vector<std::string> faults() {
    for (std::size_t rank = 0; rank < gpus_.size(); ++rank) {
      check_rank(rank);
      check_taken(rank);
    }
    return faults_;
  }

 private:
  using Units = std::map<std::tuple<Space, int, std::uint64_t>, int>;

  void count(Units& units, const Region& region, int by) {
    for (std::uint64_t at = region.offset; at < region.offset + region.bytes; at += 16)
      units[{region.space, region.rank, at}] += by;
  }
  /// Returns an access's address as the plan counts; a block's tile in a slot lies within the tile
  /// of all blocks.
  std::optional<Region> region_of(const MemoryAccess& access, const TiledArgs& shape) {
    const auto inside = [&](const Buffer& buffer, std::uint64_t skip) {
      const auto* begin = reinterpret_cast<const char*>(buffer.data()) + skip;
      const bool is_inside = access.at >= begin && access.at < begin + buffer.size() * 16;
      return is_inside ? std::optional(static_cast<std::uint64_t>(access.at - begin))
                       : std::nullopt;
    };
    for (std::size_t rank = 0; rank < gpus_.size(); ++rank) {
      const int owner = static_cast<int>(rank);
      if (const auto at = inside(call_.inputs[rank], call_.offset()))
        return Region{Space::input, owner, *at, access.bytes};
      if (const auto at = inside(call_.outputs[rank], call_.offset()))
        return Region{Space::output, owner, *at, access.bytes};
      const auto at = inside(gpus_[rank]->slots, 0);
      if (!at) continue;
      const std::uint64_t block = *at / shape.block_bytes, in_block = *at % shape.block_bytes;
      if (block >= shape.blocks) return std::nullopt;
      const std::uint64_t blocks = call_.wish.most_blocks == 1 ? 1 : call_.wish.slot_blocks;
      return Region{Space::scratch, owner,
                    in_block / shape.slot_bytes * shape.slot_bytes * blocks +
                        block * tile_units(shape) * 16 + in_block % shape.slot_bytes,
                    access.bytes};
    }
    return std::nullopt;
  }

  void check_rank(std::size_t rank) {
    TiledArgs shape = tiled_shape(call_.request, static_cast<int>(rank));
    spread_tiles(shape, call_.wish);
    std::vector<Region> reads, writes;
    Units moved;
    for (const Lane& lane : plan_.lanes)
      for (const Op& op : lane.ops) {
        if (lane.rank != static_cast<int>(rank) || op.srcs.empty()) continue;
        reads.insert(reads.end(), op.srcs.begin(), op.srcs.end());
        // A sum in a slot of the plan is held by threads.
        if (op.kind == OpKind::reduce && op.dst.space == Space::scratch) continue;
        writes.push_back(op.dst);
        if (op.dst.space == Space::scratch) count(moved, op.dst, 1);
      }
    for (const MemoryAccess& access : call_.traces[rank]) {
      if (access.touch != Touch::load && access.touch != Touch::store) continue;
      const std::optional<Region> at = region_of(access, shape);
      const std::vector<Region>& allowed = access.touch == Touch::load ? reads : writes;
      const bool is_allowed =
          at && std::any_of(allowed.begin(), allowed.end(), [&](const Region& one) {
            const std::uint64_t end =  // units that a part's end truncates travel whole
                one.space == Space::scratch ? (one.offset + one.bytes + 15) / 16 * 16
                                            : one.offset + one.bytes;
            return one.space == at->space && one.rank == at->rank && at->offset >= one.offset &&
                   at->offset + at->bytes <= end;
          });
      if (!is_allowed)
        faults_.push_back(text("rank {}{}{}", rank,
                               access.touch == Touch::load ? " reads " : " writes ",
                               at ? plait::print(*at) : std::string("memory of no rank")));
      else if (access.touch == Touch::store && at->space == Space::scratch)
        count(moved, *at, -1);
    }
    for (const auto& [unit, times] : moved)
      if (times != 0)
        faults_.push_back(text("rank {} stores unit {} of rank {} {} times too few", rank,
                               std::get<2>(unit), std::get<1>(unit), times));
  }

  void check_taken(std::size_t rank) {
    const int me = static_cast<int>(rank);
    TiledArgs shape = tiled_shape(call_.request, me);
    spread_tiles(shape, call_.wish);
    for (int peer = 0; peer < shape.ranks; ++peer)
      for (unsigned block = 0; block < shape.blocks && (senders_to(shape, me) >> peer & 1); ++block)
        check_taken(rank, peer, block, shape);
  }
  /// Checks the tiles of a sender for a block, in order.
  void check_taken(std::size_t rank, int peer, unsigned block, const TiledArgs& shape) {
    const auto* const word = reinterpret_cast<const char*>(
        &gpus_[static_cast<std::size_t>(peer)]->flags[block].parts_taken[rank]);
    std::vector<unsigned long long> signalled;  // turn, by tile
    for (const MemoryAccess& access : call_.traces[rank])
      if (access.touch == Touch::raise && access.at == word) signalled.push_back(access.turn);
    std::sort(signalled.begin(), signalled.end());
    const int me = static_cast<int>(rank);
    const char* const ring =
        bytes_in(gpus_[rank]->slots) + slot_offset(shape, block, me, 0, peer, 0);
    std::vector<std::uint64_t> read(signalled.size());  // bytes, by tile
    for (const MemoryAccess& access : call_.traces[rank]) {
      if (access.touch != Touch::load || access.at < ring ||
          access.at >= ring + std::uint64_t{shape.window} * shape.slot_bytes)
        continue;
      auto tile = static_cast<std::size_t>(access.at - ring) / shape.slot_bytes;
      while (tile < signalled.size() && signalled[tile] < access.turn) tile += shape.window;
      if (tile >= signalled.size() || (read[tile] += access.bytes) > tile_units(shape) * 16ull)
        faults_.push_back(
            text("rank {} reads a slot of rank {}'s parts that it has said is free", rank, peer));
    }
  }

  TiledCall& call_;
  TiledGpus& gpus_;
  const Plan& plan_;
  std::vector<std::string> faults_;
};

/// Three calls in a row.
std::string fault_of(const Request& request, const TileWish& wish, const Plan& plan) {
  std::vector<TiledCall> calls(3);
  for (TiledCall& call : calls) {
    call.request = request;
    call.wish = wish;
    call.aligned = &call != &calls[1];
    fill(call, request.count);
    call.traces.resize(static_cast<std::size_t>(request.ranks));
  }
  TiledGpus gpus = gpus_of(request.ranks);
  run_calls(calls, gpus, 30);
  for (TiledCall& call : calls) {
    for (std::size_t rank = 0; rank < gpus.size(); ++rank)
      if (!call.is_right(rank)) return text("other bits at rank {}", rank);
    const std::vector<std::string> faults = TileTraceCheck(call, gpus, plan).faults();
    if (!faults.empty()) return faults[0];
  }
  return "";
}

}  // namespace

struct conformance::TileKernels::Gpus {
  TiledGpus all;
};
conformance::TileKernels::TileKernels(int ranks) : gpus_(new Gpus{gpus_of(ranks)}) {}
conformance::TileKernels::~TileKernels() = default;

void conformance::TileKernels::run(const Request& request, const TileWish& wish,
                                   const std::vector<CallBuffers>& buffers) {
  constexpr double kWait = 30;
  std::vector<std::thread> ranks;
  for (std::size_t rank = 0; rank < buffers.size(); ++rank)
    ranks.emplace_back([&, rank] {
      const TiledArgs args = args_of(request, wish, buffers[rank], gpus_->all, rank, kWait);
      launch_on(*gpus_->all[rank], args, [&] { run_any(request, args); });
    });
  for (std::thread& rank : ranks) rank.join();
}

std::string conformance::trace_tiles(const EngineRun& run, const Plan& plan) {
  return fault_of(run.request, tile_wish(run.tuning, run.group), plan);
}

static const conformance::Traced kTiled{"tiled", conformance::trace_tiles};

TEST_CASE(
    "bulk copies wait for their turn where a call has a rate; who is late makes up for nothing") {
  using Clock = std::chrono::steady_clock;
  constexpr auto kStep = std::chrono::microseconds(500);  // of a copy
  TiledGpus gpus = gpus_of(2);
  Request request;
  request.ranks = 2;
  request.count = 1000;
  TileWish wish;
  lay_slots(wish, 2);
  TileShared shared{};
  shared.args = args_of(request, wish, {}, gpus, 0, 1);
  REQUIRE(blockIdx.x == 0);  // TileRoles reads the flags of the thread's block
  TileRoles work(shared, 4);
  const auto took = [&](TileRoles::SendRate& rate, int copies) {
    const auto begin = Clock::now();
    for (int i = 0; i < copies; ++i) rate.await_turn(work, kBulkBytes);
    return Clock::now() - begin;
  };
  shared.args.ps_per_kib = static_cast<std::uint32_t>(std::chrono::nanoseconds(kStep).count() *
                                                      1000 / (kBulkBytes / 1024));
  // The least time of many tries: a busy machine may interrupt each of them.
  const auto least = [&](int copies) {
    auto found = Clock::duration::max();
    for (int turn = 0; turn < 50; ++turn) {
      TileRoles::SendRate fresh(shared.args);
      found = std::min(found, took(fresh, copies));
    }
    return found;
  };
  TileRoles::SendRate rate(shared.args);
  CHECK(took(rate, 9) > 7 * kStep);  // the first begins at once
  std::this_thread::sleep_for(10 * kStep);
  // The first copy is late, the rest follow at the rate: four steps, or three if lost time were
  // made up for.
  CHECK(2 * took(rate, 5) > 7 * kStep);
  for (const long long back_ns : {2'000'000LL, 20'000'000'000LL}) {  // the rate restarts
    TileRoles::SendRate moved(shared.args);
    clock_behind_ns += back_ns;
    const auto all = took(moved, 9);
    CHECK(all > 7 * kStep);
    CHECK(all < std::chrono::seconds(10));
  }
  clock_behind_ns = 0;
  shared.args.ps_per_kib = 0;
  CHECK(least(1000) < kStep);
  shared.args.ps_per_kib = ~0u;  // a wait that was given up ends at once
  work.broken = true;
  CHECK(least(5) < 10 * kStep);
}

TEST_CASE("tiled calls in the slots of another turn do not match their plan") {
  for (const int ranks : {2, 3, 4}) {
    Request request;
    request.ranks = ranks;
    request.count = 1009;
    TileWish wish;
    wish.most_blocks = 2;
    lay_slots(wish, ranks);
    const Topology topology = load_topology("hgx-h200");
    request = checked(request, topology);
    Plan plan = tile_plan(topology, request, wish);
    CHECK(fault_of(request, wish, plan) == "");
    TiledArgs shape = tiled_shape(request, 0);
    spread_tiles(shape, wish);
    const std::uint64_t slot = shape.slot_bytes * wish.slot_blocks;
    const auto turn = [&](Region& region) {
      if (region.space == Space::scratch)
        region.offset += region.offset / slot % 2 == 0 ? slot : -slot;
    };
    for (Lane& lane : plan.lanes)
      for (Op& op : lane.ops) {
        turn(op.dst);
        for (Region& src : op.srcs) turn(src);
      }
    CHECK(verify_in_a_row({&plan, &plan}).proved());
    CHECK(fault_of(request, wish, plan) != "");
  }
}

TEST_CASE("tiled gives the reference's bits on host threads") {
  for (const int ranks : {2, 3, 4, 6, 8, 16})
    for (int seed = 1; seed <= rounds(ranks > 4 ? 2 : 6); ++seed) {
      std::mt19937 random(static_cast<unsigned>(seed * 16 + ranks));
      std::vector<TiledCall> calls = random_calls(ranks, random);
      TiledGpus gpus = gpus_of(ranks);
      run_calls(calls, gpus, 30);
      for (std::size_t at = 0; at < calls.size(); ++at)
        for (std::size_t rank = 0; rank < gpus.size(); ++rank) {
          CAPTURE(text("{} ranks, seed {}, call {}: {}, rank {}", ranks, seed, at,
                       calls[at].print(), rank));
          REQUIRE(gpus[rank]->state.failed == kNoFault);
          CHECK(calls[at].is_right(rank));
        }
    }
}

/// A call with several bulk copies per block.
std::vector<TiledCall> calls_that_stay(int ranks, unsigned blocks) {
  const Topology topology = load_topology("hgx-h200");
  std::vector<TiledCall> calls(5);
  constexpr Collective kStays[] = {Collective::all_gather, Collective::all_to_all,
                                   Collective::broadcast, Collective::scatter,
                                   Collective::all_gather};
  for (std::size_t at = 0; at < calls.size(); ++at) {
    TiledCall& call = calls[at];
    call.request.collective = kStays[at];
    call.request.ranks = ranks;
    call.request.count = 5 * kBulkBytes / 2 * blocks;
    call.request.type = DataType::uint8;
    call.request.root = ranks - 1;
    call.request = checked(call.request, topology);
    call.wish.most_blocks = blocks;
    lay_slots(call.wish, ranks);
    fill(call, at);
  }
  return calls;
}

TEST_CASE("data that stays on a rank is copied as its tiles are sent, in many pieces") {
  for (const int ranks : {2, 3})
    for (const unsigned blocks : {1u, 2u})
      for (const int late : {-1, 0}) {
        std::vector<TiledCall> calls = calls_that_stay(ranks, blocks);
        if (late >= 0) calls[1].late = late;
        TiledGpus gpus = gpus_of(ranks);
        run_calls(calls, gpus, late >= 0 ? 0.1 : 30);
        for (std::size_t at = 0; at < calls.size(); ++at)
          for (std::size_t rank = 0; rank < gpus.size(); ++rank) {
            CAPTURE(text("{} ranks, {} blocks, call {}: {}, rank {}", ranks, blocks, at,
                         calls[at].print(), rank));
            CHECK((gpus[rank]->failed_after[at] || calls[at].is_right(rank)));
            if (late < 0) CHECK(!gpus[rank]->failed_after[at]);
          }
      }
}

/// Zeros of both signs, NaNs of both signs with several payloads, infinities, subnormals.
template <class Word>
void put_special_values(TiledCall& call, const std::vector<Word>& values, std::mt19937& random) {
  Inputs inputs;
  for (std::size_t rank = 0; rank < call.inputs.size(); ++rank) {
    Bytes mine(input_bytes(call.request, static_cast<int>(rank)));
    for (std::size_t at = 0; at + sizeof(Word) <= mine.size(); at += sizeof(Word)) {
      const Word value = values[random() % values.size()];
      std::memcpy(&mine[at], &value, sizeof value);
    }
    std::copy(mine.begin(), mine.end(), reinterpret_cast<std::byte*>(call.input(rank)));
    inputs.bytes.push_back(std::move(mine));
  }
  const Plan plan = propose_one(load_topology("hgx-h200"), call.request, "direct");
  call.expected = ReferenceExecutor(plan).run(inputs);
}

TEST_CASE("tiled min and max give the bits of rank order, of -0, +0 and NaN too") {
  const std::vector<std::uint32_t> fp32{0x00000000, 0x80000000, 0x7fc00000, 0xffc00001, 0x7f800001,
                                        0x7f800000, 0xff800000, 0x00000001, 0x80000001, 0x3f800000};
  const std::vector<std::uint16_t> bf16{0x0000, 0x8000, 0x7fc0, 0xffc1, 0x7f81,
                                        0x7f80, 0xff80, 0x0001, 0x8001, 0x3f80};
  const Topology topology = load_topology("hgx-h200");
  std::mt19937 random(3);
  int zeros = 0;
  for (const int ranks : {3, 4, 8})
    for (const Collective collective :
         {Collective::all_reduce, Collective::reduce_scatter, Collective::reduce}) {
      std::vector<TiledCall> calls(4);
      for (std::size_t at = 0; at < calls.size(); ++at) {
        TiledCall& call = calls[at];
        call.request.collective = collective;
        call.request.ranks = ranks;
        call.request.count = 1009;
        call.request.root = ranks - 1;
        call.request.op = at % 2 == 0 ? ReduceOp::min : ReduceOp::max;
        call.request.type = at < 2 ? DataType::fp32 : DataType::bf16;
        call.request = checked(call.request, topology);
        call.wish.most_blocks = 2;
        lay_slots(call.wish, ranks);
        fill(call, at);
        if (at < 2)
          put_special_values(call, fp32, random);
        else
          put_special_values(call, bf16, random);
      }
      TiledGpus gpus = gpus_of(ranks);
      run_calls(calls, gpus, 30);
      for (TiledCall& call : calls)
        for (std::size_t rank = 0; rank < gpus.size(); ++rank) {
          CAPTURE(text("{} ranks, {}: {}", ranks, name_of(call.request.op), call.print()));
          CHECK(call.is_right(rank));
          for (std::size_t i = 0; i + 4 <= call.expected[rank].size(); i += 4) {
            std::uint32_t word = 0;
            std::memcpy(&word, &call.expected[rank][i], sizeof word);
            zeros += word == 0x80000000 ? 1 : 0;
          }
        }
    }
  CHECK(plait_test::seen(zeros));  // includes results of -0
}

/// A rank that nobody waited for would be added as the zeros of a new slot.
TEST_CASE("tiled waits for each of 16 ranks, in sums and in gathers") {
  for (const Collective collective : {Collective::reduce_scatter, Collective::all_reduce})
    for (const int late : {1, 8, 9, 15}) {
      TiledCall call;
      call.request.collective = collective;
      call.request.ranks = 16;
      call.request.count = 300;
      call.request.type = DataType::bf16;
      call.aligned = false;  // Threads collect results.
      call.wish.most_blocks = 1;
      lay_slots(call.wish, 16);
      call.late = late;
      call.late_by_s = 0.2;
      fill(call, 1);
      std::vector<TiledCall> calls;
      calls.push_back(std::move(call));
      TiledGpus gpus = gpus_of(16);
      run_calls(calls, gpus, 60);
      for (std::size_t rank = 0; rank < gpus.size(); ++rank) {
        CAPTURE(text("{}, rank {}", calls[0].print(), rank));
        REQUIRE(!gpus[rank]->failed_after[0]);
        CHECK(calls[0].is_right(rank));
      }
    }
}

TEST_CASE("tiled: a late or aborted rank leaves no rank with a wrong result and no error") {
  int right = 0, failed = 0;
  for (const bool is_aborted : {false, true})
    for (const int ranks : {2, 3, 4, 16})
      for (int seed = 1; seed <= rounds(ranks > 4 ? 2 : 10); ++seed) {
        constexpr double kWait = 0.1;
        std::mt19937 random(static_cast<unsigned>(seed * 16 + ranks));
        // So small that a rank that gave up had already sent everything.
        std::vector<TiledCall> calls = random_calls(ranks, random, 1000);
        TiledGpus gpus = gpus_of(ranks);
        const auto some = static_cast<unsigned>(ranks),
                   one = static_cast<unsigned>(random() % some);
        calls[random() % 3].late = static_cast<int>((one + (is_aborted ? 1 : 0)) % some);
        std::thread program([&, pause = random() % 60000] {
          if (!is_aborted) return;
          std::this_thread::sleep_for(std::chrono::microseconds(pause));
          std::atomic_ref(gpus[one]->stop_page.stop).store(kFaultAborted);
        });
        run_calls(calls, gpus, kWait);
        program.join();
        for (std::size_t at = 0; at < calls.size(); ++at)
          for (std::size_t rank = 0; rank < gpus.size(); ++rank) {
            if (is_aborted && rank == one) continue;
            CAPTURE(text("{} ranks, seed {}, call {}: {}, rank {}{}{}", ranks, seed, at,
                         calls[at].print(), rank, is_aborted ? ", aborted rank " : ", late rank ",
                         one));
            const bool has_failed = gpus[rank]->failed_after[at];
            CHECK((has_failed || calls[at].is_right(rank)));
            ++(has_failed ? failed : right);
          }
      }
  CHECK(plait_test::seen(right));
  CHECK(plait_test::seen(failed));
}

/// Copies that a peer had queued for engines may be in the slots that this call has read.
TEST_CASE("tiled does not complete a call if an exchange's peer has given up") {
  std::mt19937 random(1);
  std::vector<TiledCall> calls = random_calls(2, random);
  TiledGpus gpus = gpus_of(2);
  gpus[0]->poisoned = 2;
  run_calls(calls, gpus, 0.3);
  CHECK(gpus[0]->failed_after[0]);
  CHECK(gpus[0]->stop_page.fault.peer == 1);
}
