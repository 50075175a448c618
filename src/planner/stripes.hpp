// Cuts a message into a stripe per path: direct links, a relay GPU, host memory, or host memory
// with the reduction on CPU cores. Stripes are exchanged independently and at the same time.
// Sources: Micro 2021 (direct + host), the collaborative all-reduce.
#pragma once
#include <string>
#include <vector>

#include "planner/exchange.hpp"
#include "planner/strategy.hpp"

namespace plait {

/// Shares in thousandths of the message; the rest goes over the direct links.
struct Shares {
  int host_permille = 0;
  int host_cpu_permille = 0;
  int relay_permille = 0;
  int relay_device = -1;
  int other_permille() const { return host_permille + host_cpu_permille + relay_permille; }
};

/// Returns the shares of the parameters. Shares that are not given are computed by routes.cpp, and
/// are 0 for small messages.
Shares shares_from(const Params& params, const Topology& topology, const Request& request);
/// Notes the shares that are not 0 in the plan's parameters.
void note_shares(Builder& builder, const Shares& shares);
/// Returns the number of pieces of a shard: parameter "pieces", or by size "piece_kib".
int pieces_from(const Params& params, const Request& request, int otherwise);
/// The same for the whole message.
int whole_pieces_from(const Params& params, const Request& request, int otherwise);

/// Writes all stripes. `direct`: options for stripes over a single hop; the path may be unset.
void write_stripes(Builder& builder, ExchangeOptions direct, const Shares& shares);

}  // namespace plait
