// Launches of engines, from the request to the kernel arguments, run on host threads. Calls are
// prepared once and use new buffers each time, as in a communicator. Tests of single kernels fill
// in arguments directly, hence without this test a GPU would be the first to see an engine's
// arguments.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <thread>

#include "conformance/device_on_host.hpp"
// Included after the host emulation: the emulation defines the device's properties.
#include "base/text.hpp"
#include "conformance/executors.hpp"
#include "conformance/tile_threads.hpp"
#include "fake_cuda/fake_gpu.hpp"
#include "gpu/arena/arena.hpp"
#include "gpu/device/kernels.hpp"
#include "gpu/engine/kernel_types.hpp"
#include "gpu/in_place.hpp"
#include "gpu/ll/direct_ll.cuh"
#include "gpu/ll/ll_chain.cuh"
#include "gpu/ll/ll_memory.hpp"
#include "gpu/ll/long_chain.cuh"
#include "gpu/ll/long_two_shot.cuh"
#include "gpu/select/all_resources.hpp"
#include "gpu/select/engines.hpp"
#include "gpu/tile/tile_memory.hpp"
#include "gpu/tile/tiled_shape.hpp"
#include "plait/topology.hpp"
#include "unit/scale.hpp"

using namespace plait;
using namespace plait::cuda;
using namespace plait_test;

