// Reads the settings, with defaults for each collective.
#include "shims/mpi/args/settings.hpp"

#include "base/env.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "gpu/device/direct_access.hpp"
#include "shims/mpi/args/counting.hpp"
#include "shims/mpi/args/native_flight.hpp"

namespace plait::mpi {

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
    recording_native.store(env.has("PLAIT_WARN_S"));
    recording.store(is_counting() || is_explaining() || records_native());
    found.disabled = env.disable;
    found.host = env.mpi_host;
    found.maps_gpus =
        env.through_host != AutoFlag::on && cuda::direct_access().most != cuda::Distance::loc;
    set_log(env.debug, env.debug_file);
    found.sizes = mpi_sizes(env);
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
  return settings().sizes.on_host[static_cast<std::size_t>(collective)];
}

std::uint64_t min_bytes_multinode(Collective collective) {
  return settings().sizes.multinode[static_cast<std::size_t>(collective)];
}

std::uint64_t min_bytes_on_gpus(Collective collective) {
  return settings().sizes.on_gpus[static_cast<std::size_t>(collective)];
}

}  // namespace plait::mpi
