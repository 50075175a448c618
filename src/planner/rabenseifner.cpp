// rabenseifner: an all-reduce by recursive halving (reduce-scatter), then recursive doubling
// (all-gather). Rabenseifner's algorithm has as few steps as recursive doubling and as few bytes as
// a ring: 2 log2 n steps; bytes halve from step to step, then double. The largest halves go to the
// nearest partners. Source: Rabenseifner, "Optimization of Collective Reduction Operations" (2004).
#include <algorithm>

#include "plait/courier.hpp"
#include "plait/error.hpp"
#include "planner/folding.hpp"

namespace plait {
namespace {

class Halving {
 public:
  Halving(Builder& builder, const Folding& folding, Courier& courier, Range chunk)
      : builder_(builder), folding_(folding), courier_(courier), chunk_(chunk) {}

  void write() {
    fold(builder_, folding_, courier_, chunk_);
    for (int step = 0; step < folding_.steps(); ++step) halve(step);
    for (int step = folding_.steps() - 1; step >= 0; --step) unite(step);
    unfold(builder_, folding_, courier_, chunk_);
  }

 private:
  // Range of a member after halving `step`: bit k of the member's number selects the half kept in
  // step k.
  Range kept(int member, int step) const {
    Range range = chunk_;
    for (int k = 0; k <= step; ++k)
      range = partition(range, 2, builder_.granule())[static_cast<std::size_t>(member >> k & 1)];
    return range;
  }
  // A member's data for a range before halving `step`.
  Region part(int member, int step, Range range) const {
    return step == 0 ? folding_.start(builder_, member, range)
                     : builder_.output(folding_.rank(member), range);
  }

  // Each partner sends the half that the other keeps; both reduce (lower, higher).
  void halve(int step) {
    for (int member = 0; member < folding_.members; ++member) {
      const int partner = member ^ (1 << step);
      courier_.send(folding_.rank(member), folding_.rank(partner),
                    {part(member, step, kept(partner, step))});
    }
    for (int member = 0; member < folding_.members; ++member) {
      const int partner = member ^ (1 << step);
      const int rank = folding_.rank(member);
      const Range mine = kept(member, step);
      const Message message = courier_.receive(rank, folding_.rank(partner), mine.bytes);
      const Region own = part(member, step, mine);
      courier_.reduce(
          rank, builder_.output(rank, mine),
          member < partner ? std::vector{own, message.region} : std::vector{message.region, own},
          step + 1 == folding_.steps());
      courier_.release(message);
    }
  }

  void unite(int step) {
    for (int member = 0; member < folding_.members; ++member)
      courier_.send(folding_.rank(member), folding_.rank(member ^ (1 << step)),
                    {builder_.output(folding_.rank(member), kept(member, step))});
    for (int member = 0; member < folding_.members; ++member) {
      const int partner = member ^ (1 << step);
      const int rank = folding_.rank(member);
      const Range theirs = kept(partner, step);
      const Message message = courier_.receive(rank, folding_.rank(partner), theirs.bytes);
      courier_.copy(rank, builder_.output(rank, theirs), message.region);
      courier_.release(message);
    }
  }

  Builder& builder_;
  const Folding& folding_;
  Courier& courier_;
  Range chunk_;
};

int default_chunks(const Request& request) { return message_bytes(request) <= 1ULL << 20 ? 1 : 2; }

std::vector<Params> candidates(const Topology&, const Request& request) {
  const int chunks = default_chunks(request);
  std::vector<Params> out{{{"chunks", chunks}}};
  if (chunks > 1) {
    out.push_back({{"chunks", 2 * chunks}});
    out.push_back({{"chunks", 8 * chunks}});
  }
  return out;
}

void write(Builder& builder, const Params& params) {
  const Request& request = builder.request();
  CourierCut cut = cut_from(builder, params, "chunks", default_chunks(request), 2);
  builder.sum_order(SumOrder::algorithm_order);
  if (request.ranks == 1) return alone(builder);
  const Folding folding(request.ranks);
  // Halves, quarters, ... add up to a message; a folded pair receives a second whole message.
  cut.lane_name = "halving";
  cut.scratch_per_byte = folding.folded > 0 ? 2.0 : 1.0;
  in_chunks(builder, cut, [&](Courier& courier, Range chunk) {
    Halving(builder, folding, courier, chunk).write();
  });
}

}  // namespace

const Strategy& rabenseifner_strategy() {
  static const Strategy strategy{
      {"rabenseifner",
       "reduce-scatter by recursive halving, all-gather by recursive doubling",
       "Rabenseifner 2004",
       {Collective::all_reduce}},
      candidates,
      write,
      {"chunks", "lanes"}};
  return strategy;
}

}  // namespace plait
