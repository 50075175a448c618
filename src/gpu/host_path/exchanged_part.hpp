// Two ranks' call of a kernel, with the end of the message through host memory: copy engines carry
// the part (copy/host_exchange.hpp), while the kernel moves the rest over the link. No SM stores to
// host memory, so the kernel's fences do not wait for the part (E-0531).
#pragma once
#include <memory>

#include "gpu/copy/exchange_cut.hpp"
#include "gpu/copy/plan_queue.hpp"
#include "gpu/engine/engine.hpp"

namespace plait::cuda {

/// True if the engine's call can have a part: two ranks, a link, and blocks in one piece. The
/// engine copy_exchange exchanges a part by its own code.
bool can_exchange_part(const Engine& engine, const Request& request, const Group& group);
/// True if the part may be chosen when the caller sets none.
bool may_choose_exchanged_part(const Engine& engine, const Request& request, const Tuning& tuning,
                               const Group& group);

/// Returns the parameters of the engine's call beside a part. Kernels of the part wait for other
/// ranks, so blocks set by the caller leave SMs to these kernels.
Tuning beside_part(Tuning tuning, const Group& group);

/// Cuts a message: bytes before `host_from` go over the link. permille: of the message.
HostCut exchanged_part(const Request& request, const Group& group, std::uint32_t permille);

/// Prepares the engine's call with the part that `tuning` asks for; unset = chosen call by call.
/// Needs can_exchange_part().
std::unique_ptr<PreparedCall> prepare_with_exchanged_part(const Engine& engine,
                                                          const Request& request,
                                                          const Tuning& tuning, EngineRank& rank);

}  // namespace plait::cuda
