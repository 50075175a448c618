// End of a rank: has_ended() depends on the rank's own calls, eager and replayed, whatever else
// runs on the GPU. Afterwards the rank unmaps the peers' memory.
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <future>
#include <thread>
#include <utility>

#include "base/text.hpp"
#include "tests/gpu/gpu_fixture.hpp"

using namespace plait;
using namespace plait::cuda;

namespace {

constexpr double kPatienceS = 10;

bool await_end(CudaRank& rank) {
  const auto start = std::chrono::steady_clock::now();
  while (!rank.has_ended())
    if (std::chrono::steady_clock::now() - start > std::chrono::duration<double>(kPatienceS))
      return false;
  return true;
}

/// Keeps a stream busy until told to end, or long enough.
struct Busy {
  std::atomic<bool> over{false};
  static void hold(void* self) {
    const auto start = std::chrono::steady_clock::now();
    while (!static_cast<Busy*>(self)->over.load() &&
           std::chrono::steady_clock::now() - start < std::chrono::duration<double>(3 * kPatienceS))
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
};

/// Rank 0 calls, and rank 1 later. Meanwhile rank 0 has not ended; soon after rank 0 has ended.
void call_apart(GpuFixture& gpu, GpuFindings& findings, const char* what,
                const std::function<void()>& call) {
  if (gpu.rank == 0) {
    call();
    for (int look = 0; look < 50; ++look) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      if (gpu.cuda->has_ended())
        findings.add(0, text("{}: ended before the other rank called", what));
    }
  }
  gpu.board->barrier();
  if (gpu.rank == 1) call();
  if (!await_end(*gpu.cuda)) findings.add(gpu.rank, text("{}: never ended", what));
  gpu.finish();
  gpu.board->barrier();
}

constexpr std::uint64_t kHostBytes = 16ull << 20;

/// Driver calls that allocate the large arena, with times in ms and results.
struct Asked {
  double allocated = -1, filled = -1, shown = -1, registered = -1;
  DevicePointer memory = 0;
  Stream stream = nullptr;
  std::byte* host = nullptr;
};

Asked ask_for_memory(Context context) {
  const RelaxedCaptureMode relaxed;
  const Current current(context);
  auto began = std::chrono::steady_clock::now();
  const auto passed = [&] {
    const auto now = std::chrono::steady_clock::now();
    return std::chrono::duration<double, std::milli>(now - std::exchange(began, now)).count();
  };
  Asked asked;
  IpcHandle handle{};
  PLAIT_CUDA_CALL(memory_alloc, &asked.memory, 168ull << 20);
  asked.allocated = passed();
  PLAIT_CUDA_CALL(stream_create, &asked.stream, kStreamNonBlocking, 0);
  PLAIT_CUDA_CALL(memory_set_async, asked.memory, 0, 168ull << 20, asked.stream);
  PLAIT_CUDA_CALL(stream_synchronize, asked.stream);
  asked.filled = passed();
  PLAIT_CUDA_CALL(ipc_get, &handle, asked.memory);
  asked.shown = passed();
  asked.host = bench::shared_memory(kHostBytes);
  PLAIT_CUDA_CALL(host_register, asked.host, kHostBytes,
                  kHostRegisterPortable | kHostRegisterMapped);
  asked.registered = passed();
  return asked;
}

void give_back(const Asked& asked) {
  api().host_unregister(asked.host);
  ::munmap(asked.host, kHostBytes);
  api().stream_destroy(asked.stream);
  api().memory_free(asked.memory);
}

/// Maps and unmaps memory at fixed addresses; returns the times of both in ms.
std::pair<double, double> map_and_unmap(Context context) {
  const RelaxedCaptureMode relaxed;
  const Current current(context);
  cuda::Device device = 0;
  PLAIT_CUDA_CALL(context_device, &device);
  if (!FixedMemory::why_none(device).empty()) return {0, 0};
  auto began = std::chrono::steady_clock::now();
  const auto passed = [&] {
    const auto now = std::chrono::steady_clock::now();
    return std::chrono::duration<double, std::milli>(now - std::exchange(began, now)).count();
  };
  FixedMemory memory(device, 168ull << 20);
  const double mapped = passed();
  memory.give_up();
  return {mapped, passed()};
}

/// Rank 0's kernel waits for rank 1's. Rank 1's kernel is launched once the driver has answered
/// rank 0's requests, or a second later. In the second case the driver waits, which LazyArena does
/// not expect.
void query_alongside_a_waiting_kernel(GpuFixture& gpu, GpuFindings& findings) {
  Request request;
  request.count = 1000;
  request.ranks = 2;
  const auto call = [&] {
    bench::run(*gpu.cuda, "one_shot", request,
               {reinterpret_cast<const void*>(gpu.input), reinterpret_cast<void*>(gpu.output), {}},
               gpu.stream);
  };
  call();
  gpu.finish();
  gpu.board->barrier();
  std::future<Asked> asked;
  std::future<std::pair<double, double>> mapped;
  if (gpu.rank == 0) {
    call();
    asked = std::async(std::launch::async, ask_for_memory, gpu.cuda->context());
    if (asked.wait_for(std::chrono::seconds(1)) != std::future_status::ready)
      findings.add(0, "the driver waits for a kernel that waits for a peer");
    mapped = std::async(std::launch::async, map_and_unmap, gpu.cuda->context());
    const bool waits = mapped.wait_for(std::chrono::seconds(1)) != std::future_status::ready;
    std::printf("memory at fixed addresses: the driver %s a kernel that waits for a peer\n",
                waits ? "waits for" : "does not wait for");
  }
  gpu.board->barrier();
  if (gpu.rank == 1) call();
  if (!await_end(*gpu.cuda)) findings.add(gpu.rank, "never ended");
  gpu.finish();
  if (gpu.rank != 0) return;
  const Asked given = asked.get();
  std::printf("ms: allocate %.2f, fill %.2f, show %.2f, register %.2f\n", given.allocated,
              given.filled, given.shown, given.registered);
  const auto [map_ms, unmap_ms] = mapped.get();
  std::printf("ms: map %.2f, unmap %.2f\n", map_ms, unmap_ms);
  give_back(given);
}

}  // namespace

