// LL calls on host threads, with a record of all loads and stores. `Kernels`: the real kernels, or
// a copy of the text with faults.
#pragma once
#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "conformance/device_on_host.hpp"
// Needs device_on_host.hpp first, for the definitions of a device.
#include "gpu/ll/direct_ll.cuh"
#include "gpu/ll/ll_chain.cuh"
#include "gpu/ll/ll_launch_config.hpp"
#include "gpu/ll/ll_plan.hpp"
#include "gpu/ll/long_chain.cuh"
#include "gpu/ll/long_two_shot.cuh"
#include "gpu/tile/tiled_shape.hpp"
#include "plait/builder.hpp"

namespace plait_test {

using namespace plait;
using namespace plait::cuda;

struct LlRun {
  Request request;
  LlKernel kernel = LlKernel::one_shot;
  PacketFormat kind = PacketFormat::nan_sentinel;
  std::uint64_t half_bytes = 0;
  unsigned blocks = 2, threads = 3;
  unsigned resident = ~0u;  ///< blocks at a time
  LlStep step = {};         ///< for a chain of several pieces
  int ahead = 0;
  unsigned calls_before = 0;  ///< calls of the communicator; the number chooses the half
  int late = -1;              ///< rank that begins each piece when all other ranks can only wait
  int absent = -1;            ///< rank that never begins
  double wait_s = 20;
  std::vector<double> scalars = {};  ///< scalars of premul_sum; empty = 1

