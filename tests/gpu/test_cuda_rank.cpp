// Real GPUs against the reference: fused kernels for every type, op, odd size and offset and in
// place; every plan that the planner proposes for every collective; replayed graphs. Skipped, with
// the reason, without a GPU; two ranks share a single GPU.
#include <doctest/doctest.h>

#include "base/text.hpp"
#include "cpu/reference.hpp"
#include "cpu/reference_reduce.hpp"
#include "plait/error.hpp"
#include "tests/gpu/examples.hpp"

namespace plait::cuda {
namespace {

void check_fused(int ranks, bool processes, const std::vector<std::string>& kernels,
                 bool with_host = true);
void check_collectives(int ranks, bool processes, const std::string& named = "");
void check_lonely(const std::string& kernel, int host_permille = 0, int host_cpu_permille = 0);
void check_overlapping(int ranks, const std::string& kernel);

// Tests that fork come first, before this process uses CUDA.

TEST_CASE("processes: copy engines give the reference's bits for every type, op and size") {
  const int ranks = gpus_for_processes();
  if (skipped(ranks)) return;
  check_fused(ranks, true, {"rotation"});
}

TEST_CASE("processes: every collective by copy engines gives the reference's bytes") {
  const int ranks = gpus_for_processes();
  if (skipped(ranks)) return;
  check_collectives(ranks, true);
}

TEST_CASE("processes: copies through host memory give the reference's bits") {
  const int ranks = gpus_for_processes();
  if (skipped(ranks)) return;
  const ArenasInHost in_host;
  check_fused(ranks, true, {"rotation"}, false);
  check_collectives(ranks, true);
}

TEST_CASE("processes: CPU cores sum for ranks without a link, with the reference's bits") {
  if (skipped(gpus_for_processes(1))) return;  // ranks that share a GPU take turns
  const ArenasInHost in_host;
  check_fused(3, true, {"host_cores"}, false);
}

TEST_CASE("processes: calls of copy engines that overlap keep out of each other's way") {
  const int ranks = gpus_for_processes();
  if (skipped(ranks)) return;
  check_overlapping(ranks, "rotation");
}

TEST_CASE(
    "processes: a wait in vain fails its stream at the deadline, abort() ends it; both name the "
    "peer") {
  if (skipped(gpus_for_processes(1))) return;  // No waiting ranks need to run together.
  for (const char* kernel : {"one_shot", "two_shot", "tiled", "direct_ll"}) check_lonely(kernel);
  check_lonely("tiled", 0, 900);
  for (const int host_permille : {0, 900}) check_lonely("rotation", host_permille);
  check_lonely("rotation", 0, 900);  // A part by CPU cores.
}

/// Engines of two ranks' all_reduces of the given sizes in MiB.
std::string choices(const CudaRank& rank, const std::vector<std::uint64_t>& mib) {
  std::string said;
  for (const std::uint64_t one : mib) {
    Request request;
    request.ranks = 2;
    request.count = (one << 20) / 4;
    const std::optional<EngineChoice> choice = bench::built_in(rank, request);
    said += choice ? choice->engine->info().name : "none";
    said += choice && choice->beats_nccl.value_or(false) ? " " : "(behind) ";
  }
  return said;
}

TEST_CASE("processes: large sums of two ranks leave SMs to others, sooner where these compute") {
  if (skipped(gpus_for_processes())) return;
  bench::Board* board = bench::make_board(2);
  std::byte* rings = shared_rings(2);
  GpuFindings* findings = GpuFindings::shared();
  const int failed = bench::run_ranks(board, true, [&](int rank) {
    for (const bool beside : {false, true}) {
      const GpuFixture gpu(board, rank, rings, 20, nullptr, beside);
      const std::string said = choices(*gpu.cuda, {1, 16, 25, 26, 239, 241, 4096});
      const char* wanted = beside
                               ? "one_shot tiled tiled copy_exchange copy_exchange copy_exchange "
                                 "copy_exchange "
                               : "one_shot two_shot two_shot two_shot two_shot copy_exchange "
                                 "copy_exchange ";
      if (said != wanted) findings->add(rank, text("{}{}", beside ? "beside: " : "alone: ", said));
      board->barrier();
    }
  });
  CHECK(failed == 0);
  findings->check_none();
}

struct FusedCase {
  std::string kernel;
  Request request;
  std::uint64_t offset;  // In both buffers, in elements.
  bool in_place;
  Tuning tuning;
};

std::string describe(const FusedCase& c) {
  return text("{} {} {} x{} offset {}{} bare {} ahead {}", c.kernel, name_of(c.request.type),
              name_of(c.request.op), c.request.count, c.offset, c.in_place ? " in place" : "",
              c.tuning.bare, c.tuning.ahead);
}

/// One per rank.
const std::vector<double> kScalars{0.5, -3.0, 1.25, 7.0, -0.5, 2.0, 0.75, -1.5};

/// Bytes on this rank that differ from the reference.
std::size_t wrong_bytes(GpuFixture& gpu, const FusedCase& c, unsigned seed) {
  const std::uint64_t element = bytes_of(c.request.type), bytes = c.request.count * element;
  std::vector<Bytes> inputs;
  std::vector<const void*> sources;
  for (int r = 0; r < gpu.board->ranks; ++r)
    inputs.push_back(random_bytes(bytes, seed * 64 + static_cast<unsigned>(r)));
  for (const Bytes& one : inputs) sources.push_back(one.data());
  Bytes expected(bytes);
  reduce_reference(c.request.type, c.request.op, expected.data(), sources, c.request.count,
                   gpu.board->ranks, true,
                   c.request.op == ReduceOp::premul_sum ? kScalars : std::vector<double>{});
  const DevicePointer in = gpu.input + c.offset * element;
  const DevicePointer out = c.in_place ? in : gpu.output + c.offset * element;
  PLAIT_CUDA_CALL(memory_set_async, gpu.output, 0xa5, bytes + 256, gpu.stream);
  gpu.finish();
  GpuFixture::to_gpu(in, inputs[static_cast<std::size_t>(gpu.rank)]);
  gpu.board->barrier();  // On a shared GPU a rank's upload would wait for the peer's kernel.
  Tuning tuning = c.tuning;
  tuning.blocks = std::min(tuning.blocks, static_cast<int>(gpu.most_blocks));
  bench::run(*gpu.cuda, c.kernel, c.request,
             {reinterpret_cast<const void*>(in), reinterpret_cast<void*>(out), kScalars},
             gpu.stream, tuning);
  gpu.finish();
  const Bytes got = GpuFixture::from_gpu(out, bytes);
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < got.size(); ++i) wrong += got[i] != expected[i] ? 1 : 0;
  if (!c.in_place && c.offset == 0) {  // Nothing behind the end was written.
    const Bytes behind = GpuFixture::from_gpu(out + bytes, 16);
    for (const std::uint8_t byte : behind) wrong += byte != 0xa5 ? 1 : 0;
  }
  return wrong;
}

/// with_host: parts of some calls go through host memory, and this needs a GPU per rank.
std::vector<FusedCase> fused_cases(int ranks, const std::vector<std::string>& kernels,
                                   bool with_host) {
  std::vector<FusedCase> cases;
  for (int type = 0; type <= static_cast<int>(DataType::fp8e5m2); ++type)
    for (int op = 0; op <= static_cast<int>(ReduceOp::bit_xor); ++op)
      for (const std::string& kernel : kernels)
        for (const int bare : {1, 0}) {
          FusedCase c{kernel, {}, 0, false, {}};
          c.request.type = static_cast<DataType>(type);
          c.request.op = static_cast<ReduceOp>(op);
          c.request.ranks = ranks;
          const bool bits = c.request.op >= ReduceOp::bit_and;
          if ((is_float(c.request.type) && bits) ||
              (!is_float(c.request.type) && (c.request.op == ReduceOp::premul_sum || bare == 1)))
            continue;
          c.tuning.bare = bare;
          for (const std::uint64_t count : {1ull, 7ull, 1003ull, 70001ull}) {
            c.request.count = count;
            c.offset = count == 1003 ? 1 : 0;
            c.in_place = count == 70001;
            c.tuning.host_permille = count == 1003 || !with_host ? 0 : 300;
            c.tuning.tile_units = c.kernel == "rotation" ? 1024 : 0;
            cases.push_back(c);
          }
        }
  for (const std::string& kernel : kernels) {
    FusedCase c{kernel, {}, 0, false, {}};
    c.request.type = DataType::int32;
    c.request.ranks = ranks;
    c.request.count = kBufferBytes / 4 - 1;
    c.tuning.host_permille = 0;
    if (kernel != "two_shot") continue;
    // Flag packets that are reused, at sizes where tiles would be faster.
    c.tuning.blocks = 48;
    cases.push_back(c);
    c.tuning = {.threads = 256, .host_permille = 0};  // On all SMs.
    cases.push_back(c);
  }
  for (const DataType type : {DataType::fp32, DataType::bf16})
    for (const std::string& kernel : kernels)
      for (const int ahead : {0, 1, 3})
        for (const bool in_place : {false, true}) {
          Tuning tuning;
          tuning.blocks = ahead == 3 ? 40 : 8;
          tuning.threads = 128;
          tuning.ahead = ahead;
          tuning.bare = 1;
          tuning.tile_units = kernel == "rotation" ? 1 << 16 : 300;
          tuning.host_permille = with_host ? ahead * 100 : 0;
          tuning.host_cpu_permille = in_place && with_host ? ahead * 300 : 0;
          FusedCase c{kernel, {}, 0, in_place, tuning};
          c.request.type = type;
          c.request.ranks = ranks;
          if (ahead == 3 && in_place) c.request.op = ReduceOp::avg;
          c.request.count = (kMostBytes / 2 - 64) / bytes_of(type) + 3;
          cases.push_back(c);
        }
  return cases;
}

/// Runs every case of the kernels, with ranks as threads or processes.
void check_fused(int ranks, bool processes, const std::vector<std::string>& kernels,
                 bool with_host) {
  REQUIRE(ranks <= static_cast<int>(kScalars.size()));
  const GpuFindings* all = on_gpus(ranks, processes, [&](GpuFixture& gpu, GpuFindings& findings) {
    unsigned seed = 0;
    for (const FusedCase& c : fused_cases(ranks, kernels, with_host)) {
      ++seed;
      if (!bench::takes(*gpu.cuda, c.kernel, c.request, c.tuning)) {
        Tuning alone = c.tuning;
        alone.host_permille = alone.host_cpu_permille = 0;
        if (bench::takes(*gpu.cuda, c.kernel, c.request, alone))
          findings.add(gpu.rank, text("{}: not with a part through host memory\n", describe(c)));
        continue;
      }
      const std::size_t wrong = wrong_bytes(gpu, c, seed);
      ++findings.checked;
      if (wrong != 0) findings.add(gpu.rank, text("{}: {} bytes wrong\n", describe(c), wrong));
    }
  });
  MESSAGE(all->checked.load() << " fused calls checked on " << ranks << " GPUs");
  CHECK(all->checked.load() > 400);
}

TEST_CASE("fused kernels give the reference's bits for every type, op and size") {
  const int ranks = ranks_to_use();
  if (skipped(ranks, why_no_cuda())) return;
  check_fused(ranks, false, {"one_shot", "two_shot", "tiled", "direct_ll"});
}

/// Calls with the launch of long messages: as many blocks as fit, several steps per thread.
void check_long(GpuFixture& gpu, GpuFindings& findings) {
  constexpr std::uint64_t kMost = 40ull << 20;
  LongCalls calls(gpu, kMost);
  for (const DataType type : {DataType::fp32, DataType::bf16})
    for (const std::uint64_t bytes : {kMost / 40, kMost / 13, kMost / 2, kMost - 36})
      for (const char* kernel : {"one_shot", "two_shot", "tiled"}) {
        Request request;
        request.ranks = gpu.board->ranks;
        request.type = type;
        request.count = bytes / bytes_of(type);
        if (bench::takes(*gpu.cuda, kernel, request)) calls.enqueue(kernel, request);
      }
  const auto wrong = calls.wrong();
  if (wrong != 0 || calls.enqueued() < 16)  // Otherwise hardly any call was possible.
    findings.add(gpu.rank, text("{} values wrong of {} sums\n", wrong, calls.enqueued()));
}

TEST_CASE("long sums are right by every kernel as it is launched by itself") {
  const int ranks = ranks_to_use();
  if (skipped(ranks, why_no_cuda())) return;
  on_gpus(ranks, false, check_long);
}

TEST_CASE("kernels of more ranks than GPUs give the reference's bits") {
  const int ranks = 2 * gpus_to_use(), most = static_cast<int>(kScalars.size());
  if (skipped(ranks, why_no_cuda())) return;
  if (ranks > most) {
    MESSAGE("skipped: as many GPUs as ranks can be; CUDA_VISIBLE_DEVICES=0,1,2,3 runs it");
    return;
  }
  check_fused(ranks, false, {"one_shot", "two_shot", "tiled", "direct_ll"}, false);
  check_collectives(ranks, false);
  if (ranks == most) return;
  check_fused(most, false, {"one_shot", "two_shot", "tiled", "direct_ll"}, false);
  on_gpus(most, false, check_long);
}

TEST_CASE("kernels whose arenas lie in host memory give the reference's bits") {
  if (skipped(ranks_to_use(), why_no_cuda())) return;
  const ArenasInHost in_host;
  for (const int ranks : {ranks_to_use(), 2 * ranks_to_use()}) {
    if (ranks > static_cast<int>(kScalars.size())) continue;
    CAPTURE(ranks);
    check_fused(ranks, false, {"one_shot", "two_shot", "tiled", "direct_ll", "direct_chunks"},
                false);
    check_collectives(ranks, false);
    check_collectives(ranks, false, "direct_chunks");
    on_gpus(ranks, false, check_long);
  }
}

/// True if a part of the call may go through host memory. If ranks share a GPU, a rank's waits
/// could be queued before work that another rank waits for.
bool takes_share(const GpuFixture& gpu, const std::string& kernel, const Request& request) {
  if (gpu.shares_gpu || gpu.cuda->full_group().through_host) return false;
  const Collective what = request.collective;
  const bool in_one_piece = what == Collective::broadcast || what == Collective::reduce ||
                            what == Collective::send_recv || what == Collective::copy;
  return what == Collective::all_reduce ||
         (request.ranks == 2 && (in_one_piece || kernel == "rotation"));
}

/// Runs a plan eagerly and three times from a graph; returns bytes that differ from the reference.
std::size_t wrong_after(GpuFixture& gpu, const Plan& plan, unsigned seed) {
  const Example example = example_of(plan, gpu.rank, seed);
  const auto bound = gpu.cuda->bind(plan);
  const Bytes& expected = example.expected;
  GpuFixture::to_gpu(gpu.input, example.input);
  const auto enqueue = [&](CopiedBy copied_by) {
    gpu.cuda->run(*bound, reinterpret_cast<const void*>(gpu.input),
                  reinterpret_cast<void*>(gpu.output), gpu.stream, {}, copied_by);
  };
  const auto compare = [&] {
    gpu.finish();
    const Bytes got = GpuFixture::from_gpu(gpu.output, expected.size());
    PLAIT_CUDA_CALL(memory_set_async, gpu.output, 0xa5, expected.size() + 1, gpu.stream);
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < got.size(); ++i) wrong += got[i] != expected[i] ? 1 : 0;
    return wrong;
  };
  PLAIT_CUDA_CALL(memory_set_async, gpu.output, 0xa5, expected.size() + 1, gpu.stream);
  // Allocation waits for all GPUs of the process, and an upload waits for work on the same GPU,
  // even another rank's. Hence no rank starts before all are ready.
  gpu.board->barrier();
  const char* only = std::getenv("ONLY_ENGINE");  // Finds the engine of a failure.
  std::size_t wrong = 0;
  if (only == nullptr || std::string(only) == "kernel") {
    enqueue(CopiedBy::one_kernel);
    wrong += compare();
  }
  // The driver creates a stream only after all kernels on the GPU have ended. On a shared GPU the
  // peer's kernel is among these kernels, and waits for this rank.
  if (gpu.board->ranks == 2 && !gpu.shares_gpu &&
      (only == nullptr || std::string(only) == "copy")) {
    enqueue(CopiedBy::copy_engines);
    wrong += compare();
  }
  if (only != nullptr && std::string(only) == "copy") return wrong;
  Graph graph = nullptr;
  GraphExec exec = nullptr;
  PLAIT_CUDA_CALL(stream_begin_capture, gpu.stream, kCaptureThreadLocal);
  enqueue(CopiedBy::automatic);
  PLAIT_CUDA_CALL(stream_end_capture, gpu.stream, &graph);
  PLAIT_CUDA_CALL(graph_instantiate, &exec, graph, 0);
  gpu.board->barrier();
  for (int replay = 0; replay < 3; ++replay) PLAIT_CUDA_CALL(graph_launch, exec, gpu.stream);
  wrong += compare();
  gpu.board->barrier();
  api().graph_exec_destroy(exec);
  api().graph_destroy(graph);
  return wrong;
}

