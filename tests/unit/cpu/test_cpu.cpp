// Tests of run_cpu with threads as ranks, on hand-written plans: results, reuse over calls,
// wrapping epochs, inbox halves, deadlines and aborts.
#include <doctest/doctest.h>

#include <atomic>
#include <functional>

#include "cpu/reference.hpp"
#include "plait/builder.hpp"
#include "plait/error.hpp"
#include "unit/cpu/helpers.hpp"
#include "unit/scale.hpp"

using namespace plait;
using namespace plait_test;

namespace {

Request all_reduce(int ranks, std::uint64_t count, DataType type, ReduceOp op) {
  Request request;
  request.count = count;
  request.type = type;
  request.op = op;
  request.ranks = ranks;
  for (int rank = 0; rank < ranks; ++rank) request.devices.push_back(rank);
  return request;
}

// Every rank pushes its input into every rank's inbox; each reduces in rank order.
Plan by_inbox(const Topology& topology, const Request& request) {
  Builder builder(topology, request, "by_inbox");
  const int n = request.ranks;
  const Range whole{0, input_bytes(request, 0)};
  std::vector<std::vector<Region>> slots(static_cast<std::size_t>(n));  // [owner][writer]
  std::vector<std::vector<Event>> events(static_cast<std::size_t>(n));
  for (std::size_t owner = 0; owner < slots.size(); ++owner)
    for (int writer = 0; writer < n; ++writer)
      slots[owner].push_back(builder.alloc(Space::inbox, static_cast<int>(owner), whole.bytes));
  for (int writer = 0; writer < n; ++writer)
    for (int step = 0; step < n; ++step) {
      const auto owner = static_cast<std::size_t>((writer + step) % n);
      const int lane = builder.lane(writer, LaneKind::cpu, "push");
      builder.copy(lane, slots[owner][static_cast<std::size_t>(writer)],
                   builder.input(writer, whole));
      events[owner].push_back(builder.signal(lane, static_cast<int>(owner)));
    }
  for (int rank = 0; rank < n; ++rank) {
    const int lane = builder.lane(rank, LaneKind::cpu, "sum");
    for (const Event& event : events[static_cast<std::size_t>(rank)]) builder.wait(lane, event);
    builder.reduce(lane, builder.output(rank, whole), slots[static_cast<std::size_t>(rank)]);
  }
  return builder.build();
}

// Rank 0 gathers through scratch and sums piece by piece, and all ranks pull the sum. All waits are
// for later ops in different lanes, and pieces reuse scratch.
Plan by_root(const Topology& topology, const Request& request, int pieces) {
  Builder builder(topology, request, "by_root");
  const int n = request.ranks;
  const Range whole{0, input_bytes(request, 0)};
  const auto ranges = partition(whole, pieces, 128);
  std::vector<Region> slots;
  for (int rank = 0; rank < n; ++rank)
    slots.push_back(builder.alloc(Space::scratch, 0, ranges[0].bytes));
  const Region sum = builder.alloc(Space::scratch, 0, ranges[0].bytes);
  std::vector<Event> free;
  const int main_lane = builder.lane(0, LaneKind::cpu, "sum");
  std::vector<Event> begun(static_cast<std::size_t>(n));
  for (int rank = 1; rank < n; ++rank)
    begun[static_cast<std::size_t>(rank)] = builder.signal(main_lane, rank);
  for (const Range& range : ranges) {
    std::vector<Event> sent, pulled;
    const Range part{0, range.bytes};
    builder.copy(main_lane, slice(slots[0], part), builder.input(0, range));
    for (int rank = 1; rank < n; ++rank) {
      const int lane = builder.lane(rank, LaneKind::cpu, "work");
      builder.wait(lane, begun[static_cast<std::size_t>(rank)]);
      builder.copy(lane, slice(slots[static_cast<std::size_t>(rank)], part),
                   builder.input(rank, range));
      sent.push_back(builder.signal(lane, 0));
    }
    std::vector<Region> srcs;
    for (const Region& slot : slots) srcs.push_back(slice(slot, part));
    for (const Event& event : sent) builder.wait(main_lane, event);
    builder.reduce(main_lane, slice(sum, part), srcs);
    builder.copy(main_lane, builder.output(0, range), slice(sum, part));
    for (int rank = 1; rank < n; ++rank) {
      const Event ready = builder.signal(main_lane, rank);
      const int lane = builder.lane(rank, LaneKind::cpu, "work");
      builder.wait(lane, ready);
      builder.copy(lane, builder.output(rank, range), slice(sum, part));
      pulled.push_back(builder.signal(lane, 0));
    }
    for (const Event& event : pulled) builder.wait(main_lane, event);
    for (int rank = 1; rank < n; ++rank)
      begun[static_cast<std::size_t>(rank)] = builder.signal(main_lane, rank);
  }
  return builder.build();
}

struct CpuJob {
  std::vector<Bytes> inputs, outputs;
  std::vector<const void*> in;
  std::vector<void*> out;
};

CpuJob job_of(const Request& request, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  CpuJob job;
  for (int rank = 0; rank < request.ranks; ++rank) {
    job.inputs.push_back(random_elements(random, request.type, request.count));
    job.outputs.emplace_back(job.inputs.back().size(), static_cast<std::byte>(seed));
  }
  for (Bytes& one : job.inputs) job.in.push_back(one.data());
  for (Bytes& one : job.outputs) job.out.push_back(one.data());
  return job;
}

// Runs `calls` calls in a row without barriers, and compares with the reference.
void check_calls(const Plan& plan, int calls, std::uint32_t first_epoch) {
  const int ranks = plan.request.ranks;
  std::vector<CpuJob> jobs, wanted;
  std::vector<double> scalars;
  for (int rank = 0; rank < ranks; ++rank) scalars.push_back(0.5 + rank);
  for (int call = 0; call < calls; ++call) {
    jobs.push_back(job_of(plan.request, static_cast<std::uint64_t>(call) + 1));
    wanted.push_back(job_of(plan.request, static_cast<std::uint64_t>(call) + 1));
    run_reference(plan, wanted.back().in, wanted.back().out, scalars);
  }
  HeapArenas heap(sizes_for(plan));
  heap.set_epoch(first_epoch);
  on_ranks(ranks, [&](int rank) {
    Calm calm;
    for (int call = 0; call < calls; ++call) {
      const auto at = static_cast<std::size_t>(rank);
      CpuJob& job = jobs[static_cast<std::size_t>(call)];
      CpuCall now{
          job.in[at], job.out[at],
          scalars,    first_epoch + epochs_per_call(plan) * static_cast<std::uint32_t>(call),
          call % 2,   in_ms(60000)};
      run_cpu(plan, rank, heap.arenas, now, calm);
    }
  });
  int differing = 0;
  for (std::size_t call = 0; call < jobs.size(); ++call)
    if (jobs[call].outputs != wanted[call].outputs) ++differing;
  CHECK(differing == 0);
}

std::string error_of(const std::function<void()>& body, ErrorCode code) {
  try {
    body();
  } catch (const Error& error) {
    CHECK(error.code() == code);
    return error.what();
  }
  return "no error";
}

}  // namespace

