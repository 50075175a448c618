// The schedule that direct, flat, pairwise, staged and rerouted share: ranks exchange parts of a
// range of the message piece by piece, every pair by its own path, peers in rotation (at step k
// rank r serves rank r + k). Reductions of a piece overlap the transfer of the next. Source: the
// direct send/recv schedule (rotation, throttle, fused n-way reduction).
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "planner/strategy.hpp"

namespace plait {

/// How one stripe of the message is exchanged.
struct ExchangeOptions {
  std::string name;         ///< prefix of the lanes; unique in the plan
  Range range;              ///< of the message; of one rank's block where the collective has blocks
  int pieces = 1;           ///< at least; more where scratch would not hold them
  int slots = 2;            ///< of a pair: how many pieces may be under way
  int throttle = 1;         ///< lanes that a rank sends on at once
  bool is_chunked = false;  ///< pieces are consecutive in the message, not in each shard
  bool is_pairwise = false;  ///< two ranks: both get and reduce all of it
  bool fuse = true;  ///< one n-way reduction in rank order; else two operands as they arrive
  std::uint64_t scratch_bytes = 0;  ///< of each device, for this stripe
  std::uint64_t ring_bytes = 0;     ///< of each rank, for this stripe
  std::function<Path(int from, int to)> path;
};

/// Pieces that a stripe is cut in: those asked for, or more where `bytes` of slots for one
/// undivided piece leave `limit`; each slot may be larger than its share, `overhead` in all.
int pieces_fitting(std::uint64_t bytes, int wanted, std::uint64_t limit, std::uint64_t overhead);
/// Bytes of the largest range.
std::uint64_t largest(const std::vector<Range>& ranges);

/// By owner, what it reduces of a range: its own block's part, or its share of the whole.
std::vector<Range> shards_of(const Builder& builder, Range range);

/// Writes the exchange of the collectives that only move blocks (moves.cpp).
void write_moves(Builder& builder, const ExchangeOptions& exchange);
/// Two ranks send each other everything, and both reduce (pairwise.cpp).
void write_pairwise(Builder& builder, const ExchangeOptions& exchange);
/// Writes the exchange of any collective, of two ranks or more.
void write_exchange(Builder& builder, const ExchangeOptions& exchange);
/// The same for collectives that reduce, with all data brought to host memory and reduced by CPU
/// lanes in rank order (collaborative all-reduce). Needs a host path between all ranks.
void write_host_reduction(Builder& builder, const ExchangeOptions& exchange);

}  // namespace plait
