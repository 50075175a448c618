// `plait plan` on calls of programs under NCCL, against the calls of a communicator that the
// drop-in makes: collectives, types, reductions, sizes and settings. Processes over a fake driver.
#include <doctest/doctest.h>

#include <algorithm>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/text.hpp"
#include "comm/bootstrap/vote.hpp"
#include "comm/choose/multinode_choice.hpp"
#include "comm/gpu/drop_in.hpp"
#include "comm/multinode/node_program_runner.hpp"
#include "comm/multinode/under_nccl.hpp"
#include "fake_cuda/fake_gpu.hpp"
#include "gpu/select/gpu_tables.hpp"
#include "plait/error.hpp"
#include "tests/gpu/ranks.hpp"
#include "unit/requests.hpp"
#include "unit/scale.hpp"

using namespace plait;
using plait_test::fake_cuda;
using plait_test::requests_of;

namespace {

const std::vector<Collective> kMoving{Collective::all_gather, Collective::broadcast,
                                      Collective::all_to_all, Collective::gather,
                                      Collective::scatter};
const std::vector<Collective> kReducing{Collective::all_reduce, Collective::reduce_scatter,
                                        Collective::reduce};
const std::vector<DataType> kFloats{DataType::fp32, DataType::bf16, DataType::fp64,
                                    DataType::fp8e4m3};
const std::vector<DataType> kIntegers{DataType::int32, DataType::uint8};
const std::vector<std::uint64_t> kSizes{1 << 10, 16 << 10, 256 << 10, 1 << 20,
                                        4 << 20, 16 << 20, 64 << 20,  1 << 30};

std::vector<Request> requests(int ranks) {
  if (ranks == 0) return {};
  std::vector<Request> all;
  Request like;
  like.ranks = ranks;
  const auto add = [&](const std::vector<Collective>& collectives,
                       const std::vector<DataType>& types) {
    std::ranges::copy(requests_of(collectives, types, kSizes, like), std::back_inserter(all));
  };
  for (const auto& types : {kFloats, kIntegers}) {
    like.op = ReduceOp::sum;
    add(kMoving, types);
    for (const ReduceOp op : {ReduceOp::sum, ReduceOp::avg, ReduceOp::max, ReduceOp::prod}) {
      like.op = op;
      add(kReducing, types);
    }
  }
  like.op = ReduceOp::premul_sum;  // plans have no such sum of integers
  add(kReducing, kFloats);
  return all;
}

/// A machine of GPUs that have a table, settings, and a tuning table of the machine.
struct Machine {
  int ranks = 2;
  std::string topology = "hgx-h200";
  plait_test::FakeGpu gpu = {};
  std::vector<const char*> settings = {};
  std::string table = {};
  bool takes_all = false;  ///< all requests, not a sample of them
};

/// A row for the calls of a size up to 1 MiB.
std::string table_of(const char* model, const std::string& rows) {
  return text(
      R"({{"schema": "plait.tuning/4", "name": "here", "gpu": {{"model": "{}", "multiprocessors":)"
      R"( 108, "links": ["any"], "upto_ranks": 4}}, "cuda_driver": 13000, "nccl": "2.28.9",)"
      R"( "date": "2026-01-01", "rows": [{}]}})",
      model, rows);
}

GpuGroup group_of(int rank, const Machine& machine) {
  GpuGroup group;
  group.rank = rank;
  group.ranks = machine.ranks;
  group.ordinals.assign(static_cast<std::size_t>(machine.ranks), 0);
  group.in_processes = true;
  group.topology = load_topology(machine.topology);
  const std::string model = group.topology.devices[0].model;
  group.kind = text("{}, 108 multiprocessors, any", model);
  for (const cuda::TuningTable& one : cuda::gpu_tables())
    if (one.gpus().are_model(model) && !one.gpus().kind().ends_with("host memory"))
      group.kind = one.gpus().kind();
  return group;
}

/// What the drop-in does with a request, in words.
std::string by_drop_in(GpuCalls& calls, Request request) {
  const bool is_scaled = request.op == ReduceOp::premul_sum;
  if (is_scaled) request.op = ReduceOp::sum;
  if (!(is_scaled ? calls.takes_scaled(request) : calls.takes(request))) return "NCCL";
  if (is_scaled) request.count = cuda::scaled_pieces(request, 0).piece;
  const std::string said = calls.choice_of(request);  // "chosen: engine tiled (order=2), as ..."
  const std::size_t begin = said.find(": ") + 2;
  return said.substr(begin, said.find_first_of(" ,(", begin + 7) - begin);
}

std::string by_plan(const UnderNccl& found) {
  if (!found.why.empty()) return "NCCL";
  if (found.engine) return "engine " + found.engine->choice.engine->info().name;
  return found.other.starts_with("engine ") ? found.other : "plan " + found.other.substr(10);
}

/// Compares requests; returns the first few differences.
std::string differences(GpuCalls& calls, const Machine& machine, const Env& env) {
  const Topology topology = load_topology(machine.topology);
  const cuda::TuningTable table(machine.table);
  std::string found;
  plait_test::Sample is_next_taken;
  for (const Request& request : requests(machine.ranks)) {
    if (!is_next_taken() && !machine.takes_all) continue;
    const UnderNccl planned = under_nccl(topology, request, env, table);
    std::string said = by_plan(planned);
    said = said.substr(0, said.find_first_of(" ,(", 7));
    const std::string done = by_drop_in(calls, request);
    if (said != done && found.size() < 400)
      found += text("\n{} {} {} of {} bytes: the drop-in {}, plan {} ({})",
                    name_of(request.collective), name_of(request.type), name_of(request.op),
                    message_bytes(request), done, said, planned.why);
  }
  return found;
}

/// Makes the calls of each rank as the drop-in does, and compares them on rank 0.
void compare(const Machine& machine) {
  fake_cuda().gpu = machine.gpu;
  std::vector<const char*> entries = machine.settings;
  entries.push_back(nullptr);
  const Env env = parse_env(entries.data());
  bench::Board* const board = bench::make_board(machine.ranks);
  CHECK(bench::run_ranks(board, true, [&](int rank) {
          GpuCallsOptions wanted =
              drop_in_options(env, {.most_blocks = static_cast<unsigned>(env.sm_budget)});
          wanted.rank.proves_paths = false;  // No kernel runs here.
          wanted.rank.large_arena_wait_s = 30;
          GpuGroup group = group_of(rank, machine);
          if (why_no_tuning_table(wanted).empty()) group.tuning = cuda::TuningTable(machine.table);
          const GpuCallsOptions options = drop_in_options_on(group, wanted);
          GpuCalls calls(std::move(group), options,
                         [&](const std::string& mine) { return board->exchange(rank, mine); });
          const std::string found = rank == 0 ? differences(calls, machine, env) : "";
          board->barrier();
          if (!found.empty())
            throw std::runtime_error(text("{} ranks of {}, {}:{}", machine.ranks, machine.topology,
                                          machine.settings.empty() ? "" : machine.settings[0],
                                          found));
        }) == 0);
  fake_cuda().gpu = {};  // of other cases
}

plait_test::FakeGpu a100() {
  plait_test::FakeGpu gpu;
  gpu.name = "NVIDIA A100-SXM4-40GB";
  gpu.major = 8;
  gpu.multiprocessors = 108;
  gpu.shared_bytes = 163 << 10;
  gpu.multiprocessor_bytes = 164 << 10;
  gpu.made_for = 80;
  return gpu;
}

}  // namespace

