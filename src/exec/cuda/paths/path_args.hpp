// What proving the paths between two GPUs takes: bodies that each end writes for the other, read by
// both compilers. Every body says who wrote it, for whom, how, in which round and for which
// communicator, so that nothing else can be taken for it.
#pragma once
#include <cstdint>

#include "exec/cuda/device/call_args.hpp"
#include "exec/cuda/traffic/tile_cut.hpp"

namespace plait::cuda {

inline constexpr int kPathThreads = 32;     ///< of a block, which proves one pair
inline constexpr unsigned kPathRounds = 4;  ///< of kernels: the third overwrites the first
inline constexpr unsigned kPathCopyRounds = 2;

struct alignas(16) PathUnit {  // stored and loaded whole
  unsigned long long lo, hi;
  bool operator==(const PathUnit&) const = default;
};
using PathBody = PathUnit[kPathThreads];

/// What is between this rank and one other, in this rank's memory.
struct PathMail {
  PathBody stored[2];                 ///< by the other's kernel, by parity of the round
  PathBody shown[2];                  ///< by this rank's, for the other's to load
  PathBody pushed;                    ///< by the other's copy engine
  PathBody offered;                   ///< by this rank, for the other's copy engine to take
  PathBody pulled;                    ///< what this rank's copy engine took of the other's
  PathBody sent;                      ///< what this rank's copy engine pushes to the other
  std::uint32_t round;                ///< raised by the other's kernel: its bodies are here
  std::uint32_t found[kPathThreads];  ///< PathFault bits, by each thread of this rank
};
struct PathInbox {
  PathMail with[kMaxCudaRanks];
};

/// What is wrong with what a rank gets from a peer.
enum PathFault : std::uint32_t {
  kPathSilent = 1,     ///< its kernel's flag did not come in time
  kPathStored = 2,     ///< the flag came, what was stored before it did not
  kPathLoaded = 4,     ///< loads from its memory find something else
  kPathPushed = 8,     ///< what its copy engine wrote is not here
  kPathPulled = 16,    ///< what this rank's copy engine took is something else
  kPathUnproved = 32,  ///< the kernel was told to stop, or told nothing
};

/// A round of a peer that goes no further, as this rank's words did not come to it.
inline constexpr std::uint32_t kPathGivenUp = 1u << 30;

enum PathCommand : std::uint32_t { kPathWait = 0, kPathGo = 1, kPathStop = 2 };
/// Host memory by which kernels and the host meet: no deadline begins before all are in place.
struct PathSignal {
  std::uint32_t command;                  ///< PathCommand, by the host
  std::uint32_t resident[kMaxCudaRanks];  ///< by each block
};

struct PathArgs {
  PathInbox* words[kMaxCudaRanks];  ///< every rank's, as mapped here
  PathSignal* signal;
  unsigned long long nonce;
  unsigned long long start_ns;  ///< a kernel waits so long for its host's word
  unsigned long long wait_ns;   ///< and so long for a peer, times the round
  std::int32_t rank;
  std::int32_t ranks;
};

enum class PathMethod : std::uint32_t { stored, shown, pushed, offered };

PLAIT_ON_BOTH inline unsigned long long path_mix(unsigned long long bits) {
  bits = (bits ^ bits >> 30) * 0xbf58476d1ce4e5b9ull;
  bits = (bits ^ bits >> 27) * 0x94d049bb133111ebull;
  return bits ^ bits >> 31;
}

/// Of a body, what lies at `unit`.
PLAIT_ON_BOTH inline PathUnit path_unit(unsigned long long nonce, int writer, int reader,
                                        PathMethod method, unsigned round, unsigned unit) {
  const unsigned long long place = static_cast<unsigned long long>(writer) << 40 |
                                   static_cast<unsigned long long>(reader) << 32 |
                                   static_cast<unsigned long long>(method) << 24 | round << 16 |
                                   unit;
  const unsigned long long lo = path_mix(nonce + place * 0x9e3779b97f4a7c15ull);
  return {lo, path_mix(lo + 1)};
}

}  // namespace plait::cuda