TEST_CASE("run_cpu: many calls in a row equal the reference, 1 to 8 ranks") {
  for (const int ranks : {1, 2, 3, 5, 8}) {
    const Topology topology = machine(ranks);
    check_calls(by_inbox(topology, all_reduce(ranks, 1001, DataType::bf16, ReduceOp::sum)),
                rounds(200), 0);
    check_calls(by_root(topology, all_reduce(ranks, 5003, DataType::fp32, ReduceOp::avg), 5),
                rounds(60), 0);
  }
}

TEST_CASE("run_cpu: premul_sum takes each rank's factor") {
  const Topology topology = machine(3);
  const Request request = all_reduce(3, 777, DataType::fp32, ReduceOp::premul_sum);
  check_calls(by_inbox(topology, request), 10, 0);
  Plan plan = by_root(topology, request, 3);
  plan.sum_order = SumOrder::algorithm_order;  // then the factors are found by following the copies
  check_calls(plan, 10, 0);
}

TEST_CASE("run_cpu: premul_sum scales a partial sum of a single rank once") {
  Plan plan = by_inbox(machine(1), all_reduce(1, 777, DataType::fp32, ReduceOp::premul_sum));
  Lane& lane = plan.lanes.back();
  Op partial = lane.ops.back();
  CHECK(partial.kind == OpKind::reduce);
  partial.finish = false;
  lane.ops.back().srcs = {partial.dst};
  lane.ops.insert(lane.ops.end() - 1, partial);
  check_calls(plan, 10, 0);
}

TEST_CASE("run_cpu: epochs that wrap, and words left behind") {
  const Topology topology = machine(2);
  const Plan plan = by_root(topology, all_reduce(2, 3000, DataType::int32, ReduceOp::sum), 4);
  check_calls(plan, 100, 0xffffffffu - 50);
  check_calls(plan, 100, 0x7fffffffu - 50);
  check_calls(plan, 100, 0x0fffffffu - 50);
}

