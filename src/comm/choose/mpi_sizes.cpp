// Defaults for each collective: from these sizes on plait was faster than Open MPI and MPICH on two
// ranks (docs/mpi.md).
#include "comm/choose/mpi_sizes.hpp"

namespace plait {
namespace {

/// Smaller messages in GPU memory are staged and native without an agreement between ranks.
constexpr std::uint64_t kMinOnGpus = 16 << 10;
constexpr std::uint64_t kMinOnHost = 64 << 10;
constexpr std::uint64_t kMinMultinode = 4 << 20;

std::uint64_t usual_on_host(Collective collective) {
  switch (collective) {
    case Collective::all_reduce:
    case Collective::reduce_scatter: return kMinOnHost;
    case Collective::reduce: return 4 << 20;
    default: return kNever;
  }
}

}  // namespace

MpiSizes mpi_sizes(const Env& env) {
  MpiSizes found;
  found.on_host.fill(kNever);
  found.on_gpus.fill(kNever);
  found.multinode.fill(kNever);
  const auto set = [&](Collective collective, std::uint64_t host, std::uint64_t multinode) {
    const bool is_set = env.has("PLAIT_MIN_BYTES");
    const auto at = static_cast<std::size_t>(collective);
    const auto least = [&](std::uint64_t usual) {
      return is_set && usual != kNever ? env.min_bytes : usual;
    };
    if (env.mpi_host) found.on_host[at] = least(host);
    if (env.mpi_host) found.multinode[at] = least(multinode);
    found.on_gpus[at] = least(kMinOnGpus);
  };
  if (!env.ops.empty()) {
    for (const std::string& name : split(env.ops, ','))
      set(parse_collective(name), kMinOnHost, kMinMultinode);
    return found;
  }
#define PLAIT_COLLECTIVE(name, input, output, busbw)     \
  set(Collective::name, usual_on_host(Collective::name), \
      reduces(Collective::name) ? kMinMultinode : kNever);
#include "plait/collectives.def"
#undef PLAIT_COLLECTIVE
  // PLAIT_OPS must name send_recv for GPUs: rendezvous has not run on GPUs, and a started
  // receive of a persistent request may hold up a blocking send (docs/mpi.md).
  found.on_gpus[static_cast<std::size_t>(Collective::send_recv)] = kNever;
  return found;
}

}  // namespace plait
