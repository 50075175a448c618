// Refuses sums out of rank order in strict mode, and logs each kind once.
#include "shims/nccl/strict.hpp"

#include <string>

#include "base/log.hpp"
#include "base/text.hpp"
#include "comm/transport/nccl/native.hpp"
#include "comm/transport/nccl/numbers.hpp"
#include "shims/nccl/log_once.hpp"
#include "shims/nccl/settings.hpp"

namespace plait::nccl {
namespace {

bool depends_on_order(Collective collective, int type, int op) {
  if (!reduces(collective)) return false;
  DataType known{};
  if (translate_type(type, known) && !is_float(known)) return false;
  ReduceOp how{};
  return !translate_op(op, how) || (how != ReduceOp::min && how != ReduceOp::max);
}

int ranks_of(Comm comm, const CommState* state) {
  if (state != nullptr) return state->ranks;
  int ranks = 0;
  return native().count != nullptr && native().count(comm, &ranks) == ncclSuccess ? ranks : 0;
}

std::string why(const CommState* state, bool is_configured) {
  const Settings& now = settings();
  if (!now.refusal.empty()) return now.refusal;
  if (state == nullptr) return "plait does not know the communicator";
  if (!state->reason.empty()) return state->reason;
  if (is_configured) return "a call with a configuration of its own is always NCCL's";
  return "no engine takes this type, reduction or collective, or PLAIT_OPS or PLAIT_MIN_BYTES "
         "leave it out";
}

}  // namespace

Result refused(Collective collective, std::size_t count, int type, int op, Comm comm,
               const CommState* state, bool is_configured) {
  if (!settings().strict || comm == nullptr || count == 0) return ncclSuccess;
  if (!depends_on_order(collective, type, op)) return ncclSuccess;
  const int ranks = ranks_of(comm, state);
  if (ranks == 1) return ncclSuccess;
  ReduceOp how{};
  const bool is_plain_sum = translate_op(op, how) && how != ReduceOp::avg;
  if (ranks == 2 && is_plain_sum) return ncclSuccess;
  DataType known{};
  const std::string line = text(
      "refused: {} of {}, {}, over {} ranks would be NCCL's, in an order of its own ({}); "
      "PLAIT_BITWISE_STRICT=0 leaves it to NCCL",
      name_of(collective), translate_type(type, known) ? name_of(known) : "an unknown type",
      translate_op(op, how) ? name_of(how) : "a reduction of the program's own", ranks,
      why(state, is_configured));
  if (first_time(line)) log(LogLevel::warn, state == nullptr ? -1 : state->rank, line);
  return ncclInvalidUsage;
}

}  // namespace plait::nccl
