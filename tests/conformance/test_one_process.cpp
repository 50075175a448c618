// Copies of a single process on an emulated driver: with streams in any order, and with a single
// hardware queue, outputs are right, consecutive calls do not collide in shared memory, and nothing
// is left behind.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <memory>

#include "fake_cuda/fake_driver.hpp"
#include "gpu/copy_pair/one_process.hpp"
#include "plait/error.hpp"
#include "plait/plan.hpp"
#include "plait/report.hpp"
#include "unit/scale.hpp"

using namespace plait;
using namespace plait_test;
using plait::cuda::CopyBuffers;
using plait::cuda::CopyStep;
using plait::cuda::OneProcess;

namespace {

using Params = std::map<std::string, std::int64_t>;
constexpr std::size_t kGuard = 64;  // bytes around each output that must not change

Request request_of(const Topology& topology, std::uint64_t bytes, Collective collective) {
  Request request;
  request.collective = collective;
  request.type = DataType::uint8;
  request.count = bytes;
  request.ranks = 2;
  request.peer = 1;
  return checked(request, topology);
}

std::vector<int> ordinals_of(const Plan& plan) {
  std::vector<int> ordinals = plan.request.devices;  // on hgx-h200 the GPUs come first
  ordinals.insert(ordinals.end(), plan.relay_devices.begin(), plan.relay_devices.end());
  return ordinals;
}

/// The buffers and streams of the two ranks in a row of calls.
struct CopyBench {
  CopyBench() {
    FakeMachine::now().reset();
    api = fake_api();
    node = std::make_unique<OneProcess>(api);
  }
  void add_streams(const std::vector<int>& ordinals) {
    streams.clear();
    for (const int ordinal : ordinals)
      streams.push_back(FakeMachine::now().stream_of(
          reinterpret_cast<cuda::Context>(static_cast<std::uintptr_t>(0x100 + ordinal))));
  }
  cuda::Api api;
  std::unique_ptr<OneProcess> node;
  std::vector<cuda::Stream> streams;
};

struct CaseBuffers {
  std::vector<std::vector<char>> inputs, outputs, expected;
  explicit CaseBuffers(const Plan& plan, unsigned seed) {
    std::mt19937 random(seed);
    const std::size_t bytes = plan.request.count;
    const bool both = plan.request.collective == Collective::send_recv;
    for (int rank = 0; rank < 2; ++rank) {
      inputs.emplace_back(bytes);
      for (char& one : inputs.back()) one = static_cast<char>(random());
      outputs.emplace_back((both || rank == 1 ? bytes : 0) + 2 * kGuard, char(0x5a));
    }
    for (int rank = 0; rank < 2; ++rank) {
      expected.push_back(outputs[static_cast<std::size_t>(rank)]);
      if (both || rank == 1)
        std::copy(inputs[static_cast<std::size_t>(1 - rank)].begin(),
                  inputs[static_cast<std::size_t>(1 - rank)].end(),
                  expected.back().begin() + kGuard);
    }
  }
  std::vector<CopyBuffers> ranks(const std::vector<cuda::Stream>& streams) {
    std::vector<CopyBuffers> made;
    for (std::size_t rank = 0; rank < 2; ++rank)
      made.push_back({inputs[rank].data(), outputs[rank].data() + kGuard, streams[rank]});
    return made;
  }
  /// The caller reuses the input at once, on the caller's stream.
  void spoil_inputs(const std::vector<cuda::Stream>& streams) {
    for (std::size_t rank = 0; rank < 2; ++rank)
      FakeMachine::now().put(streams[rank], {FakeWork::TaskKind::fill, inputs[rank].data(), nullptr,
                                             inputs[rank].size(), 0x77, nullptr, 0, 0});
  }
};

struct CopyCase {
  std::vector<std::string> masks;
  Params params;
};
const std::vector<CopyCase> kCases{
    {{}, {}},
    {{}, {{"host_permille", 300}, {"chunk_kib", 4}}},
    {{}, {{"batch", 1}}},
    {{}, {{"host_permille", 100}, {"chunk_kib", 4}, {"batch", 1}}},
    {{}, {{"host_permille", 200}, {"relay_permille", 300}, {"relay", 3}, {"chunk_kib", 4}}},
    {{"nvlink:0-1"}, {}},
    {{"nvlink:0-1"}, {{"relay_permille", 1000}, {"chunk_kib", 4}}},
    {{"nvlink:0-1"}, {{"relay_permille", 700}, {"host_permille", 300}, {"chunk_kib", 4}}},
    {{"nvlink:0-1"}, {{"host_permille", 1000}, {"chunk_kib", 8}}},
};

std::vector<Plan> plans_of(const CopyCase& one, Collective collective) {
  const Topology topology = without(load_topology("hgx-h200"), one.masks);
  std::vector<Plan> plans;
  for (const std::uint64_t bytes : {1ULL, 4096ULL, 150'001ULL, 400'000ULL}) {
    plans.push_back(
        propose_one(topology, request_of(topology, bytes, collective), "striped", one.params));
    const Report report = verify(plans.back());
    if (!report.proved()) FAIL_CHECK(label(plans.back()), ": ", print(report));
  }
  return plans;
}

}  // namespace

