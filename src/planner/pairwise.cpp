// pairwise: two ranks exchange the message chunk by chunk, over several paths at once, and both
// reduce every chunk in rank order. A single step moves as many bytes as the two of reduce-scatter
// and all-gather. The host's cores can reduce a share meanwhile (host_cpu_permille). Source:
// collaborative all-reduce of two GPUs and the CPU (chunk-pipelined, multi-path).
#include <algorithm>
#include <array>

#include "base/text.hpp"
#include "plait/error.hpp"
#include "planner/stripes.hpp"
#include "planner/transfer.hpp"

namespace plait {
namespace {

std::vector<Params> candidates(const Topology& topology, const Request& request) {
  const std::uint64_t bytes = whole_range(request).bytes;
  std::vector<Params> sets{{{"pieces", 1}}};
  const bool is_cpu =
      topology.devices[static_cast<std::size_t>(request.devices.at(0))].kind == DeviceKind::cpu;
  if (is_cpu) {
    for (const int kib : {256, 128, 512})
      if (bytes > static_cast<std::uint64_t>(kib) << 10) sets.push_back({{"piece_kib", kib}});
    return sets;
  }
  if (bytes > (1 << 20)) sets.push_back({{"pieces", 4}});
  if (bytes > (32 << 20)) {
    sets.push_back({{"pieces", 8}});
    sets.push_back({{"pieces", 8}, {"host_permille", 50}, {"host_cpu_permille", 30}});
  }
  return sets;
}

void write(Builder& builder, const Params& params) {
  const Request& request = builder.request();
  if (request.ranks != 2)
    throw Error(ErrorCode::unsupported, text("needs 2 ranks, found {}", request.ranks));
  const Range whole = whole_range(request);
  ExchangeOptions exchange;
  exchange.range = whole;
  exchange.pieces = whole_pieces_from(params, request, 1);
  exchange.slots = param_in(params, "slots", 2, 1, 16);
  exchange.is_pairwise = true;
  const Shares shares = shares_from(params, builder.topology(), request);
  for (const auto& [name, value] : params) builder.param(name, value);
  builder.param("pieces", exchange.pieces);
  if (whole.bytes == 0) return;
  note_shares(builder, shares);
  write_stripes(builder, exchange, shares);
}

}  // namespace

void write_pairwise(Builder& builder, const ExchangeOptions& exchange) {
  if (exchange.range.bytes == 0) return;
  const std::uint64_t granule = builder.granule();
  const int piece_count = pieces_fitting(
      exchange.range.bytes * static_cast<std::uint64_t>(exchange.slots), exchange.pieces,
      exchange.scratch_bytes / 8 * 7, static_cast<std::uint64_t>(exchange.slots) * 2 * granule);
  const std::vector<Range> pieces = partition(exchange.range, piece_count, granule);
  const auto home = [&](int rank) {
    return builder.lane(rank, LaneKind::kernel, exchange.name + "reduce");
  };
  Mover mover(builder, {exchange.name, false, 1, largest(pieces), exchange.ring_bytes,
                        exchange.scratch_bytes / 16, exchange.path});
  std::array<std::vector<Region>, 2> inbound;  // [owner][slot]
  for (int owner = 0; owner < 2; ++owner) {
    mover.open(1 - owner, owner, home);
    for (int slot = 0; slot < std::min(exchange.slots, piece_count); ++slot)
      inbound[static_cast<std::size_t>(owner)].push_back(
          builder.alloc(Space::scratch, owner, largest(pieces)));
  }
  std::array<std::vector<Event>, 2> consumed;  // [owner], by piece
  for (std::size_t piece = 0; piece < pieces.size() && pieces[piece].bytes != 0; ++piece) {
    const Range range = pieces[piece];
    const std::size_t slot = piece % static_cast<std::size_t>(exchange.slots);
    std::array<Event, 2> arrived, sent;
    for (int rank = 0; rank < 2; ++rank) {
      const auto owner = static_cast<std::size_t>(1 - rank);
      std::vector<Event> after;
      if (piece >= static_cast<std::size_t>(exchange.slots))
        after.push_back(consumed[owner][piece - static_cast<std::size_t>(exchange.slots)]);
      const Carried carried =
          mover.carry(rank, 1 - rank, slice(inbound[owner][slot], {0, range.bytes}),
                      builder.input(rank, range), after, 1);
      arrived[owner] = carried.arrived;
      // In place the reduction overwrites the data being sent, and waits for the send too.
      sent[static_cast<std::size_t>(rank)] =
          carried.emptied.value != 0 ? carried.emptied
                                     : builder.signal(mover.source_lane(rank, 1 - rank, 1), rank);
    }
    for (int rank = 0; rank < 2; ++rank) {
      const auto me = static_cast<std::size_t>(rank);
      builder.wait(home(rank), arrived[me]);
      builder.wait(home(rank), sent[me]);
      const Region own = builder.input(rank, range),
                   other = slice(inbound[me][slot], {0, range.bytes});
      builder.reduce(home(rank), builder.output(rank, range),
                     rank == 0 ? std::vector<Region>{own, other} : std::vector<Region>{other, own});
      consumed[me].push_back(builder.signal(home(rank), mover.filler(1 - rank, rank)));
    }
  }
  mover.close(home);
}

const Strategy& pairwise_strategy() {
  static const Strategy strategy{
      {"pairwise",
       "two ranks exchange chunks over all paths, both reduce; a share on the host",
       "collaborative all-reduce",
       {Collective::all_reduce}},
      candidates,
      write,
      {"pieces", "piece_kib", "slots", "host_permille", "host_cpu_permille", "relay_permille",
       "relay"}};
  return strategy;
}

}  // namespace plait
