// What the kernels between copies of copy engines are told, and the words in which ranks meet.
#pragma once
#include "exec/cuda/device/call_args.hpp"

namespace plait::cuda {

inline constexpr int kRotationSlots = 2;  ///< pieces under way between two ranks

/// Words of a rank's memory that peers raise, one writer each; they count the pieces of all calls
/// by copy engines, so nothing is reset. Even and odd pieces lie in slots of their own, so they are
/// told in words of their own.
struct EngineFlags {
  std::uint32_t arrived[kRotationSlots][kMaxCudaRanks];  ///< by sender: its part is in my inbox
  std::uint32_t handled[kRotationSlots][kMaxCudaRanks];  ///< by owner: my part was taken out
  std::uint32_t shared[kRotationSlots][kMaxCudaRanks];   ///< by owner: its result is in my inbox
  std::uint32_t placed[kRotationSlots][kMaxCudaRanks];   ///< by reader: my result was taken out
  /// By the step it is for, then by the rank that has left the port: it is mine. Counts sweeps.
  std::uint32_t ports[kMaxCudaRanks][kMaxCudaRanks];
  std::uint32_t sweeps;    ///< my own: in which ports were passed on, of finished calls
  std::uint32_t pieces;    ///< my own: of finished calls
  std::uint32_t poisoned;  ///< 1 + a peer that has given up: what it copies since is not to be used
  // What two ranks exchange whole, and what goes through host memory: one word a kind, as pieces
  // and chunks keep their order.
  std::uint32_t link_arrived[kMaxCudaRanks];  ///< by sender: pieces in my inbox
  std::uint32_t link_handled[kMaxCudaRanks];  ///< by owner: pieces taken out of its inbox
  std::uint32_t host_arrived[kMaxCudaRanks];  ///< by sender: chunks in its host memory
  std::uint32_t host_taken[kMaxCudaRanks];    ///< by reader: chunks copied out of my host memory
  std::uint32_t exchanged;                    ///< my own: pieces of finished calls
  std::uint32_t chunks;                       ///< my own: chunks of finished calls
  std::uint32_t host_chunks;                  ///< my own: those that CPU cores reduced
  std::uint32_t ring_barrier[kMaxCudaRanks];  ///< by rank: meetings of rings that it has come to
  std::uint32_t ring_barriers;                ///< my own: of finished calls
};

/// Until words[r] has reached what was counted in earlier calls + value, for each r in `ranks`.
struct EngineWait {
  const std::uint32_t* words;
  std::uint32_t ranks;
  std::uint32_t value;
};

/// First wait, then tell, or the other way round: tell[r] := what was counted in earlier calls +
/// told.
struct EngineStep {
  DeviceState* state;
  StopPage* stop_page;
  std::uint64_t wait_ns;
  const std::uint32_t* counted;  ///< which of my own counts
  EngineWait waits[2];
  std::uint32_t* signal[kMaxCudaRanks];
  std::uint32_t signal_value;
  std::uint32_t signals_first;
  EngineFlags* flags[kMaxCudaRanks];  ///< every rank's
  std::int32_t rank;
  std::int32_t ranks;
};

/// The end of a call: a step, then the next call counts on from here.
struct EngineEnd {
  EngineStep step;
  std::uint32_t* counts[2];  ///< null = none
  std::uint32_t more[2];
};

/// A reduction of whole buffers, or with one source a copy; buffers of any alignment.
struct PieceArgs {
  DeviceState* state;
  const char* source[kMaxCudaRanks];  ///< in rank order
  char* dst;
  std::uint64_t bytes;
  double scalars[kMaxCudaRanks];  ///< premul_sum
  std::int32_t sources;
  std::int32_t op;  ///< ReduceOp
};

}  // namespace plait::cuda
