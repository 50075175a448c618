// Reference reduction, element by element. reduce_cpu and the GPU kernels must equal it bit for bit
// and share only the scalar conversions (cpu/numbers.hpp).
#pragma once
#include <cstdint>
#include <vector>

#include "plait/plan.hpp"

namespace plait {

/// The same as reduce_cpu (cpu/cpu.hpp), slower. scales may be empty.
void reduce_reference(DataType type, ReduceOp op, void* dst, const std::vector<const void*>& srcs,
                      std::uint64_t count, int ranks, bool finish,
                      const std::vector<double>& scales, SumOrder order = SumOrder::rank_order);

}  // namespace plait
