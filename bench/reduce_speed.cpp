// reduce_cpu's speed on one core beside plain fp32 additions with the same traffic: as many arrays
// read and written, of the same bytes. Both are timed in turn, and the median of the turns' ratios
// is what counts: so other work on the machine, which slows both, matters little.
//   bench_reduce_speed [--rounds N] [--level base|avx2|avx512] [--type NAME] [--csv FILE]
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "exec/cpu/cpu.hpp"
#include "exec/cpu/reduce_level.hpp"
#include "exec/numbers.hpp"

namespace {

using namespace plait;

constexpr std::uint64_t kBytes =
    16ull << 20;  // of one source: with all of them far more than a core's caches

// This thread's time on its core: other load on the machine counts as little as can be.
double cpu_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

template <class Body>
double seconds(const Body& body) {
  const double begin = cpu_seconds();
  body();
  return cpu_seconds() - begin;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// STREAM's add, with ordinary stores, of 2, 4 and 8 arrays.
[[gnu::target_clones("default", "avx2", "avx512f")]] void add2(float* dst, const float* const* s,
                                                               std::uint64_t count) {
  const float *a = s[0], *b = s[1];
#pragma GCC ivdep
  for (std::uint64_t i = 0; i < count; ++i) dst[i] = a[i] + b[i];
}

[[gnu::target_clones("default", "avx2", "avx512f")]] void add4(float* dst, const float* const* s,
                                                               std::uint64_t count) {
  const float *a = s[0], *b = s[1], *c = s[2], *d = s[3];
#pragma GCC ivdep
  for (std::uint64_t i = 0; i < count; ++i) dst[i] = a[i] + b[i] + c[i] + d[i];
}

[[gnu::target_clones("default", "avx2", "avx512f")]] void add8(float* dst, const float* const* s,
                                                               std::uint64_t count) {
  const float *a = s[0], *b = s[1], *c = s[2], *d = s[3];
  const float *e = s[4], *f = s[5], *g = s[6], *h = s[7];
#pragma GCC ivdep
  for (std::uint64_t i = 0; i < count; ++i)
    dst[i] = a[i] + b[i] + c[i] + d[i] + e[i] + f[i] + g[i] + h[i];
}

void plain_add(float* dst, const float* const* srcs, int sources) {
  (sources == 2 ? add2 : sources == 4 ? add4 : add8)(dst, srcs, kBytes / 4);
}

// Values of everyday size: floats from -1 to 1, any integers.
void fill(DataType type, std::vector<std::byte>& memory, std::uint64_t seed) {
  std::mt19937 random(static_cast<std::uint32_t>(seed));
  with_type(type, [&]<DataType kType>() {
    using N = Number<kType>;
    for (std::uint64_t at = 0; at < kBytes; at += sizeof(typename N::Stored)) {
      typename N::Stored stored;
      if constexpr (N::kFloat)
        stored = N::down(static_cast<typename N::Wide>(random()) / 2147483648.0f - 1.0f);
      else
        stored = static_cast<typename N::Stored>(random());
      std::memcpy(memory.data() + at, &stored, sizeof stored);
    }
  });
}

struct Options {
  int rounds = 9;
  ReduceLevel level = reduce_levels().back();
  std::string csv, type;
};

Options parsed(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; i += 2) {
    const std::string name = argv[i], value = i + 1 < argc ? argv[i + 1] : "";
    bool known = false;
    if (name == "--rounds") known = (options.rounds = std::atoi(value.c_str())) > 0;
    if (name == "--type") known = !(options.type = value).empty();
    if (name == "--csv") known = !(options.csv = value).empty();
    if (name == "--level")
      for (const ReduceLevel level : reduce_levels())
        if (value == name_of(level)) options.level = level, known = true;
    if (known) continue;
    std::fprintf(
        stderr,
        "wanted --rounds N, --type NAME, --csv FILE or --level LEVEL (one of this machine's), "
        "found %s %s\n",
        name.c_str(), value.c_str());
    std::exit(2);
  }
  return options;
}

struct Row {
  DataType type;
  int sources;
  double gb_per_s, plain_gb_per_s, percent;
};

Row measured(DataType type, int sources, const Options& options,
             std::vector<std::vector<std::byte>>& memory,
             const std::vector<std::vector<float>>& plain, std::vector<float>& sum) {
  const void* srcs[8];
  const float* plain_srcs[8];
  for (std::size_t s = 0; s < 8; ++s) {
    srcs[s] = memory[s + 1].data();
    plain_srcs[s] = plain[s].data();
  }
  std::vector<double> times, plain_times, percents;
  for (int round = 0; round < options.rounds; ++round) {
    plain_times.push_back(seconds([&] { plain_add(sum.data(), plain_srcs, sources); }));
    times.push_back(seconds([&] {
      reduce_cpu_at(options.level, type, ReduceOp::sum, memory[0].data(), srcs, sources,
                    kBytes / bytes_of(type), sources, true, nullptr);
    }));
    percents.push_back(100 * plain_times.back() / times.back());
  }
  const double traffic_gb = (sources + 1.0) * kBytes / 1e9;
  return {type, sources, traffic_gb / median(times), traffic_gb / median(plain_times),
          median(percents)};
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = parsed(argc, argv);
  std::FILE* csv = options.csv.empty() ? nullptr : std::fopen(options.csv.c_str(), "w");
  if (csv != nullptr) std::fputs("level,type,sources,gb_per_s,plain_add_gb_per_s,percent\n", csv);
  std::vector<std::vector<std::byte>> memory(9, std::vector<std::byte>(kBytes));
  std::vector<std::vector<float>> plain(8, std::vector<float>(kBytes / 4, 1.0f));
  std::vector<float> sum(kBytes / 4);
  std::printf("%s, sums; percent: of a plain fp32 add of as many arrays\n", name_of(options.level));
  std::printf("%-8s %7s %9s %9s %8s\n", "type", "sources", "GB/s", "plain", "percent");
  const DataType types[] = {
#define PLAIT_TYPE(name, bytes, is_float, nccl_value) DataType::name,
#include "plait/types.def"
#undef PLAIT_TYPE
  };
  for (const DataType type : types) {
    if (!options.type.empty() && options.type != name_of(type)) continue;
    for (std::size_t s = 0; s < memory.size(); ++s) fill(type, memory[s], s + 1);
    for (const int sources : {2, 4, 8}) {
      const Row row = measured(type, sources, options, memory, plain, sum);
      std::printf("%-8s %7d %9.2f %9.2f %7.0f%%\n", name_of(type), sources, row.gb_per_s,
                  row.plain_gb_per_s, row.percent);
      std::fflush(stdout);
      if (csv != nullptr)
        std::fprintf(csv, "%s,%s,%d,%.2f,%.2f,%.0f\n", name_of(options.level), name_of(type),
                     sources, row.gb_per_s, row.plain_gb_per_s, row.percent);
    }
  }
  if (csv != nullptr) std::fclose(csv);
}