namespace {

using Body = std::function<void()>;
using Words = std::vector<ulonglong2>;  // Aligned.

constexpr int kSum = static_cast<int>(ReduceOp::sum);

/// A kernel with a copy of the arguments, as a GPU would run it.
using Maker = std::function<Body(const void* arguments)>;
template <class Args>
Maker made_of(void (*kernel)(const Args&)) {
  return [kernel](const void* arguments) -> Body {
    return [kernel, args = *static_cast<const Args*>(arguments)] { kernel(args); };
  };
}

/// Kernels of uint8, uint32 and fp32, for 2 to 4 ranks.
const std::map<std::string, Maker>& kernels() {
  constexpr auto u8 = DataType::uint8;
  constexpr auto u32 = DataType::uint32;
  constexpr auto f32 = DataType::fp32;
  static const std::map<std::string, Maker> all{
      {"plait_one_shot_fp32_sum_2_nan_sentinel",
       made_of(one_shot<f32, kSum, 2, NanSentinelPacket>)},
      {"plait_one_shot_fp32_any_0_nan_sentinel",
       made_of(one_shot<f32, kAnyOp, 0, NanSentinelPacket>)},
      {"plait_one_shot_fp32_sum_4_nan_sentinel",
       made_of(one_shot<f32, kSum, 4, NanSentinelPacket>)},
      {"plait_one_shot_uint8_any_0_flag", made_of(one_shot<u8, kAnyOp, 0, FlagPacket>)},
      {"plait_two_shot_fp32_sum_2_nan_sentinel",
       made_of(two_shot<f32, kSum, 2, NanSentinelPacket>)},
      {"plait_two_shot_fp32_any_0_nan_sentinel",
       made_of(two_shot<f32, kAnyOp, 0, NanSentinelPacket>)},
      {"plait_two_shot_fp32_sum_4_nan_sentinel",
       made_of(two_shot<f32, kSum, 4, NanSentinelPacket>)},
      {"plait_long_two_shot_fp32_sum_2_nan_sentinel",
       made_of(long_two_shot<f32, kSum, 2, NanSentinelPacket>)},
      {"plait_long_two_shot_fp32_any_0_nan_sentinel",
       made_of(long_two_shot<f32, kAnyOp, 0, NanSentinelPacket>)},
      {"plait_long_two_shot_fp32_sum_4_nan_sentinel",
       made_of(long_two_shot<f32, kSum, 4, NanSentinelPacket>)},
      {"plait_long_two_shot_uint8_any_0_flag",
       made_of(long_two_shot<u8, kAnyOp, 0, ClearedFlagPacket>)},
      {"plait_two_shot_to_root_fp32_sum_4_nan_sentinel",
       made_of(two_shot_to_root<f32, kSum, 4, NanSentinelPacket>)},
      {"plait_two_shot_uint8_any_0_flag", made_of(two_shot<u8, kAnyOp, 0, FlagPacket>)},
      {"plait_direct_ll_fp32_sum", made_of(direct_ll<f32, kSum, kReduceParts>)},
      {"plait_direct_ll_uint8_any", made_of(direct_ll<u8, kAnyOp, kReduceParts>)},
      {"plait_direct_ll_uint8_place", made_of(direct_ll<u8, kAnyOp, kPlaceParts>)},
      {"plait_direct_ll_uint32_place", made_of(direct_ll<u32, kAnyOp, kPlaceParts>)},
      {"plait_short_direct_ll_fp32_sum_4", made_of(short_direct_ll<f32, kSum, kReduceParts, 4>)},
      {"plait_short_direct_ll_uint8_any_4", made_of(short_direct_ll<u8, kAnyOp, kReduceParts, 4>)},
      {"plait_short_direct_ll_uint8_place_4", made_of(short_direct_ll<u8, kAnyOp, kPlaceParts, 4>)},
      {"plait_short_direct_ll_uint32_place_4",
       made_of(short_direct_ll<u32, kAnyOp, kPlaceParts, 4>)},
      {"plait_ll_chain_fp32_sum", made_of(ll_chain<f32, kSum, kReduceParts>)},
      {"plait_ll_chain_uint8_any", made_of(ll_chain<u8, kAnyOp, kReduceParts>)},
      {"plait_ll_chain_uint8_place", made_of(ll_chain<u8, kAnyOp, kPlaceParts>)},
      {"plait_ll_chain_uint32_place", made_of(ll_chain<u32, kAnyOp, kPlaceParts>)},
      {"plait_long_chain_fp32_sum", made_of(long_chain<f32, kSum, kReduceParts>)},
      {"plait_long_chain_uint8_any", made_of(long_chain<u8, kAnyOp, kReduceParts>)},
      {"plait_long_chain_uint8_place", made_of(long_chain<u8, kAnyOp, kPlaceParts>)},
      {"plait_long_chain_uint32_place", made_of(long_chain<u32, kAnyOp, kPlaceParts>)},
      {"plait_tiled_fp32_sum_2", made_of(tiled_on_host<f32, kSum, 2>)},
      {"plait_tiled_fp32_sum_4", made_of(tiled_on_host<f32, kSum, 4>)},
      {"plait_tiled_fp32_any_0", made_of(tiled_on_host<f32, kAnyOp, 0>)},
      {"plait_tiled_uint8_any_0", made_of(tiled_on_host<u8, kAnyOp, 0>)},
      {"plait_tiled_uint32_any_0", made_of(tiled_on_host<u32, kAnyOp, 0>)},
  };
  return all;
}

/// Adds the kernels of trees of a type, and of sums over 2 ranks and by tiles, in which a tree is
/// an argument.
template <DataType kType>
void add_sums(std::map<std::string, Maker>& all, const std::string& type) {
  const auto add_shots = [&](const std::string& end, auto op, auto ranks) {
    constexpr int kOp = decltype(op)::value, kRanks = decltype(ranks)::value;
    const std::string behind = "_" + type + end + std::to_string(kRanks) + "_nan_sentinel";
    all["plait_one_shot" + behind] = made_of(one_shot<kType, kOp, kRanks, NanSentinelPacket>);
    all["plait_two_shot" + behind] = made_of(two_shot<kType, kOp, kRanks, NanSentinelPacket>);
    all["plait_long_two_shot" + behind] =
        made_of(long_two_shot<kType, kOp, kRanks, NanSentinelPacket>);
    if constexpr (kRanks > 2)
      all["plait_two_shot_to_root" + behind] =
          made_of(two_shot_to_root<kType, kOp, kRanks, NanSentinelPacket>);
    all["plait_tiled_" + type + (kRanks == 0 ? "_any_" : "_sum_") + std::to_string(kRanks)] =
        made_of(tiled_on_host<kType, kRanks == 0 ? kAnyOp : kSum, kRanks>);
  };
  add_shots("_sum_", std::integral_constant<int, kSum>{}, std::integral_constant<int, 2>{});
  add_shots("_tree_", std::integral_constant<int, kTreeSum>{}, std::integral_constant<int, 4>{});
  add_shots("_tree_", std::integral_constant<int, kTreeSum>{}, std::integral_constant<int, 8>{});
  add_shots("_tree_", std::integral_constant<int, kTreeSum>{}, std::integral_constant<int, 0>{});
  const auto add_direct = [&](const std::string& kind, auto op) {
    constexpr int kOp = decltype(op)::value;
    all["plait_direct_ll_" + type + kind] = made_of(direct_ll<kType, kOp, kReduceParts>);
    all["plait_short_direct_ll_" + type + kind + "_4"] =
        made_of(short_direct_ll<kType, kOp, kReduceParts, 4>);
    all["plait_short_direct_ll_" + type + kind + "_8"] =
        made_of(short_direct_ll<kType, kOp, kReduceParts, 8>);
  };
  add_direct("_sum", std::integral_constant<int, kSum>{});
  add_direct("_tree", std::integral_constant<int, kTreeSum>{});
  all["plait_direct_ll_" + type + "_anytree"] = made_of(direct_ll<kType, kTreeAny, kReduceParts>);
}

/// Kernels of sums of fp32 and bf16 in trees, for 2, 4, 8 and 16 ranks.
const std::map<std::string, Maker>& sum_kernels() {
  static const std::map<std::string, Maker> all = [] {
    std::map<std::string, Maker> made;
    add_sums<DataType::fp32>(made, "fp32");
    add_sums<DataType::bf16>(made, "bf16");
    return made;
  }();
  return all;
}

/// Returns null if the test has no such kernel.
const Maker* maker_of(const std::string& kernel) {
  for (const auto* const all : {&kernels(), &sum_kernels()})
    if (const auto found = all->find(kernel); found != all->end()) return &found->second;
  return nullptr;
}

/// Launches that a rank has put on the rank's stream.
struct Launched {
  std::string kernel;
  unsigned blocks, threads;
  Body body;
};

/// Memory of all ranks, as mapped by each rank.
struct Gpus {
  explicit Gpus(const Group& all) : group(all), header(arena_contents().flags, all.sizes) {
    for (int rank = 0; rank < group.ranks; ++rank) {
      headers.emplace_back(header.bytes() / 16 + 1, ulonglong2{0, 0});
      stop_pages.push_back(std::make_unique<StopPage>());
      streams_failed.push_back(std::make_unique<std::atomic<bool>>(false));
      flag_packets.emplace_back(group.sizes[kFlagPackets] / 8, ulonglong2{0, 0});
      sentinel_packets.emplace_back(group.sizes[kSentinelPackets] / 8, ulonglong2{~0ull, ~0ull});
      tiles.emplace_back(group.sizes[kTileMemory] / 16, ulonglong2{0, 0});
    }
  }
  const Group& group;
  const HeaderLayout header;
  std::uint64_t wait_ns = 60'000'000'000;  ///< deadline of calls that are prepared from now on
  std::vector<std::unique_ptr<StopPage>> stop_pages;
  std::vector<std::unique_ptr<std::atomic<bool>>> streams_failed;
  std::vector<Words> headers, flag_packets, sentinel_packets, tiles;
};

/// A rank as its engines see it.
class HostRank : public EngineRank {
 public:
  HostRank(Gpus& gpus, cuda::Kernels& found, int rank)
      : gpus_(gpus), kernels_(found), rank_(rank) {}

