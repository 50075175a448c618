// Configuration of a single collective, which the caller of a ...Config function passes, and the
// CTA policies of communicators.
#pragma once
#include "comm/gpu/gpu_calls.hpp"

namespace plait::nccl {

/// What a call asks for.
struct CallWish {
  CallLimits limits;
  /// Only NCCL does so: an algorithm, CTAs of NVLS, a cluster size, an event, or a configuration
  /// that is not of NCCL 2.31 or 2.32.
  bool is_for_nccl = false;
};

/// Returns what a ncclCollConfig_t asks for (null: nothing). A least number of CTAs asks for speed
/// alone, and a tag for nothing that plait does.
CallWish wish_of(const void* config) noexcept;

/// Returns whether a CTA policy, or kConfigUndefined, wants copy engines; none = unknown.
bool wants_engines(int cta_policy) noexcept;
bool is_known_policy(int cta_policy) noexcept;

}  // namespace plait::nccl