TEST_CASE("plan says of calls under NCCL what the drop-in does, on measured GPUs") {
  for (const int ranks : {2, 4, 8}) compare({.ranks = ranks, .takes_all = true});
}

TEST_CASE("plan says of calls under NCCL what the drop-in does, by settings") {
  for (const char* const setting :
       {"PLAIT_BITWISE=1", "PLAIT_SM_BUDGET=16", "PLAIT_SM_BUDGET=64", "PLAIT_DEVICE_MEMORY=64M",
        "PLAIT_ALGO=two_shot", "PLAIT_ALGO=tiled:blocks=16", "PLAIT_ALGO=direct"})
    for (const int ranks : {2, 4}) compare({.ranks = ranks, .settings = {setting}});
}

TEST_CASE("plan says of calls under NCCL what the drop-in does, by a machine's table") {
  const std::string model = load_topology("narval").devices[0].model;
  const std::string rows =
      R"({"collective": "all_reduce", "from_ranks": 4, "upto_ranks": 4, "upto_bytes": "1M",)"
      R"( "when": "overlap_compute", "engine": "one_shot", "ahead_of_nccl": true, "source": "x"},)"
      R"( {"collective": "all_gather", "from_ranks": 4, "upto_ranks": 4, "upto_bytes": "64M",)"
      R"( "when": "overlap_compute", "engine": "tiled", "ahead_of_nccl": false, "source": "x"})";
  compare(
      {.ranks = 4, .topology = "narval", .gpu = a100(), .table = table_of(model.c_str(), rows)});
}