std::vector<Plan> all_plans(int ranks) {
  const Topology topology = load_topology("hgx-h200");
  std::vector<Plan> plans;
  for (int collective = 0; collective <= static_cast<int>(Collective::copy); ++collective)
    for (const std::uint64_t count : {1ull, 1021ull, 65536ull})
      for (const DataType type : {DataType::fp32, DataType::bf16}) {
        Request request;
        request.collective = static_cast<Collective>(collective);
        request.count = count;
        request.type = type;
        request.ranks = ranks;
        request.peer = ranks - 1;
        for (Plan& plan : propose(topology, checked(request, topology)))
          plans.push_back(std::move(plan));
      }
  return plans;
}

TEST_CASE("every plan proposed runs on GPUs as on the reference, eagerly and replayed") {
  const int ranks = ranks_to_use();
  if (skipped(ranks, why_no_cuda())) return;
  bench::Board* board = bench::make_board(ranks);
  std::byte* rings = shared_rings(ranks);
  const std::vector<Plan> plans = all_plans(ranks);
  bench::trace_crashes();
  std::vector<std::string> failures(static_cast<std::size_t>(ranks));
  std::vector<std::string> refused(static_cast<std::size_t>(ranks));
  std::atomic<int> checked{0};
  const int failed = bench::run_ranks(board, false, [&](int rank) {
    GpuFixture gpu(board, rank, rings);
    unsigned seed = 1000;
    for (const Plan& plan : plans) {
      ++seed;
      const std::string name = text("{} {} x{} {}", name_of(plan.request.collective), label(plan),
                                    plan.request.count, name_of(plan.request.type));
      std::size_t wrong = 0;
      try {
        wrong = wrong_after(gpu, plan, seed);
      } catch (const Error& error) {
        if (error.code() != ErrorCode::unsupported)
          throw Error(error.code(), text("{}: {}", name, error.what()));
        std::string& list = refused[static_cast<std::size_t>(rank)];
        if (list.size() < 1500) list += text("{}: {}\n", name, error.what());
        continue;
      }
      ++checked;
      std::string& list = failures[static_cast<std::size_t>(rank)];
      if (wrong != 0 && list.size() < 2000) list += text("{}: {} bytes wrong\n", name, wrong);
    }
    board->barrier();
  });
  CHECK(failed == 0);
  for (const std::string& list : failures) CHECK(list == "");
  MESSAGE(checked.load() << " plan runs checked on " << ranks << " GPUs; refused:\n" << refused[0]);
  CHECK(checked.load() > 20);
}

