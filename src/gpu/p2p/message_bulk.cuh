// Moves a message's tiles by bulk copies. Some threads of a team move tiles in turns, a thread
// watches the peer's flag, and another signals progress to the peer.
#pragma once
#include "gpu/abi/tile_args.hpp"
#include "gpu/p2p/messages.cuh"
#ifndef PLAIT_BULK  // host emulation: tests/conformance/device_on_host.hpp
#define PLAIT_BULK "gpu/device/bulk.cuh"
#endif
#include PLAIT_BULK

#if PLAIT_SM_90
namespace plait::cuda {

struct MessageBulk {
  MessageTeam& end;
  const MessageWork& work;
  /// Tiles of the message on this channel; all from end.moved on move. For a shared message an
  /// upper bound.
  const unsigned count;
  char* const buffer;  ///< Shared memory of the team.

  using Ring = BulkRing<kMessageStages>;
  static constexpr unsigned kAhead = kMessageStages - 1;

  /// Bytes of a tile that bulk copies can move: all but a last unit cut short by the message's end.
  __device__ unsigned whole_bytes(unsigned number) const {
    const unsigned long long whole = work.bytes / 16 - end.first(work, number);
    return 16 * static_cast<unsigned>(min(whole, static_cast<unsigned long long>(work.tile_units)));
  }
  __device__ bool is_cut_short(unsigned number) const {
    return whole_bytes(number) / 16 != end.length(work, number);
  }
  __device__ char* memory(unsigned number) const {
    return work.memory + end.first(work, number) * 16;
  }
  __device__ char* slot(unsigned tile) const { return end.slot(end.tiles + tile); }
  /// Waits until the tile is open. False if the tile will not be moved.
  __device__ bool await_open(unsigned tile) {
    while (end.shared.open <= tile) {
      end.broken = end.broken || end.timeout.failed_elsewhere(end.args.state);
      if (end.broken || end.shared.limit <= tile) return false;
    }
    __threadfence_block();
    return true;
  }

  /// A single thread: opens tiles as the peer's flag allows.
  __device__ void watch_peer() {
    const bool sends = end.side == kSend;
    const unsigned* const flag = sends ? &end.mine().taken[end.channel][end.peer]
                                       : &end.mine().arrived[end.channel][end.peer];
    const unsigned ahead = sends ? end.slots() : 0;
    unsigned open = end.moved;
    while (open < count && !end.broken) {
      const unsigned now = peek_flag(flag) + ahead - end.tiles;
      if (static_cast<int>(now) <= static_cast<int>(open)) {
        end.give_up(open);
        continue;
      }
      load_flag(flag);
      bulk_follows();
      open = work.shared == 0 ? now : end.take(work, open, now);
      __threadfence_block();
      end.shared.open = open;
      end.timeout.began_ns = 0;
      if (open == now) continue;
      end.shared.over = 1;
      break;
    }
    __threadfence_block();
    if (end.shared.leaves != 0 || end.shared.over != 0) end.shared.limit = open;
  }
  /// A single thread: signals moved tiles to the peer, in order. Slots that were read need no fence
  /// before the flag, because only loads precede the flag.
  __device__ void signal_peer() {
    const bool sends = end.side == kSend;
    MessageFlags& theirs = end.theirs();
    unsigned* const flag = sends ? &theirs.arrived[end.channel][end.args.rank]
                                 : &theirs.taken[end.channel][end.args.rank];
    for (unsigned signalled = end.moved; signalled < count;) {
      unsigned next = signalled;
      while (next < count && end.shared.done[next % kMessageMovers] > next) ++next;
      // Limit is read before `over`.
      const bool all_signalled = next == signalled && end.shared.limit <= signalled;
      __threadfence_block();  // Numbers, and whether the message is over, were written before.
      const bool is_over = all_signalled && end.shared.over != 0;
      if (next == signalled && !is_over) {
        if (all_signalled || end.timeout.failed_elsewhere(end.args.state)) return;
        continue;
      }
      // The end marker of a shared message occupies a slot like a tile.
      for (unsigned tile = signalled; sends && work.shared != 0 && tile < next; ++tile)
        end.publish_number(tile, end.number(work, tile));
      if (sends && is_over) end.publish_number(signalled, kNoTile);
      if (sends) fence_before_flags();
      signalled = is_over ? signalled + 1 : next;
      store_flag_relaxed(flag, end.tiles + signalled);
      if (is_over) return;
    }
  }

  /// A single thread: moves every kMessageMovers-th tile. While a mover waits for bytes, another's
  /// are in flight.
  template <bool kSends>
  __device__ void move(unsigned mover) {
    Ring ring(buffer + mover * kMessageStages * kBulkBytes, end.shared.barriers[mover]);
    unsigned next = end.moved + mover, next_at = 0;
    const auto load_ahead = [&] {
      const bool any = kSends && work.shared == 0;  // Otherwise only open tiles.
      while (next < count && ring.held() < kAhead && (any || next < end.shared.open)) {
        if (!any) __threadfence_block();
        const unsigned number = end.number(work, next), bytes = whole_bytes(number);
        if (next_at < bytes)
          ring.load((kSends ? memory(number) : slot(next)) + next_at,
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
      const unsigned number = end.number(work, tile), bytes = whole_bytes(number);
      char* const to = kSends ? slot(tile) : memory(number);
      for (unsigned at = 0; at < bytes; at += kBulkBytes) {
        load_ahead();
        ring.await_load();
        ring.store(to + at, min(kBulkBytes, bytes - at));
      }
      if (is_cut_short(number)) move_tail<kSends>(tile, number, bytes);
      if (kSends) {
        load_ahead();
        wait_bulk_stores<false>(0);
      }
      __threadfence_block();
      end.shared.done[tile % kMessageMovers] = tile + 1;
    }
    ring.end();
  }
  /// Moves the last unit, cut short by the message's end.
  template <bool kSends>
  __device__ void move_tail(unsigned tile, unsigned number, unsigned whole) const {
    char* const at = memory(number);
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
      end.shared.over = 0;
      for (int mover = 0; mover < kMessageMovers; ++mover) end.shared.done[mover] = 0;
    }
    end.team.barrier();
    const unsigned warp = end.team.lane / 32;
    if (end.team.lane % 32 == 0) {
      if (warp < kMessageMovers && end.side == kSend)
        move<true>(warp);
      else if (warp < kMessageMovers)
        move<false>(warp);
      else if (warp == kMessageMovers)
        watch_peer();
      else if (warp == kMessageMovers + 1)
        signal_peer();
    }
    end.broken = end.team.any(end.broken);
    const unsigned limit = end.shared.limit;
    end.moved = end.shared.over != 0 ? limit + 1 : min(count, limit);
  }
};

}  // namespace plait::cuda
#endif  // PLAIT_SM_90
