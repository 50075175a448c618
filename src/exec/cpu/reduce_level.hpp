// Which instruction set's version of the reduction runs. reduce_cpu takes the best that the machine
// has; tests and benches ask for each by name, so that none goes unseen.
#pragma once
#include <cstdint>
#include <vector>

#include "plait/plan.hpp"

namespace plait {

enum class ReduceLevel { base, avx2, avx512 };

/// "base", "avx2", "avx512".
const char* name_of(ReduceLevel level);

/// Those that this machine can run, the best last.
std::vector<ReduceLevel> reduce_levels();

/// reduce_cpu (exec/cpu/cpu.hpp) by that version. Error(unsupported) where the machine lacks it.
void reduce_cpu_at(ReduceLevel level, DataType type, ReduceOp op, void* dst,
                   const void* const* srcs, int src_count, std::uint64_t count, int ranks,
                   bool finish, const double* scales);

}  // namespace plait
