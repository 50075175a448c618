// Reductions do not depend on a thread's float mode (flush to zero, rounding, traps), and restore
// it for the program.
#include <doctest/doctest.h>

#include <cfenv>
#include <cstring>
#include <thread>

#include "cpu/float_mode.hpp"
#include "cpu/reduce_level.hpp"
#include "cpu/reduce_team.hpp"
#include "cpu/reference_reduce.hpp"
#include "gpu/host_path/host_reducer.hpp"
#include "unit/cpu/helpers.hpp"

using namespace plait;
using plait_test::Bytes;

namespace {

/// Returns float modes that a program may set.
std::vector<FloatMode> modes() {
  std::vector<FloatMode> all{kPlainFloats | kFlushToZero};
  for (const int rounding : {FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO}) {
    std::fesetround(rounding);
    all.push_back(float_mode() & ~kFloatEvents);
    all.push_back(all.back() | kFlushToZero);
  }
  std::fesetround(FE_TONEAREST);
  return all;
}

/// Runs the body in a float mode; returns whether the mode is unchanged afterwards.
template <class Body>
bool in_mode(FloatMode mode, const Body& body) {
  const FloatMode before = float_mode();
  set_float_mode(mode);
  body();
  const FloatMode after = float_mode();
  set_float_mode(before);
  return (after & ~kFloatEvents) == (mode & ~kFloatEvents);
}

/// Three sources with sums and products that are subnormal, or lie between two floats.
struct Sources {
  Sources(DataType type, std::uint64_t count) {
    std::mt19937_64 random(count);
    for (int s = 0; s < 3; ++s) {
      memory.push_back(plait_test::random_elements(random, type, count));
      std::byte* at = memory.back().data();
      const std::uint64_t size = bytes_of(type);
      for (std::uint64_t i = 0; i < count; i += 2)  // every second element is subnormal
        if (type == DataType::fp64)
          at[i * size + 7] = std::byte{0}, at[i * size + 6] &= std::byte{15};
        else if (size > 1)
          at[i * size + size - 1] = std::byte{0}, at[i * size + size - 2] &= std::byte{127};
      from.push_back(at);
    }
  }
  std::vector<Bytes> memory;
  std::vector<const void*> from;
};

constexpr DataType kFloats[] = {DataType::fp16, DataType::fp32,    DataType::fp64,
                                DataType::bf16, DataType::fp8e4m3, DataType::fp8e5m2};
constexpr ReduceOp kOps[] = {ReduceOp::sum, ReduceOp::prod, ReduceOp::min, ReduceOp::avg,
                             ReduceOp::premul_sum};
const std::vector<double> kScales{0.1, -1.0 / 3, 1e-3};

/// Reduces by `reduce(type, op, dst, sources, count)` in every mode, and compares with the default
/// mode.
template <class Reduce>
void check_modes(const char* what, const Reduce& reduce) {
  for (const DataType type : kFloats)
    for (const std::uint64_t count : {1ull, 37ull, 1000ull})
      for (const ReduceOp op : kOps) {
        const Sources sources(type, count);
        Bytes wanted(count * bytes_of(type)), found(wanted.size());
        reduce(type, op, wanted.data(), sources.from, count);
        for (const FloatMode mode : modes()) {
          const bool kept =
              in_mode(mode, [&] { reduce(type, op, found.data(), sources.from, count); });
          INFO(what, " ", name_of(type), " ", name_of(op), " ", count, " mode ", mode);
          CHECK(kept);
          CHECK(found == wanted);
        }
      }
}

}  // namespace

TEST_CASE("reductions do not depend on a thread's float mode, with any instruction set") {
  for (const ReduceLevel level : reduce_levels())
    check_modes(name_of(level), [level](DataType type, ReduceOp op, void* dst,
                                        const std::vector<const void*>& from, std::uint64_t count) {
      reduce_cpu_at(level, type, op, dst, from.data(), 3, count, 3, true,
                    op == ReduceOp::premul_sum ? kScales.data() : nullptr);
    });
  check_modes("reference", [](DataType type, ReduceOp op, void* dst,
                              const std::vector<const void*>& from, std::uint64_t count) {
    reduce_reference(type, op, dst, from, count, 3, true, kScales);
  });
}

TEST_CASE("sums of plait do not trap in a program with float traps") {
  const float big = 3e38f, nan = __builtin_nanf("");
  const void* from[] = {&big, &big, &nan};
  float sum = 0;
  fenv_t before;
  REQUIRE(fegetenv(&before) == 0);
  feenableexcept(FE_INVALID | FE_OVERFLOW | FE_INEXACT);
  reduce_cpu(DataType::fp32, ReduceOp::sum, &sum, from, 3, 1, 3, true, nullptr);
  const int traps = fegetexcept();
  fesetenv(&before);
  if (traps != 0) CHECK(traps == (FE_INVALID | FE_OVERFLOW | FE_INEXACT));
  CHECK(sum != sum);
}

// A new thread inherits the float mode of the creating thread.
TEST_CASE("helper threads reduce the same, whatever the float mode of their creator") {
  constexpr std::uint64_t kCount = 200'000;
  const Sources sources(DataType::fp32, kCount);
  ReduceJob job;
  job.source_count = 3;
  job.count = kCount;
  std::copy(sources.from.begin(), sources.from.end(), job.sources);
  Bytes wanted(kCount * 4), found(kCount * 4);
  reduce_cpu(job.type, job.op, wanted.data(), job.sources, 3, kCount, 3, true, nullptr);
  for (const FloatMode mode : modes()) {
    std::thread([&] {
      set_float_mode(mode);
      ReduceTeam team(2);
      job.dst = found.data();
      team.reduce(job);
    }).join();
    CHECK(found == wanted);
  }
}

TEST_CASE("CPU cores of a GPU reduce the same, whatever thread has started them") {
  constexpr std::uint64_t kCount = 1000;
  const Sources sources(DataType::fp32, kCount);
  for (const FloatMode mode : modes()) {
    std::vector<Bytes> rings{sources.memory[0], sources.memory[1]};
    Bytes wanted(kCount * 4);
    reduce_cpu(DataType::fp32, ReduceOp::sum, wanted.data(), sources.from.data(), 2, kCount, 2,
               true, nullptr);
    cuda::HostFlags words{};
    const cuda::StopPage stop_page{};
    std::thread([&] {
      set_float_mode(mode);
      cuda::HostReducer reducer(words, 0, 1, stop_page, 20);
      cuda::HostJob job;
      job.ranks = 2;
      for (std::size_t rank = 0; rank < 2; ++rank)
        job.rings[rank] = reinterpret_cast<char*>(rings[rank].data());
      job.cut = {kCount * 4, 0, kCount * 4, 1};
      reducer.start();
      reducer.begin(job);
      for (std::uint32_t& word : words.arrived) std::atomic_ref<std::uint32_t>(word).store(1);
      const std::int64_t end = plait_test::in_ms(20'000);
      while (std::atomic_ref<std::uint32_t>(words.reduced[0]).load() != 1 &&
             plait_test::in_ms(0) < end)
        std::this_thread::yield();
    }).join();
    CHECK(rings[0] == wanted);
  }
}
