// Ranks that suspend and resume, a process each: memory of the GPU goes and comes back, and eager
// and replayed calls give the reference's bits before and after.
#include <doctest/doctest.h>

#include <chrono>
#include <cstdio>

#include "base/text.hpp"
#include "tests/gpu/gpu_fixture.hpp"

using namespace plait;
using namespace plait::cuda;

namespace {

constexpr std::uint64_t kBytes = 1ull << 20;

double free_mb() {
  std::size_t free = 0, whole = 0;
  PLAIT_CUDA_CALL(memory_info, &free, &whole);
  return static_cast<double>(free) / 1e6;
}

/// Calls of several engines in a graph, and the count of wrong values.
class ReplayedCalls {
 public:
  explicit ReplayedCalls(GpuFixture& gpu) : gpu_(gpu), calls_(gpu, kBytes) {
    PLAIT_CUDA_CALL(stream_begin_capture, gpu.stream, kCaptureRelaxed);
    enqueue();
    PLAIT_CUDA_CALL(stream_end_capture, gpu.stream, &graph_);
    PLAIT_CUDA_CALL(graph_instantiate, &exec_, graph_, 0);
    gpu.board->barrier();
  }
  ~ReplayedCalls() {
    api().graph_exec_destroy(exec_);
    api().graph_destroy(graph_);
  }
  ReplayedCalls(const ReplayedCalls&) = delete;
  ReplayedCalls& operator=(const ReplayedCalls&) = delete;
  void enqueue() {
    Request request;
    request.ranks = gpu_.board->ranks;
    for (const char* const engine : {"one_shot", "two_shot", "tiled", "rotation"}) {
      request.count = engine[0] == 'o' ? 1000 : kBytes / bytes_of(request.type);
      if (bench::takes(*gpu_.cuda, engine, request)) calls_.enqueue(engine, request);
    }
  }
  void replay() { PLAIT_CUDA_CALL(graph_launch, exec_, gpu_.stream); }
  unsigned long long wrong() { return calls_.wrong(); }

 private:
  GpuFixture& gpu_;
  LongCalls calls_;
  Graph graph_ = nullptr;
  GraphExec exec_ = nullptr;
};

/// Suspends and resumes; prints rank 0's times and MB.
void suspend_once(GpuFixture& gpu, GpuFindings& findings) {
  gpu.finish();
  gpu.board->barrier();
  const auto began = std::chrono::steady_clock::now();
  const double before = free_mb();
  gpu.cuda->suspend();
  const auto suspended = std::chrono::steady_clock::now();
  gpu.board->barrier();  // memory goes once no rank maps it
  const double wanted = static_cast<double>(gpu.cuda->gpu_memory().suspendable) / 1e6;
  double freed = free_mb() - before;
  while (freed < 0.9 * wanted &&
         std::chrono::steady_clock::now() - suspended < std::chrono::seconds(2))
    freed = free_mb() - before;
  gpu.board->barrier();
  const auto resumes = std::chrono::steady_clock::now();
  gpu.cuda->resume([&](const std::string& mine) { return gpu.board->exchange(gpu.rank, mine); });
  const auto resumed = std::chrono::steady_clock::now();
  const auto ms = [](auto from, auto to) {
    return std::chrono::duration<double, std::milli>(to - from).count();
  };
  if (gpu.rank == 0)
    std::printf("suspend %.1f ms, %.0f of %.0f MB freed; resume %.1f ms\n", ms(began, suspended),
                freed, wanted, ms(resumes, resumed));
  if (wanted == 0) findings.add(gpu.rank, "arenas are not at fixed addresses");
  if (freed < 0.9 * wanted) findings.add(gpu.rank, text("{} MB freed, wanted {}; ", freed, wanted));
}

}  // namespace

TEST_CASE("processes: suspended ranks resume with the bits of eager and replayed calls") {
  const int ranks = gpus_for_processes();
  if (skipped(ranks)) return;
  on_gpus(ranks, true, [](GpuFixture& gpu, GpuFindings& findings) {
    ReplayedCalls calls(gpu);
    for (int turn = 0; turn < 4; ++turn) {
      calls.enqueue();
      calls.replay();
      calls.enqueue();
      suspend_once(gpu, findings);
      calls.replay();
      calls.enqueue();
      if (const auto wrong = calls.wrong(); wrong != 0)
        findings.add(gpu.rank, text("turn {}: {} wrong values; ", turn, wrong));
    }
  });
}
