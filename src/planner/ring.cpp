// ring: every rank exchanges with its two neighbours only. All-reduce is a reduce-scatter round the
// ring, then an all-gather; broadcast and reduce are chains. Segments of the message go round in a
// row, so that links, reductions and signals overlap. Source: the segmented ring of MPI libraries
// and NCCL; the neighbour order follows the links.
#include <algorithm>
#include <cmath>

#include "base/text.hpp"
#include "plait/courier.hpp"
#include "plait/error.hpp"
#include "planner/exchange.hpp"

namespace plait {
namespace {

constexpr int kMostOps = 6000;  // limit for proposed plans; building and proving takes a few ms

// Cost of a hop in a ring. Slow links count out of proportion, since the slowest link sets the
// pace.
double hop_cost(const Topology& topology, int src_device, int dst_device) {
  const int link = find_link(topology, src_device, dst_device);
  double gb_per_s = 0.0;
  if (link >= 0)
    gb_per_s = topology.links[static_cast<std::size_t>(link)].gb_per_s;
  else
    gb_per_s = path_gb_per_s(topology, courier_path(topology, src_device, dst_device));
  return std::pow(1.0 / gb_per_s, 4.0) * (link >= 0 ? 1.0 : 4.0);  // two hops: later, and more load
}

using Costs = std::vector<std::vector<double>>;

Costs hop_costs(const Builder& builder) {
  const auto n = static_cast<std::size_t>(builder.ranks());
  Costs costs(n, std::vector<double>(n, 0.0));
  for (std::size_t from = 0; from < n; ++from)
    for (std::size_t to = 0; to < n; ++to)
      if (from != to)
        costs[from][to] = hop_cost(builder.topology(), builder.device(static_cast<int>(from)),
                                   builder.device(static_cast<int>(to)));
  return costs;
}

double length(const std::vector<int>& order, const Costs& costs) {
  double sum = 0.0;
  for (std::size_t i = 0; i < order.size(); ++i)
    sum += costs[static_cast<std::size_t>(order[i])]
                [static_cast<std::size_t>(order[(i + 1) % order.size()])];
  return sum;
}

// Nearest-neighbour tour, then 2-opt: reverses pieces of the tour while the tour gets shorter. Ties
// go to the lower rank: uniform machines get 0, 1, 2, ...
std::vector<int> ring_order(const Builder& builder) {
  const Costs costs = hop_costs(builder);
  std::vector<int> left;
  for (int rank = 1; rank < builder.ranks(); ++rank) left.push_back(rank);
  std::vector<int> order{0};
  while (!left.empty()) {
    const std::vector<double>& row = costs[static_cast<std::size_t>(order.back())];
    const auto next = std::min_element(left.begin(), left.end(), [&](int a, int b) {
      return row[static_cast<std::size_t>(a)] < row[static_cast<std::size_t>(b)];
    });
    order.push_back(*next);
    left.erase(next);
  }
  double best = length(order, costs);
  for (bool shorter = true; shorter;) {
    shorter = false;
    for (std::size_t i = 1; i + 1 < order.size(); ++i)
      for (std::size_t j = i + 1; j < order.size(); ++j) {
        const auto first = order.begin() + static_cast<std::ptrdiff_t>(i);
        const auto last = order.begin() + static_cast<std::ptrdiff_t>(j) + 1;
        std::reverse(first, last);
        const double now = length(order, costs);
        if (now < best * (1.0 - 1e-9)) {
          best = now;
          shorter = true;
        } else {
          std::reverse(first, last);
        }
      }
  }
  return order;
}

class Ring {
 public:
  Ring(Builder& builder, const CourierCut& cut)
      : builder_(builder), n_(builder.ranks()), order_(ring_order(builder)), cut_(cut) {
    cut_.lane_name = "ring";
    cut_.slots = 2;
    cut_.scratch_per_byte = 2.0;
  }

  void write() {
    switch (builder_.request().collective) {
      case Collective::all_reduce:
        cut_.scratch_per_byte = 2.0 / n_;
        return in_chunks(builder_, cut_, [this](Courier& courier, Range chunk) {
          const std::vector<Range> shards = partition(chunk, n_, builder_.granule());
          reduce_scatter(courier, shards, shards);
          all_gather(courier, shards);
        });
      case Collective::reduce_scatter:
        return in_chunks(builder_, cut_, [this](Courier& courier, Range chunk) {
          take_whole_slots(courier, chunk);
          reduce_scatter(courier, blocks(chunk), shards_of(builder_, chunk));
        });
      case Collective::all_gather:
        return in_chunks(builder_, cut_, [this](Courier& courier, Range chunk) {
          take_whole_slots(courier, chunk);
          const std::vector<Range> gathered = blocks(chunk);
          for (int rank = 0; rank < n_; ++rank)
            courier.copy(rank, builder_.output(rank, of(gathered, rank)),
                         builder_.input(rank, {chunk.offset, of(gathered, rank).bytes}));
          all_gather(courier, gathered);
        });
      case Collective::broadcast:
        return in_chunks(builder_, cut_,
                         [this](Courier& courier, Range chunk) { broadcast(courier, chunk); });
      case Collective::reduce:
        return in_chunks(builder_, cut_,
                         [this](Courier& courier, Range chunk) { reduce(courier, chunk); });
      default: break;
    }
  }

 private:
  int at(int position) const { return order_[static_cast<std::size_t>((position % n_ + n_) % n_)]; }
  static Range of(const std::vector<Range>& ranges, int rank) {
    return ranges[static_cast<std::size_t>(rank)];
  }
  std::vector<Range> blocks(Range chunk) const {
    std::vector<Range> out;
    for (int rank = 0; rank < n_; ++rank) out.push_back(in_block(builder_.request(), rank, chunk));
    return out;
  }

