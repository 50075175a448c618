// Kernel long_chain: ll_chain in several pieces, all in a single launch, for a message that does
// not fit into half an inbox. Pieces take turns among the inboxes' halves (behind a bus, eight
// parts) and count as a call each. Block b of a rank forwards to block b of the next rank, the same
// packets of every piece, and each thread keeps the same packets.
//
// A packet may be written again once the receiver's block has taken all of its packets of that
// piece. A single thread of a block, the signal thread, then raises a flag at the rank before
// (ChainFlags), and polls the corresponding flag of the next rank. Threads that pass units
// therefore never wait for a fence.
//
// The next call may write into the half that the last piece does not use. Hence no rank leaves
// before all ranks have signalled that only the last piece is left. The last block to end waits for
// these signals; any other waiting block might occupy an SM that another block of the same rank
// still needs.
#pragma once
#include "gpu/ll/ll_chain.cuh"

namespace plait::cuda {

/// Shared memory of a block.
struct LongChainShared {
  unsigned through[2];  ///< by parity: threads that have finished a piece of that parity,
                        ///< accumulated
  // Written by the signal thread.
  volatile unsigned done;     ///< pieces that all threads have finished
  volatile unsigned room;     ///< pieces after the first that may be sent
  volatile unsigned stopped;  ///< 1 = a wait was given up
};

template <DataType kType, int kOp, int kHandling>
struct LongChainCall : ChainCall<kType, kOp, kHandling> {
  using Chain = ChainCall<kType, kOp, kHandling>;
  using Chain::args, Chain::broken, Chain::timeout;

  const LongChainArgs& given;
  LongChainShared& shared;

  __device__ LongChainCall(const LongChainArgs& all, LongChainShared& between)
      : Chain(all), given(all), shared(between) {
    this->packets = static_cast<unsigned>(given.piece_bytes / 16);
  }
  /// Selects a piece. The first piece is shorter (chain_pieces()).
  __device__ void go_to(unsigned piece) {
    const unsigned long long first = given.first_bytes, length = given.piece_bytes;
    const unsigned long long at = piece == 0 ? 0 : first + (piece - 1) * length;
    const unsigned long long left = args.shape.bytes - at;
    this->set_piece(at, piece == 0 ? first : min(left, length));
    this->half = part_of_call(args, this->number + piece, args.half_bytes);
  }

  // --- threads that pass units ------------------------------------------------------------------

  /// Position of a thread: the piece, and the piece's units that earlier steps covered.
  struct PiecePosition {
    unsigned piece = 0, unit = 0;
  };
  /// Moves on by a step. Returns true if this thread has finished the piece.
  __device__ bool advance(PiecePosition& place, unsigned step) const {
    place.unit += step;
    if (place.unit < this->units) return false;
    place = {place.piece + 1, 0};
    return true;
  }
  /// Waits until the block has finished the piece before the last one. No thread is two pieces
  /// ahead of another, so the parity tells the pieces apart.
  __device__ void await_block(unsigned piece) {
    while (!broken && shared.done + 1 < piece) broken = timeout.failed_elsewhere(args.state);
    timeout.began_ns = 0;  // each piece has a fresh deadline
  }
  __device__ void await_room(unsigned piece) {
    while (!broken && shared.room < piece) {
      let_others_run();
      broken = timeout.expired(args.state, args.stop_page, args.wait_ns,
                               static_cast<unsigned>(this->receiver()), piece * this->packets, ~0u);
    }
    timeout.began_ns = 0;
    __threadfence_block();
  }
  __device__ void report_step_done(unsigned piece) const {
    __threadfence_block();
    atomicAdd(&shared.through[piece & 1], 1U);
  }
  /// Runs the steps of a worker. The root takes returned units some steps behind the forwarded
  /// units, at most one piece: the next piece waits for the returned units of the piece before.
  __device__ void work() {
    const unsigned stride = gridDim.x * given.workers, step = stride * Chain::kTogether;
    const unsigned first = blockIdx.x * given.workers + threadIdx.x;
    const bool awaits = this->awaits_return(), sends = this->receiver() >= 0;
    const unsigned steps = (this->packets + step - 1) / step;
    const unsigned ahead = min(static_cast<unsigned>(args.ahead), steps);
    PiecePosition passing, returning;
    for (unsigned turn = 0; !broken; ++turn) {
      if (passing.piece < given.pieces) {
        const unsigned piece = passing.piece;
        if (passing.unit == 0) await_block(piece);
        if (sends && piece != 0 && passing.unit == 0) await_room(piece);
        if (broken) break;
        go_to(piece);
        this->pass(first + passing.unit, stride);
        if (!broken && advance(passing, step) && !awaits) report_step_done(piece);
      } else if (!awaits) {
        break;
      }
      if (!awaits || turn < ahead || broken) continue;
      const unsigned piece = returning.piece;
      go_to(piece);
      this->take_returned(first + returning.unit, stride);
      if (broken || !advance(returning, step)) continue;
      report_step_done(piece);
      if (returning.piece == given.pieces) break;
    }
    if (broken) shared.stopped = 1;
  }