  /// Returns the units that a thread of one_shot or two_shot passes together, as the kernels of a
  /// run are compiled.
  unsigned together() const { return request.type == DataType::fp32 && request.ranks == 2 ? 2 : 1; }
  /// True for a two_shot that reuses packets.
  bool is_long_shot() const {
    return kernel == LlKernel::two_shot && !holds_packets(packets_in_half(kind, half_bytes),
                                                          units_of(request), request.ranks, false);
  }
  std::uint64_t step_units() const { return std::uint64_t{blocks} * threads * together(); }
  /// Returns the plan's steps, in the threads' order.
  LlStep ll_step() const {
    if (kernel != LlKernel::two_shot) return step;
    return {.units = step_units(), .ahead = ahead};
  }
  std::uint64_t shard_units() const {
    const auto ranks = static_cast<std::uint64_t>(request.ranks);
    return (units_of(request) + ranks - 1) / ranks;
  }
};

/// Result of a run.
struct LlTraces {
  using Buffer = std::vector<ulonglong2>;        // aligned
  std::vector<Buffer> inputs, outputs, inboxes;  // by rank
  std::vector<std::vector<std::vector<std::vector<MemoryAccess>>>>
      accesses;                  // by rank, piece, thread
  std::vector<unsigned> failed;  // by rank: DeviceState::failed
  std::vector<unsigned> calls;   // by rank: DeviceState::fused_calls
  // Record of a launch that reuses packets: stores to flags, and the end of each rank.
  std::vector<std::shared_ptr<ChainFlags>> chain_flags;        // by rank
  std::vector<std::shared_ptr<ShotFlags>> shot_flags;          // by rank
  std::vector<std::vector<std::vector<MemoryAccess>>> raised;  // by rank, block
  std::vector<std::atomic<unsigned long long>> ended;          // by rank: the last thread's turn
};

struct RealKernels {
  using NanSentinel = NanSentinelPacket;
  using Flag = FlagPacket;
  using ClearedFlag = ClearedFlagPacket;
  using Escaped = EscapedPacket;
  template <DataType kType, int kOp, int kRanks, class Packet>
  static void one_shot(const FusedArgs& args) {
    cuda::one_shot<kType, kOp, kRanks, Packet>(args);
  }
  template <DataType kType, int kOp, int kRanks, class Packet>
  static void two_shot(const FusedArgs& args) {
    cuda::two_shot<kType, kOp, kRanks, Packet>(args);
  }
  template <DataType kType, int kOp, int kRanks, class Packet>
  static void long_two_shot(const LongShotArgs& args) {
    cuda::long_two_shot<kType, kOp, kRanks, Packet>(args);
  }
  template <DataType kType, int kOp, int kRanks, class Packet>
  static void two_shot_to_root(const FusedArgs& args) {
    cuda::two_shot_to_root<kType, kOp, kRanks, Packet>(args);
  }
  template <DataType kType, int kOp, int kHandling>
  static void direct_ll(const DirectLlArgs& args) {
    cuda::direct_ll<kType, kOp, kHandling>(args);
  }
  template <DataType kType, int kOp, int kHandling, int kMostRanks>
  static void short_direct_ll(const ShortDirectLlArgs& args) {
    cuda::short_direct_ll<kType, kOp, kHandling, kMostRanks>(args);
  }
  template <DataType kType, int kOp, int kHandling>
  static void ll_chain(const ChainArgs& args) {
    cuda::ll_chain<kType, kOp, kHandling>(args);
  }
  template <DataType kType, int kOp, int kHandling>
  static void long_chain(const LongChainArgs& args) {
    cuda::long_chain<kType, kOp, kHandling>(args);
  }
};

/// Starts a late rank when each other rank has polled in vain for a while, or has ended.
struct Pace {
  std::atomic<unsigned> looks{0};
  std::atomic<unsigned> ended{0};  ///< threads, of all pieces
};

template <class Kernels>
class LlEmulation {
 public:
  explicit LlEmulation(const LlRun& run) : run_(run), pieces_(pieces_of(run)) {
    std::mt19937 random(static_cast<unsigned>(run.request.count * 31 + run.calls_before));
    for (int rank = 0; rank < run.request.ranks; ++rank) {
      const auto buffer = [](std::uint64_t bytes) {
        return LlTraces::Buffer(bytes / 16 + 2, ulonglong2{0, 0});
      };
      made_.inputs.push_back(buffer(input_bytes(run.request, rank)));
      made_.outputs.push_back(buffer(output_bytes(run.request, rank)));
      made_.inboxes.push_back(buffer(2 * run.half_bytes));
      fill(made_.inputs.back(), random);
      // Flag packets are not cleared: an earlier call left its number.
      const unsigned long long none =
          run.kind == PacketFormat::flag ? std::uint64_t{run.calls_before - 1} << 32 : ~0ull;
      std::fill(made_.inboxes.back().begin(), made_.inboxes.back().end(), ulonglong2{none, none});
      states_.push_back(std::make_unique<DeviceState>());
      states_.back()->fused_calls = run.calls_before;
      stop_pages_.push_back(std::make_unique<StopPage>());
      paces_.push_back(std::make_unique<Pace>());
      made_.chain_flags.push_back(std::make_shared<ChainFlags>());
      made_.shot_flags.push_back(std::make_shared<ShotFlags>());
      made_.chain_flags.back()->calls = run.calls_before;
      for (unsigned& calls : made_.chain_flags.back()->nearly_done) calls = run.calls_before;
    }
    made_.accesses.assign(index(run.request.ranks),
                          std::vector(pieces_.size(), std::vector<std::vector<MemoryAccess>>(
                                                          run.blocks * run.threads)));
    made_.raised.assign(index(run.request.ranks),
                        std::vector<std::vector<MemoryAccess>>(run.blocks));
    made_.ended = std::vector<std::atomic<unsigned long long>>(index(run.request.ranks));
  }

  LlTraces emulate() {
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < run_.request.ranks; ++rank)
      ranks.emplace_back([this, rank] {
        if (rank == run_.absent) return;
        if (is_long()) return run_long(rank);
        for (std::size_t piece = 0; piece < pieces_.size(); ++piece) {
          if (rank == run_.late) await_others(piece);
          launch({run_.blocks, run_.threads, {}, nullptr}, [&] { run_thread(rank, piece); });
        }
      });
    for (std::thread& rank : ranks) rank.join();
    for (const auto& state : states_) {
      made_.failed.push_back(state->failed);
      made_.calls.push_back(state->fused_calls);
    }
    return std::move(made_);
  }

