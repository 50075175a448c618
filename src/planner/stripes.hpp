// The message cut over paths: each stripe is exchanged by itself, side by side with the others,
// over the direct links, through a relay GPU, through host memory, or through host memory with the
// reduction on CPU cores. Sources: Micro 2021 (direct + host), the collaborative all-reduce.
#pragma once
#include <string>
#include <vector>

#include "planner/exchange.hpp"
#include "planner/strategy.hpp"

namespace plait {

/// Thousandths of the message; what is left goes over the direct links.
struct Shares {
  int host_permille = 0;
  int host_cpu_permille = 0;
  int relay_permille = 0;
  int relay_device = -1;
  int other_permille() const { return host_permille + host_cpu_permille + relay_permille; }
};

/// Shares as parameters say; those not given as routes.cpp finds them, none where a message is
/// small.
Shares shares_from(const Params& params, const Topology& topology, const Request& request);
/// Writes the shares that are not zero among the plan's parameters.
void note_shares(Builder& builder, const Shares& shares);
/// How many pieces a shard is cut in: parameter "pieces", or as many as make one "piece_kib".
int pieces_from(const Params& params, const Request& request, int otherwise);
/// The same of the whole message.
int whole_pieces_from(const Params& params, const Request& request, int otherwise);

/// Writes all stripes; `direct` says how those over one hop are exchanged, and its path may be
/// unset.
void write_stripes(Builder& builder, ExchangeOptions direct, const Shares& shares);

}  // namespace plait