  // --- the signal thread ------------------------------------------------------------------------

  __device__ bool all_are_through(unsigned piece) const {
    const volatile unsigned& threads = shared.through[piece & 1];
    return threads >= (piece / 2 + 1) * given.workers;
  }
  __device__ ChainFlags& flags(int rank) const { return *given.flags[rank]; }
  __device__ int rank_before() const { return (args.rank + args.ranks - 1) % args.ranks; }
  /// Signals and polls until the block has finished all pieces.
  __device__ void run_signals() {
    const bool takes = this->before >= 0 || this->awaits_return();
    unsigned* const theirs = &flags(rank_before()).room[blockIdx.x];
    unsigned* const mine = &flags(args.rank).room[blockIdx.x];
    const unsigned wanted = this->receiver() >= 0 ? given.pieces - 1 : 0;
    if (takes) store_flag_relaxed(theirs, 1);
    unsigned room = 0;
    bool has_said = false;
    for (unsigned done = 0; done < given.pieces && shared.stopped == 0;) {
      if (timeout.failed_elsewhere(args.state)) return;
      if (room < wanted) room = poll_room(mine, room);
      if (all_are_through(done)) {
        shared.done = ++done;
        if (takes && done + 1 < given.pieces) {
          fence_before_flags();
          store_flag_relaxed(theirs, done + 1);
        }
      }
      // Not before the room flag is 0 again: a rank that gets this signal may start the next call
      // and write the flag.
      if (has_said || done + 1 < given.pieces || room < wanted) continue;
      signal_nearly_done();
      has_said = true;
    }
  }
  /// Returns the pieces that the next rank has room for. The flag is reset to 0 after the last
  /// value.
  __device__ unsigned poll_room(unsigned* flag, unsigned known) const {
    const unsigned said = peek_flag(flag);
    if (said == known) return known;
    load_flag(flag);
    if (said == given.pieces - 1) store_flag_relaxed(flag, 0);
    __threadfence_block();
    shared.room = said;
    return said;
  }
  __device__ unsigned this_call() const { return peek_flag(&flags(args.rank).calls) + 1; }
  /// The last block of a rank signals all other ranks.
  __device__ void signal_nearly_done() const {
    fence_before_flags();
    if (atomicAdd(&flags(args.rank).nearly_done_blocks, 1U) != gridDim.x - 1) return;
    flags(args.rank).nearly_done_blocks = 0;
    fence_before_flags();
    for (int rank = 0; rank < args.ranks; ++rank)
      if (rank != args.rank) store_flag_relaxed(&flags(rank).nearly_done[args.rank], this_call());
  }
  /// The last block to end waits for the signals of all other ranks, and ends the call.
  __device__ void leave() {
    ChainFlags& own = flags(args.rank);
    if (atomicAdd(&own.done_blocks, 1U) != gridDim.x - 1) return;
    own.done_blocks = 0;
    const unsigned call = this_call();
    for (int rank = 0; rank < args.ranks && !broken; ++rank) {
      if (rank == args.rank) continue;
      while (!broken && !reached(peek_flag(&own.nearly_done[rank]), call))
        broken =
            timeout.expired(args.state, args.stop_page, args.wait_ns, static_cast<unsigned>(rank),
                            (given.pieces - 1) * this->packets, ~0u);
      load_flag(&own.nearly_done[rank]);
      timeout.began_ns = 0;
    }
    own.calls = call;
    // From here on no block reads the call number.
    args.state->fused_calls = this->number + given.pieces - 1;
  }
};

template <DataType kType, int kOp, int kHandling>
__device__ void long_chain(const LongChainArgs& args) {
  PLAIT_SHARED(LongChainShared, shared);
  if (threadIdx.x < 2) shared.through[threadIdx.x] = 0;
  if (threadIdx.x == 0) {
    shared.done = 0;
    shared.room = 0;
    shared.stopped = 0;
  }
  __syncthreads();
  wait_for_grid_before();
  LongChainCall<kType, kOp, kHandling> call(args, shared);
  if (threadIdx.x < args.workers && !call.broken) call.work();
  if (threadIdx.x == args.workers && !call.broken) {
    call.run_signals();
    if (shared.stopped == 0) call.leave();
  }
  if (call.broken) fail_stream_at_end(args.state);
  fence_clears(args);
  __syncthreads();
  let_next_grid_start();  // as in end_fused_call
}

}  // namespace plait::cuda
