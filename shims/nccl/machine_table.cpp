// Rank 0 finds and reads the table; the others hear its text.
#include "shims/nccl/machine_table.hpp"

#include <exception>

#include "base/log.hpp"
#include "base/text.hpp"
#include "comm/nccl/real.hpp"
#include "exec/cuda/choices.hpp"
#include "plait/error.hpp"
#include "plait/topology.hpp"
#include "shims/nccl/settings.hpp"

namespace plait::nccl {
namespace {

std::string version_text(int version) {
  return text(version / 10000, '.', version / 100 % 100, '.', version % 100);
}

}  // namespace

cuda::TuningTable machine_table(const EngineOptions& options, const Topology& topology,
                                const Exchange& exchange) {
  if (!options.one_node || options.most_blocks != 0) return {};
  std::string mine;
  if (options.rank == 0) {
    const Env& env = settings().env;
    // A machine that cannot be looked at has no table.
    const std::string machine = topology.devices.empty() ? "unknown" : fingerprint(topology);
    const std::string file = cuda::tuning_file(env, machine, options.ranks);
    mine = cuda::offered_tuning(env, file, options.rank);
    if (!file.empty())
      log(LogLevel::info, options.rank,
          mine.empty() ? text("no tuning table ", file, ": by what is built in")
                       : text("by the tuning table ", file));
  }
  cuda::TuningTable table(cuda::of_rank_0(exchange, mine));
  const std::string now = version_text(real().version);
  if (options.rank == 0 && !table.nccl().empty() && table.nccl() != now)
    log(LogLevel::warn, options.rank,
        text("the tuning table was measured beside NCCL ", table.nccl(), ", this is NCCL ", now,
             ": run `plait tune` again"));
  return table;
}

void require_measured(const cuda::TuningTable& table, const EngineOptions& options,
                      const std::string& gpus) {
  if (options.bitwise || table.has(cuda::Setting::beside_computing, options.ranks) ||
      cuda::is_measured(gpus))
    return;
  throw Error(ErrorCode::unsupported,
              text("plait was measured beside NCCL on ", cuda::measured_kinds().front(),
                   ", not on ", gpus.empty() ? "unlike GPUs" : gpus,
                   !options.one_node          ? "; tuning tables are for one node"
                   : options.most_blocks != 0 ? "; tuning tables are for calls without a budget"
                                              : "; `plait tune` measures this machine"));
}

}  // namespace plait::nccl
