// Device part of the path check. Kernels of all ranks wait for each other in rounds and check that
// data written by peers arrived: a driver may grant direct access that drops stores, or keeps
// stores in a copy that only the writer sees. A block checks a single pair of ranks.
#pragma once
#include "gpu/abi/path_args.hpp"
#include "gpu/device/memory.cuh"

namespace plait::cuda {

enum PathEnd : unsigned { kPathGoesOn, kPathNotBegun, kPathNoFlag, kPathPeerGaveUp };
struct PathShared {
  unsigned end;  ///< PathEnd: reason why the block stops.
};

/// Time since began_ns; resets began_ns if the clock has stepped back.
__device__ inline unsigned long long path_waited_ns(unsigned long long& began_ns) {
  const unsigned long long now = now_ns();
  if (is_not_past(began_ns, now)) began_ns = now;
  return now - began_ns;
}

/// Waits for the host's command. The check's waits fail no stream; the host reads the result.
__device__ inline bool path_host_says_go(const PathArgs& args, unsigned peer) {
  volatile PathSignal* const signal = args.signal;
  signal->resident[peer] = 1;
  __threadfence_system();
  unsigned long long began_ns = now_ns();
  for (;;) {
    const unsigned command = signal->command;
    if (command != kPathWait) return command == kPathGo;
    if (path_waited_ns(began_ns) > args.start_ns) return false;
  }
}

/// Waits for the peer's flag. Later rounds wait longer, so that a rank that waited in vain can
/// report first.
__device__ inline unsigned path_await_flag(const PathArgs& args, const PathMail& mine,
                                           unsigned round) {
  unsigned long long began_ns = now_ns();
  while (!reached(peek_flag(&mine.round), round)) {
    if (path_waited_ns(began_ns) > args.wait_ns * round) return kPathNoFlag;
    if (const_cast<volatile PathSignal*>(args.signal)->command == kPathStop) return kPathNoFlag;
  }
  return load_flag(&mine.round) == kPathGivenUp ? kPathPeerGaveUp : kPathGoesOn;
}

__device__ inline bool path_holds(const PathUnit& at, const PathUnit& expected) {
  const Unit unit = load_pair(&at);
  return unit.lo == expected.lo && unit.hi == expected.hi;
}

/// A single thread's part of a round; returns PathFault bits.
__device__ inline unsigned path_round(const PathArgs& args, int peer, unsigned round,
                                      PathShared& shared) {
  const unsigned unit = threadIdx.x, half = round & 1;
  PathMail& mine = args.inboxes[args.rank]->with[peer];
  PathMail& theirs = args.inboxes[peer]->with[args.rank];
  const PathUnit show = path_unit(args.nonce, args.rank, peer, PathMethod::shown, round, unit);
  const PathUnit store = path_unit(args.nonce, args.rank, peer, PathMethod::stored, round, unit);
  store_pair(&mine.shown[half][unit], show.lo, show.hi);
  store_pair(&theirs.stored[half][unit], store.lo, store.hi);
  __threadfence_system();
  __syncthreads();
  if (unit == 0) {
    store_flag(&theirs.round, round);
    shared.end = path_await_flag(args, mine, round);
    if (shared.end == kPathNoFlag) store_flag(&theirs.round, kPathGivenUp);
  }
  __syncthreads();
  if (shared.end != kPathGoesOn) return shared.end == kPathNoFlag ? unsigned{kPathSilent} : 0;
  __threadfence_system();
  const bool stored =
      path_holds(mine.stored[half][unit],
                 path_unit(args.nonce, peer, args.rank, PathMethod::stored, round, unit));
  const bool loaded =
      path_holds(theirs.shown[half][unit],
                 path_unit(args.nonce, peer, args.rank, PathMethod::shown, round, unit));
  return (stored ? 0u : kPathStored) | (loaded ? 0u : kPathLoaded);
}

__device__ inline void path_check(const PathArgs& args, PathShared& shared) {
  const int peer = static_cast<int>(blockIdx.x);
  if (threadIdx.x == 0)
    shared.end = path_host_says_go(args, blockIdx.x) ? kPathGoesOn : kPathNotBegun;
  __syncthreads();
  unsigned found = shared.end == kPathNotBegun ? unsigned{kPathUnproved} : 0;
  for (unsigned round = 1; round <= kPathRounds; ++round) {
    if (peer == args.rank || shared.end != kPathGoesOn) break;
    found |= path_round(args, peer, round, shared);
    __syncthreads();  // All threads have read `end` before it changes.
  }
  args.inboxes[args.rank]->with[peer].found[threadIdx.x] = found;
}

}  // namespace plait::cuda
