// Ends of messages that wait: one direction of one channel to or from one rank is an end, and a
// team of a block serves it. Whatever groups the other ends lie in, and however few blocks a GPU
// has room for, one at a time even, messages move as if each end had a processor of its own:
// 1. A team that waits while blocks of its launch have not begun leaves its end after a while and
//    makes room. So all blocks of a launch begin at last.
// 2. A block that begins after an end was left does not finish while any end is left, nor does a
//    team that has left an end when all blocks had begun. Whoever waits while an end is left takes
//    that one in exchange, each in turn. So each end that is not through yet has a team that looks
//    at its words, or will have one again when that team has done what it can.
// 3. A visit takes all that is there and leaves nothing half done that others wait for. An end's
//    messages keep their order, which is that of the peer's end; and all of a group are in one
//    launch. So nothing waits for a message but its own two ends, and the first message of a legal
//    program that has not moved can always move.
#pragma once
#include "exec/cuda/device/memory.cuh"
#include "exec/cuda/messages/message_args.hpp"

namespace plait::cuda {

inline constexpr unsigned kNoBlock = ~0u;
/// How long a team waits before it makes room. Blocks that wait for room on a busy GPU begin
/// sooner, and then each end has its own team.
inline constexpr long long kYieldAfterNs = 10'000'000;
/// Looks at an end that was left, before the next one's turn.
inline constexpr unsigned kLooksAtLeft = 32;

// One thread of a team calls these. They are functions of their own, as most launches need none.

/// Of a launch's blocks, when the caller's has.
__device__ inline bool have_all_begun(unsigned begun, unsigned blocks) {
  const unsigned count = begun & ~kEndsLeft;
  return count == 0 || count == blocks;  // the last one to begin sets it back at its end
}
/// Of either side.
__device__ inline bool are_ends_left(const MessageFlags* mine) {
  return (load_relaxed_64(&mine->left[0]) | load_relaxed_64(&mine->left[1])) != 0;
}
/// Whether a team that has waited since then should leave its end. What the other side of its block
/// has left counts too, as that team waits for this one before it goes on.
__device__ PLAIT_NOINLINE bool should_leave(const MessageFlags* mine, unsigned blocks,
                                            unsigned long long began_ns) {
  if (have_all_begun(peek_flag(&mine->begun), blocks)) return are_ends_left(mine);
  return static_cast<long long>(now_ns() - began_ns) >= kYieldAfterNs;
}
/// True where a block that has not begun yet will see to it; else the caller must.
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
/// Whether the caller's block, which sees to ends that were left, has to go on. While others have
/// not begun it makes room, and these do.
__device__ PLAIT_NOINLINE bool must_go_on(const MessageFlags* mine, unsigned blocks) {
  __threadfence_system();
  return have_all_begun(peek_flag(&mine->begun), blocks) && are_ends_left(mine);
}
/// Of the ends left the next behind `block`, in turn, nobody else's from now on; or kNoBlock.
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
