// Types and sums that kernels are compiled for. Each room builds the names of its own kernels from
// these; launches and the set-up probe share such a function, so every kernel launched has been
// probed.
#pragma once
#include <cstdint>
#include <string>

#include "plait/plan.hpp"

namespace plait::cuda {

bool is_common_float(DataType type);
/// 2, 4 and 8.
bool is_common_number(int ranks);
/// True if kernels of sums serve the reduction: sums of fp32, bf16 and fp16, and their averages
/// over 2, 4, 8 or 16 ranks, where the factor 1 / ranks is exact.
bool has_sum_kernels(DataType type, ReduceOp op, int ranks);
/// True if the request has kernels of sums: for `direct_ll` with any number of ranks, otherwise for
/// 2, 4 and 8 (is_common_sum).
bool sums_common_floats(const Request& request);
bool is_common_sum(const Request& request);
/// End of a kernel's name: "_sum_4" for a common sum, otherwise "_any_0".
std::string sum_variant(const Request& request);
/// True if the request's sums are trees of more than two ranks, for which engines have kernels of
/// their own.
bool is_in_tree(const Request& request, SumOrder order);
/// Type whose kernel serves the request: data that is only moved uses integers of the same width.
DataType moved_type(const Request& request);
/// CallArgs::order of a call: the tree that is asked for, or rank order, which is the same if the
/// request has_one_order().
std::int32_t order_of(const Request& request, SumOrder order);
/// Sets the op and order of a kernel's arguments.
template <class Args>
void set_reduction(Args& args, const Request& request, SumOrder order) {
  args.op = static_cast<std::int32_t>(request.op);
  args.order = order_of(request, order);
}

}  // namespace plait::cuda
