// Reads the terms from plait's and NCCL's settings, and from the agreed group of GPUs.
#include "comm/gpu/drop_in.hpp"

#include <algorithm>

#include "base/nccl_settings.hpp"
#include "comm/choose/multinode_choice.hpp"
#include "gpu/select/gpu_tables.hpp"
#include "plan/sum_order.hpp"

namespace plait {
namespace {

constexpr double kForEver = 1e9;

/// Returns 0 if the variable is unset or NCCL does not accept the value.
unsigned limit(const char* name) {
  const std::optional<std::string> said = nccl_setting(name);
  const std::int64_t number = said ? nccl_number(*said).value_or(0) : 0;
  return number < 1 ? 0 : static_cast<unsigned>(std::min<std::int64_t>(number, 4096));
}

}  // namespace

GpuCallsOptions drop_in_options(const Env& env, const DropInTerms& terms) {
  GpuCallsOptions made;
  if (terms.one_node || multinode_algo(env.algo).strategy.empty())
    made.forced = parse_algo("PLAIT_ALGO", env.algo);
  made.bitwise = env.bitwise;
  made.sum_order = demanded_order(env);
  made.beats_nccl = !env.bitwise;
  // The large arena is made with the first large calls, unless the program sets the size or wants
  // no call on NCCL meanwhile. Not with several nodes, since nodes share no page, nor with several
  // ranks in a process, since ranks could block each other (cuda::LazyArena).
  made.has_lazy_arena =
      terms.one_node && terms.in_processes && !env.bitwise && !env.has("PLAIT_DEVICE_MEMORY");
  made.opens_at_first_call = made.has_lazy_arena;
  made.knows_links = terms.one_node;
  made.finds_paths = !env.profile.empty();
  cuda::CudaRankOptions& rank = made.rank;
  // Waits as long as NCCL does: the program's watchdog or ncclCommAbort ends a hang.
  rank.wait_s = env.has("PLAIT_ARRIVE_S") ? env.arrive_s : kForEver;
  rank.most_blocks = terms.most_blocks;
  // Applications compute during large calls, and have several communicators.
  rank.overlap_compute = terms.most_blocks == 0;
  rank.trim_s = env.trim_s;
  rank.norms = false;  // NCCL has no such call
  rank.factors = true;
  rank.orders_calls = false;  // StreamOrder orders plait's calls with NCCL's
  if (env.has("PLAIT_DEVICE_MEMORY")) rank.memory.budget_bytes = env.device_memory;
  rank.memory.floats_only = !env.bitwise;
  rank.memory.plan_scratch = env.device_scratch;
  return made;
}

GpuCallsOptions drop_in_options_on(const GpuGroup& group, const GpuCallsOptions& options) {
  GpuCallsOptions made = options;
  if (group.has_broken_paths) {  // NCCL may hang, also while the large arena is allocated.
    made.beats_nccl = made.has_lazy_arena = false;
    made.rank.memory.floats_only = false;
  }
  made.rank.messages = serves_messages(group, options);
  made.rank.memory.plans = !group.reach.why_no_kernels.empty() || !options.forced.strategy.empty();
  return made;
}

unsigned most_blocks_of(const Env& env, unsigned configured) {
  if (env.sm_budget > 0) return static_cast<unsigned>(env.sm_budget);
  const unsigned of_environment = limit("NCCL_MAX_CTAS");
  const unsigned ctas = of_environment != 0 ? of_environment : configured;
  const unsigned newer = limit("NCCL_MAX_NCHANNELS");
  unsigned channels = newer != 0 ? newer : limit("NCCL_MAX_NRINGS");
  // Equal minimum and maximum is how programs fix NCCL's summation order: no limit of SMs.
  if (foreign_env("PLAIT_BITWISE_STRICT") == "1" && newer != 0 &&
      limit("NCCL_MIN_NCHANNELS") == newer)
    channels = 0;
  return ctas == 0 || channels == 0 ? std::max(ctas, channels) : std::min(ctas, channels);
}

std::string why_no_tuning_table(const GpuCallsOptions& options) {
  if (!options.knows_links) return "tuning tables are for one node";
  return options.rank.most_blocks != 0 ? "tuning tables are for calls without a budget" : "";
}

bool serves_messages(const GpuGroup& group, const GpuCallsOptions& options) {
  if (!group.reach.why_no_kernels.empty()) return false;
  if (options.bitwise || group.has_broken_paths) return true;
  if (const auto ahead = group.tuning.messages_are_ahead(group.ranks)) return *ahead;
  return cuda::is_measured(group.kind, group.ranks) && group.through_host.empty() &&
         cuda::messages_beat_nccl(group.ranks, options.rank.most_blocks);
}

/// Measured on two H200 (E-0481): above these sizes the products take longer than the sum is ahead
/// of NCCL's, in fp32. Other types and more ranks were not measured.
std::uint64_t most_scaled_ahead_of_nccl(const Request& sum) {
  constexpr std::uint64_t kMib = 1ull << 20;
  if (sum.collective == Collective::reduce) return 0;
  return (sum.collective == Collective::all_reduce && sum.ranks == 2 ? 16 : 4) * kMib;
}

bool has_order_of_nccl(Collective collective, std::optional<DataType> type,
                       std::optional<ReduceOp> op, int ranks) {
  if (!reduces(collective) || ranks == 1) return false;
  if (type && !is_float(*type)) return false;
  if (op && (*op == ReduceOp::min || *op == ReduceOp::max)) return false;
  const bool is_plain_sum = op && *op != ReduceOp::avg;
  return ranks != 2 || !is_plain_sum;
}

}  // namespace plait
