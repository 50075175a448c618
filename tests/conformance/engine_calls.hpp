// Calls by copy engines on engines emulated in host memory: the memory of all ranks, calls prepared
// by the engines themselves, and random calls by seed.
#pragma once
#include <algorithm>
#include <memory>

#include "base/text.hpp"
#include "conformance/executors.hpp"
#include "conformance/fake_engines.hpp"
#include "gpu/copy/copy_memory.hpp"
#include "gpu/engine/kernel_types.hpp"
#include "gpu/host_path/with_host_part.hpp"
#include "gpu/select/engine_cases.hpp"
#include "gpu/select/engines.hpp"
#include "plait/topology.hpp"
#include "plan/sum_order.hpp"

namespace plait_test::engine_calls {

using namespace plait;
using namespace plait::cuda;
using cuda::Event;  // plan/builder.hpp has another

inline constexpr std::uint32_t kBefore = 0u - 40;  // counts wrap around

struct CopyCall {
  const Engine* engine = nullptr;
  Request request;
  Tuning tuning;
  Inputs inputs;
  std::vector<Bytes> outputs, expected;
  std::string label;
  bool in_place = false;  // all_reduce: outputs hold the inputs
};

/// A rank, with the caller's stream and a queue of emulated engines.
class EmulatedRank : public EngineRank {
 public:
  EmulatedRank(FakeEngines& engines, const Group& group, const EnginePath& path, HostFlags& words,
               int rank)
      : group_(group), path_(path), queue_(engines, rank, words, kBefore), rank_(rank) {}

  int rank() const override { return rank_; }
  const Group& group() const override { return group_; }
  Kernels& kernels() override { refuse_kernels(); }
  char* at(const FlagsRow&, int) const override { refuse_kernels(); }
  char* at(const ArenaPart&, int) const override { refuse_kernels(); }
  const std::uint32_t* poisoned(const ArenaPart&) const override { refuse_kernels(); }
  EngineQueue& queue() override { return queue_; }
  const EnginePath& engine_path() const override { return path_; }
  /// Two of three long exchanges have the long inbox, the same on all ranks.
  bool reserve_long_inbox(Stream) override {
    return !path_.long_slots.empty() && long_exchanges_++ % 3 != 0;
  }
  void end_long_inbox() override {}
  Event fork() const override { return reinterpret_cast<Event>(std::uintptr_t{0x9008}); }
  AgreedShare& agreed_share() override { return share_; }
  bool is_capturing(Stream) const override { return true; }
  void fill_call(CallArgs& args, const Request& request) const override {
    args.rank = rank_;
    args.ranks = request.ranks;
    args.op = static_cast<std::int32_t>(request.op);
    args.order = order_of(request, group_.sum_order);
  }

 private:
  [[noreturn]] static void refuse_kernels() {
    throw std::logic_error("a call that is played on queues launches a kernel of its own");
  }

  const Group& group_;
  const EnginePath& path_;
  FakeQueue queue_;
  const int rank_;
  unsigned long_exchanges_ = 0;
  AgreedShare share_;
};

/// Memory of all ranks, and the slots that calls use.
class Ranks {
 public:
  Ranks(FakeEngines& engines, const Group& group)
      : engines_(engines), group_(group), flags_(static_cast<std::size_t>(group.ranks)) {
    const std::uint64_t slots = inbox_bytes(group_), borrowed = borrowed_bytes(group_);
    for (int rank = 0; rank < group_.ranks; ++rank) {
      memory_.emplace_back(slots + borrowed + group_.host_bytes + group_.sizes[kChunkStaging] +
                               group_.sizes[kLongInbox],
                           std::byte{0xee});
      ranks_.push_back(std::make_unique<EmulatedRank>(engines, group_, path_, words_, rank));
    }
    for (Bytes& one : memory_) {
      char* at = reinterpret_cast<char*>(one.data());
      path_.borrowed.push_back(at);
      path_.slots.push_back(at + borrowed);
      path_.rings.push_back(at + slots + borrowed);
      path_.staging.push_back(at + slots + borrowed + group_.host_bytes);
      if (group_.sizes[kLongInbox] != 0)
        path_.long_slots.push_back(path_.staging.back() + group_.sizes[kChunkStaging]);
    }
    for (EngineFlags& one : flags_) path_.flags.push_back(&one);
    count_from(kBefore);
    path_.host_rings = path_.rings;
    path_.host_flags = &words_;
    path_.slot_bytes = slot_bytes(group_);
    path_.inbox_bytes = slots;
    path_.borrowed_bytes = borrowed;
    path_.ring_bytes = group_.host_bytes;
    path_.blocks = 1;
    path_.moving_blocks = blocks_that_move(group_);
    auto handles = [next = std::uintptr_t{0}](auto& all, std::size_t count) mutable {
      all.resize(count);
      for (auto& one : all) one = reinterpret_cast<std::decay_t<decltype(one)>>(16 * ++next);
    };
    handles(path_.streams, kEngineStreams);
    handles(path_.events, kEngineEvents);
    handles(path_.host_streams, kHostStreams);
    handles(path_.host_events, kHostEvents);
  }