 private:
  static std::size_t index(int i) { return static_cast<std::size_t>(i); }
  /// Random floats without NaNs, because NaNs would travel as different words. Some data that is
  /// only moved repeats words with a meaning.
  void fill(LlTraces::Buffer& buffer, std::mt19937& random) const {
    for (std::size_t i = 0; i < buffer.size(); ++i) {
      ulonglong2& unit = buffer[i];
      unit = {random() | std::uint64_t{random()} << 32, random() | std::uint64_t{random()} << 32};
      if (is_float(run_.request.type)) {
        unit.x &= 0x3fff3fff3fff3fffull;
        unit.y &= 0x3fff3fff3fff3fffull;
      }
      if (!is_escaped(run_.kernel) || reduces(run_.request.collective) || random() % 4 != 0)
        continue;
      const Unit rare = EscapedPacket::mixed(
          {random() % 2 == 0 ? EscapedPacket::kMissing : EscapedPacket::kStandIn, unit.y},
          static_cast<unsigned>(i % ((pieces_[0].bytes + 15) / 16)));
      unit.x = rare.lo;
      if (random() % 2 == 0) std::swap(unit.x, unit.y);
    }
  }
  /// Cuts pieces as CudaRank does.
  static std::vector<Range> pieces_of(const LlRun& run) {
    const std::uint64_t bytes = run.request.count * plait::bytes_of(run.request.type);
    const std::uint64_t units = (bytes + 15) / 16;
    const LlCut cut = run.kernel == LlKernel::direct_ll
                          ? cut_direct_ll(units, run.request.ranks, run.half_bytes)
                      : run.kernel == LlKernel::ll_chain
                          ? cut_chain(units, run.request.ranks, run.half_bytes, run.step)
                          : LlCut{1, units};
    if (run.is_long_shot())
      return std::vector<Range>((run.shard_units() + run.step_units() - 1) / run.step_units());
    if (run.kernel == LlKernel::ll_chain) return chain_pieces(bytes, cut);
    std::vector<Range> pieces;
    for (std::uint64_t at = 0; at < bytes; at += cut.units * 16)
      pieces.push_back({at, std::min(cut.units * 16, bytes - at)});
    return pieces;
  }

  bool is_long() const {
    return run_.is_long_shot() || (run_.kernel == LlKernel::ll_chain && pieces_.size() > 1);
  }