  int rank() const override { return rank_; }
  const Group& group() const override { return gpus_.group; }
  cuda::Kernels& kernels() override { return kernels_; }
  char* at(const FlagsRow& row, int owner) const override {
    return reinterpret_cast<char*>(gpus_.headers[index(owner)].data()) + gpus_.header.at(row);
  }
  const std::uint32_t* poisoned(const ArenaPart&) const override { return nullptr; }
  char* at(const ArenaPart& part, int owner) const override {
    Words& found = &part == &kFlagPackets       ? gpus_.flag_packets[index(owner)]
                   : &part == &kSentinelPackets ? gpus_.sentinel_packets[index(owner)]
                                                : gpus_.tiles[index(owner)];
    return reinterpret_cast<char*>(found.data());
  }
  EngineQueue& queue() override { no_copy_engines(); }
  const EnginePath& engine_path() const override { no_copy_engines(); }
  Event fork() const override { no_copy_engines(); }
  bool reserve_long_inbox(Stream) override { no_copy_engines(); }
  void end_long_inbox() override { no_copy_engines(); }
  AgreedShare& agreed_share() override { no_copy_engines(); }
  bool is_capturing(Stream) const override { return false; }
  void fill_call(CallArgs& args, const Request& request) const override {
    args.state = reinterpret_cast<DeviceState*>(gpus_.headers[index(rank_)].data());
    args.stop_page = gpus_.stop_pages[index(rank_)].get();
    args.wait_ns = gpus_.wait_ns;
    set_scalars(args, {});
    args.rank = rank_;
    args.ranks = request.ranks;
    set_reduction(args, request, gpus_.group.sum_order);
    args.behind_bus = 0;
  }

