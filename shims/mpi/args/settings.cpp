// Reads the settings, with defaults for each collective.
#include "shims/mpi/args/settings.hpp"

#include "base/env.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "gpu/device/direct_access.hpp"
#include "shims/mpi/args/counting.hpp"

namespace plait::mpi {
namespace {

/// Smaller messages in GPU memory are staged and native without an agreement between ranks.
constexpr std::uint64_t kMinOnGpus = 16 << 10;
constexpr std::uint64_t kMinMultinode = 4 << 20;

/// Default smallest message that plait serves: from this size on plait was faster than Open MPI and
/// MPICH on two ranks (docs/mpi.md).
std::uint64_t default_min_bytes(Collective collective) {
  switch (collective) {
    case Collective::all_reduce:
    case Collective::reduce_scatter: return 64 << 10;
    case Collective::reduce: return 4 << 20;
    default: return kNever;
  }
}

/// The same for ranks on several nodes with several ranks each (docs/mpi.md).
std::uint64_t default_min_bytes_multinode(Collective collective) {
  switch (collective) {
    case Collective::all_reduce:
    case Collective::reduce_scatter:
    case Collective::reduce: return kMinMultinode;
    default: return kNever;
  }
}

/// Applies PLAIT_OPS (names of collectives) and PLAIT_MIN_BYTES (holds for all collectives).
void set_min_bytes(const Env& env, MpiSettings& found) {
  found.on_host.fill(kNever);
  found.on_gpus.fill(kNever);
  found.multinode.fill(kNever);
  const auto set = [&](Collective collective, std::uint64_t host, std::uint64_t multinode) {
    const bool is_set = env.has("PLAIT_MIN_BYTES");
    const auto at = static_cast<std::size_t>(collective);
    const auto least = [&](std::uint64_t usual) {
      return is_set && usual != kNever ? env.min_bytes : usual;
    };
    if (found.host) found.on_host[at] = least(host);
    if (found.host) found.multinode[at] = least(multinode);
    found.on_gpus[at] = least(kMinOnGpus);
  };
  if (!env.ops.empty()) {
    for (const std::string& name : split(env.ops, ','))
      set(parse_collective(name), 64 << 10, kMinMultinode);
    return;
  }
#define PLAIT_COLLECTIVE(name, input, output, busbw)         \
  set(Collective::name, default_min_bytes(Collective::name), \
      default_min_bytes_multinode(Collective::name));
#include "plait/collectives.def"
#undef PLAIT_COLLECTIVE
  // PLAIT_OPS must name send_recv for GPUs: rendezvous has not run on GPUs, and a started
  // receive of a persistent request may hold up a blocking send (docs/mpi.md).
  found.on_gpus[static_cast<std::size_t>(Collective::send_recv)] = kNever;
}

}  // namespace

MpiSettings& settings() {
  static auto* const one = new MpiSettings;
  return *one;
}

void read_settings() {
  MpiSettings& found = settings();
  try {
    const Env env = read_env();
    counting.store(!env.profile.empty());
    explaining.store(parse_log_level(env.debug) >= LogLevel::explain);
    recording.store(is_counting() || is_explaining());
    found.disabled = env.disable;
    found.host = env.mpi_host;
    found.maps_gpus =
        env.through_host != AutoFlag::on && cuda::direct_access().most != cuda::Distance::loc;
    set_log(env.debug, env.debug_file);
    set_min_bytes(env, found);
    if (env.has("PLAIT_ARRIVE_S")) found.arrive_s = env.arrive_s;
    if (env.has("PLAIT_DEADLINE_S")) found.deadline_s = env.deadline_s;
    found.topology = env.topology;
    found.node_size = env.node_size;
    found.min_bytes_is_set = env.has("PLAIT_MIN_BYTES");
  } catch (const std::exception& error) {
    warn_unasked(-1, text("all MPI calls are native: {}", error.what()));
    found.broken = true;
  }
}

std::uint64_t min_bytes_on_host(Collective collective) {
  return settings().on_host[static_cast<std::size_t>(collective)];
}

std::uint64_t min_bytes_multinode(Collective collective) {
  return settings().multinode[static_cast<std::size_t>(collective)];
}

std::uint64_t min_bytes_on_gpus(Collective collective) {
  return settings().on_gpus[static_cast<std::size_t>(collective)];
}

}  // namespace plait::mpi
