// Scheduling of message endpoints when blocks are scarce. An endpoint is a direction of a channel
// to or from a rank, and a team of a block serves the endpoint. Messages progress as if each
// endpoint had a separate processor, however peers group calls, and even if a GPU runs a single
// block at a time:
// 1. A team that waits while blocks of the launch have not begun abandons the endpoint after a
//    while and frees the SM. Therefore all blocks of a launch begin eventually.
// 2. Abandoned endpoints are always served. A block that begins after an endpoint was abandoned
//    does not finish while abandoned endpoints exist. The same holds for a team that abandoned an
//    endpoint when all blocks had begun. A waiting team swaps its endpoint for an abandoned
//    endpoint, round robin. Therefore each unfinished endpoint is polled by a team, or will be
//    polled once a team is free.
// 3. A visit moves all available data and leaves no step half done that a peer waits for. An
// endpoint keeps the order of its messages (also the peer's order), and all messages of a group are
//    in a single launch. Therefore a message waits only for its own two endpoints, and
//    the first unmoved message of a legal program can always move.
#pragma once
#include "gpu/abi/message_args.hpp"
#include "gpu/device/memory.cuh"

namespace plait::cuda {

inline constexpr unsigned kNoBlock = ~0u;
/// Time a team waits before freeing the SM. Blocks waiting for room on a busy GPU begin sooner, and
/// then each endpoint has its own team.
inline constexpr long long kYieldAfterNs = 10'000'000;
/// Polls of an abandoned endpoint before the next one's turn.
inline constexpr unsigned kLooksAtLeft = 32;

// Called by a single thread of a team. Not inlined, since most launches never call them.

/// True if all blocks of the launch have begun; the caller's block has.
__device__ inline bool have_all_begun(unsigned begun, unsigned blocks) {
  const unsigned count = begun & ~kEndsLeft;
  return count == 0 || count == blocks;  // The last block to finish resets the count.
}
/// True if either side has abandoned endpoints.
__device__ inline bool are_ends_left(const MessageFlags* mine) {
  return (load_relaxed_64(&mine->left[0]) | load_relaxed_64(&mine->left[1])) != 0;
}
/// True if a team that has waited since `began_ns` should abandon the team's endpoint. Endpoints
/// abandoned by the other side of the block count too, because that side's team waits for this team
/// before going on.
__device__ PLAIT_NOINLINE bool should_leave(const MessageFlags* mine, unsigned blocks,
                                            unsigned long long began_ns) {
  if (have_all_begun(peek_flag(&mine->begun), blocks)) return are_ends_left(mine);
  return static_cast<long long>(now_ns() - began_ns) >= kYieldAfterNs;
}
/// Abandons an endpoint. True if a block that has not begun yet will serve the endpoint; otherwise
/// the caller must.
__device__ PLAIT_NOINLINE bool leave_end(MessageFlags* mine, unsigned side, unsigned block,
                                         unsigned blocks) {
  __threadfence_system();
  atomicOr(&mine->left[side], 1ull << block);
  __threadfence_system();
  unsigned seen = peek_flag(&mine->begun);
  while (!have_all_begun(seen, blocks)) {
    const unsigned found = atomicCAS(&mine->begun, seen, seen | kEndsLeft);
    if (found == seen) return true;
    seen = found;
  }
  return false;
}
/// True if the caller's block must go on serving abandoned endpoints. False while other blocks have
/// not begun: the caller then frees the SM for blocks to come.
__device__ PLAIT_NOINLINE bool must_go_on(const MessageFlags* mine, unsigned blocks) {
  __threadfence_system();
  return have_all_begun(peek_flag(&mine->begun), blocks) && are_ends_left(mine);
}
/// Claims the next abandoned endpoint after `block`, round robin; kNoBlock if none is left.
__device__ PLAIT_NOINLINE unsigned take_left_end(MessageFlags* mine, unsigned side,
                                                 unsigned block) {
  unsigned long long left = load_relaxed_64(&mine->left[side]);
  while (left != 0) {
    const unsigned long long behind = left & ~0ull << block % kMessageBlocks << 1;
    const unsigned long long from = behind != 0 ? behind : left, bit = from & (~from + 1);
    left = atomicAnd(&mine->left[side], ~bit);
    if ((left & bit) == 0) continue;
    __threadfence_system();
    return static_cast<unsigned>(__ffsll(static_cast<long long>(bit)) - 1);
  }
  return kNoBlock;
}

}  // namespace plait::cuda
