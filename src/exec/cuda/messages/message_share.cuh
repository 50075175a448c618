// Which tiles of a shared message go through which channel. Each channel has tiles of its own, in
// order, and takes them from the front, a few before it sends them. Host channels take from the end
// of any channel's. So both paths end together, whatever the load on either, and no rank has to
// know a share. Whoever takes a tile has a slot for it: nothing that is taken waits for another
// channel.
#pragma once
#include "exec/cuda/device/memory.cuh"
#include "exec/cuda/messages/message_args.hpp"

namespace plait::cuda {

/// Of a channel's tiles those that nobody has taken, from `front` to before `end`. In one word, so
/// that a tile is taken once.
struct MessageClaims {
  unsigned share;  ///< 16 bits: the number of the message among the shared ones to this peer
  unsigned front;  ///< 24 bits
  unsigned end;    ///< 24 bits

  __device__ unsigned long long word() const {
    return static_cast<unsigned long long>(share & 0xffff) << 48 |
           static_cast<unsigned long long>(front) << 24 | end;
  }
};

/// As the word has it for that message of so many tiles. Where it speaks of one before, nobody has
/// taken any; where of one behind, all have been taken. In between lie fewer than 2^15 messages, as
/// a launch has no more.
__device__ inline MessageClaims claims_of(unsigned long long word, unsigned share, unsigned tiles) {
  constexpr unsigned kTiles = (1u << 24) - 1;
  const int behind = static_cast<short>(static_cast<unsigned>(word >> 48) - share);
  if (behind == 0)
    return {share, static_cast<unsigned>(word >> 24) & kTiles,
            static_cast<unsigned>(word) & kTiles};
  return {share, 0, behind < 0 ? tiles : 0};
}

// One thread calls these.

/// For the channel itself, which has the first `have`: all up to `most`, as far as they are left.
/// Returns how many it has now.
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

/// For a host channel: the last that is left; kNoTile where none is.
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
