// one_shot: every rank pushes its message (or the block for each peer) into the peers' inboxes, and
// each rank reduces or copies from its own inbox: a single step, no entry barrier, lowest latency,
// up to n - 1 times the bytes. Inboxes have two halves, and every rank gets data from all peers:
// calls may follow at once. Source: low-latency protocols (data and flag in a packet); on GPUs the
// kernels one_shot and direct_ll do the same with LL packets.
#include "base/text.hpp"
#include "plait/error.hpp"
#include "plan/shots.hpp"
#include "planner/strategy.hpp"
#include "planner/transfer.hpp"

namespace plait {
namespace {

std::vector<Params> candidates(const Topology&, const Request&) { return {{}}; }

void write(Builder& builder, const Params&) {
  const Request& request = builder.request();
  const std::uint64_t bytes = whole_range(request).bytes;
  if (bytes == 0) return;
  if (request.ranks == 1) return alone(builder);
  constexpr int kMostRanks = 32;  // bits of a DirectShape's masks
  if (request.ranks > kMostRanks)
    throw Error(ErrorCode::unsupported,
                text("wanted at most {} ranks, found {}", kMostRanks, request.ranks));
  const std::uint64_t limit = inbox_limit(builder.topology());
  const std::uint64_t slot = (bytes + 127) / 128 * 128;
  const auto others = static_cast<std::uint64_t>(request.ranks - 1);
  if (slot > limit / others)
    throw Error(
        ErrorCode::unsupported,
        text("wanted an inbox of {} times {} bytes a rank, found {} (parameter inbox_bytes)",
             others, slot, limit));
  for (int rank = 0; rank < request.ranks; ++rank) builder.alloc(Space::inbox, rank, others * slot);
  if (request.collective == Collective::all_reduce) builder.kernel("one_shot");
  write_one_shot(builder, {"one_shot", 0, slot}, {0, bytes});
}

}  // namespace

const Strategy& one_shot_strategy() {
  static const Strategy strategy{
      {"one_shot",
       "every rank pushes to all inboxes, and each reduces in rank order",
       "low-latency protocols",
       {
#define PLAIT_COLLECTIVE(name, input, output, busbw) Collective::name,
#include "plait/collectives.def"
#undef PLAIT_COLLECTIVE
       }},
      candidates,
      write,
      {},
      false,
      true};
  return strategy;
}

}  // namespace plait
