// recursive_doubling: in step k every rank exchanges all its data with the partner, rank xor 2^k.
// All-reduce takes ceil(log2 n) exchanges of the whole message: few steps, many bytes. Ranks beyond
// a power of two send their part to a neighbour first and get the result at the end. Source:
// Thakur, Rabenseifner, Gropp, "Optimization of Collective Communication Operations in MPICH".
#include <algorithm>
#include <bit>

#include "base/text.hpp"
#include "plait/courier.hpp"
#include "plait/error.hpp"
#include "planner/folding.hpp"

namespace plait {
namespace {

// Both partners reduce (lower, higher), and both get the same bits.
void all_reduce(Builder& builder, const Folding& folding, Courier& courier, Range chunk) {
  fold(builder, folding, courier, chunk);
  const int steps = folding.steps();
  for (int step = 0; step < steps; ++step) {
    for (int member = 0; member < folding.members; ++member)
      courier.send(folding.rank(member), folding.rank(member ^ (1 << step)),
                   {step == 0 ? folding.start(builder, member, chunk)
                              : builder.output(folding.rank(member), chunk)});
    for (int member = 0; member < folding.members; ++member) {
      const int partner = member ^ (1 << step);
      const int rank = folding.rank(member);
      const Message message = courier.receive(rank, folding.rank(partner), chunk.bytes);
      const Region mine =
          step == 0 ? folding.start(builder, member, chunk) : builder.output(rank, chunk);
      courier.reduce(
          rank, builder.output(rank, chunk),
          member < partner ? std::vector{mine, message.region} : std::vector{message.region, mine},
          step + 1 == steps);
      courier.release(message);
    }
  }
  unfold(builder, folding, courier, chunk);
}

// Powers of two only: in step k aligned groups of 2^k ranks exchange all blocks.
void all_gather(Builder& builder, Courier& courier, Range chunk) {
  const int n = builder.ranks();
  const auto group = [&](int rank, int width) {
    std::vector<Region> regions;
    const int first = rank / width * width;
    for (int block = first; block < first + width; ++block)
      regions.push_back(builder.output(rank, in_block(builder.request(), block, chunk)));
    return regions;
  };
  for (int rank = 0; rank < n; ++rank)
    courier.copy(rank, builder.output(rank, in_block(builder.request(), rank, chunk)),
                 builder.input(rank, chunk));
  for (int width = 1; width < n; width *= 2) {
    for (int rank = 0; rank < n; ++rank) courier.send(rank, rank ^ width, group(rank, width));
    for (int rank = 0; rank < n; ++rank) {
      const int partner = rank ^ width;
      const Message message =
          courier.receive(rank, partner, chunk.bytes * static_cast<std::uint64_t>(width));
      const int first = partner / width * width;
      for (int i = 0; i < width; ++i)
        courier.copy(
            rank, builder.output(rank, in_block(builder.request(), first + i, chunk)),
            slice(message.region, {static_cast<std::uint64_t>(i) * chunk.bytes, chunk.bytes}));
      courier.release(message);
    }
  }
}

int default_chunks(const Request& request) { return message_bytes(request) <= 1ULL << 20 ? 1 : 2; }

std::vector<Params> candidates(const Topology&, const Request& request) {
  const int chunks = default_chunks(request);
  std::vector<Params> out{{{"chunks", chunks}}};
  if (chunks > 1) out.push_back({{"chunks", 4 * chunks}});
  return out;
}

void write(Builder& builder, const Params& params) {
  const Request& request = builder.request();
  CourierCut cut = cut_from(builder, params, "chunks", default_chunks(request), 2);
  if (reduces(request.collective)) builder.sum_order(SumOrder::algorithm_order);
  const Folding folding(request.ranks);
  cut.lane_name = "doubling";
  if (request.ranks == 1) {
    alone(builder);
  } else if (request.collective == Collective::all_gather) {
    if (folding.members != request.ranks)
      throw Error(ErrorCode::unsupported, text("all_gather by recursive doubling needs a power of "
                                               "two of ranks, found {}; bruck takes any number",
                                               request.ranks));
    cut.scratch_per_byte = request.ranks;
    in_chunks(builder, cut,
              [&](Courier& courier, Range chunk) { all_gather(builder, courier, chunk); });
  } else {
    cut.scratch_per_byte = folding.steps() + 2.0;
    in_chunks(builder, cut,
              [&](Courier& courier, Range chunk) { all_reduce(builder, folding, courier, chunk); });
  }
}

}  // namespace

const Strategy& recursive_doubling_strategy() {
  static const Strategy strategy{{"recursive_doubling",
                                  "whole messages exchanged with partners 1, 2, 4, ... away",
                                  "Thakur, Rabenseifner, Gropp 2005",
                                  {Collective::all_reduce, Collective::all_gather}},
                                 candidates,
                                 write,
                                 {"chunks", "lanes"}};
  return strategy;
}

}  // namespace plait