 private:
  static std::size_t index(int rank) { return static_cast<std::size_t>(rank); }
  [[noreturn]] static void no_copy_engines() {
    throw std::logic_error("an engine of kernels asks for copy engines");
  }
  Gpus& gpus_;
  cuda::Kernels& kernels_;
  const int rank_;
};

/// Arena for a small message at once and for a larger message in pieces, on a GPU with few SMs.
Group group_of(int ranks) {
  Group group;
  group.ranks = ranks;
  group.multiprocessors = 4;
  group.sizes[kFlagPackets] = group.sizes[kSentinelPackets] = 16 << 10;
  group.sizes[kTileMemory] = tile_slots(ranks, 4) * 2 * kSlotGrainBytes;
  group.sizes.divide(kTileMemory, 4);
  return group;
}

/// A call of all ranks; in place the smaller buffer lies inside the larger buffer, as in NCCL.
struct Call {
  /// Without inputs, and without expected results.
  Call(const Request& what, bool in_its_place) : request(what), in_place(in_its_place) {
    for (int rank = 0; rank < request.ranks; ++rank) {
      inputs.emplace_back(input_bytes(request, rank) / 16 + 2, kPoison);
      outputs.emplace_back(output_bytes(request, rank) / 16 + 2, kPoison);
      expected.emplace_back(output_bytes(request, rank));
    }
  }
  Call(const Request& what, const Plan& plan, bool in_its_place, std::uint64_t seed)
      : Call(what, in_its_place) {
    const Inputs random = random_inputs(request, seed);
    expected = ReferenceExecutor(plan).run(random);
    for (std::size_t rank = 0; rank < inputs.size(); ++rank)
      std::copy(random.bytes[rank].begin(), random.bytes[rank].end(),
                reinterpret_cast<std::byte*>(input(rank)));
  }
  std::uint64_t in_bytes(std::size_t rank) const {
    return input_bytes(request, static_cast<int>(rank));
  }
  std::uint64_t out_bytes(std::size_t rank) const {
    return output_bytes(request, static_cast<int>(rank));
  }
  char* input(std::size_t rank) {
    if (!in_place || out_bytes(rank) <= in_bytes(rank))
      return reinterpret_cast<char*>(inputs[rank].data());
    return reinterpret_cast<char*>(outputs[rank].data()) + rank * in_bytes(rank);
  }
  char* output(std::size_t rank) {
    if (!in_place || out_bytes(rank) > in_bytes(rank))
      return reinterpret_cast<char*>(outputs[rank].data());
    return input(rank) + (out_bytes(rank) < in_bytes(rank) ? rank * out_bytes(rank) : 0);
  }
  bool is_right(std::size_t rank) {
    if (out_bytes(rank) == 0) return true;
    return std::memcmp(output(rank), expected[rank].data(), out_bytes(rank)) == 0;
  }

