// Tiles of a message by bulk copies: of a team's threads some move, in turns, one watches the
// peer's word, and one tells the peer what has been moved.
#pragma once
#include "exec/cuda/messages/messages.cuh"
#include "exec/cuda/tiles/tile_args.hpp"
#ifndef PLAIT_BULK  // tests play kernels on a host's threads (tests/conformance/device_on_host.hpp)
#define PLAIT_BULK "exec/cuda/device/bulk.cuh"
#endif
#include PLAIT_BULK

#if PLAIT_SM_90
namespace plait::cuda {

struct MessageBulk {
  MessageTeam& end;
  const MessageWork& work;
  const unsigned count;  ///< tiles of the message through this channel: all from end.moved on move
  char* const room;      ///< shared memory of the team

  using Ring = BulkRing<kMessageStages>;
  static constexpr unsigned kAhead = kMessageStages - 1;

  /// Of a tile, what a bulk copy can move: all but a unit that the message's end cuts short.
  __device__ unsigned whole_bytes(unsigned tile) const {
    const unsigned long long whole = work.bytes / 16 - end.first(work, tile);
    return 16 * static_cast<unsigned>(min(whole, static_cast<unsigned long long>(work.tile_units)));
  }
  __device__ bool is_cut_short(unsigned tile) const {
    return whole_bytes(tile) / 16 != end.length(work, tile);
  }
  __device__ char* memory(unsigned tile) const { return work.memory + end.first(work, tile) * 16; }
  __device__ char* slot(unsigned tile) const { return end.slot(end.tiles + tile); }
  /// False where the tile is not moved.
  __device__ bool await_open(unsigned tile) {
    while (end.shared.open <= tile) {
      end.broken = end.broken || end.patience.given_up(end.args.state);
      if (end.broken || end.shared.limit <= tile) return false;
    }
    __threadfence_block();
    return true;
  }

  /// One thread: how many tiles may be moved, as the peer's word has it.
  __device__ void watch() {
    const bool sends = end.side == kSend;
    const unsigned* const word = sends ? &end.mine().taken[end.channel][end.peer]
                                       : &end.mine().arrived[end.channel][end.peer];
    const unsigned ahead = sends ? kMessageSlots : 0;
    unsigned open = end.moved;
    while (open < count && !end.broken) {
      const unsigned now = peek_flag(word) + ahead - end.tiles;
      if (static_cast<int>(now) <= static_cast<int>(open)) {
        end.give_up(open);
        continue;
      }
      load_flag(word);
      bulk_follows();
      __threadfence_block();
      open = now;
      end.shared.open = open;
      end.patience.began_ns = 0;
    }
    if (end.shared.leaves != 0) end.shared.limit = open;
  }
  /// One thread: what has been moved, in order. Slots that were read are free without a fence, as
  /// only loads come before.
  __device__ void tell() {
    const bool sends = end.side == kSend;
    MessageFlags& theirs = end.theirs();
    unsigned* const word = sends ? &theirs.arrived[end.channel][end.args.rank]
                                 : &theirs.taken[end.channel][end.args.rank];
    for (unsigned told = end.moved; told < count;) {
      unsigned next = told;
      while (next < count && end.shared.done[next % kMessageMovers] > next) ++next;
      if (next == told) {
        if (end.shared.limit <= told || end.patience.given_up(end.args.state)) return;
        continue;
      }
      if (sends) fence_before_flags();
      told = next;
      store_flag_relaxed(word, end.tiles + told);
    }
  }

  /// One thread: each kMessageMovers-th tile. While it waits for its bytes to arrive, another's go.
  template <bool kSends>
  __device__ void move(unsigned mover) {
    Ring ring(room + mover * kMessageStages * kBulkBytes, end.shared.barriers[mover]);
    unsigned next = end.moved + mover, next_at = 0;
    const auto load_ahead = [&] {
      while (next < count && ring.held() < kAhead && (kSends || next < end.shared.open)) {
        if (!kSends) __threadfence_block();
        const unsigned bytes = whole_bytes(next);
        if (next_at < bytes)
          ring.load((kSends ? memory(next) : slot(next)) + next_at,
                    min(kBulkBytes, bytes - next_at));
        next_at += kBulkBytes;
        if (next_at < bytes) continue;
        next += kMessageMovers;
        next_at = 0;
      }
    };
    for (unsigned tile = end.moved + mover; tile < count; tile += kMessageMovers) {
      load_ahead();
      if (!await_open(tile)) break;
      const unsigned bytes = whole_bytes(tile);
      char* const to = kSends ? slot(tile) : memory(tile);
      for (unsigned at = 0; at < bytes; at += kBulkBytes) {
        load_ahead();
        ring.await_load();
        ring.store(to + at, min(kBulkBytes, bytes - at));
      }
      if (is_cut_short(tile)) move_tail<kSends>(tile, bytes);
      if (kSends) {
        load_ahead();
        wait_bulk_stores<false>(0);
      }
      __threadfence_block();
      end.shared.done[tile % kMessageMovers] = tile + 1;
    }
    ring.end();
  }
  /// The unit that the end of the message cuts short.
  template <bool kSends>
  __device__ void move_tail(unsigned tile, unsigned whole) const {
    char* const at = memory(tile);
    const unsigned long long bytes = whole + work.bytes % 16;
    if (kSends) {
      const Unit unit = load_any(at, whole / 16, bytes, false, work.element);
      store_pair(slot(tile) + whole, unit.lo, unit.hi);
    } else {
      store_any(at, whole / 16, load_pair(slot(tile) + whole), bytes, false, work.element);
    }
  }

  /// All threads of the team.
  __device__ void run() {
    if (end.team.lane == 0) {
      end.shared.open = end.moved;
      end.shared.limit = ~0u;
      for (int mover = 0; mover < kMessageMovers; ++mover) end.shared.done[mover] = 0;
    }
    end.team.meet();
    const unsigned warp = end.team.lane / 32;
    if (end.team.lane % 32 == 0) {
      if (warp < kMessageMovers && end.side == kSend)
        move<true>(warp);
      else if (warp < kMessageMovers)
        move<false>(warp);
      else if (warp == kMessageMovers)
        watch();
      else if (warp == kMessageMovers + 1)
        tell();
    }
    end.broken = end.team.any(end.broken);
    const unsigned limit = end.shared.limit;
    if (end.broken) end.moved = min(count, limit);
  }
};

}  // namespace plait::cuda
#endif  // PLAIT_SM_90
