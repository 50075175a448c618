// direct: every pair exchanges over its own link; every collective. All-reduce is reduce-scatter
// then all-gather, both by direct send and receive, with peers in rotation, at most `throttle` at a
// time. The reduction is a single n-way op in rank order that overlaps the next piece's transfer.
// Source: the direct send/recv talk (rotation, throttle, fused reduction); Micro 2021 (shares).
#include <algorithm>

#include "plait/error.hpp"
#include "planner/routes.hpp"
#include "planner/stripes.hpp"
#include "planner/transfer.hpp"

namespace plait {
namespace {

constexpr std::uint64_t kLargeBytes = 32 << 20;  // from this size on, tries stripes and more pieces

bool runs_on_cpus(const Topology& topology) {
  return rank_devices(topology).empty() ||
         topology.devices[static_cast<std::size_t>(rank_devices(topology)[0])].kind ==
             DeviceKind::cpu;
}

// On CPUs a piece and its slots should fit the second-level cache. On GPUs pieces are few, so that
// signals (6.6 us each across processes) take little time compared with copies.
std::vector<Params> candidates(const Topology& topology, const Request& request) {
  const std::uint64_t bytes = whole_range(request).bytes;
  std::vector<Params> sets{{{"pieces", 1}, {"throttle", 1}}};
  if (request.ranks < 2 || bytes < (64 << 10)) return sets;
  if (runs_on_cpus(topology)) {
    for (const int kib : {128, 256, 512})
      if (bytes / static_cast<std::uint64_t>(request.ranks) > static_cast<std::uint64_t>(kib) << 10)
        sets.push_back({{"piece_kib", kib}, {"throttle", 1}});
    return sets;
  }
  // Fewer pieces than scratch requires would give the same plan again.
  const std::uint64_t blocks = request.collective == Collective::reduce_scatter ||
                                       request.collective == Collective::all_to_all
                                   ? static_cast<std::uint64_t>(request.ranks)
                                   : 1;
  const std::uint64_t scratch = std::max<std::uint64_t>(1, scratch_limit(topology));
  const std::uint64_t least = bytes * blocks * 2 / scratch;
  for (const std::uint64_t pieces : {2, 4})
    if (pieces > least)
      sets.push_back({{"pieces", static_cast<std::int64_t>(pieces)}, {"throttle", 1}});
  if (request.ranks > 2) sets.push_back({{"pieces", 2}, {"throttle", 3}});
  if (request.ranks > 8) sets.push_back({{"pieces", 2}, {"throttle", 4}});  // the talk's batches
  if (reduces(request.collective) && request.ranks > 2)
    sets.push_back({{"pieces", 2}, {"throttle", 1}, {"fuse", 0}});
  if (bytes < kLargeBytes) return sets;
  sets.push_back({{"pieces", 4}, {"throttle", 1}, {"host_permille", 0}});
  if (least < 8) sets.push_back({{"pieces", 8}, {"throttle", 1}});
  if (reduces(request.collective))
    sets.push_back({{"pieces", 4}, {"throttle", 1}, {"host_cpu_permille", 50}});
  return sets;
}

void write(Builder& builder, const Params& params) {
  const Request& request = builder.request();
  if (whole_range(request).bytes == 0) return;
  ExchangeOptions exchange;
  exchange.range = whole_range(request);
  exchange.pieces = pieces_from(params, request, 1);
  exchange.slots = param_in(params, "slots", 2, 1, 16);
  exchange.throttle = param_in(params, "throttle", 1, 1, kMaxRanks);
  exchange.fuse = param_in(params, "fuse", 1, 0, 1) == 1;
  for (const auto& [name, value] : params) builder.param(name, value);
  builder.param("pieces", exchange.pieces);
  builder.param("throttle", exchange.throttle);
  const Shares shares = shares_from(params, builder.topology(), request);
  if (request.ranks == 1) return alone(builder);
  note_shares(builder, shares);
  write_stripes(builder, exchange, shares);
}

}  // namespace

const Strategy& direct_strategy() {
  static const Strategy strategy{
      {"direct",
       "direct send and receive, peers in rotation, fused n-way reduction overlapped",
       "direct send/recv talk; Micro 2021 for the shares",
       {Collective::all_reduce, Collective::reduce_scatter, Collective::all_gather,
        Collective::broadcast, Collective::reduce, Collective::all_to_all, Collective::gather,
        Collective::scatter, Collective::send_recv, Collective::copy}},
      candidates,
      write,
      {"pieces", "piece_kib", "slots", "throttle", "fuse", "host_permille", "host_cpu_permille",
       "relay_permille", "relay"},
      false,
      true};
  return strategy;
}

}  // namespace plait
