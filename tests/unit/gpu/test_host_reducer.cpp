// HostReducer: the CPU side of a part that cores reduce, with the test as the GPU: consecutive
// jobs, late ranks, kernels that give up, and an end during a job.
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "cpu/spin.hpp"
#include "gpu/host_path/host_reducer.hpp"

using namespace plait;
using namespace plait::cuda;
using namespace std::chrono_literals;

namespace {

constexpr std::uint64_t kFloats = 1000;    // per chunk
constexpr std::uint32_t kBefore = 0u - 2;  // counters wrap around

HostFlags words_before() {
  HostFlags words{};
  for (auto* by_rank : {words.arrived, words.reduced, words.taken})
    std::fill(by_rank, by_rank + kMaxCudaRanks, kBefore);
  return words;
}

/// Rings of two ranks; rank 0 has real cores.
struct ReducerBench {
  explicit ReducerBench(double wait_s = 20) : reducer(words, 0, 2, stop_page, wait_s) {
    for (auto& ring : rings) ring.resize(kChunkSlots * kFloats);
    job.ranks = 2;
    for (std::size_t rank = 0; rank < 2; ++rank)
      job.rings[rank] = reinterpret_cast<char*>(rings[rank].data());
    cut(3, 1);  // rank 0 owns the first and the last chunk
    reducer.start();
  }
  /// Sets the number of chunks, and the floats of the last chunk.
  void cut(std::uint32_t chunks, std::uint64_t last) {
    constexpr std::uint64_t kBytes = kFloats * sizeof(float);
    job.cut = {(chunks - 1) * kBytes + last * sizeof(float), 0, kBytes, chunks};
  }
  static std::atomic_ref<std::uint32_t> of(std::uint32_t& word) {
    return std::atomic_ref<std::uint32_t>(word);
  }
  void arrive(int rank, std::uint32_t value) { of(words.arrived[rank]).store(kBefore + value); }
  std::uint32_t reduced() { return of(words.reduced[0]).load() - kBefore; }
  bool reaches(std::uint32_t value) {
    return spin_until([&] { return reduced() == value; }, 15s);
  }
  /// Fills a job's chunks with distinct values.
  void fill(float value) {
    for (std::size_t rank = 0; rank < 2; ++rank)
      for (float& one : rings[rank]) one = value + static_cast<float>(rank);
  }

  HostFlags words = words_before();
  StopPage stop_page{};
  std::vector<float> rings[2];
  HostJob job;
  HostReducer reducer;
};

}  // namespace

TEST_CASE("cores reduce the rank's chunks as they arrive, job after job") {
  ReducerBench bench;
  bench.fill(1);
  bench.reducer.begin(bench.job);
  bench.arrive(0, 1);
  std::this_thread::sleep_for(20ms);  // rank 1 is late
  CHECK(bench.reduced() == 0);
  bench.arrive(1, 1);
  CHECK(bench.reaches(1));
  CHECK(bench.rings[0][kFloats - 1] == 3);  // 1 + 2, in the owner's ring
  CHECK(bench.rings[0][kFloats] == 1);      // rank 1's chunk is unchanged
  CHECK(bench.rings[1][0] == 2);
  bench.arrive(0, 3);
  bench.arrive(1, 3);
  CHECK(bench.reaches(3));
  CHECK(bench.rings[0][2 * kFloats] == 3);
  CHECK(bench.rings[0][2 * kFloats + 1] == 1);  // the last chunk has a single float
  bench.fill(5);
  bench.cut(1, kFloats);
  bench.reducer.begin(bench.job);
  bench.reducer.begin(bench.job);
  bench.arrive(0, 5);
  bench.arrive(1, 5);
  CHECK(bench.reaches(5));
  CHECK(bench.rings[0][0] == 17);  // summed twice, with no new input between: 5 + 6 + 6
}

TEST_CASE("a rank without chunks keeps its counter up to date") {
  ReducerBench bench;
  bench.cut(2, 1);
  bench.reducer.begin(bench.job);
  bench.arrive(0, 1);
  bench.arrive(1, 1);
  CHECK(bench.reaches(2));
}

namespace {

/// Returns whether cores reduce nothing of chunks that arrive after `pause`: ranks are late, or
/// kernels have given up.
bool gives_up_within(std::chrono::milliseconds pause, bool is_late) {
  ReducerBench bench(is_late ? 0.05 : 20);
  bench.fill(1);
  bench.reducer.begin(bench.job);
  if (!is_late) std::atomic_ref<std::uint32_t>(bench.stop_page.stop).store(cuda::kFaultAborted);
  std::this_thread::sleep_for(pause);
  bench.arrive(0, 3);
  bench.arrive(1, 3);
  std::this_thread::sleep_for(50ms);
  bench.reducer.begin(bench.job);  // the report could be mistaken for the first job's
  bench.arrive(0, 6);
  bench.arrive(1, 6);
  std::this_thread::sleep_for(50ms);
  return bench.reduced() == 0 && bench.rings[0][0] == 1;
}

}  // namespace

TEST_CASE("cores wait no longer than kernels do") {
  // A busy machine may run the thread of the cores only after a short pause.
  for (const bool is_late : {false, true})
    CHECK((gives_up_within(200ms, is_late) || gives_up_within(2s, is_late) ||
           gives_up_within(10s, is_late)));
}

TEST_CASE("cores end at once, while they wait and when they are idle") {
  for (const bool is_waiting : {false, true}) {
    const auto began = std::chrono::steady_clock::now();
    {
      ReducerBench bench;
      if (is_waiting) bench.reducer.begin(bench.job);
      std::this_thread::sleep_for(10ms);
    }
    CHECK(std::chrono::steady_clock::now() - began < 10s);
  }
}
