// Calls by copy engines on engines played in host memory: what all ranks have, how a call is put on
// their queues, and calls drawn by seed.
#pragma once
#include <algorithm>
#include <memory>

#include "base/text.hpp"
#include "conformance/copy_room.hpp"
#include "conformance/executors.hpp"
#include "conformance/fake_engines.hpp"
#include "exec/cuda/copies/engine_ring.hpp"
#include "exec/cuda/host/host_gather.hpp"
#include "exec/cuda/host/host_reduction.hpp"
#include "plait/topology.hpp"

namespace plait_test::engine_calls {

using namespace plait;
using namespace plait::cuda;

inline constexpr std::uint32_t kBefore = 0u - 40;  // counts go past their end

/// How a call is made; zeros = no share through host memory.
struct How {
  std::uint32_t host_permille = 0, host_cpu_permille = 0;
  std::uint32_t gather_permille = 0;  // of results
};

struct Call {
  Request request;
  How how;
  Inputs inputs;
  std::vector<Bytes> outputs, expected;
  std::string label;
  bool in_place = false;  // all_reduce: outputs hold the inputs
};

/// The memory of all ranks, and what calls go through.
class Ranks {
 public:
  Ranks(FakeEngines& engines, int ranks)
      : engines_(engines), flags_(static_cast<std::size_t>(ranks)) {
    const std::uint64_t slots = rotation_slots(ranks) * kSlotBytes;
    for (int rank = 0; rank < ranks; ++rank) {
      memory_.emplace_back(2 * slots + kRingBytes, std::byte{0xee});
      queues_.push_back(std::make_unique<FakeQueue>(engines, rank, words_, kBefore));
    }
    for (Bytes& one : memory_) {
      char* at = reinterpret_cast<char*>(one.data());
      path_.slots.push_back(at);
      path_.lent.push_back(at + slots);
      path_.rings.push_back(at + 2 * slots);
    }
    for (EngineFlags& one : flags_) path_.flags.push_back(&one);
    count_from(kBefore);
    path_.host_rings = path_.rings;
    path_.host_words = &words_;
    path_.slot_bytes = kSlotBytes;
    path_.inbox_bytes = slots;
    path_.lent_bytes = slots;
    path_.ring_bytes = kRingBytes;
    path_.blocks = 1;
    auto handles = [next = std::uintptr_t{0}](auto& all, std::size_t count) mutable {
      all.resize(count);
      for (auto& one : all) one = reinterpret_cast<std::decay_t<decltype(one)>>(16 * ++next);
    };
    handles(path_.streams, kEngineStreams);
    handles(path_.events, kEngineEvents);
    handles(path_.host_streams, kHostStreams);
    handles(path_.host_events, kHostEvents);
  }

  /// In whose memory; -1 = a caller's.
  int owner_of(const char* at) const {
    for (std::size_t rank = 0; rank < memory_.size(); ++rank) {
      const auto from = reinterpret_cast<std::uintptr_t>(memory_[rank].data());
      const auto here = reinterpret_cast<std::uintptr_t>(at);
      if (here >= from && here < from + memory_[rank].size()) return static_cast<int>(rank);
    }
    return -1;
  }
  /// Comes to what follows when another rank has given up.
  void come_late(int rank) { engines_.come_late(rank, kCaller); }
  /// Where the caller's stream has come to here.
  void note(int rank, std::function<void()> run) {
    engines_.put(rank, kCaller, {[] { return true; }, std::move(run)});
  }
  /// This rank's part of a call; `call` outlives the run.
  void enqueue(Call& call, int rank) {
    const Request& request = call.request;
    const auto at = static_cast<std::size_t>(rank);
    call_args_.push_back(std::make_unique<CallArgs>());
    CallArgs& args = *call_args_.back();
    args.output = call.outputs[at].data();
    args.input = call.in_place ? args.output : call.inputs.bytes[at].data();
    std::copy(call.inputs.scalars.begin(), call.inputs.scalars.end(), args.scalars);
    args.rank = rank;
    args.ranks = request.ranks;
    args.op = static_cast<std::int32_t>(request.op);
    EngineQueue& queue = *queues_[at];
    const std::uint64_t element = bytes_of(request.type);
    const std::uint64_t bytes = request.count * element;
    const HostCut part = cut_host_part(bytes, kRingBytes, call.how.host_cpu_permille, ~0ull);
    if (part.chunks != 0) {
      HostReduction host(queue, path_, part, args, request.type);
      host.fork(kCaller);
      return enqueue_beside(host, call, 0, part.host_from / element, args, queue);
    }
    const GatherCut cut = cut_gather(bytes, kRingBytes, call.how.gather_permille, request.ranks);
    if (cut.chunks == 0) return enqueue_rest(call, request, args, queue);
    static const PathMarks times{reinterpret_cast<Event>(std::uintptr_t{0x9010}),
                                 reinterpret_cast<Event>(std::uintptr_t{0x9018}),
                                 reinterpret_cast<Event>(std::uintptr_t{0x9020})};
    HostGather host(queue, path_, cut, args, cut.chunks % 2 == 0 ? &times : nullptr);
    for (std::size_t i = 0; i < cut.stretches.size(); ++i) {
      const GatherStretch& stretch = cut.stretches[i];
      Request scatter = request;
      scatter.collective = Collective::reduce_scatter;
      scatter.count = stretch.part_bytes / element;
      const std::uint64_t mine = static_cast<unsigned>(rank) * stretch.part_bytes;
      enqueue_rest(call, scatter, moved(args, stretch.from, stretch.from + mine), queue);
      host.fork(kCaller, i);
    }
    enqueue_beside(host, call, cut.bytes, (bytes - cut.bytes) / element, args, queue);
  }

