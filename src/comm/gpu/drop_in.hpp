// Terms of the drop-in under NCCL: options of a communicator's calls, and what may be served. The
// drop-in decides by these functions, and `plait plan` tells by them what a program's calls run.
#pragma once
#include <optional>
#include <string>

#include "base/env.hpp"
#include "comm/gpu/gpu_calls.hpp"
#include "comm/gpu/gpu_group.hpp"

namespace plait {

/// What the ranks of a communicator have agreed on before the options.
struct DropInTerms {
  bool one_node = true;
  bool in_processes = true;  ///< a process per rank
  unsigned most_blocks = 0;  ///< most blocks of a call; 0 = as many as are fastest
};

/// Options of calls on the GPUs of one node. The caller sets the rank's number and GPU.
GpuCallsOptions drop_in_options(const Env& env, const DropInTerms& terms);
/// The same once the group's arenas and paths are known.
GpuCallsOptions drop_in_options_on(const GpuGroup& group, const GpuCallsOptions& options);

/// Returns PLAIT_SM_BUDGET, else NCCL's limit of blocks (CTAs) a call: NCCL_MAX_CTAS, else
/// `configured`, and at most NCCL_MAX_NCHANNELS; 0 = none. Read after NCCL has made a communicator,
/// since NCCL then adds settings of its files to the environment.
unsigned most_blocks_of(const Env& env, unsigned configured = 0);

/// Returns why the communicator reads no tuning table; empty = it reads the table.
std::string why_no_tuning_table(const GpuCallsOptions& options);

/// Returns whether plait serves sends and receives, all of a communicator's or none: where they
/// were measured ahead of NCCL's, on a path that the check found broken, and with PLAIT_BITWISE=1.
bool serves_messages(const GpuGroup& group, const GpuCallsOptions& options);

/// Returns the largest input, in bytes, of a pre-multiplied sum that plait serves where it serves
/// the sum: a rank's products take less time than the sum is ahead of NCCL's.
std::uint64_t most_scaled_ahead_of_nccl(const Request& sum);

/// Returns whether a result depends on the order in which NCCL adds. No type or op: not plait's.
bool has_order_of_nccl(Collective collective, std::optional<DataType> type,
                       std::optional<ReduceOp> op, int ranks);

}  // namespace plait
