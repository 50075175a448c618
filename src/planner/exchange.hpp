// The exchange schedule of direct, flat, pairwise, staged and rerouted: ranks exchange parts of a
// range of the message piece by piece, every pair over its own path, peers in rotation (in step k
// rank r serves rank r + k). Reductions of a piece overlap the transfer of the next. Source: the
// direct send/recv schedule (rotation, throttle, fused n-way reduction).
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "planner/strategy.hpp"

namespace plait {

/// Options of the exchange of a stripe of the message.
struct ExchangeOptions {
  std::string name;          ///< prefix of lane names; unique in the plan
  Range range;               ///< in the message, or in a block if the collective has blocks
  int pieces = 1;            ///< least number; more if scratch is too small for so few
  int slots = 2;             ///< pieces of a pair that may be in flight
  int throttle = 1;          ///< lanes that a rank sends on at once
  bool is_chunked = false;   ///< cut the message into pieces, not each shard
  bool is_pairwise = false;  ///< two ranks: both receive and reduce everything
  bool fuse = true;          ///< one n-way reduction in rank order; else two operands at a time
  std::uint64_t scratch_bytes = 0;  ///< scratch of each device for this stripe
  std::uint64_t ring_bytes = 0;     ///< host ring of each rank for this stripe
  std::function<Path(int from, int to)> path;
};

/// Returns the number of pieces of a stripe: `wanted`, or more if `bytes`, the slots for an
/// undivided piece, exceed `limit`. Slots may exceed their share by `overhead` bytes in all.
int pieces_fitting(std::uint64_t bytes, int wanted, std::uint64_t limit, std::uint64_t overhead);
/// Bytes of the largest range.
std::uint64_t largest(const std::vector<Range>& ranges);

/// Returns by owner the part of a range that the owner reduces: the part of its block, or its
/// shard.
std::vector<Range> shards_of(const Builder& builder, Range range);

/// Writes the exchange of the collectives that only move blocks (moves.cpp).
void write_moves(Builder& builder, const ExchangeOptions& exchange);
/// Two ranks exchange everything, and both reduce (pairwise.cpp).
void write_pairwise(Builder& builder, const ExchangeOptions& exchange);
/// Writes the exchange of any collective, of two ranks or more.
void write_exchange(Builder& builder, const ExchangeOptions& exchange);
/// Writes the exchange of a collective that reduces through host memory, with reductions by CPU
/// lanes in rank order (collaborative all-reduce). Needs a host path between all ranks.
void write_host_reduction(Builder& builder, const ExchangeOptions& exchange);

}  // namespace plait
