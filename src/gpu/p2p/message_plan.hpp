// Plan of a group of messages on all ranks: a collective that only moves data, with a message from
// each sender to each owner. A lane is an endpoint, a direction of a channel between two ranks. A
// copy into a slot is followed by the flag that announces the data, and a copy out of a slot by the
// flag that frees the slot. LL packets of small messages appear as bytes 16 i of the slot. Each
// packet is a signal too, and the plan's flag stands for all packets of a message. Endpoints are
// unordered here; a GPU with few blocks serves endpoints in turn (message_ends.cuh).
#pragma once
#include "gpu/p2p/messages.hpp"
#include "plait/plan.hpp"

namespace plait::cuda {

/// Slots are used in turn over calls, so a call's slots follow from the number of earlier equal
/// calls: a plan with `calls_before` + 1 is the next call in a row. host_tiles: tiles that the host
/// channels of a shared message take. Real calls decide that while running; the plan gives host
/// channels the last tile of each channel in turn. Error(unsupported) for reductions.
Plan message_plan(const Topology& topology, const Request& request,
                  const MessageLaunchConfig& config, std::uint32_t calls_before = 0,
                  std::uint32_t host_tiles = 0);

}  // namespace plait::cuda
