// flat: a pipelined two-stage all-reduce for fully connected nodes. The message goes chunk by
// chunk: owners reduce a chunk's shards and send them to all ranks, while the next chunk is in
// flight (two slots or more for each pair). A rank serves all peers at once. Source: the intra-node
// all-reduce of Micro 2021 (chunks, both stages in flight, multi-path).
#include <algorithm>

#include "planner/stripes.hpp"

namespace plait {
namespace {

constexpr std::uint64_t kChunkBytes = 4
                                      << 20;  // Micro 2021: the pipeline is full from a few MiB on

int default_chunks(const Request& request) {
  const std::uint64_t bytes = whole_range(request).bytes;
  return static_cast<int>(std::clamp<std::uint64_t>(bytes / kChunkBytes, 1, 16));
}

std::vector<Params> candidates(const Topology&, const Request& request) {
  const int chunks = default_chunks(request);
  std::vector<Params> sets{{{"chunks", chunks}}};
  for (const int fewer : {4, 2})
    if (chunks > fewer) sets.push_back({{"chunks", fewer}});
  return sets;
}

void write(Builder& builder, const Params& params) {
  const Request& request = builder.request();
  const int chunks = param_in(params, "chunks", default_chunks(request), 1, 1024);
  builder.param("chunks", chunks);
  const Shares shares = shares_from(params, builder.topology(), request);
  const Range whole = whole_range(request);
  if (whole.bytes == 0) return;
  if (request.ranks == 1) return alone(builder);
  ExchangeOptions exchange;
  exchange.range = whole;
  exchange.pieces = chunks;
  exchange.slots = 3;
  exchange.throttle = request.ranks - 1;
  exchange.is_chunked = true;
  note_shares(builder, shares);
  write_stripes(builder, exchange, shares);
}

}  // namespace

const Strategy& flat_strategy() {
  static const Strategy strategy{
      {"flat",
       "chunks in two stages, reduce then broadcast; the next chunk is sent during the "
       "reduction",
       "Micro 2021",
       {Collective::all_reduce}},
      candidates,
      write,
      {"chunks", "host_permille", "host_cpu_permille", "relay_permille", "relay"}};
  return strategy;
}

}  // namespace plait