/// Both kernels in turn at any size; engines in small pieces, in turn with a share through the
/// host. `named`: that engine instead, unless "".
std::size_t wrong_as_chosen(GpuFixture& gpu, const Plan& plan, bool in_place, bool engines,
                            unsigned seed, const std::string& named) {
  const Request& request = plan.request;
  const auto variant_of = [&](bool captured) {
    EngineVariant variant{!named.empty()                                               ? named
                          : engines                                                    ? "rotation"
                          : !captured && bench::takes(*gpu.cuda, "direct_ll", request) ? "direct_ll"
                                                                                       : "tiled"};
    if (engines) variant.tuning.tile_units = 4096;
    variant.tuning.host_permille = captured && takes_share(gpu, variant.kernel, request) ? 400 : 0;
    return variant;
  };
  return wrong_enqueued(gpu, plan, in_place, variant_of, seed);
}

void check_collectives(int ranks, bool processes, const std::string& named) {
  std::vector<Plan> plans = exact_plans(ranks);
  for (Plan& plan : plans_of_every_op(ranks)) plans.push_back(std::move(plan));
  const GpuFindings* all = on_gpus(ranks, processes, [&](GpuFixture& gpu, GpuFindings& findings) {
    unsigned seed = 5000;
    for (const Plan& plan : plans)
      for (const bool in_place : {false, true}) {
        const Collective what = plan.request.collective;
        if (in_place && !goes_in_place(what)) continue;
        const std::size_t wrong = wrong_as_chosen(gpu, plan, in_place, processes, ++seed, named);
        ++findings.checked;
        if (wrong != 0)
          findings.add(gpu.rank, text("{} x{} {} {} root {}{}{} bytes wrong\n", name_of(what),
                                      plan.request.count, name_of(plan.request.type),
                                      name_of(plan.request.op), plan.request.root,
                                      in_place ? " in place: " : ": ", wrong));
      }
  });
  MESSAGE(all->checked.load() << " calls checked on " << ranks << " GPUs");
  CHECK(all->checked.load() > 700 * ranks);  // Includes every op.
}