TEST_CASE(
    "the large arena is allocated beside a kernel that waits for a peer, also of this process") {
  if (device_count() == 0) return;
  on_gpus(2, false, query_alongside_a_waiting_kernel);
}

TEST_CASE("a rank has ended when its own calls have, whatever other streams wait for") {
  if (device_count() == 0) return;
  on_gpus(2, false, [](GpuFixture& gpu, GpuFindings& findings) {
    Busy busy;
    Stream other = nullptr;
    PLAIT_CUDA_CALL(stream_create, &other, kStreamNonBlocking, 0);
    Request request;
    request.count = 1000;
    request.ranks = 2;
    const auto call = [&] {
      bench::run(
          *gpu.cuda, "one_shot", request,
          {reinterpret_cast<const void*>(gpu.input), reinterpret_cast<void*>(gpu.output), {}},
          gpu.stream);
    };
    if (!await_end(*gpu.cuda)) findings.add(gpu.rank, "not ended before the first call");
    gpu.board->barrier();
    if (gpu.rank == 0) PLAIT_CUDA_CALL(launch_host, other, Busy::hold, &busy);
    call_apart(gpu, findings, "an eager call", call);

    Graph graph = nullptr;
    GraphExec exec = nullptr;
    PLAIT_CUDA_CALL(stream_begin_capture, gpu.stream, kCaptureRelaxed);
    call();
    PLAIT_CUDA_CALL(stream_end_capture, gpu.stream, &graph);
    PLAIT_CUDA_CALL(graph_instantiate, &exec, graph, 0);
    PLAIT_CUDA_CALL(graph_upload, exec, gpu.stream);
    PLAIT_CUDA_CALL(stream_synchronize, gpu.stream);
    gpu.board->barrier();
    call_apart(gpu, findings, "a replay", [&] { PLAIT_CUDA_CALL(graph_launch, exec, gpu.stream); });

    busy.over.store(true);
    PLAIT_CUDA_CALL(stream_synchronize, other);
    gpu.board->barrier();
    api().graph_exec_destroy(exec);
    api().graph_destroy(graph);
    api().stream_destroy(other);
    gpu.cuda->unmap_peers();
  });
}