  static constexpr ulonglong2 kPoison{0xa5a5a5a5a5a5a5a5, 0xa5a5a5a5a5a5a5a5};
  const Request request;
  const bool in_place;
  std::vector<Words> inputs, outputs;  // By rank.
  std::vector<Bytes> expected;
};

/// All ranks of an engine with prepared calls.
class Launches {
 public:
  Launches(const Engine& engine, const Group& group, const Tuning& tuning)
      : engine_(engine), tuning_(tuning), gpus_(group) {
    for (int rank = 0; rank < group.ranks; ++rank)
      ranks_.push_back(std::make_unique<HostRank>(gpus_, kernels_, rank));
  }
  void prepare(const Request& request) {
    ready_.clear();
    for (const auto& rank : ranks_) ready_.push_back(engine_.prepare(request, tuning_, *rank));
  }
  /// The launches of calls in a row, by rank: a program that may be played again, as a graph is.
  using Recorded = std::vector<std::vector<Launched>>;
  Recorded record(const std::vector<Call*>& calls) {
    Recorded queues(ranks_.size());
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      const Noted noted([&, rank](const std::string& kernel, unsigned blocks, unsigned threads,
                                  const void* arguments) {
        const Maker* const found = maker_of(kernel);
        if (found == nullptr) throw std::logic_error(kernel + " is not among the kernels");
        queues[rank].push_back({kernel, blocks, threads, (*found)(arguments)});
      });
      for (Call* const call : calls)
        ready_[rank]->enqueue({call->input(rank), call->output(rank), {}}, nullptr);
    }
    return queues;
  }
  /// Runs every rank's launches without a wait in between. Throws if a stream has failed: its
  /// results are no one's.
  void play(const Recorded& queues) {
    std::vector<std::thread> streams;
    for (std::size_t rank = 0; rank < queues.size(); ++rank)
      streams.emplace_back([&, rank] {
        for (const Launched& one : queues[rank]) emulate(one, gpus_.streams_failed[rank].get());
      });
    for (std::thread& stream : streams) stream.join();
    if (const std::string failed = failures(); !failed.empty()) throw std::runtime_error(failed);
  }
  /// The time after which a prepared call gives up.
  void set_deadline(std::chrono::nanoseconds wait) {
    gpus_.wait_ns = static_cast<std::uint64_t>(wait.count());
  }

 private:
  /// Redirects launches to a function during the object's life.
  struct Noted {
    explicit Noted(std::function<void(const std::string&, unsigned, unsigned, const void*)> by) {
      fake_cuda().on_launch = std::move(by);
    }
    ~Noted() { fake_cuda().on_launch = nullptr; }
    Noted(const Noted&) = delete;
    Noted& operator=(const Noted&) = delete;
  };
  void emulate(const Launched& one, std::atomic<bool>* failed) const {
    if (one.kernel.rfind("plait_tiled", 0) == 0)
      return launch(tiled_grid(one.blocks, gpus_.group.ranks, failed), one.body);
    launch({one.blocks, one.threads, {32}, failed}, one.body);
  }
  /// Returns the failed streams with the wait that each rank gave up; empty = none.
  std::string failures() const {
    std::string all;
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      const KernelFault& fault = gpus_.stop_pages[rank]->fault;
      if (!*gpus_.streams_failed[rank] && fault.code == kNoFault) continue;
      all += text("rank {} gave up its wait for rank {} after {} ms (fault {}). ", rank,
                  fault.peer, gpus_.wait_ns / 1'000'000, fault.code);
    }
    return all;
  }

  const Engine& engine_;
  const Tuning tuning_;
  cuda::Kernels kernels_;
  Gpus gpus_;
  std::vector<std::unique_ptr<HostRank>> ranks_;
  std::vector<std::unique_ptr<PreparedCall>> ready_;
};