  /// Rank that owns the memory; -1 = a caller.
  int owner_of(const char* at) const {
    for (std::size_t rank = 0; rank < memory_.size(); ++rank) {
      const auto from = reinterpret_cast<std::uintptr_t>(memory_[rank].data());
      const auto here = reinterpret_cast<std::uintptr_t>(at);
      if (here >= from && here < from + memory_[rank].size()) return static_cast<int>(rank);
    }
    return -1;
  }
  /// Runs the following steps even if another rank has given up.
  void come_late(int rank) { engines_.come_late(rank, kCaller); }
  /// Marks the point that the caller's stream has reached.
  void note(int rank, std::function<void()> run) {
    engines_.put(rank, kCaller, {[] { return true; }, std::move(run)});
  }
  /// Enqueues this rank's part of a call as CudaRank does; `call` must outlive the run.
  void enqueue(CopyCall& call, int rank) {
    const auto at = static_cast<std::size_t>(rank);
    void* const output = call.outputs[at].data();
    const void* const input = call.in_place ? output : call.inputs.bytes[at].data();
    prepare_with_host_part(*call.engine, call.request, call.tuning, *ranks_[at])
        ->enqueue({input, output, call.inputs.scalars}, kCaller);
  }

 private:
  static inline const auto kCaller = reinterpret_cast<Stream>(std::uintptr_t{0x9000});

  /// Checks the values of all flags and counts after so many calls.
  void count_from(std::uint32_t before) {
    for (EngineFlags& one : flags_) {
      auto* const words = reinterpret_cast<std::uint32_t*>(&one);
      std::fill(words, words + sizeof one / sizeof *words, before);
      one.poisoned = 0;
    }
    auto* const words = reinterpret_cast<std::uint32_t*>(&words_);
    std::fill(words, words + sizeof words_ / sizeof *words, before);
  }

  FakeEngines& engines_;
  const Group group_;
  std::vector<Bytes> memory_;
  std::vector<EngineFlags> flags_;
  HostFlags words_{};
  EnginePath path_;
  std::vector<std::unique_ptr<EmulatedRank>> ranks_;
};

/// Returns the engines that take the request with this tuning, with plans that name no kernel: all
/// of their work goes through the queue and can be emulated.
inline std::vector<const Engine*> emulated_engines(const Topology& topology, const Request& request,
                                                   const Tuning& tuning, const Group& group) {
  std::vector<const Engine*> found;
  for (const Engine* engine : engines())
    if (why_not(*engine, request, tuning, group).empty() &&
        engine->plan(topology, request, {}, group).kernel.empty())
      found.push_back(engine);
  return found;
}

inline CopyCall call_of(const Topology& topology, const Engine& engine, const Request& request,
                        const Tuning& tuning, unsigned seed,
                        SumOrder order = SumOrder::rank_order) {
  CopyCall call;
  call.engine = &engine;
  call.request = request;
  call.tuning = tuning;
  call.inputs = random_inputs(request, seed);
  call.in_place = request.collective == Collective::all_reduce && seed % 2 == 1;
  const Plan plan = in_order(propose_one(topology, request, "direct"), order).value();
  std::string tuned;
  for (const auto& [name, value] : params_of(tuning)) tuned += text(" {} {}", name, value);
  call.label =
      text("{}: {} x{} {} {} ranks {} root {}{}{}", engine.info().name, name_of(request.collective),
           request.count, name_of(request.type), name_of(request.op), request.ranks, request.root,
           call.in_place ? " in place" : "", tuned);
  call.expected = ReferenceExecutor(plan).run(call.inputs);
  call.outputs = call.in_place ? call.inputs.bytes : ReferenceExecutor::poisoned(plan);
  return call;
}

inline constexpr Collective kCollectives[] = {
    Collective::all_reduce, Collective::reduce_scatter, Collective::all_gather,
    Collective::broadcast,  Collective::all_to_all,     Collective::reduce,
    Collective::send_recv,  Collective::all_reduce,
};

/// Returns random calls by seed. with_shares: parts of some calls go through host memory, for which
/// the branches of a graph must run side by side.
inline std::vector<CopyCall> calls_of(const Topology& topology, const Group& group, unsigned seed,
                                      bool with_shares) {
  const int ranks = group.ranks;
  std::mt19937 drawn(seed);
  const auto random = [&] { return static_cast<unsigned>(drawn()); };
  std::vector<CopyCall> calls;
  for (unsigned i = 0; i < 5; ++i) {
    Request request;
    request.collective = kCollectives[random() % std::size(kCollectives)];
    if (seed % 3 == 0) request.collective = Collective::all_reduce;  // shares in turn
    request.type = random() % 2 == 0 ? DataType::fp32 : DataType::int16;
    constexpr ReduceOp kOps[] = {ReduceOp::sum, ReduceOp::max, ReduceOp::avg};
    if (reduces(request.collective)) request.op = kOps[random() % std::size(kOps)];
    request.ranks = ranks;
    request.root = static_cast<int>(random() % static_cast<unsigned>(ranks));
    request.peer = (request.root + 1) % ranks;
    request.count = 1 + random() % (random() % 4 == 0 ? 100 : 120000);
    Tuning tuning;
    const unsigned share = with_shares ? random() % 3 : 0;
    if (share == 1 && request.collective == Collective::all_reduce)
      tuning.host_cpu_permille = static_cast<int>(random() % 1001);
    else if (share != 0 && (ranks == 2 || request.collective == Collective::all_reduce))
      tuning.host_permille = static_cast<int>(random() % 1001);
    request = checked(request, topology);
    auto able = emulated_engines(topology, request, tuning, group);
    if (able.empty())  // tiled does not take the request, so no part of it is gathered
      able = emulated_engines(topology, request, tuning = {}, group);
    const Engine& engine = *able.at(random() % able.size());
    calls.push_back(call_of(topology, engine, request, tuning, seed + i));
  }
  return calls;
}

}  // namespace plait_test::engine_calls