TEST_CASE("one process: right in any order of streams, and through one hardware queue" *
          doctest::skip(kLooksForRaces)) {
  const auto seeds = static_cast<unsigned>(std::max(2, plait_test::rounds(6)));
  for (const CopyCase& one : kCases)
    for (const Collective collective : {Collective::copy, Collective::send_recv}) {
      const std::vector<Plan> plans = plans_of(one, collective);
      for (unsigned seed = 0; seed < seeds; ++seed) {
        CopyBench bench;
        bench.add_streams(plans[0].request.devices);
        std::vector<std::unique_ptr<CaseBuffers>> all;
        for (std::size_t call = 0; call < 2 * plans.size(); ++call) {
          const Plan& plan = plans[(call * 3 + seed) % plans.size()];
          const auto bound = bench.node->bind(plan, ordinals_of(plan));
          // Every other call comes on streams that are not ordered after the call before.
          if (call % 2 == 1) bench.add_streams(plan.request.devices);
          all.push_back(
              std::make_unique<CaseBuffers>(plan, seed * 100 + static_cast<unsigned>(call)));
          bench.node->run(bound, all.back()->ranks(bench.streams));
          all.back()->spoil_inputs(bench.streams);
        }
        if (seed == 0)
          FakeMachine::now().run_in_order();
        else
          FakeMachine::now().run_by_chance(seed);
        for (const auto& buffers : all) CHECK(buffers->outputs == buffers->expected);
        if (!FakeMachine::now().faults.empty()) {
          CAPTURE(label(plans[2]));
          CAPTURE(seed);
          FAIL_CHECK(FakeMachine::now().faults.front());
        }
        CHECK(FakeMachine::now().contexts.empty());
      }
    }
}

TEST_CASE("one process: GPUs do not address each other where NCCL was told so") {
  const Plan plan = plans_of(kCases[0], Collective::copy)[1];
  for (const bool forbidden : {false, true}) {
    static int enabled;
    enabled = 0;
    CopyBench bench;
    bench.api.context_enable_peer = [](cuda::Context, unsigned) {
      return ++enabled, cuda::kSuccess;
    };
    bench.add_streams(plan.request.devices);
    setenv("NCCL_P2P_DISABLE", forbidden ? "1" : "0", 1);
    const auto bound = bench.node->bind(plan, ordinals_of(plan));
    unsetenv("NCCL_P2P_DISABLE");
    CaseBuffers buffers(plan, 1);
    bench.node->run(bound, buffers.ranks(bench.streams));
    FakeMachine::now().run_by_chance(3);
    CHECK(buffers.outputs == buffers.expected);  // the driver stages the rest
    CHECK((enabled == 0) == forbidden);
  }
}

