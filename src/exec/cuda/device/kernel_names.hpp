// Requests -> names of the kernels that serve them. Launches ask here, and so does the trial of all
// kernels when a rank sets up: what is launched has been tried.
#pragma once
#include <string>

#include "plait/plan.hpp"

namespace plait::cuda {

/// Sums of fp32, bf16 and fp16 have kernels of their own: by hop over any number of ranks, else
/// over 2, 4 and 8.
bool sums_common_floats(const Request& request);
bool is_common_sum(const Request& request);
/// Whether its kernel along a chain keeps within 64 registers.
bool is_lean_chain(const Request& request);

/// Whether two_shot has a kernel for the reduce.
bool has_two_shot_to_root(const Request& request);
/// kernel: "one_shot" or "two_shot".
std::string lines_kernel(const std::string& kernel, const Request& request, bool bare);
/// Whether there is a kernel for its calls with a thread for each unit of a part, which knows how
/// many ranks there are at most.
bool has_short_hop(const Request& request);
/// is_short: that kernel.
std::string hop_kernel(const Request& request, bool is_short);
/// is_long: of several pieces.
std::string chain_kernel(const Request& request, bool is_long);
/// fold: where that serves it (why_no_fold).
std::string tiled_kernel(const Request& request, bool fold = false);
std::string lane_kernel(const Request& request);
/// What reduces pieces of so many sources that copy engines have brought.
std::string piece_kernel(DataType type, ReduceOp op, int sources);

}  // namespace plait::cuda
