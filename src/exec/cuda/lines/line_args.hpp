// What kernels by lines are told: one_shot, two_shot, hop and line_chain.
#pragma once
#include "exec/cuda/device/call_args.hpp"
#include "exec/cuda/traffic/hop_shape.hpp"

namespace plait::cuda {

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

struct HopArgs : CallArgs {
  char* inbox[kMaxCudaRanks];  ///< of bare lines: every rank's, first half, as mapped here
  std::uint64_t half_bytes;
  HopShape shape;
  std::int32_t ahead;  ///< steps that pushing runs ahead of taking
};

struct ChainArgs : CallArgs {
  char* inbox[kMaxCudaRanks];  ///< as in HopArgs
  std::uint64_t half_bytes;
  ChainShape shape;    ///< of this piece
  std::int32_t ahead;  ///< steps that pass at the root before the first that returns is awaited
  std::uint64_t behind_bytes;  ///< of the piece before, where what returns of it is to be taken
};

}  // namespace plait::cuda