  /// Runs all pieces in a single launch, with signal threads behind the workers of a block.
  void run_long(int rank) {
    if (rank == run_.late) await_others(0);
    const unsigned signal_threads =
        run_.is_long_shot() ? static_cast<unsigned>(run_.request.ranks) : 1;
    launch({run_.blocks, run_.threads + signal_threads, {}, nullptr, run_.resident}, [&] {
      share_out(rank, traced(rank, [&] {
                  if (run_.is_long_shot())
                    run_long_shot(rank);
                  else
                    run_long_thread(rank);
                  const char end = 0;
                  note(Touch::look, &end, nullptr, 0);
                }));
    });
  }
  /// Splits a thread's accesses by pieces: each packet is stored, and cleared, once per piece.
  void share_out(int rank, const std::vector<MemoryAccess>& all) {
    std::map<const char*, std::size_t> pieces_before;  // by packet
    for (const MemoryAccess& access : all) {
      if (access.touch == Touch::look) {  // the last look of a poll
        auto& ended = made_.ended[index(rank)];
        unsigned long long known = ended;
        while (known < access.turn && !ended.compare_exchange_weak(known, access.turn)) {
        }
      } else if (access.touch == Touch::raise) {
        const std::lock_guard lock(raised_);  // a block may have several signal threads
        made_.raised[index(rank)][blockIdx.x].push_back(access);
      } else {
        const std::size_t piece = piece_of(access, pieces_before);
        made_
            .accesses[index(rank)][std::min(piece, pieces_.size() - 1)]
                     [blockIdx.x * run_.threads + threadIdx.x]
            .push_back(access);
      }
    }
  }
  /// Pieces after the first.
  std::uint64_t piece_bytes() const { return (pieces_[1].bytes + 15) / 16 * 16; }
  std::size_t piece_at(std::uint64_t offset) const {
    std::size_t piece = pieces_.size() - 1;
    while (pieces_[piece].offset > offset) --piece;
    return piece;
  }
  /// Step of a two_shot that reuses packets.
  std::size_t step_of(std::uint64_t unit_of_shard) const {
    return static_cast<std::size_t>(unit_of_shard / run_.step_units());
  }
  std::size_t step_of_packet(const char* packet, std::uint64_t in_half, bool is_store,
                             std::map<const char*, std::size_t>& before) const {
    const auto ring = static_cast<std::uint64_t>(shot_ring(run_.ahead));
    const std::uint64_t in_slot =
        in_half / plait::cuda::bytes_of(run_.kind) % (ring * run_.step_units());
    std::size_t& turns = before[packet];
    const std::size_t step = turns * ring + step_of(in_slot);
    if (is_store) ++turns;
    return step;
  }
  std::size_t piece_of(const MemoryAccess& access,
                       std::map<const char*, std::size_t>& before) const {
    for (std::size_t r = 0; r < made_.inboxes.size(); ++r) {
      for (const LlTraces::Buffer* buffer : {&made_.inputs[r], &made_.outputs[r]}) {
        const std::ptrdiff_t at = access.at - reinterpret_cast<const char*>(buffer->data());
        if (at < 0 || at >= static_cast<std::ptrdiff_t>(buffer->size() * 16)) continue;
        const auto offset = static_cast<std::uint64_t>(at);
        return run_.is_long_shot() ? step_of(offset / 16 % run_.shard_units()) : piece_at(offset);
      }
      const auto* const inbox = reinterpret_cast<const char*>(made_.inboxes[r].data());
      const std::ptrdiff_t at = access.at - inbox;
      if (at < 0 || at >= static_cast<std::ptrdiff_t>(2 * run_.half_bytes)) continue;
      if (run_.is_long_shot())
        return step_of_packet(access.at, static_cast<std::uint64_t>(at) % run_.half_bytes,
                              access.touch == Touch::store, before);
      const std::uint64_t packets = piece_bytes() / 16, half = at / run_.half_bytes,
                          in_half = at % run_.half_bytes;
      const bool is_escape_flag = in_half >= packets * 16;
      const std::uint64_t packet = is_escape_flag ? (in_half - packets * 16) / 8 : in_half / 16;
      std::size_t& turns = before[inbox + half * run_.half_bytes + packet * 16];
      const std::size_t parity = half ^ ((run_.calls_before + 1) & 1);
      const bool not_in_first = parity == 0 && packet >= (pieces_[0].bytes + 15) / 16;
      const std::size_t piece = 2 * (turns + (not_in_first ? 1 : 0)) + parity;
      if (access.touch == Touch::store && !is_escape_flag) ++turns;
      return piece;
    }
    return 0;
  }

  void await_others(std::size_t piece) {
    constexpr unsigned kLooks = 100;
    std::vector<unsigned> from;
    for (const auto& pace : paces_) from.push_back(pace->looks);
    const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(200);
    for (std::size_t rank = 0; rank < paces_.size(); ++rank)
      while (static_cast<int>(rank) != run_.late && paces_[rank]->looks - from[rank] < kLooks &&
             paces_[rank]->ended < (piece + 1) * run_.blocks * run_.threads &&
             std::chrono::steady_clock::now() < until)
        std::this_thread::sleep_for(std::chrono::microseconds(50));
  }

