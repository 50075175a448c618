// What a group of messages does on all ranks, as a plan: a collective that only moves, by one
// message from each sender to each owner. A lane is an end, one direction of one channel between
// two ranks; a copy into a slot is followed by the word that tells of it, and a copy out of a slot
// by the word that gives it back. Lines of small messages lie in a plan as bytes 16 i of their slot
// on; each is its own signal, so a plan's word stands for all lines of a message. Ends have no
// order between them here: a GPU with little room keeps to that by taking them up in turn
// (message_ends.cuh).
#pragma once
#include "exec/cuda/messages/messages.hpp"
#include "plait/plan.hpp"

namespace plait::cuda {

/// Slots are used in turn over calls, so where a call's lie follows from how many calls like it
/// came before: one with `calls_before` + 1 is what comes behind it in a row. host_tiles: how many
/// of a shared message's host channels take, which calls find out as they run; here they take the
/// last of each channel in turn. Error(unsupported) for what reduces.
Plan message_plan(const Topology& topology, const Request& request,
                  const MessageLaunchConfig& config, std::uint32_t calls_before = 0,
                  std::uint32_t host_tiles = 0);

}  // namespace plait::cuda
