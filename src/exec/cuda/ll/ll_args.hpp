// What kernels by lines are told: one_shot, two_shot, long_two_shot, hop, ll_chain, long_chain.
#pragma once
#include "exec/cuda/device/call_args.hpp"
#include "exec/cuda/traffic/direct_shape.hpp"

namespace plait::cuda {

/// One all_reduce by one_shot or two_shot, or a reduce by two_shot.
struct FusedArgs : CallArgs {
  std::int32_t root;           ///< of a reduce
  std::int32_t ahead;          ///< steps that pushing runs ahead of reducing
  char* inbox[kMaxCudaRanks];  ///< every rank's, first half, as mapped here
  std::uint64_t half_bytes;
  std::uint64_t count;  ///< elements
};

/// Of long_two_shot, at most: blocks, and steps that run ahead.
inline constexpr unsigned kLongShotBlocks = 160;
inline constexpr int kMostShotAhead = 3;
/// Steps whose lines a slot holds. One more is under way than the three phases have between them:
/// while it is, those who take a line say that it is free. With more, less is cached: four ranks
/// take 8 % longer with 5 than with 4 (E-0403). ahead: steps that pushing runs ahead of
/// reducing, and this of gathering.
constexpr int shot_ring(int ahead) { return 2 * ahead + 2; }
inline constexpr int kMostShotRing = shot_ring(kMostShotAhead);
/// In a block of it, behind the threads that pass units: a warp, of which a thread tells and one a
/// peer hears.
inline constexpr unsigned kLongShotSignalThreads = 32;

/// The words of long_two_shot, in each rank's memory: by block and writer, steps that the writer's
/// block is through with; 0 between calls.
struct ShotFlags {
  std::uint32_t through[kLongShotBlocks][kMaxCudaRanks];
};

/// Of an all_reduce whose lines half an inbox does not hold. Lines are used again, by steps of all
/// threads.
struct LongShotArgs : FusedArgs {
  ShotFlags* words[kMaxCudaRanks];  ///< every rank's
  std::int32_t ring;                ///< steps whose lines a slot holds
  std::uint32_t workers;            ///< threads of a block that pass units
};

/// Whether sums of so many ranks keep within 64 registers: a block of 512 threads takes half an SM.
constexpr bool is_lean_one_shot(int ranks) { return ranks == 2 || ranks == 4; }
constexpr bool is_lean_two_shot(int ranks) { return is_lean_one_shot(ranks); }
constexpr bool is_lean_two_shot_to_root(int ranks) { return is_lean_one_shot(ranks) || ranks == 8; }
constexpr bool is_lean_long_two_shot(int ranks) { return is_lean_two_shot(ranks); }

struct DirectLlArgs : CallArgs {
  char* inbox[kMaxCudaRanks];  ///< of sentinel packets: every rank's, first half, as mapped here
  std::uint64_t half_bytes;
  DirectShape shape;
  std::int32_t ahead;  ///< steps that pushing runs ahead of taking
};

/// Of a block of a short call, at most: half an SM, also where sums want 128 registers.
inline constexpr unsigned kShortDirectLlThreads = 256;

/// Where the parts of a short call lie, which has no time to find out. i: 0 = the rank after this
/// one, and so on; the last one is this rank itself.
struct ShortDirectLlArgs : DirectLlArgs {
  std::uint32_t whole_units;  ///< that buffers hold whole, and aligned: the first so many, or none
  std::uint32_t gives_to;     ///< bit i: there is a part for it
  std::uint32_t takes_from;   ///< bit i: it, another rank, has a part for this one
  char* to[kMaxCudaRanks];    ///< this rank's first line in that one's inbox
  std::uint32_t packet[kMaxCudaRanks];    ///< that one's first line in this rank's
  std::uint32_t part_at[kMaxCudaRanks];   ///< bytes into the input, of that one's part
  std::uint32_t place_at[kMaxCudaRanks];  ///< into the output, where what that one sends belongs
};

inline std::uint32_t whole_units(const DirectLlArgs& call) {
  const DirectShape& shape = call.shape;
  const std::uint64_t at = reinterpret_cast<std::uintptr_t>(call.input) |
                           reinterpret_cast<std::uintptr_t>(call.output) | shape.part_stride |
                           shape.place_stride | shape.own_from | shape.own_to;
  return at % 16 == 0 ? static_cast<std::uint32_t>(shape.part_bytes / 16) : 0;
}

/// For each call, whatever buffers the one before had. A part that stays where it is, as in place,
/// is not stored again: its memory may be one to read only.
inline void set_buffers(ShortDirectLlArgs& args, const void* input, void* output) {
  args.input = input;
  args.output = output;
  args.whole_units = whole_units(args);
  const char* const from = static_cast<const char*>(input) + args.shape.own_from;
  const bool moves = from != static_cast<char*>(output) + args.shape.own_to;
  const std::uint32_t gives_own = moves ? args.shape.gives & 1 : 0;
  args.gives_to = args.shape.gives >> 1 | gives_own << (args.ranks - 1);
}

/// Lines of a slot: one a unit of a part, and one that says "I am in this call".
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
  std::int32_t ahead;  ///< steps that pass at the root before the first that returns is awaited
};

/// Blocks of long_chain, at most.
inline constexpr unsigned kLongChainBlocks = 256;
/// In a block of long_chain, behind the threads that pass units: a warp, of which one thread works.
inline constexpr unsigned kLongChainSignalThreads = 32;

/// The words of long_chain, in each rank's memory.
struct ChainFlags {
  std::uint32_t room[kLongChainBlocks];  ///< by block: pieces behind the first that the rank after
                                         ///< this one has room for; 0 between calls
  std::uint32_t nearly_done[kMaxCudaRanks];  ///< by writer: calls whose last piece alone is left
  // A rank's own.
  std::uint32_t calls;               ///< that have ended
  std::uint32_t nearly_done_blocks;  ///< of the running call; 0 between calls
  std::uint32_t done_blocks;         ///< likewise
};

/// Of several pieces, which take the halves of inboxes by turns and count as a call each.
struct LongChainArgs : ChainArgs {
  ChainFlags* words[kMaxCudaRanks];  ///< every rank's
  std::uint32_t pieces;              ///< 2 at least
  std::uint64_t first_bytes;         ///< of the first piece, whole units
  std::uint64_t piece_bytes;         ///< of all others, likewise, but for the message's last unit
  std::uint32_t workers;             ///< threads of a block that pass units
};

}  // namespace plait::cuda