/// Runs out of place, in place, and out of place again, if the request is in the sample or uses a
/// kernel that has not run. Returns whether the request ran.
bool check_request(Launches& launches, const Topology& topology, const Request& request,
                   bool is_sampled, std::set<std::string>& ran) {
  const Plan plan = propose_one(topology, checked(request, topology), "direct");
  launches.prepare(request);
  std::uint64_t seed = request.count;
  std::vector<std::unique_ptr<Call>> calls;
  std::vector<Call*> in_a_row;
  for (const bool in_place : {false, true, false}) {
    if (in_place && !goes_in_place(request.collective)) continue;
    calls.push_back(std::make_unique<Call>(request, plan, in_place, ++seed));
    in_a_row.push_back(calls.back().get());
  }
  const Launches::Recorded recorded = launches.record(in_a_row);
  bool is_new = false;
  for (const Launched& one : recorded[0]) is_new = is_new || !ran.contains(one.kernel);
  if (!is_sampled && !is_new) return false;
  launches.play(recorded);
  for (const Launched& one : recorded[0]) ran.insert(one.kernel);
  for (Call* const call : in_a_row)
    for (std::size_t rank = 0; rank < call->outputs.size(); ++rank) {
      CAPTURE(text("{} of {} {} over {} ranks, root {}{}, rank {}", name_of(request.collective),
                   request.count, name_of(request.type), request.ranks, request.root,
                   call->in_place ? ", in place" : "", rank));
      CHECK(call->is_right(rank));
    }
  return true;
}

/// Short requests and some that need pieces, of both types, with either end as the root. Chains and
/// two_shot take the longest of these at once, hence get a longer request.
std::vector<Request> requests_of(Collective collective, int ranks, std::uint64_t longest = 0) {
  std::vector<Request> all;
  for (const DataType type : {DataType::fp32, DataType::uint8})
    for (const std::uint64_t bytes :
         {type == DataType::fp32 ? std::uint64_t{4} : 516, std::uint64_t{9004}, longest}) {
      if (bytes == 0) continue;
      Request request;
      request.collective = collective;
      request.ranks = ranks;
      request.type = type;
      request.count = bytes / plait::bytes_of(type);
      request.root = all.size() % 2 == 0 ? 0 : ranks - 1;
      request.peer = (request.root + 1) % ranks;
      all.push_back(request);
    }
  return all;
}

std::uint64_t longest_of(const std::string& engine) {
  return engine == "ll_chain" ? 26004 : engine == "two_shot" ? 60004 : 0;
}

/// Few blocks and threads, since a host has few cores.
std::vector<std::pair<std::string, Tuning>> engine_tunings() {
  std::vector<std::pair<std::string, Tuning>> all;
  for (const char* const name : {"one_shot", "two_shot", "direct_ll", "ll_chain"}) {
    Tuning tuning;
    tuning.blocks = 2;
    tuning.threads = 32;
    all.emplace_back(name, tuning);
  }
  Tuning tuning;
  tuning.blocks = 2;
  all.emplace_back("tiled", tuning);
  tuning.piece_kib = 1;  // As sums of two ranks, with targets in turn.
  tuning.shift = 1;
  tuning.order = kQuadratic;
  all.emplace_back("tiled", tuning);
  return all;
}

}  // namespace

TEST_CASE("prepared launches of engines give the reference's bits with several buffers" *
          doctest::skip(kLooksForRaces)) {
  fake_cuda().gpu = FakeGpu{};
  const Topology topology = load_topology("hgx-h200");
  std::set<std::string> ran;
  int calls = 0;
  plait_test::Sample is_next_taken;
  for (const auto& [name, tuning] : engine_tunings())
    for (const int ranks : {2, 3, 4}) {
      const Group group = group_of(ranks);
      const Engine& engine = *engine_named(name, requests_of(Collective::all_reduce, 2)[0]);
      Launches launches(engine, group, tuning);
      for (const Collective collective : engine.info().collectives)
        for (const Request& request : requests_of(collective, ranks, longest_of(name))) {
          if (!why_not(engine, request, tuning, group).empty()) continue;
          if (tuning.piece_kib != 0 && !reduces(collective)) continue;
          calls += check_request(launches, topology, request, is_next_taken(), ran) ? 1 : 0;
        }
    }
  MESSAGE(calls << " requests, " << ran.size() << " kernels");
  for (const auto& [kernel, body] : kernels()) {
    CAPTURE(kernel);
    CHECK(ran.contains(kernel));
  }
}

