// Arguments of the small kernels between copies of copy engines, and the flags by which ranks
// signal each other in calls by copy engines.
#pragma once
#include "gpu/abi/call_args.hpp"

namespace plait::cuda {

inline constexpr int kRotationSlots = 2;  ///< pieces in flight between two ranks

/// Flags in a rank's memory that peers raise, each with a single writer. The flags count the pieces
/// of all calls by copy engines and are never reset. Even and odd pieces have separate slots and
/// therefore separate flags.
struct EngineFlags {
  std::uint32_t arrived[kRotationSlots][kMaxCudaRanks];  ///< by sender: its part is in my inbox
  std::uint32_t handled[kRotationSlots][kMaxCudaRanks];  ///< by owner: my part was taken out
  std::uint32_t shared[kRotationSlots][kMaxCudaRanks];   ///< by owner: its result is in my inbox
  std::uint32_t placed[kRotationSlots][kMaxCudaRanks];   ///< by reader: my result was taken out
  /// By step, then by the rank that left the port: the port is mine for this step. Counts sweeps.
  std::uint32_t ports[kMaxCudaRanks][kMaxCudaRanks];
  std::uint32_t sweeps;    ///< my own: sweeps of finished calls in which ports were passed on
  std::uint32_t pieces;    ///< my own: pieces of finished calls
  std::uint32_t poisoned;  ///< 1 + rank of a peer that gave up: later copies of that peer are
                           ///< invalid
  // Flags of pair exchanges and of parts through host memory. Each kind has a single flag, since
  // pieces and chunks keep an order.
  std::uint32_t link_arrived[kMaxCudaRanks];  ///< by sender: pieces in my inbox
  std::uint32_t link_handled[kMaxCudaRanks];  ///< by owner: pieces taken out of the owner's inbox
  std::uint32_t host_arrived[kMaxCudaRanks];  ///< by sender: chunks in the sender's host memory
  std::uint32_t host_taken[kMaxCudaRanks];    ///< by reader: chunks copied out of my host memory
  std::uint32_t exchanged;                    ///< my own: pieces of finished calls
  std::uint32_t chunks;                       ///< my own: chunks of finished calls
  std::uint32_t host_chunks;                  ///< my own: chunks that CPU cores reduced
  std::uint32_t ring_barrier[kMaxCudaRanks];  ///< by rank: ring barriers reached
  std::uint32_t ring_barriers;                ///< my own: ring barriers of finished calls
};

/// Waits until flags[r] has reached the count of earlier calls + `value`, for each r in `ranks`.
struct EngineWait {
  const std::uint32_t* flags;
  std::uint32_t ranks;
  std::uint32_t value;
};

/// A step: waits and signals, in this order unless signals_first. Signals store the count of
/// earlier calls + signal_value to signal[r].
struct EngineStep {
  DeviceState* state;
  StopPage* stop_page;
  std::uint64_t wait_ns;
  const std::uint32_t* counted;  ///< the count of earlier calls: a flag of this rank
  EngineWait waits[2];
  std::uint32_t* signal[kMaxCudaRanks];
  std::uint32_t signal_value;
  std::uint32_t signals_first;
  EngineFlags* flags[kMaxCudaRanks];  ///< every rank's
  std::int32_t rank;
  std::int32_t ranks;
};

/// The end of a call: a step, then counts grow so that the next call continues from here.
struct EngineEnd {
  EngineStep step;
  std::uint32_t* counts[2];  ///< null = none
  std::uint32_t more[2];
};

/// A reduction of whole buffers, or a copy if a single source is given. Buffers may have any
/// alignment.
struct PieceArgs {
  DeviceState* state;
  const char* source[kMaxCudaRanks];  ///< in rank order
  char* dst;
  std::uint64_t bytes;
  double scalars[kMaxCudaRanks];  ///< factors of premul_sum
  std::int32_t sources;
  std::int32_t op;     ///< ReduceOp
  std::int32_t order;  ///< SumOrder, as in CallArgs
};

}  // namespace plait::cuda
