// Configuration of a single collective, which the caller of a ...Config function passes.
#pragma once

namespace plait::nccl {

/// Returns whether a ncclCollConfig_t (null: none) asks NCCL for something: an algorithm, a number
/// of CTAs, a CTA policy, an event. plait serves a call only if nothing is asked for. A
/// configuration that is not of NCCL 2.31 or 2.32 counts as one that asks: NCCL reads it.
bool asks_for_nccl(const void* config) noexcept;

}  // namespace plait::nccl
