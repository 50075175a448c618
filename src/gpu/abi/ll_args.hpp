// Arguments of the LL kernels: one_shot, two_shot, long_two_shot, direct_ll, ll_chain, long_chain.
#pragma once
#include "gpu/abi/call_args.hpp"
#include "gpu/abi/direct_shape.hpp"

namespace plait::cuda {

/// Parts of inboxes behind a bus (part_of_call() of fused.cuh).
inline constexpr std::uint32_t kPartsBehindBus = 8;

/// An all_reduce by one_shot or two_shot, or a reduce by two_shot.
struct FusedArgs : CallArgs {
  std::int32_t root;           ///< root of a reduce
  std::int32_t ahead;          ///< steps that pushing runs ahead of reducing
  char* inbox[kMaxCudaRanks];  ///< first half of every rank's inbox, as mapped here
  std::uint64_t half_bytes;
  std::uint64_t count;  ///< elements of the message
};

/// Most blocks of long_two_shot, and most steps that its pushes run ahead.
inline constexpr unsigned kLongShotBlocks = 160;
inline constexpr int kMostShotAhead = 3;
/// Returns the steps whose packets a slot holds. The three phases span 2 * ahead + 1 steps; during
/// a further step, receivers signal that the packets are free. A longer ring leaves less in cache:
/// four ranks take 8 % longer with 5 steps than with 4 (E-0403). ahead: steps that pushing runs
/// ahead of reducing, and reducing ahead of gathering.
constexpr int shot_ring(int ahead) { return 2 * ahead + 2; }
inline constexpr int kMostShotRing = shot_ring(kMostShotAhead);
/// Threads of a block of long_two_shot behind the workers: a warp, in which one thread signals the
/// peers and one thread per peer waits for the peer's signals.
inline constexpr unsigned kLongShotSignalThreads = 32;

/// Flags of long_two_shot in each rank's memory, by block and writer: steps that the writer's block
/// has finished. 0 between calls.
struct ShotFlags {
  std::uint32_t through[kLongShotBlocks][kMaxCudaRanks];
};

/// An all_reduce whose packets do not fit into half an inbox. Steps of all threads reuse the
/// packets.
struct LongShotArgs : FusedArgs {
  ShotFlags* flags[kMaxCudaRanks];  ///< every rank's flags
  std::int32_t ring;                ///< steps whose packets a slot holds
  std::uint32_t workers;            ///< threads of a block that pass units
};

/// True if a sum over this many ranks fits in 64 registers. A block of 512 threads then takes half
/// an SM.
constexpr bool is_lean_one_shot(int ranks) { return ranks == 2 || ranks == 4; }
constexpr bool is_lean_two_shot(int ranks) { return is_lean_one_shot(ranks); }
constexpr bool is_lean_two_shot_to_root(int ranks) { return is_lean_one_shot(ranks) || ranks == 8; }
constexpr bool is_lean_long_two_shot(int ranks) { return is_lean_two_shot(ranks); }

struct DirectLlArgs : CallArgs {
  char* inbox[kMaxCudaRanks];  ///< first half of every rank's inbox of sentinel packets, as mapped
                               ///< here
  std::uint64_t half_bytes;
  DirectShape shape;
  std::int32_t ahead;  ///< steps that pushing runs ahead of taking
};

/// Most threads of a block of a short call: half an SM even if sums need 128 registers.
inline constexpr unsigned kShortDirectLlThreads = 256;

/// Addresses of the parts of a short call, computed on the host to save the kernel's time. Index i
/// is the rank i + 1 after this one; the last index is this rank itself.
struct ShortDirectLlArgs : DirectLlArgs {
  std::uint32_t whole_units;  ///< leading units that lie whole and aligned in all buffers; 0 = none
  std::uint32_t gives_to;     ///< bit i: this rank has a part for rank i
  std::uint32_t takes_from;   ///< bit i: rank i, another rank, has a part for this rank
  char* to[kMaxCudaRanks];    ///< this rank's first packet in the inbox of rank i
  std::uint32_t packet[kMaxCudaRanks];    ///< first packet of rank i in this rank's inbox
  std::uint32_t part_at[kMaxCudaRanks];   ///< byte offset in the input of the part for rank i
  std::uint32_t place_at[kMaxCudaRanks];  ///< byte offset in the output of rank i's data
};

inline std::uint32_t whole_units(const DirectLlArgs& call) {
  const DirectShape& shape = call.shape;
  const std::uint64_t at = reinterpret_cast<std::uintptr_t>(call.input) |
                           reinterpret_cast<std::uintptr_t>(call.output) | shape.part_stride |
                           shape.place_stride | shape.own_from | shape.own_to;
  return at % 16 == 0 ? static_cast<std::uint32_t>(shape.part_bytes / 16) : 0;
}

/// Sets the buffers of a call, whatever buffers the call before had. A part that stays in place is
/// not stored again, since the memory may be read-only.
inline void set_buffers(ShortDirectLlArgs& args, const void* input, void* output) {
  args.input = input;
  args.output = output;
  args.whole_units = whole_units(args);
  const char* const from = static_cast<const char*>(input) + args.shape.own_from;
  const bool moves = from != static_cast<char*>(output) + args.shape.own_to;
  const std::uint32_t gives_own = moves ? args.shape.gives & 1 : 0;
  args.gives_to = args.shape.gives >> 1 | gives_own << (args.ranks - 1);
}

/// Returns the arguments of a short call. A slot has a packet for each unit of a part and one
/// greeting packet ("I am in this call").
inline ShortDirectLlArgs short_direct_ll_args(const DirectLlArgs& call) {
  ShortDirectLlArgs args{};
  static_cast<DirectLlArgs&>(args) = call;
  const DirectShape& shape = call.shape;
  const std::uint64_t slot = (shape.part_bytes + 15) / 16 + 1;
  const auto narrow = [](std::uint64_t bytes) { return static_cast<std::uint32_t>(bytes); };
  const int others = call.ranks - 1;
  for (int i = 0; i < others; ++i) {
    const int peer = (call.rank + i + 1) % call.ranks;
    const auto at = static_cast<std::uint64_t>(peer);
    const auto mine = static_cast<std::uint64_t>(place_among_others(peer, call.rank));
    const auto theirs = static_cast<std::uint64_t>(place_among_others(call.rank, peer));
    args.to[i] = call.inbox[peer] + mine * slot * 16;
    args.packet[i] = narrow(theirs * slot);
    args.part_at[i] = narrow(at * shape.part_stride);
    args.place_at[i] = narrow(at * shape.place_stride);
  }
  args.takes_from = shape.takes >> 1;
  args.part_at[others] = narrow(shape.own_from);
  args.place_at[others] = narrow(shape.own_to);
  set_buffers(args, call.input, call.output);
  return args;
}

struct ChainArgs : CallArgs {
  char* inbox[kMaxCudaRanks];  ///< as in DirectLlArgs
  std::uint64_t half_bytes;
  ChainShape shape;
  std::int32_t ahead;  ///< steps that the root forwards before it waits for the first returned step
};

/// Most blocks of long_chain.
inline constexpr unsigned kLongChainBlocks = 256;
/// Threads of a block of long_chain behind the workers: a warp, of which a single thread works.
inline constexpr unsigned kLongChainSignalThreads = 32;

/// Flags of long_chain in each rank's memory.
struct ChainFlags {
  std::uint32_t room[kLongChainBlocks];  ///< by block: pieces after the first for which the next
                                         ///< rank has free packets; 0 between calls
  std::uint32_t nearly_done[kMaxCudaRanks];  ///< by writer: calls in which only the writer's last
                                             ///< piece is left
  // Counters that only their own rank writes.
  std::uint32_t calls;               ///< calls that have ended
  std::uint32_t nearly_done_blocks;  ///< blocks of the running call with one piece left; 0 between
                                     ///< calls
  std::uint32_t done_blocks;         ///< blocks of the running call that have ended; 0 between
                                     ///< calls
};

/// A chain in several pieces. Pieces alternate between the halves of the inboxes, and each counts
/// as a call.
struct LongChainArgs : ChainArgs {
  ChainFlags* flags[kMaxCudaRanks];  ///< every rank's flags
  std::uint32_t pieces;              ///< pieces, at least 2
  std::uint64_t first_bytes;         ///< bytes of the first piece, whole units
  std::uint64_t piece_bytes;         ///< bytes of every other piece, whole units except at the end
                                     ///< of the message
  std::uint32_t workers;             ///< threads of a block that pass units
};

}  // namespace plait::cuda
