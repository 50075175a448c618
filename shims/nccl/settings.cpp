// Reading the settings also turns the log on, so that every later line comes out.
#include "shims/nccl/settings.hpp"

#include "base/log.hpp"
#include "base/text.hpp"
#include "plait/error.hpp"
#include "plait/plan.hpp"

namespace plait::nccl {
namespace {

/// Bit by collective; send and receive go by that of send_recv.
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
  try {
    found.env = read_env();
    set_log(found.env.debug, found.env.debug_file);
    found.served = served_by(found.env.ops);
    if (found.env.disable) found.refusal = "PLAIT_DISABLE is 1";
    if (!found.env.without.empty())
      found.refusal = "PLAIT_WITHOUT masks links, and the drop-in's kernels need all of NVLink";
  } catch (const Error& error) {
    found.refusal = error.what();
  }
  found.shared = text("plait ", PLAIT_VERSION, " min_bytes=", found.env.min_bytes,
                      " ops=", found.served, " node_size=", found.env.node_size,
                      " bitwise=", found.env.bitwise, " sm_budget=", found.env.sm_budget);
  return found;
}

}  // namespace

const Settings& settings() {
  static const auto* const found = new Settings(read());
  return *found;
}

}  // namespace plait::nccl
