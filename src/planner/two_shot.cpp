// two_shot: every rank pushes each shard to the owner's inbox, the owner reduces the shard in rank
// order, and all ranks get the result: pushed into the ranks' inboxes (push=1: no rank waits for a
// peer to enter), or pulled from the owner's scratch (push=0: a copy less, for larger messages).
// Source: two-shot all-reduce kernels; on GPUs a kernel of the same name does the same with LL
// packets.
#include <vector>

#include "base/text.hpp"
#include "plait/error.hpp"
#include "plan/shots.hpp"
#include "planner/stripes.hpp"
#include "planner/transfer.hpp"

namespace plait {
namespace {

std::size_t index(int i) { return static_cast<std::size_t>(i); }

/// Ranks pull results from the owners' scratch.
void pull_results(Builder& b, const std::vector<Range>& shards, const std::vector<Region>& sums) {
  const int n = b.ranks();
  const auto lane = [&](int rank) { return b.lane(rank, LaneKind::kernel, "two_shot"); };
  std::vector<std::vector<Event>> ready(index(n), std::vector<Event>(index(n)));
  std::vector<std::vector<Event>> read(index(n));
  for (int owner = 0; owner < n; ++owner) {
    if (shards[index(owner)].bytes == 0) continue;
    for (int step = 1; step < n; ++step) {
      const int rank = (owner + step) % n;
      ready[index(rank)][index(owner)] = b.signal(lane(owner), rank);
    }
    b.copy(lane(owner), b.output(owner, shards[index(owner)]), sums[index(owner)]);
  }
  for (int step = 1; step < n; ++step)
    for (int rank = 0; rank < n; ++rank) {
      const int owner = (rank + n - step) % n;
      if (shards[index(owner)].bytes == 0) continue;
      b.wait(lane(rank), ready[index(rank)][index(owner)]);
      b.copy(lane(rank), b.output(rank, shards[index(owner)]), sums[index(owner)]);
      read[index(owner)].push_back(b.signal(lane(rank), owner));
    }
  for (int owner = 0; owner < n; ++owner)
    for (const Event& event : read[index(owner)]) b.wait(lane(owner), event);
}

void write_shots(Builder& builder, bool push, std::uint64_t slot) {
  const int n = builder.ranks();
  const std::vector<Range> shards = partition(whole_range(builder.request()), n, builder.granule());
  std::vector<Region> sums;
  for (int owner = 0; owner < n; ++owner) {
    const Range shard = shards[index(owner)];
    builder.alloc(Space::inbox, owner, index(n - 1) * slot * (push ? 2 : 1));
    sums.push_back(push ? builder.output(owner, shard)
                        : slice(builder.alloc(Space::scratch, owner, slot), {0, shard.bytes}));
  }
  const Shot shot{"two_shot", 0, slot};
  write_shards(builder, shot, shards, sums);
  if (push)
    write_results(builder, shot, shards);
  else
    pull_results(builder, shards, sums);
}

std::vector<Params> candidates(const Topology&, const Request&) {
  return {{{"push", 1}}, {{"push", 0}}};
}

void write(Builder& builder, const Params& params) {
  const Topology& topology = builder.topology();
  const Request& request = builder.request();
  const bool is_pushed = param_in(params, "push", 1, 0, 1) == 1;
  builder.param("push", is_pushed ? 1 : 0);
  const Range whole = whole_range(request);
  if (whole.bytes == 0) return;
  if (request.ranks == 1) return alone(builder);
  const std::uint64_t shard =
      (partition(whole, request.ranks, builder.granule())[0].bytes + 127) / 128 * 128;
  const std::uint64_t slots = index(request.ranks - 1) * (is_pushed ? 2 : 1);
  if (shard > inbox_limit(topology) / slots || shard > scratch_limit(topology))
    throw Error(
        ErrorCode::unsupported,
        text("wanted an inbox of {} times {} bytes a rank, found {} (parameter inbox_bytes)", slots,
             shard, inbox_limit(topology)));
  builder.kernel("two_shot");
  write_shots(builder, is_pushed, shard);
}

}  // namespace

const Strategy& two_shot_strategy() {
  static const Strategy strategy{{"two_shot",
                                  "shards to their owners, which reduce and send results to all",
                                  "two-shot all-reduce kernels",
                                  {Collective::all_reduce}},
                                 candidates,
                                 write};
  return strategy;
}

}  // namespace plait
