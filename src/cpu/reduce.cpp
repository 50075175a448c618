// reduce_cpu(): one version for each instruction set, chosen at the first call. Versions differ
// only in speed: no fused multiply-add (-ffp-contract=off), no reordering of an element's sources.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // falsely raised by GCC 12 in intrinsics
#include <bit>
#include <cstddef>

#include "base/text.hpp"
#include "cpu/cpu.hpp"
#include "cpu/reduce_level.hpp"
#include "cpu/reduce_loops.hpp"
#if defined(__x86_64__) && !defined(PLAIT_SANITIZED)  // sanitized code takes minutes to compile
#include "cpu/reduce_avx2.hpp"
#include "cpu/reduce_avx512.hpp"
#endif
#include "cpu/float_mode.hpp"
#include "plait/error.hpp"

namespace plait {
namespace {

using reduce_loops::LoopJob;
using Loops = void (*)(const LoopJob&);

template <DataType kType>
void run_base(const LoopJob& job) {
  reduce_loops::run_type<kType>(job);
}

#if defined(__x86_64__) && !defined(PLAIT_SANITIZED)  // sanitized code takes minutes to compile
ReduceLevel level_of_machine() {
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("f16c")) return ReduceLevel::base;
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
    return ReduceLevel::avx512;
  return ReduceLevel::avx2;
}

template <DataType kType>
Loops loops_of(ReduceLevel level) {
  if (level == ReduceLevel::avx512) return reduce_avx512::run<kType>;
  return level == ReduceLevel::avx2 ? reduce_avx2::run<kType> : run_base<kType>;
}
#else
ReduceLevel level_of_machine() { return ReduceLevel::base; }

template <DataType kType>
Loops loops_of(ReduceLevel) {
  return run_base<kType>;
}
#endif

ReduceLevel best_level() {
  static const ReduceLevel level = level_of_machine();
  return level;
}

// Signed integers wrap like unsigned integers, so all reductions but min, max and avg share loops.
DataType loops_type(DataType type, ReduceOp op) {
  if (op == ReduceOp::min || op == ReduceOp::max || op == ReduceOp::avg) return type;
  switch (type) {
    case DataType::int8: return DataType::uint8;
    case DataType::int16: return DataType::uint16;
    case DataType::int32: return DataType::uint32;
    case DataType::int64: return DataType::uint64;
    default: return type;
  }
}

}  // namespace

const char* name_of(ReduceLevel level) {
  switch (level) {
    case ReduceLevel::base: return "base";
    case ReduceLevel::avx2: return "avx2";
    case ReduceLevel::avx512: return "avx512";
  }
  return "?";
}

std::vector<ReduceLevel> reduce_levels() {
  std::vector<ReduceLevel> levels;
  for (const ReduceLevel level : {ReduceLevel::base, ReduceLevel::avx2, ReduceLevel::avx512})
    if (level <= best_level()) levels.push_back(level);
  return levels;
}

void reduce_cpu_at(ReduceLevel level, DataType type, ReduceOp op, void* dst,
                   const void* const* srcs, int src_count, std::uint64_t count, int ranks,
                   bool finish, const double* scales, SumOrder order) {
  if (src_count < 1)
    throw Error(ErrorCode::internal, text("wanted 1 or more sources, found {}", src_count));
  if (level > best_level())
    throw Error(ErrorCode::unsupported, text("wanted the {} reduction, found a processor with {} "
                                             "at best; ask for one of reduce_levels()",
                                             name_of(level), name_of(best_level())));
  const bool is_pairs = is_tree(order) && src_count > 2 && !has_no_order(type, op);
  if (is_pairs && !std::has_single_bit(static_cast<unsigned>(src_count)))
    throw Error(ErrorCode::internal,
                text("wanted a power of two of sources for a tree, found {}", src_count));
  LoopJob job;
  job.op = op;
  job.dst = static_cast<std::byte*>(dst);
  job.srcs = reinterpret_cast<const std::byte* const*>(srcs);
  job.src_count = src_count;
  job.count = count;
  job.divisor = op == ReduceOp::avg && finish ? ranks : 1;
  job.scales = op == ReduceOp::premul_sum ? scales : nullptr;
  job.in_pairs = is_pairs;
  job.rounds = order == SumOrder::tree_rounded;
  const PlainFloats same_on_every_thread;
  with_type(loops_type(type, op), [&]<DataType kType>() { loops_of<kType>(level)(job); });
}

void reduce_cpu(DataType type, ReduceOp op, void* dst, const void* const* srcs, int src_count,
                std::uint64_t count, int ranks, bool finish, const double* scales, SumOrder order) {
  reduce_cpu_at(best_level(), type, op, dst, srcs, src_count, count, ranks, finish, scales, order);
}

}  // namespace plait
