// reduce_cpu: one version of the loops for each instruction set, picked at the first call.
// Versions differ in vector width alone: no fused multiply-add (-ffp-contract=off), no reordering.
#include <cstddef>

#include "base/text.hpp"
#include "exec/cpu/cpu.hpp"
#include "exec/cpu/reduce_loops.hpp"
#include "plait/error.hpp"

namespace plait {
namespace {

using reduce_loops::Job;
using Loops = void (*)(const Job&);

template <DataType kType>
void run_base(const Job& job) {
  reduce_loops::run_type<kType>(job);
}

#if defined(__x86_64__) && !defined(PLAIT_SANITIZED)  // one version suffices there: same source
template <DataType kType>
[[gnu::target("avx2")]] void run_avx2(const Job& job) {
  reduce_loops::run_type<kType>(job);
}

template <DataType kType>
[[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")]] void run_avx512(
    const Job& job) {
  reduce_loops::run_type<kType>(job);
}

enum class Isa { base, avx2, avx512 };

Isa isa_of_machine() {
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
    return Isa::avx512;
  return __builtin_cpu_supports("avx2") ? Isa::avx2 : Isa::base;
}

template <DataType kType>
Loops loops_of_machine() {
  const Isa isa = isa_of_machine();
  return isa == Isa::avx512 ? run_avx512<kType>
         : isa == Isa::avx2 ? run_avx2<kType>
                            : run_base<kType>;
}
#else
template <DataType kType>
Loops loops_of_machine() {
  return run_base<kType>;
}
#endif

// Signed integers wrap as unsigned ones do: all but min, max and avg share their loops.
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

void reduce_cpu(DataType type, ReduceOp op, void* dst, const void* const* srcs, int src_count,
                std::uint64_t count, int ranks, bool finish, const double* scales) {
  if (src_count < 1)
    throw Error(ErrorCode::internal, text("wanted 1 or more sources, found ", src_count));
  Job job;
  job.op = op;
  job.dst = static_cast<std::byte*>(dst);
  job.srcs = reinterpret_cast<const std::byte* const*>(srcs);
  job.src_count = src_count;
  job.count = count;
  job.divisor = op == ReduceOp::avg && finish ? ranks : 1;
  job.scales = op == ReduceOp::premul_sum ? scales : nullptr;
  with_type(loops_type(type, op), [&]<DataType kType>() {
    static const Loops loops = loops_of_machine<kType>();
    loops(job);
  });
}

}  // namespace plait
