// Two ranks' call of a kernel, with the end of the message through host memory: copy engines carry
// the part (copy/host_exchange.hpp), while the kernel moves the rest over the link. No SM stores to
// host memory, so fences of the kernel wait for nothing of the part (E-0531).
#pragma once
#include <memory>

#include "gpu/copy/exchange_cut.hpp"
#include "gpu/copy/plan_queue.hpp"
#include "gpu/engine/engine.hpp"

namespace plait::cuda {

/// True if the engine's call can have such a part: a call of two ranks over a link whose blocks lie
/// in one piece, by an engine other than copy_exchange, which exchanges a part itself.
bool can_exchange_part(const Engine& engine, const Request& request, const Group& group);
/// True if the part may be chosen when the caller sets none.
bool may_choose_exchanged_part(const Engine& engine, const Request& request, const Tuning& tuning,
                               const Group& group);

/// Returns the parameters of the engine's call beside a part. Kernels of the part wait for other
/// ranks, so the blocks that the caller sets leave SMs to them.
Tuning beside_part(Tuning tuning, const Group& group);

/// Cuts a message: what is before `host_from` goes over the link. permille: of the message.
HostCut exchanged_part(const Request& request, const Group& group, std::uint32_t permille);

/// Prepares the engine's call with the part that `tuning` asks for; unset = chosen call by call.
/// Needs can_exchange_part().
std::unique_ptr<PreparedCall> prepare_with_exchanged_part(const Engine& engine,
                                                          const Request& request,
                                                          const Tuning& tuning, EngineRank& rank);

}  // namespace plait::cuda