  // Uneven blocks: every slot must hold the largest.
  void take_whole_slots(Courier& courier, Range chunk) const {
    if (!builder_.request().counts.empty()) courier.slots_of(chunk.bytes);
  }

  // Shard s ends at rank s. It starts at the rank after s and adds a rank's part in each step.
  // inputs: range of shard s in all inputs; results: the shard's range in the output of rank s.
  void reduce_scatter(Courier& courier, const std::vector<Range>& inputs,
                      const std::vector<Range>& results) {
    std::vector<Message> held(static_cast<std::size_t>(n_));
    for (int step = 0; step + 1 < n_; ++step) {
      for (int i = 0; i < n_; ++i) {
        const Message& mine = held[static_cast<std::size_t>(i)];
        const Range shard = of(inputs, at(i - 1 - step));
        courier.send(
            at(i), at(i + 1),
            {step == 0 ? builder_.input(at(i), shard) : slice(mine.region, {0, shard.bytes})});
        courier.release(mine);
      }
      for (int i = 0; i < n_; ++i) {
        const int owner = at(i - 2 - step);
        const Range shard = of(inputs, owner);
        const Message message = courier.receive(at(i), at(i - 1), shard.bytes);
        const bool last = owner == at(i);
        const Region dst = last ? builder_.output(owner, of(results, owner)) : message.region;
        courier.reduce(at(i), dst, {message.region, builder_.input(at(i), shard)}, last);
        if (last) courier.release(message);
        held[static_cast<std::size_t>(i)] = last ? Message{} : message;
      }
    }
  }

  // Each rank's shard is in the rank's output, and goes round from output to output.
  void all_gather(Courier& courier, const std::vector<Range>& shards) {
    for (int step = 0; step + 1 < n_; ++step) {
      for (int i = 0; i < n_; ++i)
        courier.send(at(i), at(i + 1), {builder_.output(at(i), of(shards, at(i - step)))});
      for (int i = 0; i < n_; ++i) {
        const Range shard = of(shards, at(i - 1 - step));
        const Message message = courier.receive(at(i), at(i - 1), shard.bytes);
        courier.copy(at(i), builder_.output(at(i), shard), message.region);
        courier.release(message);
      }
    }
  }

  int position_of_root() const {
    const auto found = std::find(order_.begin(), order_.end(), builder_.request().root);
    return static_cast<int>(found - order_.begin());
  }

  void broadcast(Courier& courier, Range chunk) {
    const int start = position_of_root();
    const int root = at(start);
    courier.copy(root, builder_.output(root, chunk), builder_.input(root, chunk));
    for (int hop = 0; hop + 1 < n_; ++hop) {
      const int from = at(start + hop), to = at(start + hop + 1);
      courier.send(from, to,
                   {hop == 0 ? builder_.input(root, chunk) : builder_.output(from, chunk)});
      const Message message = courier.receive(to, from, chunk.bytes);
      courier.copy(to, builder_.output(to, chunk), message.region);
      courier.release(message);
    }
  }

  void reduce(Courier& courier, Range chunk) {
    const int start = position_of_root() + 1;
    Message held;
    for (int hop = 0; hop + 1 < n_; ++hop) {
      const int from = at(start + hop), to = at(start + hop + 1);
      courier.send(from, to, {hop == 0 ? builder_.input(from, chunk) : held.region});
      courier.release(held);
      const Message message = courier.receive(to, from, chunk.bytes);
      const bool last = hop + 2 == n_;
      courier.reduce(to, last ? builder_.output(to, chunk) : message.region,
                     {message.region, builder_.input(to, chunk)}, last);
      if (last) courier.release(message);
      held = message;
    }
  }

  Builder& builder_;
  int n_;
  std::vector<int> order_;
  CourierCut cut_;
};

int default_segments(const Request& request) {
  const std::uint64_t bytes = message_bytes(request);
  return bytes <= 256ULL << 10 ? 1 : bytes <= 4ULL << 20 ? 2 : 4;
}

std::vector<Params> candidates(const Topology&, const Request& request) {
  const int segments = default_segments(request);
  std::vector<Params> out{{{"segments", segments}}};
  if (segments > 1) out.push_back({{"segments", 2 * segments}});
  // A segment takes about 10 ops a pair of ranks; plans stay near kMostOps.
  const int most = std::min(16 * segments, kMostOps / 10 / (request.ranks * request.ranks));
  if (segments > 2 && most > 2 * segments) out.push_back({{"segments", most}});
  if (segments > 1) out.push_back({{"segments", 1}});
  return out;
}

void write(Builder& builder, const Params& params) {
  const Request& request = builder.request();
  const CourierCut cut = cut_from(builder, params, "segments", default_segments(request), 4);
  if (reduces(request.collective) && !has_no_order(request.type, request.op))
    builder.sum_order(SumOrder::algorithm_order);
  if (request.ranks == 1)
    alone(builder);
  else
    Ring(builder, cut).write();
}

}  // namespace

const Strategy& ring_strategy() {
  static const Strategy strategy{
      {"ring",
       "reduce-scatter and all-gather round a ring of neighbours, in segments; or a chain",
       "segmented ring of MPI libraries and NCCL",
       {Collective::all_reduce, Collective::reduce_scatter, Collective::all_gather,
        Collective::broadcast, Collective::reduce}},
      candidates,
      write,
      {"segments", "lanes"},
      false,
      true};
  return strategy;
}

}  // namespace plait
