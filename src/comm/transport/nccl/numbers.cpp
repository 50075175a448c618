// Types follow types.def; reductions are listed singly, since NCCL has fewer.
#include "comm/transport/nccl/numbers.hpp"

#include <cstddef>
#include <iterator>

#include "comm/transport/nccl/abi.hpp"

namespace plait::nccl {
namespace {

constexpr int kTypes[] = {
#define PLAIT_TYPE(name, bytes, is_float, nccl_value) nccl_value,
#include "plait/types.def"
#undef PLAIT_TYPE
};

}  // namespace

bool translate_type(int type, DataType& translated) {
  for (std::size_t i = 0; i < std::size(kTypes); ++i) {
    if (kTypes[i] != type || type < 0) continue;
    translated = static_cast<DataType>(i);
    return true;
  }
  return false;
}

bool translate_op(int op, ReduceOp& translated) {
  switch (op) {
    case kSum: translated = ReduceOp::sum; return true;
    case kProd: translated = ReduceOp::prod; return true;
    case kMax: translated = ReduceOp::max; return true;
    case kMin: translated = ReduceOp::min; return true;
    case kAvg: translated = ReduceOp::avg; return true;
    default: return false;
  }
}

int nccl_type(DataType type) { return kTypes[static_cast<std::size_t>(type)]; }

int nccl_op(ReduceOp op) {
  for (int number = 0; number < kBuiltInOps; ++number) {
    ReduceOp translated{};
    if (translate_op(number, translated) && translated == op) return number;
  }
  return -1;
}

}  // namespace plait::nccl
