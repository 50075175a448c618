// Whether the process has loaded another library: nearly every call that stays the MPI's asks that
// on a node with GPUs, so the answer is one look at memory.
#pragma once
#include <link.h>

#include <atomic>
#include <cstdint>

namespace plait::mpi {

/// An empty library of plait's own, behind which no CUDA was when it was put last and all libraries
/// were looked through. The loader puts what it loads behind it. Null before the first look, and
/// where every call is to look.
extern constinit std::atomic<const link_map*> mark;

inline bool may_have_loaded_more() {
  const link_map* const last = mark.load(std::memory_order_acquire);
  return last == nullptr || __atomic_load_n(&last->l_next, __ATOMIC_ACQUIRE) != nullptr;
}

/// Puts that library behind all others, for a look through these: what is loaded after the look is
/// then behind it. Where threads may call the MPI at once it stays where it was put first, since
/// others may be reading it; every call looks, then, once more has been loaded. What it returns is
/// for set_mark(), once the look has found no CUDA.
const link_map* move_mark_last();
void set_mark(const link_map* found);
void remove_mark();

/// How many libraries the process has loaded so far.
std::uint64_t libraries_loaded();

}  // namespace plait::mpi
