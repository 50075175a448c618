// What host code hands to kernels: plain structs read by both compilers. Widths are spelled out, so
// that layout is the same on both sides.
#pragma once
#include <cstdint>

namespace plait::cuda {

inline constexpr int kMaxCudaRanks = 16;
inline constexpr int kMaxSources = 16;  ///< of one reduction
inline constexpr int kFlagsPerPair = 256;

/// What went wrong in a kernel, in pinned host memory; `code` is written last.
struct Fault {
  std::uint32_t code;   ///< FaultCode
  std::uint32_t peer;   ///< the rank waited for, or kNoPeer
  std::uint32_t where;  ///< fused kernels: the 16-byte unit; lanes: the op's index
  std::uint32_t lane;
};
inline constexpr std::uint32_t kNoPeer = ~0u;  ///< one that this rank does not know
/// All but kFaultAborted fail the stream, as what a call should have written is not there. What the
/// program aborts ends without an error of its stream, as under NCCL.
enum FaultCode : std::uint32_t {
  kNoFault = 0,
  kFaultDeadline = 1,
  kFaultAborted = 2,   ///< by the program itself
  kFaultLost = 3,      ///< a rank that is waited for is gone
  kFaultBeingTold = 4  ///< of DeviceState::failed only: the host cannot read yet why
};

/// A rank's counters, in its own device memory: captured graphs advance them at every replay.
struct DeviceState {
  std::uint32_t fused_calls;  ///< finished calls of fused kernels: parity picks the inbox half
  std::uint32_t fused_done;   ///< blocks of the running fused kernel that are through
  std::uint32_t plan_epoch;   ///< sum of epochs_per_call of finished plans
  std::uint32_t inbox_calls;  ///< finished plans that used an inbox
  std::uint32_t failed;       ///< FaultCode: not 0 = a wait was given up, and nothing goes on here
  std::uint32_t plan_done;    ///< blocks of the running one-launch plan that are through
  unsigned long long looked_ns;  ///< when a waiting thread last looked at the Lifeline
  std::uint32_t crowded;         ///< not 0: this process has another rank on this GPU
  std::uint32_t unused[7];
};

/// Pinned host memory that kernels look at while they wait.
struct Lifeline {
  std::uint32_t stop;  ///< kFaultAborted or kFaultLost: kernels wait no longer
  std::uint32_t unused[15];
  Fault fault;
};

/// What the kernel is told that looks for a lost rank behind another library's part of a call.
struct HeedArgs {
  DeviceState* state;
  Lifeline* lifeline;
};

/// What every fused kernel is told of its call.
struct CallArgs {
  const void* input;
  void* output;
  DeviceState* state;
  Lifeline* lifeline;
  std::uint64_t wait_ns;
  double scalars[kMaxCudaRanks];  ///< premul_sum
  std::int32_t rank;
  std::int32_t ranks;
  std::int32_t op;  ///< ReduceOp
};

/// One all_reduce by one_shot or two_shot.
struct FusedArgs : CallArgs {
  std::int32_t ahead;          ///< steps that pushing runs ahead of reducing
  char* inbox[kMaxCudaRanks];  ///< every rank's, first half, as mapped here
  std::uint64_t half_bytes;
  std::uint64_t count;  ///< elements
};

/// Whether sums of so many ranks keep within 64 registers: a block of 512 threads takes half an SM.
constexpr bool is_lean_one_shot(int ranks) { return ranks == 2 || ranks == 4; }
constexpr bool is_lean_two_shot(int ranks) { return is_lean_one_shot(ranks) || ranks == 8; }

/// What an owner does with the parts that came.
enum TileHandling : std::int32_t {
  kReduceParts,  ///< all ranks' parts in rank order; the result to all readers
  kPassPart,     ///< the one part to all readers
  kPlaceParts,   ///< each to its place in the own output
};

/// A collective in one hop: each sender's part goes straight to its owner. Sets of ranks are masks.
struct HopShape {
  std::uint32_t senders;
  std::uint32_t owners;
  std::int32_t shift;     ///< not 0: a rank's parts go to rank + shift only
  std::int32_t handling;  ///< kReduceParts or kPlaceParts
  std::uint64_t part_bytes;
  std::uint64_t part_stride;   ///< in the input, from one owner's part to the next
  std::uint64_t place_stride;  ///< in the output, from one sender's part to the next
  std::uint64_t own_from;      ///< what stays on this rank: in the input,
  std::uint64_t own_to;        ///< in the output,
  std::uint64_t own_bytes;
};

struct HopArgs : CallArgs {
  char* inbox[kMaxCudaRanks];  ///< of bare lines: every rank's, first half, as mapped here
  std::uint64_t half_bytes;
  HopShape shape;
  std::int32_t ahead;  ///< steps that pushing runs ahead of taking
};

inline constexpr int kTileBlocks = 132;  ///< most blocks of a tiled call: one an SM of an H200
inline constexpr int kTileSlots = 4;     ///< tiles of a block under way to each peer, at most

// Threads of a tiled block by what they do: 512, so that each has 128 registers and keeps nothing
// in memory. All who handle tiles do so together: the sooner one is done, the fewer need be under
// way.
inline constexpr int kPushThreads = 32;
inline constexpr int kCollectThreads = 32;
inline constexpr int kClerkThreads = 2 * 32;
inline constexpr int kHandleThreads = 3 * 128;
inline constexpr int kTileThreads = kHandleThreads + kPushThreads + kCollectThreads + kClerkThreads;
inline constexpr unsigned kBulkBytes = 16 << 10;  ///< of one bulk copy, at most
// Bulk copies under way through a block's shared memory.
inline constexpr int kPushStages = 7;
inline constexpr int kCollectStages = 5;
inline constexpr unsigned kTileSharedBytes = (kPushStages + kCollectStages) * kBulkBytes;

/// Words of a rank's memory that peers raise, one writer each; they count a block's tiles of all
/// calls, so nothing is reset.
struct TileFlags {
  std::uint32_t parts[kTileBlocks][kMaxCudaRanks];          ///< by sender: parts are here
  std::uint32_t parts_taken[kTileBlocks][kMaxCudaRanks];    ///< by owner: parts have been handled
  std::uint32_t results[kTileBlocks][kMaxCudaRanks];        ///< by owner: results are here
  std::uint32_t results_taken[kTileBlocks][kMaxCudaRanks];  ///< by reader: they were copied out
  std::uint32_t tiles[kTileBlocks];                         ///< my own: tiles of finished calls
};

/// One tiled call. Owners handle parts of part_bytes each (the last may be short); sets of ranks
/// are masks.
struct TiledArgs : CallArgs {
  TileFlags* flags[kMaxCudaRanks];  ///< every rank's, as mapped here
  char* slots[kMaxCudaRanks];
  const std::uint32_t* poisoned;  ///< mine, where exchanges borrow my slots; null = they do not
  std::uint32_t blocks;           ///< of the launch
  std::uint32_t most_units;       ///< 16-byte units of a tile, at most
  std::uint32_t slot_bytes;       ///< room for a tile
  std::uint32_t window;           ///< tiles of a block under way to each peer
  std::int32_t handling;          ///< TileHandling
  std::uint32_t senders;          ///< who sends parts
  std::uint32_t owners;           ///< to whom
  std::uint32_t readers;          ///< who gets the results of the other owners
  std::uint32_t keepers;          ///< owners that put their own result into their output
  std::int32_t shift;             ///< not 0: a rank's parts go to rank + shift only
  std::uint64_t part_bytes;       ///< of an owner's part
  std::uint64_t total_bytes;      ///< of all owners' parts
  std::uint64_t part_stride;      ///< in the input, from one owner's part to the next
  std::uint64_t result_stride;    ///< in the output, from one owner's result to the next
  std::uint64_t place_stride;     ///< in the output, from one rank's part to the next
  std::uint64_t own_from;         ///< what stays on this rank: in the input,
  std::uint64_t own_to;           ///< in the output,
  std::uint64_t own_bytes;
};

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
  std::uint32_t ring_met[kMaxCudaRanks];      ///< by rank: meetings of rings that it has come to
  std::uint32_t ring_meetings;                ///< my own: of finished calls
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
  Lifeline* lifeline;
  std::uint64_t wait_ns;
  const std::uint32_t* counted;  ///< which of my own counts
  EngineWait waits[2];
  std::uint32_t* tell[kMaxCudaRanks];
  std::uint32_t told;
  std::uint32_t tells_first;
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

/// A region as kernels see it: bases[base] + offset (+ the inbox half, if `half` is set).
struct DeviceRegion {
  std::uint64_t offset;
  std::uint16_t base;
  std::uint16_t half;
  std::int32_t origin;  ///< source of a reduction: whose premul_sum factor it takes; -1 = none
};

/// One op of a lane.
struct DeviceOp {
  std::uint32_t kind;  ///< OpKind
  std::uint32_t source_count;
  std::uint64_t bytes;
  DeviceRegion dst;
  std::uint32_t first_source;  ///< index into LaneArgs::sources
  std::uint32_t finish;
  std::uint32_t* flag;  ///< signal, wait: as mapped here
  std::uint32_t value;
  std::uint32_t peer;      ///< who raises or awaits the flag, for messages
  std::uint32_t barrier;   ///< 1 = all blocks must have ended the ops before
  std::uint32_t arrivals;  ///< signal: index of its arrival counter
  std::uint32_t index;     ///< in the plan's lane, for messages
  std::uint32_t unused;
};

inline constexpr int kBases = 2 + 3 * kMaxCudaRanks;  ///< input, output, scratch, inbox, ring

/// A stretch of a lane, run by blocks of its own.
struct DeviceLane {
  std::uint32_t first_op;
  std::uint32_t op_count;
  std::uint32_t first_counter;  ///< [0] = meeting of its blocks, then one a signal
  std::uint32_t first_block;    ///< within the launch
  std::uint32_t blocks;
  std::uint32_t index;  ///< of the lane in the plan, for messages
};

/// One launch of the lane kernel: `lane_count` stretches side by side.
struct LaneArgs {
  const DeviceLane* lanes;
  const DeviceOp* ops;
  const DeviceRegion* sources;
  std::uint32_t* counters;
  char* bases[kBases];
  std::uint64_t inbox_half_bytes;
  DeviceState* state;
  Lifeline* lifeline;
  std::uint64_t wait_ns;
  double scalars[kMaxCudaRanks];
  std::uint32_t lane_count;
  std::int32_t ranks;
  std::int32_t rank;
  /// Every rank's word EngineFlags::poisoned, where copies may go by engines; else null.
  std::uint32_t* poisoned[kMaxCudaRanks];
  std::int32_t op;          ///< ReduceOp
  std::uint32_t ends_call;  ///< 1 = this launch is the whole call: the last block counts it
  std::uint32_t epochs;
  std::uint32_t inbox_calls;
};

/// The end of a call whose lanes were launches of their own.
struct LaneEnd {
  DeviceState* state;
  Lifeline* lifeline;
  std::uint64_t wait_ns;
  const std::uint32_t* poisoned;  ///< this rank's; null = none
  std::uint32_t epochs;
  std::uint32_t inbox_calls;
};

}  // namespace plait::cuda
