// Calls by any engine compared with the reference: counts bytes that differ, eager and replayed.
#pragma once
#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "base/text.hpp"
#include "cpu/reference.hpp"
#include "plait/error.hpp"
#include "tests/gpu/gpu_fixture.hpp"
#include "tests/gpu/in_place.hpp"

namespace plait::cuda {

/// Input of a rank and the reference's output.
struct Example {
  Bytes input, expected;
};

inline Example example_of(const Plan& plan, int rank, unsigned seed) {
  const Request& request = plan.request;
  std::vector<Bytes> inputs, outputs;
  std::vector<const void*> in;
  std::vector<void*> out;
  for (int r = 0; r < request.ranks; ++r) {
    inputs.push_back(random_bytes(input_bytes(request, r), seed * 64 + static_cast<unsigned>(r)));
    outputs.emplace_back(output_bytes(request, r), std::uint8_t{0xa5});
  }
  for (int r = 0; r < request.ranks; ++r) {
    in.push_back(inputs[static_cast<std::size_t>(r)].data());
    out.push_back(outputs[static_cast<std::size_t>(r)].data());
  }
  run_reference(plan, in, out);
  return {inputs[static_cast<std::size_t>(rank)], outputs[static_cast<std::size_t>(rank)]};
}

/// An engine with the parameters of a call.
struct EngineVariant {
  std::string kernel;
  Tuning tuning = {};
};

/// Compares a collective with the first plan proposed for the call, run by the reference. Returns
/// the bytes that differ on this rank, eager and replayed from a graph. variant_of(captured) makes
/// the call.
inline std::size_t wrong_enqueued(GpuFixture& gpu, const Plan& plan, bool in_place,
                                  const std::function<EngineVariant(bool)>& variant_of,
                                  unsigned seed) {
  const Request& request = plan.request;
  const Example example = example_of(plan, gpu.rank, seed);
  const Bytes& expected = example.expected;
  const Bytes& mine = example.input;
  // In place, the smaller buffer lies inside the larger one, as in NCCL.
  const auto rank = static_cast<std::uint64_t>(gpu.rank);
  const bool inside_output = expected.size() > mine.size();
  DevicePointer input = gpu.input, output = gpu.output;
  if (in_place && inside_output) input = output + rank * mine.size();
  if (in_place && !inside_output)
    output = expected.size() < mine.size() ? input + rank * expected.size() : input;
  std::size_t wrong = 0;
  for (const bool captured : {false, true}) {
    PLAIT_CUDA_CALL(memory_set_async, gpu.output, 0xa5, kBufferBytes, gpu.stream);
    gpu.finish();
    GpuFixture::to_gpu(input, mine);
    gpu.board->barrier();
    Graph graph = nullptr;
    GraphExec exec = nullptr;
    if (captured) PLAIT_CUDA_CALL(stream_begin_capture, gpu.stream, kCaptureThreadLocal);
    const EngineVariant variant = variant_of(captured);
    bench::run(*gpu.cuda, variant.kernel, request,
               {reinterpret_cast<const void*>(input), reinterpret_cast<void*>(output), {}},
               gpu.stream, variant.tuning);
    if (captured) {
      PLAIT_CUDA_CALL(stream_end_capture, gpu.stream, &graph);
      PLAIT_CUDA_CALL(graph_instantiate, &exec, graph, 0);
      gpu.board->barrier();
      PLAIT_CUDA_CALL(graph_launch, exec, gpu.stream);
    }
    gpu.finish();
    const Bytes got = GpuFixture::from_gpu(output, expected.size());
    for (std::size_t i = 0; i < got.size(); ++i) wrong += got[i] != expected[i] ? 1 : 0;
    gpu.board->barrier();
    if (exec != nullptr) api().graph_exec_destroy(exec);
    if (graph != nullptr) api().graph_destroy(graph);
  }
  return wrong;
}

/// Adds the first plan with bits fixed by the contract.
inline void add_exact_plan(std::vector<Plan>& plans, const Topology& topology,
                           const Request& request) {
  std::vector<Plan> proposed = propose(topology, checked(request, topology));
  const auto exact = std::find_if(proposed.begin(), proposed.end(), [](const Plan& plan) {
    return !reduces(plan.request.collective) || plan.sum_order == SumOrder::rank_order;
  });
  if (exact != proposed.end()) plans.push_back(*exact);
}

/// Exact plans of every collective, for comparison.
inline std::vector<Plan> exact_plans(int ranks) {
  const Topology topology = load_topology("hgx-h200");
  std::vector<Plan> plans;
  for (int collective = 0; collective <= static_cast<int>(Collective::copy); ++collective)
    for (const std::uint64_t count : {1ull, 33ull, 1021ull, 65536ull, 100003ull})
      for (const DataType type : {DataType::fp32, DataType::bf16, DataType::int8, DataType::fp64})
        for (const int root : {0, ranks - 1}) {
          Request request;
          request.collective = static_cast<Collective>(collective);
          request.count = count;
          request.type = type;
          request.ranks = ranks;
          request.root = root;
          request.peer = (root + 1) % ranks;
          add_exact_plan(plans, topology, request);
        }
  return plans;
}

/// The same for reductions of every type and op.
inline std::vector<Plan> plans_of_every_op(int ranks) {
  const Topology topology = load_topology("hgx-h200");
  std::vector<Plan> plans;
  for (const Collective collective : {Collective::reduce_scatter, Collective::reduce})
    for (int type = 0; type <= static_cast<int>(DataType::fp8e5m2); ++type)
      for (int op = 0; op <= static_cast<int>(ReduceOp::bit_xor); ++op) {
        Request request;
        request.collective = collective;
        request.count = 1021;
        request.type = static_cast<DataType>(type);
        request.op = static_cast<ReduceOp>(op);
        request.ranks = ranks;
        const bool bits = request.op >= ReduceOp::bit_and;
        if (request.op == ReduceOp::premul_sum || (is_float(request.type) && bits)) continue;
        add_exact_plan(plans, topology, request);
      }
  return plans;
}

}  // namespace plait::cuda
