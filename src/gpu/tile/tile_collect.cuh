// The collect role by bulk copies of one thread: results from slots into the output.
#pragma once
#include "gpu/tile/tile_roles.cuh"

namespace plait::cuda {

class BulkCollect {
 public:
  __device__ BulkCollect(TileRoles& work, char* room, unsigned owners)
      : work_(work),
        shared_(work.shared),
        ring_(room, work.shared.collect_barriers),
        owners_(owners) {}

  __device__ void run() {
    for (unsigned tile = 0; tile < work_.count && !work_.broken; ++tile) {
      while (put_ != taken_) take();
      collect(tile);
    }
    while (put_ != taken_) take();
    ring_.end();
  }

 private:
  static constexpr unsigned kAhead = 2, kQueue = TileShared::kQueue;

  __device__ void take() {
    const TileShared::BulkMove move = shared_.collect_queue[taken_++ % kQueue];
    if (move.dst == nullptr) {
      // No fence: only loads come before, and those have ended when the bytes are on the way out.
      work_.signal(&TileFlags::results_taken, owners_, work_.base + move.tile + 1);
      return;
    }
    ring_.await_load();
    ring_.store(move.dst, move.bytes);
  }
  __device__ void queue(const TileShared::BulkMove& move) {
    shared_.collect_queue[put_++ % kQueue] = move;
    while (ring_.held() > kAhead || put_ - taken_ == kQueue) take();
  }
  __device__ void copy(const char* src, char* dst, unsigned bytes, unsigned tile) {
    for (unsigned at = 0; at < bytes; at += kBulkBytes) {
      const unsigned length = min(kBulkBytes, bytes - at);
      ring_.load(src + at, length);
      queue({dst + at, length, tile});
    }
  }
  __device__ void collect(unsigned tile) {
    const TiledArgs& args = work_.args;
    work_.await_flags(&TileFlags::results, owners_, work_.base + tile + 1);
    if (work_.broken) return;
    bulk_follows();
    for (int k = 1; k < args.ranks; ++k) {
      const int owner = work_.target(k);
      if (!work_.in(owners_, owner)) continue;
      const char* const src = work_.result_in(owner, tile);
      char* const out = work_.output(owner);
      const unsigned bytes = work_.whole_bytes(owner, tile);
      copy(src, out + work_.first(tile) * 16, bytes, tile);
      if (bytes / 16 < work_.length(owner, tile))
        work_.store_any(out, work_.first(tile) + bytes / 16, load_pair(src + bytes),
                        work_.part_bytes(owner), true);
    }
    queue({nullptr, 0, tile});
  }

  TileRoles& work_;
  TileShared& shared_;
  BulkRing<kCollectStages> ring_;
  const unsigned owners_;
  unsigned put_ = 0, taken_ = 0;
};

__device__ PLAIT_NOINLINE void tile_collect(TileRoles work, const Team team, char* room) {
  const unsigned owners = work.owners_i_read();
  const bool stays = work.args.own_bytes != 0 && work.own_src() != work.own_dst();
  if (stays && work.stays_in_bulk() && team.lane == 0) work.copy_own_in_bulk(room);
  if (owners == 0) return;
  if (!work.bulk_output())
    work.collect_by_threads(team, owners);
  else if (team.lane == 0)
    BulkCollect(work, room, owners).run();
}

}  // namespace plait::cuda