TEST_CASE("plan says of calls under NCCL what the drop-in does, over two nodes") {
  constexpr int kRanks = 4, kInNode = 2;
  for (const char* const setting :
       {"PLAIT_BITWISE=0", "PLAIT_BITWISE=1", "PLAIT_ALGO=multi_node", "PLAIT_ALGO=library"}) {
    const char* const entries[] = {"PLAIT_NODE_SIZE=2", setting, nullptr};
    const Env env = parse_env(entries);
    bench::Board* const board = bench::make_board(kInNode);
    CHECK(bench::run_ranks(board, true, [&](int rank) {
            GpuCallsOptions wanted = drop_in_options(env, {.one_node = false});
            wanted.rank.proves_paths = false;  // No kernel runs here.
            GpuGroup group = group_of(rank, {.ranks = kInNode});
            group.why_no_topology = "ranks are on several nodes";
            const GpuCallsOptions options = drop_in_options_on(group, wanted);
            GpuCalls calls(std::move(group), options,
                           [&](const std::string& mine) { return board->exchange(rank, mine); });
            NodeProgramRunner runner(
                nodes_of(std::vector<std::string>(kRanks), kInNode, 0),
                {[&](const Request& request) { return calls.takes(request); }, nullptr}, nullptr,
                nullptr, multinode_algo(env.algo), env.bitwise);
            const Topology topology = load_topology("hgx-h200");
            std::string found;
            for (const Request& request : requests(rank == 0 ? kRanks : 0)) {
              const UnderNccl planned = under_nccl(topology, request, env, {});
              bool is_taken = false;
              static_cast<void>(
                  attempt([&] { is_taken = !runner.program(request, {})->is_library(); }));
              if (is_taken == planned.why.empty() || found.size() > 400) continue;
              found += text("\n{} {} {} of {} bytes: taken {}, plan {}",
                            name_of(request.collective), name_of(request.type), name_of(request.op),
                            message_bytes(request), is_taken, planned.why);
            }
            board->barrier();
            if (!found.empty()) throw std::runtime_error(setting + found);
          }) == 0);
  }
}

TEST_CASE("plan names why NCCL serves a call") {
  const Topology h200 = load_topology("hgx-h200"), narval = load_topology("narval");
  const auto why = [](const Topology& topology, const Request& request,
                      std::vector<const char*> settings, const std::string& table = "") {
    settings.push_back(nullptr);
    return under_nccl(topology, request, parse_env(settings.data()), cuda::TuningTable(table)).why;
  };
  const auto has = [](const std::string& all, const char* part) {
    INFO(all);
    CHECK(all.find(part) != std::string::npos);
  };
  Request request;
  request.ranks = 4;
  request.count = 4096;
  CHECK(why(h200, request, {}) == "");
  has(why(h200, request, {"PLAIT_DISABLE=1"}), "PLAIT_DISABLE is 1");
  has(why(h200, request, {"PLAIT_OPS=all_gather"}), "all_reduce is not in PLAIT_OPS");
  has(why(h200, request, {"PLAIT_MIN_BYTES=1M"}), "smaller than PLAIT_MIN_BYTES");
  has(why(h200, request, {"PLAIT_NODE_SIZE=1"}), "one rank only");
  has(why(narval, request, {}), "the first start");
  has(why(narval, request, {"PLAIT_AUTOTUNE=0"}), "not on 4 of NVIDIA A100");
  CHECK(why(narval, request, {"PLAIT_BITWISE=1"}) == "");
  has(why(load_topology("rtx-5090-x4"), request, {"PLAIT_THROUGH_HOST=0"}), "which plait needs");
  has(why(h200, request, {"PLAIT_THROUGH_HOST=1", "PLAIT_AUTOTUNE=0"}),
      "PLAIT_THROUGH_HOST=1 takes it");
  request.op = ReduceOp::bit_and;
  request.type = DataType::int32;
  has(why(h200, request, {}), "NCCL has no bit_and");
  request.op = ReduceOp::sum;
  request.type = DataType::int16;
  has(why(h200, request, {}), "NCCL has no int16");
  request.type = DataType::fp32;
  request.collective = Collective::send_recv;
  has(why(h200, request, {}), "sends and receives");
  request.collective = Collective::all_gather;
  request.counts = {1, 2, 3, 4};
  has(why(h200, request, {}), "equal counts");
}
