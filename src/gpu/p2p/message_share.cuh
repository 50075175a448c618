// Distributes the tiles of a shared message over channels. Each channel owns a list of tiles and
// claims from the front, shortly before sending. Host channels claim from the end of any channel's
// list. Hence both paths finish together under any load, and no rank needs to know a share. No
// claim waits for another channel, since a claimed tile has a slot reserved.
#pragma once
#include "gpu/abi/message_args.hpp"
#include "gpu/device/memory.cuh"

namespace plait::cuda {

/// Unclaimed tiles of a channel, from `front` to before `end`. Packed into a 64-bit claim, so that
/// a tile is claimed once.
struct MessageClaims {
  unsigned share;  ///< 16 bits: number of the message among the shared messages to this peer.
  unsigned front;  ///< 24 bits.
  unsigned end;    ///< 24 bits.

  __device__ unsigned long long word() const {
    return static_cast<unsigned long long>(share & 0xffff) << 48 |
           static_cast<unsigned long long>(front) << 24 | end;
  }
};

/// Decodes the claim for message `share` of `tiles` tiles. An older number: no tile is claimed yet.
/// A newer number: all are claimed. The numbers are less than 2^15 apart, because a launch has
/// fewer messages.
__device__ inline MessageClaims claims_of(unsigned long long word, unsigned share, unsigned tiles) {
  constexpr unsigned kTiles = (1u << 24) - 1;
  const int behind = static_cast<short>(static_cast<unsigned>(word >> 48) - share);
  if (behind == 0)
    return {share, static_cast<unsigned>(word >> 24) & kTiles,
            static_cast<unsigned>(word) & kTiles};
  return {share, 0, behind < 0 ? tiles : 0};
}

// Called by a single thread.

/// Claims tiles for the owning channel, in addition to the first `have`, up to `most` in all.
/// Returns how many the channel has now.
__device__ inline unsigned claim_front(unsigned long long* at, unsigned share, unsigned tiles,
                                       unsigned have, unsigned most) {
  unsigned long long seen = load_relaxed_64(at);
  while (true) {
    const MessageClaims now = claims_of(seen, share, tiles);
    const unsigned front = min(most, now.end);
    if (front <= have) return have;
    const unsigned long long found =
        atomicCAS(at, seen, MessageClaims{share, front, now.end}.word());
    if (found == seen) return front;
    seen = found;
  }
}

/// Claims the last tile left for a host channel; kNoTile if none is left.
__device__ inline unsigned claim_end(unsigned long long* at, unsigned share, unsigned tiles) {
  unsigned long long seen = load_relaxed_64(at);
  while (true) {
    const MessageClaims now = claims_of(seen, share, tiles);
    if (now.front >= now.end) return kNoTile;
    const unsigned long long found =
        atomicCAS(at, seen, MessageClaims{share, now.front, now.end - 1}.word());
    if (found == seen) return now.end - 1;
    seen = found;
  }
}

}  // namespace plait::cuda