TEST_CASE("every collective that is enqueued gives the reference's bytes") {
  const int ranks = ranks_to_use();
  if (skipped(ranks, why_no_cuda())) return;
  check_collectives(ranks, false);
}

/// A call with separate buffers.
struct Queued {
  const Plan* plan;
  Example example;
  DevicePointer input = 0, output = 0;
};

std::vector<Queued> queued_calls(const std::vector<Plan>& plans, int rank) {
  std::vector<Queued> calls;
  unsigned seed = 9000;
  for (const Plan& plan : plans) {
    if (plan.request.count != 100003 || plan.request.type != DataType::fp64) continue;
    Queued call{&plan, example_of(plan, rank, ++seed)};
    PLAIT_CUDA_CALL(memory_alloc, &call.input, call.example.input.size() + 256);
    PLAIT_CUDA_CALL(memory_alloc, &call.output, call.example.expected.size() + 256);
    GpuFixture::to_gpu(call.input, call.example.input);
    calls.push_back(std::move(call));
  }
  return calls;
}

/// Poisons the output and calls, in stream order, in pieces of 64 KiB, so that slots are reused.
/// direct_ll serves requests that a chain does not take.
void enqueue_poisoned(GpuFixture& gpu, const std::string& kernel, const Queued& call,
                      int host_permille) {
  PLAIT_CUDA_CALL(memory_set_async, call.output, 0xa5, call.example.expected.size() + 1,
                  gpu.stream);
  Tuning tuning;
  tuning.tile_units = kernel == "rotation" ? 4096 : 64;
  if (takes_share(gpu, kernel, call.plan->request)) tuning.host_permille = host_permille;
  const bool is_taken = bench::takes(*gpu.cuda, kernel, call.plan->request, tuning);
  bench::run(*gpu.cuda, is_taken || kernel == "rotation" ? kernel : "direct_ll", call.plan->request,
             {reinterpret_cast<const void*>(call.input), reinterpret_cast<void*>(call.output), {}},
             gpu.stream, tuning);
}