 private:
  static inline const auto kCaller = reinterpret_cast<Stream>(std::uintptr_t{0x9000});
  static inline const auto kFork = reinterpret_cast<Event>(std::uintptr_t{0x9008});
  /// The same call of other buffers.
  const CallArgs& moved(const CallArgs& whole, std::uint64_t input, std::uint64_t output) {
    call_args_.push_back(std::make_unique<CallArgs>(whole));
    CallArgs& args = *call_args_.back();
    args.input = static_cast<const char*>(whole.input) + input;
    args.output = static_cast<char*>(whole.output) + output;
    return args;
  }
  template <class Part>
  void enqueue_beside(Part& part, Call& call, std::uint64_t from, std::uint64_t count,
                      const CallArgs& whole, EngineQueue& queue) {
    Request rest = call.request;
    rest.count = count;
    if (count != 0) enqueue_rest(call, rest, moved(whole, from, from), queue);
    part.enqueue();
    part.join(kCaller);
  }
  void enqueue_rest(const Call& call, const Request& rest, const CallArgs& args,
                    EngineQueue& queue) {
    CopyTuning tuning;
    if (is_engine_ring(rest)) tuning.piece_bytes = 4096 * (1 + rest.count % 2);
    tuning.host_permille = call.how.host_permille;
    enqueue_copies(queue, path_, rest, args, tuning, kFork, kCaller);
  }

  /// All words and counts as they are after so many.
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
  std::vector<Bytes> memory_;
  std::vector<EngineFlags> flags_;
  HostWords words_{};
  EnginePath path_;
  std::vector<std::unique_ptr<FakeQueue>> queues_;
  std::vector<std::unique_ptr<CallArgs>> call_args_;
};

inline Call call_of(const Topology& topology, const Request& request, const How& how,
                    unsigned seed) {
  Call call;
  call.request = request;
  call.how = how;
  call.inputs = random_inputs(request, seed);
  call.in_place = request.collective == Collective::all_reduce && seed % 2 == 1;
  const Plan plan = propose_one(topology, request, "direct");
  call.label =
      text(name_of(request.collective), " x", request.count, " ", name_of(request.type), " ",
           name_of(request.op), " root ", request.root, call.in_place ? " in place" : "", " host ",
           how.host_permille, " cpu ", how.host_cpu_permille, " gather ", how.gather_permille);
  call.expected = ReferenceExecutor(plan).run(call.inputs);
  call.outputs = call.in_place ? call.inputs.bytes : ReferenceExecutor::poisoned(plan);
  return call;
}

inline constexpr Collective kCollectives[] = {
    Collective::all_reduce, Collective::reduce_scatter, Collective::all_gather,
    Collective::broadcast,  Collective::all_to_all,     Collective::reduce,
    Collective::send_recv,  Collective::all_reduce,
};

/// Who orders a rank's streams: nobody, one hardware queue, or a graph that has one queue.
enum class Order { by_chance, one_queue, one_branch };

/// Some calls in a row, none awaited, drawn by seed. with_shares: parts of some go through host
/// memory, which a graph's branches must run side by side for.
inline std::vector<Call> calls_of(const Topology& topology, int ranks, unsigned seed,
                                  bool with_shares) {
  std::mt19937 drawn(seed);
  const auto random = [&] { return static_cast<unsigned>(drawn()); };
  std::vector<Call> calls;
  for (unsigned i = 0; i < 5; ++i) {
    Request request;
    request.collective = kCollectives[random() % std::size(kCollectives)];
    if (seed % 3 == 0) request.collective = Collective::all_reduce;  // shares one behind the other
    request.type = random() % 2 == 0 ? DataType::fp32 : DataType::int16;
    request.op = reduces(request.collective) && random() % 3 == 0 ? ReduceOp::max : ReduceOp::sum;
    request.ranks = ranks;
    request.root = static_cast<int>(random() % static_cast<unsigned>(ranks));
    request.peer = (request.root + 1) % ranks;
    request.count = 1 + random() % (random() % 4 == 0 ? 100 : 120000);
    How how;
    if (!with_shares) {
      calls.push_back(call_of(topology, checked(request, topology), how, seed + i));
      continue;
    }
    if (ranks == 2 && random() % 2 == 0) how.host_permille = random() % 500;
    if (request.collective == Collective::all_reduce && random() % 2 == 0) {
      how.host_permille = 0;
      how.host_cpu_permille = random() % 1001;
    } else if (request.collective == Collective::all_reduce && random() % 2 == 0) {
      how.host_permille = 0;  // in the same rings
      how.gather_permille = random() % 1001;
    }
    calls.push_back(call_of(topology, checked(request, topology), how, seed + i));
  }
  return calls;
}

}  // namespace plait_test::engine_calls
