// Arguments and memory of the path check: bodies (test data) that each end of a pair of GPUs writes
// for the other, read by both compilers. A body encodes writer, reader, method, round and
// communicator, so no other data can be mistaken for a body.
#pragma once
#include <cstdint>

#include "gpu/abi/call_args.hpp"
#include "gpu/abi/direct_shape.hpp"

namespace plait::cuda {

inline constexpr int kPathThreads = 32;     ///< Threads of a block; a block checks a single pair.
inline constexpr unsigned kPathRounds = 4;  ///< Rounds of kernels; the third overwrites the first.
inline constexpr unsigned kPathCopyRounds = 2;

struct alignas(16) PathUnit {  // Stored and loaded whole.
  unsigned long long lo, hi;
  bool operator==(const PathUnit&) const = default;
};
using PathBody = PathUnit[kPathThreads];

/// Bodies between this rank and a peer, in this rank's memory.
struct PathMail {
  PathBody stored[2];                 ///< Written by the peer's kernel, by parity of the round.
  PathBody shown[2];                  ///< Written by this rank's kernel, for the peer's to load.
  PathBody pushed;                    ///< Written by the peer's copy engine.
  PathBody offered;                   ///< Written by this rank, for the peer's copy engine to pull.
  PathBody pulled;                    ///< Pulled from the peer by this rank's copy engine.
  PathBody sent;                      ///< Source of this rank's pushes by copy engine.
  std::uint32_t round;                ///< Raised by the peer's kernel once the bodies are here.
  std::uint32_t found[kPathThreads];  ///< PathFault bits by thread of this rank.
};
struct PathInbox {
  PathMail with[kMaxCudaRanks];
};

/// Faults in data that a rank gets from a peer.
enum PathFault : std::uint32_t {
  kPathSilent = 1,     ///< The flag of the peer's kernel did not come in time.
  kPathStored = 2,     ///< The flag came, but not the data stored before.
  kPathLoaded = 4,     ///< Loads from the peer's memory return wrong data.
  kPathPushed = 8,     ///< The data of the peer's copy engine is not here.
  kPathPulled = 16,    ///< This rank's copy engine pulled wrong data.
  kPathUnproved = 32,  ///< The kernel got the command to stop, or none.
};

/// Round number of a peer that gave up because this rank's flag did not come.
inline constexpr std::uint32_t kPathGivenUp = 1u << 30;

enum PathCommand : std::uint32_t { kPathWait = 0, kPathGo = 1, kPathStop = 2 };
/// Host memory that synchronizes kernels with the host: no deadline starts before all kernels run.
struct PathSignal {
  std::uint32_t command;                  ///< PathCommand, written by the host.
  std::uint32_t resident[kMaxCudaRanks];  ///< Written by each block.
};

struct PathArgs {
  PathInbox* inboxes[kMaxCudaRanks];  ///< By rank, as mapped here.
  PathSignal* signal;
  unsigned long long nonce;
  unsigned long long start_ns;  ///< A kernel waits this long for the host's command.
  unsigned long long wait_ns;   ///< And this long, times the round, for a peer.
  std::int32_t rank;
  std::int32_t ranks;
};

enum class PathMethod : std::uint32_t { stored, shown, pushed, offered };

PLAIT_ON_BOTH inline unsigned long long path_mix(unsigned long long bits) {
  bits = (bits ^ bits >> 30) * 0xbf58476d1ce4e5b9ull;
  bits = (bits ^ bits >> 27) * 0x94d049bb133111ebull;
  return bits ^ bits >> 31;
}

/// Unit of a body at index `unit`.
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
