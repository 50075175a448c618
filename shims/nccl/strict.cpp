// Refuses sums out of the order that is asked for in strict mode, and logs each kind once.
#include "shims/nccl/strict.hpp"

#include <string>

#include "base/log.hpp"
#include "base/text.hpp"
#include "comm/gpu/drop_in.hpp"
#include "comm/transport/nccl/native.hpp"
#include "comm/transport/nccl/numbers.hpp"
#include "shims/nccl/log_once.hpp"
#include "shims/nccl/settings.hpp"

namespace plait::nccl {
namespace {

int ranks_of(Comm comm, const CommState* state) {
  if (state != nullptr) return state->ranks;
  int ranks = 0;
  return native().count != nullptr && native().count(comm, &ranks) == ncclSuccess ? ranks : 0;
}

std::string why(const CommState* state, const CallWish& wish) {
  const Settings& now = settings();
  if (!now.refusal.empty()) return now.refusal;
  if (state == nullptr) return "plait does not know the communicator";
  if (!state->reason.empty()) return state->reason;
  if (wish.is_for_nccl)
    return "its configuration asks for an algorithm, a cluster, CTAs of NVLS or an event of NCCL";
  if (wish.limits != CallLimits{}) return "no engine obeys the limits of its configuration";
  return "no engine takes this type, reduction or collective, or PLAIT_OPS or PLAIT_MIN_BYTES "
         "leave it out";
}

}  // namespace

Result refused(Collective collective, std::size_t count, int type, int op, Comm comm,
               const CommState* state, const CallWish& wish) {
  if (!settings().strict || comm == nullptr || count == 0) return ncclSuccess;
  DataType known{};
  ReduceOp how{};
  const auto known_type = translate_type(type, known) ? std::optional(known) : std::nullopt;
  const auto known_op = translate_op(op, how) ? std::optional(how) : std::nullopt;
  const int ranks = ranks_of(comm, state);
  if (!has_order_of_nccl(collective, known_type, known_op, ranks)) return ncclSuccess;
  const std::string line = text(
      "refused: {} of {}, {}, over {} ranks would be NCCL's, in an order of its own ({}); "
      "PLAIT_BITWISE_STRICT=0 leaves it to NCCL",
      name_of(collective), known_type ? name_of(known) : "an unknown type",
      known_op ? name_of(how) : "a reduction of the program's own", ranks, why(state, wish));
  if (first_time(line)) log(LogLevel::warn, state == nullptr ? -1 : state->rank, line);
  return ncclInvalidUsage;
}

}  // namespace plait::nccl
