// Says which sums have kernels of their own.
#include "gpu/engine/kernel_types.hpp"

#include <bit>

#include "base/text.hpp"

namespace plait::cuda {

bool is_common_float(DataType type) {
  return type == DataType::fp32 || type == DataType::bf16 || type == DataType::fp16;
}

bool is_common_number(int ranks) { return ranks == 2 || ranks == 4 || ranks == 8; }

bool has_sum_kernels(DataType type, ReduceOp op, int ranks) {
  const bool is_power_of_two = std::has_single_bit(static_cast<unsigned>(ranks));
  return is_common_float(type) && (op == ReduceOp::sum || (op == ReduceOp::avg && is_power_of_two));
}

bool sums_common_floats(const Request& request) {
  return reduces(request.collective) && has_sum_kernels(request.type, request.op, request.ranks);
}

bool is_common_sum(const Request& request) {
  return sums_common_floats(request) && is_common_number(request.ranks);
}

std::string sum_variant(const Request& request) {
  return is_common_sum(request) ? joined("_sum_", std::to_string(request.ranks)) : "_any_0";
}

DataType moved_type(const Request& request) {
  if (reduces(request.collective)) return request.type;
  switch (bytes_of(request.type)) {
    case 1: return DataType::uint8;
    case 2: return DataType::uint16;
    case 4: return DataType::uint32;
    default: return DataType::uint64;
  }
}

bool is_in_tree(const Request& request, SumOrder order) {
  return is_tree(order) && !has_one_order(request);
}

std::int32_t order_of(const Request& request, SumOrder order) {
  return static_cast<std::int32_t>(is_in_tree(request, order) ? order : SumOrder::rank_order);
}

}  // namespace plait::cuda
