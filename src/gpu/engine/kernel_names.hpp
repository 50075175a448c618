// Names of the kernels that serve a request. Launches and the set-up probe share the functions
// here, so every kernel launched has been probed.
#pragma once
#include <string>

#include "plait/plan.hpp"

namespace plait::cuda {

/// Sums of fp32, bf16 and fp16 have separate kernels: for `direct_ll` with any number of ranks,
/// otherwise for 2, 4 and 8.
bool sums_common_floats(const Request& request);
bool is_common_sum(const Request& request);
/// True if the chain kernel of the request fits in 64 registers.
bool is_lean_chain(const Request& request);

/// True if two_shot has a kernel for this reduce.
bool has_two_shot_to_root(const Request& request);
/// kernel: "one_shot" or "two_shot".
std::string shot_kernel(const std::string& kernel, const Request& request, bool nan_sentinel);
/// True if a short kernel exists: a thread per unit of a part, with a fixed maximum of ranks.
bool has_short_direct_ll(const Request& request);
/// is_short: the name of the short kernel.
std::string direct_ll_kernel(const Request& request, bool is_short);
/// is_long: the kernel for several pieces.
std::string chain_kernel(const Request& request, bool is_long);
/// fold: the kernel of a fold, if a fold serves the request (why_no_fold).
std::string tiled_kernel(const Request& request, bool fold = false);
std::string lane_kernel(const Request& request);
/// Kernel that reduces `sources` pieces brought by copy engines.
std::string piece_kernel(DataType type, ReduceOp op, int sources);

}  // namespace plait::cuda
