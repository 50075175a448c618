// Reads a ncclCollConfig_t of any size that NCCL 2.31 and 2.32 have.
#include "shims/nccl/call_config.hpp"

#include <cstddef>
#include <cstring>

#include "comm/transport/nccl/abi.hpp"

namespace plait::nccl {

bool is_known_policy(int cta_policy) noexcept {
  return cta_policy == kConfigUndefined || cta_policy == kDefaultCtaPolicy ||
         cta_policy == kEfficientCtaPolicy || cta_policy == kZeroCtaPolicy;
}

bool wants_engines(int cta_policy) noexcept { return cta_policy == kZeroCtaPolicy; }

CallWish wish_of(const void* config) noexcept {
  CallWish wish;
  if (config == nullptr) return wish;
  wish.is_for_nccl = true;
  CallConfig found{};
  std::memcpy(&found.size, config, sizeof found.size);
  if (found.size < offsetof(CallConfig, ext) || found.size > sizeof found) return wish;
  std::memcpy(&found, config, found.size);
  if (found.magic != kConfigMagic) return wish;
  const auto is_set = [](int value) { return value != kConfigUndefined; };
  const bool has_algorithm = found.alg_selection != nullptr && *found.alg_selection != '\0';
  const bool has_bad_limit = is_set(found.max_ctas) && found.max_ctas < 1;  // NCCL says so
  wish.is_for_nccl = is_set(found.nvls_ctas) || is_set(found.cga_cluster_size) || has_algorithm ||
                     has_bad_limit || !is_known_policy(found.cta_policy) ||
                     found.launch_completion_event != nullptr;
  if (wish.is_for_nccl) return wish;
  if (is_set(found.max_ctas)) wish.limits.most_blocks = static_cast<unsigned>(found.max_ctas);
  wish.limits.engines_move = wants_engines(found.cta_policy);
  return wish;
}

}  // namespace plait::nccl
