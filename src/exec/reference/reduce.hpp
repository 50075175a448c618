// Regions of elements -> their n-way reduction, one element at a time: what reduce_cpu and the GPU
// kernels must equal bit for bit. Only the scalar conversions (exec/numbers.hpp) are shared.
#pragma once
#include <cstdint>
#include <vector>

#include "plait/plan.hpp"

namespace plait {

/// As reduce_cpu (exec/cpu/cpu.hpp), without speed. scales may be empty.
void reduce_reference(DataType type, ReduceOp op, void* dst, const std::vector<const void*>& srcs,
                      std::uint64_t count, int ranks, bool finish,
                      const std::vector<double>& scales);

}  // namespace plait