TEST_CASE("one process: nothing is left behind") {
  const std::vector<Plan> plans = plans_of(kCases[7], Collective::send_recv);
  CopyBench bench;
  bench.add_streams(plans[0].request.devices);
  const std::size_t callers = FakeMachine::now().queues.size();
  for (const Plan& plan : plans) {
    CaseBuffers buffers(plan, 1);
    const auto bound = bench.node->bind(plan, ordinals_of(plan));
    bench.node->run(bound, buffers.ranks(bench.streams));
    FakeMachine::now().run_by_chance(3);
    CHECK(buffers.outputs == buffers.expected);
  }
  CHECK_FALSE(FakeMachine::now().allocated.empty());
  CHECK_FALSE(FakeMachine::now().pinned.empty());
  bench.node.reset();
  CHECK(FakeMachine::now().allocated.empty());
  CHECK(FakeMachine::now().pinned.empty());
  CHECK(FakeMachine::now().event_owner.empty());
  CHECK(FakeMachine::now().queues.size() == callers);
  CHECK(FakeMachine::now().retained == 0);
}

TEST_CASE(
    "one process: a small copy is one copy and two events; a large one starts the link first") {
  const Topology topology = load_topology("hgx-h200");
  const auto plan_for = [&](std::uint64_t bytes) {
    return propose_one(topology, request_of(topology, bytes, Collective::copy), "striped");
  };
  CopyBench bench;
  const Plan small = plan_for(1000);
  bench.add_streams(small.request.devices);
  CaseBuffers buffers(small, 1);
  bench.node->run(bench.node->bind(small, {0, 1}), buffers.ranks(bench.streams));
  CHECK(FakeMachine::now().calls ==
        std::vector<std::string>{"record", "wait", "copy", "record", "wait"});
  const cuda::CopySteps steps = cuda::order_copies(plan_for(1ULL << 30));
  CHECK(steps.borrows);
  std::vector<std::size_t> recorded(steps.event_lanes.size(), 0);
  std::uint64_t copies = 0;
  for (const CopyStep& step : steps.steps) {
    if (step.kind == CopyStep::CopyStepKind::copy && copies++ == 0)
      CHECK(step.dst.bytes > 800u << 20);
    if (step.kind == CopyStep::CopyStepKind::record) {
      CHECK(steps.event_lanes[step.event] == step.lane);
      ++recorded[step.event];
    }
    if (step.kind == CopyStep::CopyStepKind::wait) CHECK(recorded[step.event] == 1);
  }
  CHECK(copies > 20);
}

