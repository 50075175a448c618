// Builds the names that the macros of kernels (gpu/*/*.cu) define.
#include "gpu/engine/kernel_names.hpp"

#include "base/text.hpp"
#include "gpu/tile/tiled_shape.hpp"

namespace plait::cuda {
namespace {

bool is_common_float(DataType type) {
  return type == DataType::fp32 || type == DataType::bf16 || type == DataType::fp16;
}

bool is_common_number(int ranks) { return ranks == 2 || ranks == 4 || ranks == 8; }

/// "_sum_4" or "_any_0".
std::string variant(const Request& request) {
  return is_common_sum(request) ? joined("_sum_", std::to_string(request.ranks)) : "_any_0";
}

}  // namespace

bool sums_common_floats(const Request& request) {
  return reduces(request.collective) && request.op == ReduceOp::sum &&
         is_common_float(request.type);
}

bool is_common_sum(const Request& request) {
  return sums_common_floats(request) && is_common_number(request.ranks);
}

bool has_two_shot_to_root(const Request& request) {
  return request.collective == Collective::reduce && is_common_sum(request) && request.ranks > 2;
}

std::string shot_kernel(const std::string& kernel, const Request& request, bool nan_sentinel) {
  const bool to_root = request.collective == Collective::reduce;
  return joined("plait_", kernel, to_root ? "_to_root_" : "_", name_of(request.type),
                variant(request), nan_sentinel ? "_nan_sentinel" : "_flag");
}

bool has_short_direct_ll(const Request& request) {
  const bool is_common = !reduces(request.collective) || sums_common_floats(request);
  return request.ranks <= (is_common ? 8 : 4);
}

std::string direct_ll_kernel(const Request& request, bool is_short) {
  const char* const kind = !reduces(request.collective)  ? "_place"
                           : sums_common_floats(request) ? "_sum"
                                                         : "_any";
  const char* const type = name_of(moved_type(request));
  if (is_short)
    return joined("plait_short_direct_ll_", type, kind, request.ranks <= 4 ? "_4" : "_8");
  return joined("plait_direct_ll_", type, kind);
}

bool is_lean_chain(const Request& request) {
  return !reduces(request.collective) ||
         (request.op == ReduceOp::sum && request.type == DataType::fp32);
}

std::string chain_kernel(const Request& request, bool is_long) {
  const char* const kind = !reduces(request.collective) ? "_place"
                           : is_lean_chain(request)     ? "_sum"
                                                        : "_any";
  return joined(is_long ? "plait_long_chain_" : "plait_ll_chain_", name_of(moved_type(request)),
                kind);
}

std::string tiled_kernel(const Request& request, bool fold) {
  if (fold && why_no_fold(request).empty() && request.type == DataType::fp32 &&
      is_common_sum(request))
    return text("plait_tiled_fp32_fold_", request.ranks);
  return joined("plait_tiled_", name_of(moved_type(request)), variant(request));
}

std::string lane_kernel(const Request& request) {
  const bool common = request.op == ReduceOp::sum && is_common_float(request.type);
  return joined("plait_lane_", name_of(request.type), common ? "_sum" : "_any");
}

std::string piece_kernel(DataType type, ReduceOp op, int sources) {
  if (sources == 1) return "plait_piece_move";
  const bool common = op == ReduceOp::sum && is_common_float(type) && is_common_number(sources);
  return joined("plait_piece_", name_of(type),
                common ? joined("_sum_", std::to_string(sources)) : "_any_0");
}

}  // namespace plait::cuda
