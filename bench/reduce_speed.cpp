// reduce_cpu's GB/s on one core, beside a plain vector add as yardstick of the memory's bandwidth.
// Traffic counted: every source read and the result written, once.
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <vector>

#include "exec/cpu/cpu.hpp"

namespace {

constexpr std::uint64_t kBytes =
    16ull << 20;  // of one source: with all of them far more than a core's caches
constexpr int kRuns = 3;

// This thread's time on its core: other load on the machine counts as little as can be.
double cpu_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

template <class Body>
double best_seconds(const Body& body) {
  double best = 1e9;
  for (int run = 0; run < kRuns; ++run) {
    const double begin = cpu_seconds();
    body();
    best = std::min(best, cpu_seconds() - begin);
  }
  return best;
}

// STREAM's add, with ordinary stores.
[[gnu::target_clones("default", "avx2", "avx512f")]] void add(float* dst, const float* a,
                                                              const float* b, std::uint64_t count) {
#pragma GCC ivdep
  for (std::uint64_t i = 0; i < count; ++i) dst[i] = a[i] + b[i];
}

}  // namespace

int main() {
  using namespace plait;
  std::vector<std::vector<float>> memory(9, std::vector<float>(kBytes / 4, 1.0f));
  float* srcs[8];
  for (std::size_t s = 0; s < 8; ++s) srcs[s] = memory[s + 1].data();
  float* dst = memory[0].data();
  const double yard =
      3.0 * kBytes / best_seconds([&] { add(dst, srcs[0], srcs[1], kBytes / 4); }) / 1e9;
  std::printf("plain add of 2 fp32 arrays: %.2f GB/s\n", yard);
  std::printf("%-8s %7s %9s %9s\n", "type", "sources", "GB/s", "of add");
  const DataType types[] = {DataType::fp32, DataType::bf16,    DataType::fp16,   DataType::fp64,
                            DataType::int8, DataType::fp8e4m3, DataType::fp8e5m2};
  for (const DataType type : types)
    for (const int sources : {2, 3, 4, 8}) {
      const void* from[8];
      for (int s = 0; s < sources; ++s) from[s] = srcs[s];
      const double seconds = best_seconds([&] {
        reduce_cpu(type, ReduceOp::sum, dst, from, sources, kBytes / bytes_of(type), sources, true,
                   nullptr);
      });
      const double speed = (sources + 1.0) * kBytes / seconds / 1e9;
      std::printf("%-8s %7d %9.2f %8.0f%%\n", name_of(type), sources, speed, 100 * speed / yard);
      std::fflush(stdout);
    }
}