TEST_CASE(
    "one process: copies over a link go as one batch, but through host memory and on the "
    "legacy stream") {
  const auto calls = [](const Params& params, std::uint64_t bytes, bool is_legacy) {
    const Topology topology = load_topology("hgx-h200");
    const Plan plan =
        propose_one(topology, request_of(topology, bytes, Collective::copy), "striped", params);
    CopyBench bench;
    bench.add_streams(plan.request.devices);
    if (is_legacy) {
      FakeMachine::now().stream_owner[nullptr] = reinterpret_cast<cuda::Context>(0x100);
      bench.streams[0] = nullptr;
    }
    CaseBuffers buffers(plan, 1);
    bench.node->run(bench.node->bind(plan, {0, 1}), buffers.ranks(bench.streams));
    std::map<std::string, int> made;
    for (const std::string& call : FakeMachine::now().calls) ++made[call];
    FakeMachine::now().run_by_chance(1);
    CHECK(buffers.outputs == buffers.expected);
    CHECK(FakeMachine::now().faults == std::vector<std::string>{});
    return std::pair(made["batch"], made["copy"]);
  };
  CHECK(calls({{"batch", 1}}, 400'000, false) == std::pair(1, 0));
  CHECK(calls({{"batch", 1}}, 200'000, false) == std::pair(0, 1));  // too short to be cut
  CHECK(calls({{"batch", 1}}, 400'000, true) == std::pair(0, 1));
  CHECK(calls({}, 400'000, false) == std::pair(0, 1));
  const auto [batches, by_host] =
      calls({{"batch", 1}, {"host_permille", 100}, {"chunk_kib", 4}}, 400'000, false);
  CHECK(batches == 1);
  CHECK(by_host > 10);
}

TEST_CASE("one process: inside one GPU, and what is refused") {
  CopyBench bench;
  bench.add_streams({3, 3});
  std::vector<char> src(1000, 'x'), dst(1000, 'y');
  bench.node->copy_within(3, dst.data(), src.data(), 1000, bench.streams[0], bench.streams[1]);
  CHECK(FakeMachine::now().calls ==
        std::vector<std::string>{"record", "wait", "copy", "record", "wait"});
  bench.node->copy_within(3, dst.data(), src.data(), 500, bench.streams[0], bench.streams[0]);
  CHECK(FakeMachine::now().calls.size() == 6);
  FakeMachine::now().run_by_chance(1);
  CHECK(dst == src);
  CHECK(FakeMachine::now().faults == std::vector<std::string>{});

  const Plan plan = plans_of(kCases[1], Collective::copy)[2];
  bench.add_streams({0, 1});
  CaseBuffers buffers(plan, 1);
  const auto bound = bench.node->bind(plan, {0, 1});
  FakeMachine::now().capturing = true;
  CHECK_THROWS_WITH_AS(bench.node->run(bound, buffers.ranks(bench.streams)),
                       doctest::Contains("cannot be captured"), Error);
  FakeMachine::now().capturing = false;
  CHECK_THROWS_AS(bench.node->bind(plan, {0}), Error);
  Plan broken = plan;
  for (Lane& lane : broken.lanes)
    std::erase_if(lane.ops, [](const Op& op) { return op.kind == OpKind::signal; });
  CHECK_THROWS_WITH_AS(cuda::order_copies(broken), doctest::Contains("waits for ever"), Error);
  Request reduction = plan.request;
  reduction.collective = Collective::all_reduce;
  const Topology topology = load_topology("hgx-h200");
  CHECK_THROWS_WITH_AS(cuda::order_copies(propose_one(topology, reduction, "two_shot")),
                       doctest::Contains("cannot run as copies"), Error);
}

TEST_CASE("one process: one call at a time reports the times of its paths, without a wait") {
  for (const Collective collective : {Collective::copy, Collective::send_recv}) {
    const Plan plan = plans_of(kCases[1], collective).back();
    CopyBench bench;
    bench.add_streams({0, 1});
    CaseBuffers buffers(plan, 1);
    const auto bound = bench.node->bind(plan, {0, 1});
    CHECK(bound.senders.size() == (collective == Collective::copy ? 1 : 2));
    CHECK_FALSE(bench.node->times().has_value());
    const auto records = [&](bool is_timed) {
      FakeMachine::now().calls.clear();
      bench.node->run(bound, buffers.ranks(bench.streams), is_timed);
      const auto& calls = FakeMachine::now().calls;
      return std::count(calls.begin(), calls.end(), "record");
    };
    const auto plain = records(false);
    CHECK_FALSE(bench.node->times().has_value());
    CHECK(records(true) == plain + 2);  // records of ends replace others if a lane has its own
                                        // stream
    CHECK(records(true) == plain);      // the times of the call before are not known yet
    CHECK_FALSE(bench.node->times().has_value());
    FakeMachine::now().run_in_order();
    const auto times = bench.node->times();
    REQUIRE(times.has_value());
    const double link_ns = 4600.0 + 0.7 * 400'000 / 395.0;
    CHECK(times->direct_ns == doctest::Approx(link_ns).epsilon(0.02));
    CHECK(times->host_ns > 0.3 * 400'000 / 55.0 + 30 * 4600.0);  // in 4 KiB
    CHECK(times->host_ns < 0.3 * 400'000 / 55.0 + 2 * 32 * 4600.0);
    CHECK_FALSE(bench.node->times().has_value());
    CHECK(records(true) > plain);
    FakeMachine::now().run_by_chance(1);
    CHECK(bench.node->times().has_value());
    CHECK(FakeMachine::now().faults == std::vector<std::string>{});
    CHECK(buffers.outputs == buffers.expected);
  }
  const Plan direct = plans_of({{}, {{"host_permille", 0}}}, Collective::copy).back();
  CopyBench bench;
  CHECK(bench.node->bind(direct, {0, 1}).senders.empty());
}
