// Reads a ncclCollConfig_t of any size that NCCL 2.31 and 2.32 have.
#include "shims/nccl/call_config.hpp"

#include <cstddef>
#include <cstring>

#include "comm/transport/nccl/abi.hpp"

namespace plait::nccl {

bool asks_for_nccl(const void* config) noexcept {
  if (config == nullptr) return false;
  CallConfig found{};
  std::memcpy(&found.size, config, sizeof found.size);
  if (found.size < offsetof(CallConfig, ext) || found.size > sizeof found) return true;
  std::memcpy(&found, config, found.size);
  if (found.magic != kConfigMagic) return true;
  const auto is_set = [](int value) { return value != kConfigUndefined; };
  const bool has_algorithm = found.alg_selection != nullptr && *found.alg_selection != '\0';
  const bool has_policy = is_set(found.cta_policy) && found.cta_policy != kDefaultCtaPolicy;
  return is_set(found.min_ctas) || is_set(found.max_ctas) || is_set(found.nvls_ctas) ||
         is_set(found.cga_cluster_size) || has_algorithm || has_policy ||
         found.launch_completion_event != nullptr;
}

}  // namespace plait::nccl
