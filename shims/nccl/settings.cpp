// Reads the settings and turns the log on, so that every later line is written.
#include "shims/nccl/settings.hpp"

#include "base/log.hpp"
#include "base/nccl_settings.hpp"
#include "base/text.hpp"
#include "comm/choose/choose.hpp"
#include "plait/error.hpp"
#include "plait/plan.hpp"

namespace plait::nccl {
namespace {

/// Returns a bit for each collective; send_recv stands for send and receive.
std::uint32_t served_by(const std::string& names) {
  std::uint32_t all = 0;
#define PLAIT_COLLECTIVE(name, input, output, busbw) \
  all |= 1u << static_cast<unsigned>(Collective::name);
#include "plait/collectives.def"
#undef PLAIT_COLLECTIVE
  if (names.empty()) return all;
  std::uint32_t served = 0;
  for (const std::string& name : split(names, ','))
    served |= 1u << static_cast<unsigned>(parse_collective(name));
  return served;
}

Settings read() {
  Settings found;
  found.strict = foreign_env("PLAIT_BITWISE_STRICT") == "1";
  try {
    found.env = read_env();
    set_log(found.env.debug, found.env.debug_file);
    found.served = served_by(found.env.ops);
    if (found.env.disable) found.refusal = "PLAIT_DISABLE is 1";
    static_cast<void>(parse_algo("PLAIT_ALGO", found.env.algo));
  } catch (const Error& error) {
    found.refusal = error.what();
    if (found.strict) set_log("WARN", "");  // refusals are logged
  }
  found.shared = text(
      "plait {} min_bytes={} ops={} node_size={} bitwise={}{} without={} algo={} device_scratch={} "
      "sm_budget={} device_memory={}{} through_host={}",
      PLAIT_VERSION, found.env.min_bytes, found.served, found.env.node_size, found.env.bitwise,
      found.strict ? " strict" : "", found.env.without, found.env.algo, found.env.device_scratch,
      found.env.sm_budget, found.env.device_memory,
      found.env.has("PLAIT_DEVICE_MEMORY") ? " at once" : "",
      static_cast<int>(found.env.through_host));
  return found;
}

}  // namespace

bool mixes_graphs(bool configured) {
  const std::optional<std::string> said = nccl_setting("NCCL_GRAPH_MIXING_SUPPORT");
  const std::optional<std::int64_t> number = said ? nccl_number(*said) : std::nullopt;
  return number == 0 || number == 1 ? number == 1 : configured;
}

const Settings& settings() {
  static const auto* const found = new Settings(read());
  return *found;
}

}  // namespace plait::nccl