  /// Loads and stores of a thread meanwhile.
  template <class Body>
  std::vector<MemoryAccess> traced(int rank, const Body& body) {
    Trace mine;
    trace = &mine;
    looks = &paces_[index(rank)]->looks;
    body();
    trace = nullptr;
    looks = nullptr;
    ++paces_[index(rank)]->ended;
    return mine.taken();
  }
  void run_thread(int rank, std::size_t piece) {
    made_.accesses[index(rank)][piece][blockIdx.x * run_.threads + threadIdx.x] = traced(rank, [&] {
      if (run_.kernel == LlKernel::direct_ll)
        run_direct_ll(rank, pieces_[piece]);
      else if (run_.kernel == LlKernel::ll_chain)
        run_chain(rank);
      else
        run_fused(rank, pieces_[piece]);
    });
  }

  template <class Args>
  void fill_args(Args& args, int rank, Range piece) {
    args.input = reinterpret_cast<char*>(made_.inputs[index(rank)].data()) + piece.offset;
    args.output = reinterpret_cast<char*>(made_.outputs[index(rank)].data()) + piece.offset;
    args.state = states_[index(rank)].get();
    args.stop_page = stop_pages_[index(rank)].get();
    args.wait_ns = static_cast<std::uint64_t>(run_.wait_s * 1e9);
    set_scalars(args, run_.scalars);
    args.rank = rank;
    args.ranks = run_.request.ranks;
    args.op = static_cast<int>(ReduceOp::sum);
    args.half_bytes = run_.half_bytes;
    args.ahead = run_.ahead;
    for (std::size_t r = 0; r < made_.inboxes.size(); ++r)
      args.inbox[r] = reinterpret_cast<char*>(made_.inboxes[r].data());
  }
  void run_direct_ll(int rank, Range piece) {
    DirectLlArgs args{};
    fill_args(args, rank, piece);
    args.shape = direct_shape(run_.request, rank);
    args.shape.part_bytes = piece.bytes;
    if (args.shape.own_bytes != 0) args.shape.own_bytes = piece.bytes;
    constexpr int kSum = static_cast<int>(ReduceOp::sum);
    if (reduces(run_.request.collective) && run_.request.type == DataType::bf16)
      return run_direct_ll<DataType::bf16, kSum, kReduceParts>(args);
    if (reduces(run_.request.collective))
      return run_direct_ll<DataType::fp32, kSum, kReduceParts>(args);
    if (plait::bytes_of(run_.request.type) == 2)
      return run_direct_ll<DataType::uint16, kAnyOp, kPlaceParts>(args);
    run_direct_ll<DataType::uint8, kAnyOp, kPlaceParts>(args);
  }
  /// Chooses between the kernels as the engine does.
  template <DataType kType, int kOp, int kHandling>
  void run_direct_ll(const DirectLlArgs& args) {
    const LlCut cut{pieces_.size(), (pieces_[0].bytes + 15) / 16};
    const KernelLaunchConfig config{.blocks = run_.blocks, .threads = run_.threads};
    if (is_short_direct_ll(run_.request, cut, config))
      return args.ranks <= 4 ? Kernels::template short_direct_ll<kType, kOp, kHandling, 4>(
                                   short_direct_ll_args(args))
                             : Kernels::template short_direct_ll<kType, kOp, kHandling, 8>(
                                   short_direct_ll_args(args));
    Kernels::template direct_ll<kType, kOp, kHandling>(args);
  }
  template <class Args>
  Args chain_args(int rank) {
    Args args{};
    fill_args(args, rank, {0, 0});
    args.shape = chain_shape(run_.request);
    args.op = static_cast<int>(run_.request.op);
    return args;
  }
  void run_chain(int rank) {
    with_types([&]<DataType kType, int kOp, int kHandling>() {
      Kernels::template ll_chain<kType, kOp, kHandling>(chain_args<ChainArgs>(rank));
    });
  }
  void run_long_thread(int rank) {
    auto args = chain_args<LongChainArgs>(rank);
    for (std::size_t r = 0; r < made_.chain_flags.size(); ++r)
      args.flags[r] = made_.chain_flags[r].get();
    args.pieces = static_cast<unsigned>(pieces_.size());
    args.first_bytes = pieces_[0].bytes;
    args.piece_bytes = piece_bytes();
    args.workers = run_.threads;
    with_types([&]<DataType kType, int kOp, int kHandling>() {
      Kernels::template long_chain<kType, kOp, kHandling>(args);
    });
  }
  /// Chooses between the kernels of a chain as the engine does.
  template <class Body>
  void with_types(const Body& body) const {
    constexpr int kSum = static_cast<int>(ReduceOp::sum);
    if (reduces(run_.request.collective) && run_.request.type == DataType::bf16)
      return body.template operator()<DataType::bf16, kAnyOp, kReduceParts>();
    if (reduces(run_.request.collective) && run_.request.op != ReduceOp::sum)
      return body.template operator()<DataType::fp32, kAnyOp, kReduceParts>();
    if (reduces(run_.request.collective))
      return body.template operator()<DataType::fp32, kSum, kReduceParts>();
    if (plait::bytes_of(run_.request.type) == 2)
      return body.template operator()<DataType::uint16, kAnyOp, kPlaceParts>();
    body.template operator()<DataType::uint8, kAnyOp, kPlaceParts>();
  }
  void run_fused(int rank, Range piece) {
    FusedArgs args{};
    fill_args(args, rank, piece);
    args.count = run_.request.count;
    args.root = run_.request.root;
    with_ranks([&]<DataType kType, int kRanks>() { run_typed<kType, kRanks>(args); });
  }
  void run_long_shot(int rank) {
    LongShotArgs args{};
    fill_args(args, rank, {0, 0});
    args.count = run_.request.count;
    for (std::size_t r = 0; r < made_.shot_flags.size(); ++r)
      args.flags[r] = made_.shot_flags[r].get();
    args.ring = shot_ring(run_.ahead);
    args.workers = run_.threads;
    with_ranks([&]<DataType kType, int kRanks>() {
      constexpr int kOp = kRanks == 0 ? kAnyOp : static_cast<int>(ReduceOp::sum);
      if (run_.kind == PacketFormat::nan_sentinel)
        Kernels::template long_two_shot<kType, kOp, kRanks, typename Kernels::NanSentinel>(args);
      else
        Kernels::template long_two_shot<kType, kOp, kRanks, typename Kernels::ClearedFlag>(args);
    });
  }
  template <class Body>
  void with_ranks(const Body& body) const {
    if (run_.request.type == DataType::bf16) return body.template operator()<DataType::bf16, 0>();
    switch (run_.request.ranks) {
      case 2: return body.template operator()<DataType::fp32, 2>();
      case 4: return body.template operator()<DataType::fp32, 4>();
      case 8: return body.template operator()<DataType::fp32, 8>();
      default: return body.template operator()<DataType::fp32, 0>();
    }
  }
  template <DataType kType, int kRanks>
  void run_typed(const FusedArgs& args) {
    constexpr int kOp = kRanks == 0 ? kAnyOp : static_cast<int>(ReduceOp::sum);
    const bool nan_sentinel = run_.kind == PacketFormat::nan_sentinel;
    using NanSentinel = typename Kernels::NanSentinel;
    using Flag = typename Kernels::Flag;
    if (run_.kernel == LlKernel::one_shot && nan_sentinel)
      return Kernels::template one_shot<kType, kOp, kRanks, NanSentinel>(args);
    if (run_.kernel == LlKernel::one_shot)
      return Kernels::template one_shot<kType, kOp, kRanks, Flag>(args);
    if (run_.request.collective == Collective::reduce)
      return Kernels::template two_shot_to_root<kType, kOp, kRanks, NanSentinel>(args);
    if (nan_sentinel) return Kernels::template two_shot<kType, kOp, kRanks, NanSentinel>(args);
    Kernels::template two_shot<kType, kOp, kRanks, Flag>(args);
  }

  const LlRun& run_;
  std::vector<Range> pieces_;
  LlTraces made_;
  std::mutex raised_;
  std::vector<std::unique_ptr<DeviceState>> states_;
  std::vector<std::unique_ptr<StopPage>> stop_pages_;
  std::vector<std::unique_ptr<Pace>> paces_;
};

}  // namespace plait_test