/// Every collective, again and again without a wait, with a rank late in turn, and a graph of some
/// of the calls replayed in between. Hence ranks are at different calls, and slots and flags are
/// reused. Copy engines alternate with tiled kernels. Exchanges of two ranks borrow the kernels'
/// slots.
void check_overlapping(int ranks, const std::string& kernel) {
  const std::vector<Plan> plans = exact_plans(ranks);
  const GpuFindings* all =
      on_gpus(ranks, kernel == "rotation", [&](GpuFixture& gpu, GpuFindings& findings) {
        const std::vector<Queued> calls = queued_calls(plans, gpu.rank);
        gpu.board->barrier();  // On a shared GPU uploads are refused while a rank captures.
        Graph graph = nullptr;
        GraphExec exec = nullptr;
        PLAIT_CUDA_CALL(stream_begin_capture, gpu.stream, kCaptureThreadLocal);
        for (std::size_t i = 0; i < 5; ++i)
          enqueue_poisoned(gpu, kernel, calls[i], i % 2 == 0 ? 500 : 0);
        PLAIT_CUDA_CALL(stream_end_capture, gpu.stream, &graph);
        PLAIT_CUDA_CALL(graph_instantiate, &exec, graph, 0);
        gpu.board->barrier();
        for (int round = 0; round < 8; ++round) {
          for (int i = 0; gpu.rank == round % ranks && i < 200; ++i)
            PLAIT_CUDA_CALL(memory_set_async, gpu.output, 0, kMostBytes, gpu.stream);
          for (std::size_t i = 0; i < calls.size(); ++i)
            enqueue_poisoned(gpu, (i + static_cast<std::size_t>(round)) % 3 == 0 ? "tiled" : kernel,
                             calls[i], round % 3 * 300);
          for (int i = 0; i < 3; ++i) PLAIT_CUDA_CALL(graph_launch, exec, gpu.stream);
        }
        gpu.finish();
        for (const Queued& call : calls) {
          ++findings.checked;
          if (GpuFixture::from_gpu(call.output, call.example.expected.size()) !=
              call.example.expected)
            findings.add(gpu.rank,
                         text("{} root {}: wrong bytes\n", name_of(call.plan->request.collective),
                              call.plan->request.root));
        }
      });
  CHECK(all->checked.load() >= 10 * ranks);
}