TEST_CASE("a rank that never comes fails the streams of all others, and no result counts" *
          doctest::skip(kLooksForRaces)) {
  fake_cuda().gpu = FakeGpu{};
  for (const auto& [name, tuning] : engine_tunings())
    for (const int ranks : {2, 4, 16}) {
      const Group group = group_of(ranks);
      Request request = requests_of(Collective::all_reduce, ranks)[0];
      request.count = 300;
      const Engine& engine = *engine_named(name, request);
      if (!why_not(engine, request, tuning, group).empty()) continue;
      Launches launches(engine, group, tuning);
      launches.set_deadline(std::chrono::milliseconds(50));
      launches.prepare(request);
      Call call(request, false);
      Launches::Recorded recorded = launches.record({&call});
      const int absent = ranks - 1;
      recorded.back().clear();
      std::string said;
      try {
        launches.play(recorded);
      } catch (const std::runtime_error& error) {
        said = error.what();
      }
      CAPTURE(text("{} over {} ranks: {}", name, ranks, said));
      CHECK(said.find(text("wait for rank {} ", absent)) != said.npos);
      for (int rank = 0; rank < absent; ++rank)
        CHECK(said.find(text("rank {} gave up", rank)) != said.npos);
    }
}

namespace {

// A reference of this test's own, which shares no code with the library.

float up(std::uint16_t code) { return std::bit_cast<float>(std::uint32_t{code} << 16); }
/// Rounds a number to bf16, ties to even.
std::uint16_t down(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
float rounded(float value, DataType type) {
  return type == DataType::bf16 ? up(down(value)) : value;
}

/// Sums parts [first, first + count) in a tree. rounds: each sum is rounded to the type.
float tree_of(const std::vector<float>& parts, std::size_t first, std::size_t count, DataType type,
              bool rounds) {
  if (count == 1) return parts[first];
  const float left = tree_of(parts, first, count / 2, type, rounds);
  const float right = tree_of(parts, first + count / 2, count / 2, type, rounds);
  return rounds ? rounded(left + right, type) : left + right;
}

float element(const char* buffer, std::uint64_t at, DataType type) {
  if (type == DataType::bf16) {
    std::uint16_t code;
    std::memcpy(&code, buffer + 2 * at, 2);
    return up(code);
  }
  float value;
  std::memcpy(&value, buffer + 4 * at, 4);
  return value;
}

/// Numbers of both signs and many sizes: most orders of a sum give most sums other bits.
void fill(Call& call, std::mt19937& random) {
  std::normal_distribution<float> normal;
  const bool is_bf16 = call.request.type == DataType::bf16;
  for (std::size_t rank = 0; rank < call.inputs.size(); ++rank) {
    char* const at = call.input(rank);
    for (std::uint64_t i = 0; i < call.in_bytes(rank) / (is_bf16 ? 2 : 4); ++i) {
      const float value = std::ldexp(normal(random), static_cast<int>(random() % 12));
      const std::uint16_t code = down(value);
      std::memcpy(at + i * (is_bf16 ? 2 : 4), is_bf16 ? static_cast<const void*>(&code) : &value,
                  is_bf16 ? 2 : 4);
    }
  }
}

/// Replaces the expected results by trees over the inputs as they are.
void expect_trees(Call& call, SumOrder order) {
  const Request& request = call.request;
  const auto ranks = static_cast<std::size_t>(request.ranks);
  const float factor = request.op == ReduceOp::avg ? 1.0f / static_cast<float>(ranks) : 1.0f;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const std::uint64_t bytes = request.type == DataType::bf16 ? 2 : 4;
    const std::uint64_t own =
        request.collective == Collective::reduce_scatter ? call.out_bytes(rank) / bytes * rank : 0;
    for (std::uint64_t i = 0; i < call.out_bytes(rank) / bytes; ++i) {
      std::vector<float> parts;
      for (std::size_t from = 0; from < ranks; ++from)
        parts.push_back(element(call.input(from), own + i, request.type));
      const float sum =
          factor * tree_of(parts, 0, ranks, request.type, order == SumOrder::tree_rounded);
      const std::uint16_t code = down(sum);
      std::memcpy(call.expected[rank].data() + i * bytes,
                  bytes == 2 ? static_cast<const void*>(&code) : &sum, bytes);
    }
  }
}

Request random_sum(const Engine& engine, int ranks, std::mt19937& random) {
  Request request;
  const std::vector<Collective>& served = engine.info().collectives;
  do request.collective = served[random() % served.size()];
  while (!reduces(request.collective));
  request.op = random() % 4 == 0 ? ReduceOp::avg : ReduceOp::sum;
  request.type = random() % 2 == 0 ? DataType::fp32 : DataType::bf16;
  request.ranks = ranks;
  request.root = static_cast<int>(random() % static_cast<unsigned>(ranks));
  const bool is_long = engine.info().name == "two_shot" && ranks <= 8 && random() % 16 == 0;
  request.count =
      is_long ? 60004 / bytes_of(request.type) : 1 + random() % (random() % 4 == 0 ? 4000 : 300);
  return request;
}

}  // namespace

