// Kernel long_two_shot: two_shot in a single launch for a message whose packets do not fit into
// half an inbox. A slot holds the packets of some steps of all threads, and steps use the packets
// in turn. Block b of a rank exchanges with block b of every peer, and each thread keeps the same
// packets.
//
// A packet may be written again once the receiver's block has taken all of its packets of that
// step. The signal warp reports that: one thread raises flags at all peers (ShotFlags), and one
// thread per peer polls the peer's flag. Threads that pass units therefore never wait for a fence.
#pragma once
#include "gpu/ll/fused.cuh"

namespace plait::cuda {

/// Flag packets that are reused within a call must be cleared, since later steps have the same
/// flag.
struct ClearedFlagPacket : FlagPacket {
  static __device__ void clear(char* at) {
    store_pair(at, 0, 0);
    store_pair(at + 16, 0, 0);
  }
};

/// Shared memory of a block.
struct LongShotShared {
  /// By step, used in turn: threads that have finished the step, accumulated. No thread finishes a
  /// step while another has yet to finish the step one ring earlier, because peers send nothing of
  /// the later step until then.
  unsigned through[kMostShotRing];
  // Written by the signal warp. By peer in the rotation: steps that the peer has finished.
  volatile unsigned room[kMaxCudaRanks];
  volatile unsigned stopped;  ///< 1 = a wait was given up
};

template <DataType kType, int kOp, int kRanks, class Packet>
struct LongTwoShot : TwoShot<kType, kOp, kRanks, Packet, false> {
  using Base = TwoShot<kType, kOp, kRanks, Packet, false>;
  using Base::call, Base::peer, Base::steps, Base::step, Base::ring, Base::slot_units;

  const LongShotArgs& given;
  LongShotShared& shared;

  __device__ LongTwoShot(const LongShotArgs& args, LongShotShared& between)
      : Base(args, args.workers), given(args), shared(between) {
    ring = args.ring;
    slot_units = static_cast<unsigned>(ring) * step;
  }

  // --- threads that pass units ------------------------------------------------------------------

  /// Waits until all peers have finished `wanted` steps.
  __device__ void await_room(unsigned wanted) {
    for (int k = 1; k < call.ranks(); ++k)
      while (!call.broken && shared.room[k] < wanted) {
        let_others_run();
        call.give_up(peer(k), wanted);
      }
    call.timeout.began_ns = 0;  // each step has a fresh deadline
    __threadfence_block();
  }
  __device__ void report_step_done(int s) const {
    __threadfence_block();
    atomicAdd(&shared.through[s % kMostShotRing], 1U);
  }
  __device__ void work() {
    const int ahead = call.args.ahead;
    for (int s = -2 * ahead; s < steps && !call.broken; ++s) {
      const int pushed = s + 2 * ahead, reduced = s + ahead;
      if (pushed >= ring && pushed < steps) await_room(static_cast<unsigned>(pushed - ring + 1));
      if (pushed < steps && !call.broken) this->push(pushed);
      if (reduced >= 0 && reduced < steps && !call.broken) this->reduce(reduced);
      if (s >= 0 && !call.broken) this->gather(s);
      if (s >= 0 && s < steps - ring && !call.broken) report_step_done(s);
    }
    if (call.broken) shared.stopped = 1;
  }

  // --- the signal warp --------------------------------------------------------------------------

  __device__ bool all_are_through(int s) const {
    const volatile unsigned& threads = shared.through[s % kMostShotRing];
    return threads >= static_cast<unsigned>(s / kMostShotRing + 1) * given.workers;
  }
  __device__ bool has_stopped() {
    return shared.stopped != 0 || call.timeout.failed_elsewhere(call.args.state);
  }
  __device__ void signal() {
    for (int s = 0; s < steps - ring; ++s) {
      while (!all_are_through(s))
        if (has_stopped()) return;
      fence_before_flags();
      for (int k = 1; k < call.ranks(); ++k)
        store_flag_relaxed(&given.flags[peer(k)]->through[blockIdx.x][call.args.rank],
                           static_cast<unsigned>(s + 1));
    }
  }
  /// Polls the flag of peer k. The flag is reset to 0 after the last value.
  __device__ void await_peer(int k) {
    unsigned* const flag = &given.flags[call.args.rank]->through[blockIdx.x][peer(k)];
    const auto all = static_cast<unsigned>(steps - ring);
    for (unsigned room = 0; room < all;) {
      if (has_stopped()) return;
      const unsigned said = peek_flag(flag);
      if (said == room) continue;
      load_flag(flag);
      if (said == all) store_flag_relaxed(flag, 0);
      __threadfence_block();
      shared.room[k] = room = said;
    }
  }
};

template <DataType kType, int kOp, int kRanks, class Packet>
__device__ void long_two_shot(const LongShotArgs& args) {
  PLAIT_SHARED(LongShotShared, shared);
  for (unsigned i = threadIdx.x; i < kMaxCudaRanks; i += blockDim.x) {
    if (i < kMostShotRing) shared.through[i] = 0;
    shared.room[i] = 0;
    if (i == 0) shared.stopped = 0;
  }
  __syncthreads();
  wait_for_grid_before();
  if (args.state->has_neighbour == 0) let_next_grid_start();  // early, as in two_shot
  LongTwoShot<kType, kOp, kRanks, Packet> shot(args, shared);
  const int signaller = static_cast<int>(threadIdx.x) - static_cast<int>(args.workers);
  if (!shot.call.broken) {
    if (signaller < 0)
      shot.work();
    else if (signaller == 0)
      shot.signal();
    else if (signaller < shot.call.ranks())
      shot.await_peer(signaller);
  }
  if (shot.call.broken) fail_stream_at_end(args.state);
  fence_clears(args);
  end_fused_call(args.state, shot.call.number);
}

}  // namespace plait::cuda
