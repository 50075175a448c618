// staged: the whole message goes through host memory, and CPU cores reduce it in rank order: two
// hops and no kernel launch, for small messages and for GPUs without links. Source: CPU staging of
// the direct send/recv schedule.
#include "base/text.hpp"
#include "plait/error.hpp"
#include "planner/stripes.hpp"
#include "planner/transfer.hpp"
#include "topo/pair_paths.hpp"

namespace plait {
namespace {

// Above this size the signals of many rounds through the ring cost more than the saved kernel
// launch; the plan would also have tens of thousands of ops.
constexpr std::uint64_t kMostBytes = 64 << 20;

std::vector<Params> candidates(const Topology&, const Request&) { return {{}}; }

void write(Builder& builder, const Params&) {
  const Request& request = builder.request();
  ExchangeOptions exchange;
  exchange.range = whole_range(request);
  if (exchange.range.bytes == 0) return;
  if (request.ranks == 1) return alone(builder);
  if (exchange.range.bytes > kMostBytes)
    throw Error(ErrorCode::unsupported,
                text("stages at most {} bytes, found {}", kMostBytes, exchange.range.bytes));
  exchange.ring_bytes = ring_limit(builder.topology());
  exchange.path = [&builder](int from, int to) {
    return host_path(builder.topology(), builder.device(from), builder.device(to));
  };
  builder.stripe("host+cpu", exchange.range);
  write_host_reduction(builder, exchange);
}

}  // namespace

const Strategy& staged_strategy() {
  static const Strategy strategy{
      {"staged",
       "through host memory, reduced by CPU cores",
       "direct send/recv talk (CPU staging)",
       {Collective::all_reduce, Collective::reduce, Collective::reduce_scatter}},
      candidates,
      write};
  return strategy;
}

}  // namespace plait