TEST_CASE("calls of more ranks than GPUs that overlap keep out of each other's way") {
  const int ranks = 2 * gpus_to_use();
  if (skipped(ranks, why_no_cuda())) return;
  if (ranks > static_cast<int>(kScalars.size())) return;
  check_overlapping(ranks, "tiled");
  if (ranks > 2) check_overlapping(ranks, "ll_chain");
}

/// End of rank 0's stream, and the stream's error, if rank 0 calls alone: with this `wait_s`, and
/// abort() after `abort_after_s`. In separate processes, because a failed stream ends all GPU work
/// of the process.
std::string lonely_error(const std::string& kernel, int host_permille, int host_cpu_permille,
                         double wait_s, double abort_after_s) {
  bench::Board* board = bench::make_board(2);
  std::byte* rings = shared_rings(2);
  GpuFindings* findings = GpuFindings::shared();
  const int failed = bench::run_ranks(board, true, [&](int rank) {
    GpuFixture gpu(board, rank, rings, wait_s);
    if (rank == 0) {
      Request request;
      request.count = 150000;
      request.ranks = 2;
      Tuning tuning;
      tuning.host_permille = host_permille;
      tuning.host_cpu_permille = host_cpu_permille;
      // A share of small pieces has several chunks.
      tuning.tile_units = host_permille != 0 ? 4096 : 0;
      bench::run(
          *gpu.cuda, kernel, request,
          {reinterpret_cast<const void*>(gpu.input), reinterpret_cast<void*>(gpu.output), {}},
          gpu.stream, tuning);
      if (abort_after_s > 0) {
        std::this_thread::sleep_for(std::chrono::duration<double>(abort_after_s));
        gpu.cuda->abort();
      }
      const bool has_ended = api().stream_synchronize(gpu.stream) == kSuccess;
      try {
        gpu.cuda->check();
      } catch (const Error& error) {
        findings->add(0, text("{}{} {}", has_ended ? "stream ended: " : "stream failed: ",
                              error_name(error.code()), error.what()));
      }
    }
    board->barrier();
  });
  return failed == 0 ? findings->lists[0] : "a rank failed";
}

void check_lonely(const std::string& kernel, int host_permille, int host_cpu_permille) {
  CAPTURE(kernel);
  CAPTURE(host_permille);
  CAPTURE(host_cpu_permille);
  const auto began = std::chrono::steady_clock::now();
  const std::string late = lonely_error(kernel, host_permille, host_cpu_permille, 0.3, 0);
  CHECK(late.find("stream failed: timeout") == 0);
  CHECK(late.find("for rank 1") != std::string::npos);
  const std::string aborted = lonely_error(kernel, host_permille, host_cpu_permille, 60, 0.2);
  CHECK(aborted.find("stream ended: aborted") == 0);
  CHECK(aborted.find("for rank 1") != std::string::npos);
  CHECK(std::chrono::steady_clock::now() - began < std::chrono::seconds(20));
}

}  // namespace
}  // namespace plait::cuda
