// Instruction sets that reduce_cpu() is built for. reduce_cpu() uses the best set of the machine;
// tests and benchmarks choose a set by name.
#pragma once
#include <cstdint>
#include <vector>

#include "plait/plan.hpp"

namespace plait {

enum class ReduceLevel { base, avx2, avx512 };

/// Returns "base", "avx2" or "avx512".
const char* name_of(ReduceLevel level);

/// Returns the levels that this machine can run, the best last.
std::vector<ReduceLevel> reduce_levels();

/// reduce_cpu (cpu/cpu.hpp) with a given level. Error(unsupported) if the machine lacks the
/// level.
void reduce_cpu_at(ReduceLevel level, DataType type, ReduceOp op, void* dst,
                   const void* const* srcs, int src_count, std::uint64_t count, int ranks,
                   bool finish, const double* scales, SumOrder order = SumOrder::rank_order);

}  // namespace plait
