// Tiles of a message by bulk copies: of a team's threads one moves, one watches the peer's word,
// and one, where it sends, tells the peer what has arrived there.
#pragma once
#include "exec/cuda/kernels/bulk.cuh"
#include "exec/cuda/kernels/messages.cuh"

namespace plait::cuda {

struct MessageBulk {
  MessageTeam& end;
  const MessageWork& work;
  const unsigned count;  ///< tiles of the message through this channel
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
  __device__ void await_open(unsigned tile) {
    while (!end.broken && end.shared.open <= tile)
      end.broken = end.patience.given_up(end.args.state);
    __threadfence_block();
  }

  /// One thread: how many tiles may be moved, as the peer's word has it.
  __device__ void watch() {
    const bool sends = end.side == kSend;
    const unsigned* const word = sends ? &end.mine().taken[end.channel][end.peer]
                                       : &end.mine().arrived[end.channel][end.peer];
    const unsigned ahead = sends ? kMessageSlots : 0;
    for (unsigned open = 0; open < count && !end.broken;) {
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
  }
  /// One thread: what has left has arrived.
  __device__ void tell() {
    for (unsigned told = 0; told < count;) {
      const unsigned done = end.shared.done;
      if (done == told) {
        if (end.patience.given_up(end.args.state)) return;
        continue;
      }
      fence_before_flags();
      told = done;
      store_flag_relaxed(&end.theirs().arrived[end.channel][end.args.rank], end.tiles + told);
    }
  }

  /// One thread.
  __device__ void push() {
    Ring ring(room, end.shared.barriers);
    constexpr unsigned kLag = 1, kQueue = MessageTeamShared::kQueue;
    unsigned next = 0, next_at = 0, ended = 0, done = 0;
    const auto see_done = [&](unsigned lag) {
      const unsigned before = done;
      while (done < ended && ring.stored() - end.shared.ends[done % kQueue] >= lag) ++done;
      if (done == before) return;
      wait_bulk_stores<false>(ring.stored() - end.shared.ends[(done - 1) % kQueue]);
      __threadfence_block();
      end.shared.done = done;
    };
    const auto load_ahead = [&] {
      while (next < count && ring.held() < kAhead) {
        const unsigned bytes = whole_bytes(next);
        if (next_at < bytes) {
          ring.load(memory(next) + next_at, min(kBulkBytes, bytes - next_at));
          next_at += kBulkBytes;
        }
        if (next_at >= bytes) {
          ++next;
          next_at = 0;
        }
      }
    };
    for (unsigned tile = 0; tile < count && !end.broken; ++tile) {
      load_ahead();
      if (end.shared.open <= tile) see_done(0);
      await_open(tile);
      const unsigned bytes = whole_bytes(tile);
      for (unsigned at = 0; at < bytes && !end.broken; at += kBulkBytes) {
        load_ahead();
        ring.await_load();
        ring.store(slot(tile) + at, min(kBulkBytes, bytes - at));
        see_done(kLag);
      }
      if (end.broken) break;
      if (is_cut_short(tile)) {
        const Unit unit =
            load_any(memory(tile), bytes / 16, bytes + work.bytes % 16, false, work.element);
        store_pair(slot(tile) + bytes, unit.lo, unit.hi);
      }
      end.shared.ends[ended++ % kQueue] = ring.stored();
      see_done(kLag);
    }
    if (!end.broken) see_done(0);
    ring.end();
  }

  /// One thread. A slot is free when its bytes have been read; no fence, as only loads come before.
  __device__ void collect() {
    Ring ring(room, end.shared.barriers);
    unsigned next = 0, next_at = 0;
    const auto load_ahead = [&] {
      while (next < count && ring.held() < kAhead && next < end.shared.open) {
        __threadfence_block();
        const unsigned bytes = whole_bytes(next);
        if (next_at < bytes) {
          ring.load(slot(next) + next_at, min(kBulkBytes, bytes - next_at));
          next_at += kBulkBytes;
        }
        if (next_at >= bytes) {
          ++next;
          next_at = 0;
        }
      }
    };
    for (unsigned tile = 0; tile < count && !end.broken; ++tile) {
      await_open(tile);
      const unsigned bytes = whole_bytes(tile);
      if (!end.broken && is_cut_short(tile))
        store_any(memory(tile), bytes / 16, load_pair(slot(tile) + bytes), bytes + work.bytes % 16,
                  false, work.element);
      for (unsigned at = 0; at < bytes && !end.broken; at += kBulkBytes) {
        load_ahead();
        ring.await_load();
        ring.store(memory(tile) + at, min(kBulkBytes, bytes - at));
      }
      if (!end.broken)
        store_flag_relaxed(&end.theirs().taken[end.channel][end.args.rank], end.tiles + tile + 1);
    }
    ring.end();
  }

  /// All threads of the team.
  __device__ void run() {
    if (end.team.lane == 0) {
      end.shared.open = 0;
      end.shared.done = 0;
    }
    end.team.meet();
    if (end.team.lane == 0) {
      if (end.side == kSend)
        push();
      else
        collect();
    } else if (end.team.lane == 32) {
      watch();
    } else if (end.team.lane == 64 && end.side == kSend) {
      tell();
    }
    end.broken = end.team.any(end.broken);
  }
};

}  // namespace plait::cuda