TEST_CASE("run_cpu: a word that no plan raises for 2^31 epochs is brought up to date") {
  const Topology topology = machine(2);
  const Plan plan = by_inbox(topology, all_reduce(2, 16, DataType::int32, ReduceOp::sum));
  ArenaSizes sizes = sizes_for(plan);
  sizes.flags_per_pair = 3;  // the plan uses flag 0 only
  HeapArenas heap(sizes);
  const std::uint32_t epoch = (1u << 28) - 1;
  heap.set_epoch(5);
  CpuJob job = job_of(plan.request, 1);
  on_ranks(2, [&](int rank) {
    Calm calm;
    const auto at = static_cast<std::size_t>(rank);
    // Flag 0 counts all calls.
    run_cpu(plan, rank, heap.arenas, {job.in[at], job.out[at], {}, epoch, 0, in_ms(60000)}, calm);
  });
  std::uint32_t word = 0;
  std::memcpy(&word, heap.arenas.base[1] + 64 + 8, 4);  // owner 1, writer 0, index 2
  CHECK(word == epoch + epochs_per_call(plan));
}

TEST_CASE("run_cpu: a missing peer is a timeout that names the wait") {
  const Topology topology = machine(2);
  const Plan plan = by_inbox(topology, all_reduce(2, 16, DataType::fp32, ReduceOp::sum));
  HeapArenas heap(sizes_for(plan));
  CpuJob job = job_of(plan.request, 1);
  Calm calm;
  const std::int64_t begin = in_ms(0);
  const std::string told = error_of(
      [&] { run_cpu(plan, 1, heap.arenas, {job.in[1], job.out[1], {}, 0, 0, in_ms(80)}, calm); },
      ErrorCode::timeout);
  CHECK(in_ms(0) - begin < 10'000'000'000);
  CHECK(told.find("rank 1 waits in lane sum op 0 for flag (owner 1, writer 0, index 0) >= 1, "
                  "found 0") != std::string::npos);
}

TEST_CASE("run_cpu: an exception of the watch ends the wait, also of a sleeping rank") {
  struct Aborted : Watch {
    std::atomic<bool> now{false};
    void check(const std::string& waiting_for) override {
      if (now) throw Error(ErrorCode::aborted, waiting_for);
    }
  };
  const Topology topology = machine(2);
  const Plan plan = by_inbox(topology, all_reduce(2, 16, DataType::fp32, ReduceOp::sum));
  HeapArenas heap(sizes_for(plan));
  CpuJob job = job_of(plan.request, 1);
  Aborted watch;
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    watch.now = true;
  });
  const std::string told = error_of(
      [&] {
        run_cpu(plan, 0, heap.arenas, {job.in[0], job.out[0], {}, 0, 0, in_ms(30000)}, watch);
      },
      ErrorCode::aborted);
  later.join();
  CHECK(told.find("rank 0 waits in lane sum op") != std::string::npos);
}

TEST_CASE("run_cpu: plans it cannot run are refused") {
  const Topology topology = machine(2);
  const Request request = all_reduce(2, 16, DataType::fp32, ReduceOp::sum);
  const Plan plan = by_inbox(topology, request);
  CpuJob job = job_of(request, 1);
  Calm calm;
  ArenaSizes small = sizes_for(plan);
  small.inbox_bytes = 64;
  HeapArenas heap(small);
  const CpuCall call{job.in[0], job.out[0], {}, 0, 0, in_ms(1000)};
  CHECK(error_of([&] { run_cpu(plan, 0, heap.arenas, call, calm); }, ErrorCode::internal)
            .find("does not fit") != std::string::npos);
  Builder builder(topology, request, "reads_peer");
  builder.copy(builder.lane(0, LaneKind::cpu, "x"), builder.output(0, {0, 64}),
               builder.input(1, {0, 64}));
  const Plan peeking = builder.build();
  CHECK(error_of([&] { run_cpu(peeking, 0, heap.arenas, call, calm); }, ErrorCode::unsupported)
            .find("not mapped") != std::string::npos);
}

TEST_CASE("run_reference: the error of a stuck plan names the op") {
  const Topology topology = machine(2);
  Plan plan = by_inbox(topology, all_reduce(2, 16, DataType::fp32, ReduceOp::sum));
  for (Lane& lane : plan.lanes)
    std::erase_if(lane.ops, [](const Op& op) { return op.kind == OpKind::signal; });
  CpuJob job = job_of(plan.request, 1);
  CHECK(error_of([&] { run_reference(plan, job.in, job.out); }, ErrorCode::timeout)
            .find("rank 0 waits in lane sum op 0 for flag (owner 0, writer 0, index 0) >= 1") !=
        std::string::npos);
}
