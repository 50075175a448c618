// Detects that the process has loaded another library. On a node with GPUs nearly every native call
// checks this: the check is a single load from memory.
#pragma once
#include <link.h>

#include <atomic>
#include <cstdint>

namespace plait::mpi {

/// Loader entry of libplait_mark.so, an empty library that was last in the loader's list when a
/// scan found no CUDA. The loader appends later libraries. Null before the first scan, and if every
/// call must scan.
extern constinit std::atomic<const link_map*> mark;

inline bool may_have_loaded_more() {
  const link_map* const last = mark.load(std::memory_order_acquire);
  return last == nullptr || __atomic_load_n(&last->l_next, __ATOMIC_ACQUIRE) != nullptr;
}

/// Moves the mark to the end of the loader's list, before a scan: a library loaded after the scan
/// is then behind the mark. If threads may call MPI at once, the mark stays at the first place,
/// since other threads may be reading the mark; once another library is loaded, every call scans.
/// The result is for set_mark(), after the scan has found no CUDA.
const link_map* move_mark_last();
void set_mark(const link_map* found);
void remove_mark();

/// Returns the number of libraries the process has loaded so far.
std::uint64_t libraries_loaded();

}  // namespace plait::mpi