TEST_CASE("random sums in trees have the bits of a reference of their own, eager and replayed" *
          doctest::skip(kLooksForRaces)) {
  fake_cuda().gpu = FakeGpu{};
  std::mt19937 random(58);
  std::set<std::string> ran;
  int calls = 0;
  const auto tunings = engine_tunings();
  while (calls < rounds(10000)) {
    const int ranks = random() % 64 == 0 ? 16 : 2 << random() % 3;
    Group group = group_of(ranks);
    if (ranks > 4) group.sizes[kSentinelPackets] = 64 << 10;
    group.sum_order = random() % 2 == 0 ? SumOrder::tree : SumOrder::tree_rounded;
    auto [name, tuning] = tunings[random() % tunings.size()];
    if (ranks == 16) tuning.blocks = 1;
    const Engine& engine = *engine_named(name, requests_of(Collective::all_reduce, 2)[0]);
    const Request request = random_sum(engine, ranks, random);
    if (!why_not(engine, request, tuning, group).empty()) continue;
    Launches launches(engine, group, tuning);
    launches.prepare(request);
    std::vector<std::unique_ptr<Call>> made;
    std::vector<Call*> in_a_row;
    for (int i = 0; i < 3; ++i) {
      const bool in_place = i == 1 && goes_in_place(request.collective);
      made.push_back(std::make_unique<Call>(request, in_place));
      in_a_row.push_back(made.back().get());
    }
    const Launches::Recorded recorded = launches.record(in_a_row);
    for (const Launched& one : recorded[0]) ran.insert(one.kernel);
    for (const bool is_replay : {false, true}) {
      for (Call* const call : in_a_row) {
        fill(*call, random);
        expect_trees(*call, group.sum_order);
      }
      launches.play(recorded);
      for (Call* const call : in_a_row) {
        ++calls;
        for (std::size_t rank = 0; rank < call->outputs.size(); ++rank) {
          CAPTURE(text("{}: {} ({}) of {} {} over {} ranks, {}, root {}{}{}, rank {}", name,
                       name_of(request.collective), name_of(request.op), request.count,
                       name_of(request.type), ranks, name_of(group.sum_order), request.root,
                       call->in_place ? ", in place" : "", is_replay ? ", replayed" : "", rank));
          CHECK(call->is_right(rank));
        }
      }
    }
  }
  MESSAGE(calls << " calls, " << ran.size() << " kernels");
  if (calls < 3000) return;  // a sample of the cases
  for (const auto& [kernel, body] : sum_kernels()) {
    CAPTURE(kernel);
    const bool is_tree = kernel.find("_tree") != kernel.npos;
    const bool is_rare =
        kernel.find("_tree_0") != kernel.npos || kernel.rfind("plait_long_two_shot", 0) == 0;
    CHECK((ran.contains(kernel) || !is_tree || is_rare));
  }
}
