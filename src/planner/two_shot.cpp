// two_shot: every rank pushes each shard to its owner's inbox, the owner reduces it in rank order,
// and the result goes to all in the same pass: pushed into their inboxes (push=1: no rank ever
// waits for another to enter) or pulled out of the owner's scratch (push=0: one copy less, for
// larger messages). Source: practice (two-shot all-reduce kernels); on GPUs a kernel of the same
// name does so, in lines.
#include <algorithm>
#include <vector>

#include "base/text.hpp"
#include "plait/error.hpp"
#include "planner/courier.hpp"
#include "planner/stripes.hpp"
#include "planner/transfer.hpp"

namespace plait {
namespace {

std::size_t index(int i) { return static_cast<std::size_t>(i); }

class TwoShot {
 public:
  TwoShot(Builder& builder, bool push)
      : b_(builder),
        n_(builder.ranks()),
        push_(push),
        shards_(partition(whole_range(builder.request()), n_, builder.granule())) {}

  void write() {
    alloc();
    std::vector<std::vector<Event>> arrived(index(n_));
    for (int step = 1; step < n_; ++step)
      for (int rank = 0; rank < n_; ++rank) {
        const int owner = (rank + step) % n_;
        push(rank, slice(inbox_[index(owner)][index(rank)], {0, shard(owner).bytes}),
             b_.input(rank, shard(owner)));
        // Raised for an empty shard too: nobody may end before everybody has begun.
        arrived[index(owner)].push_back(b_.signal(lane(rank), owner));
      }
    for (int owner = 0; owner < n_; ++owner) {
      for (const Event& event : arrived[index(owner)]) b_.wait(lane(owner), event);
      reduce(owner);
    }
    if (push_)
      push_results();
    else
      pull_results();
  }

 private:
  int lane(int rank) { return b_.lane(rank, LaneKind::kernel, "two_shot"); }
  Range shard(int owner) const { return shards_[index(owner)]; }

  void alloc() {
    const std::uint64_t bytes = shards_[0].bytes;  // the largest
    inbox_.resize(index(n_));
    results_.resize(index(n_));
    for (int owner = 0; owner < n_; ++owner) {
      for (int rank = 0; rank < n_; ++rank)
        inbox_[index(owner)].push_back(rank == owner ? Region{}
                                                     : b_.alloc(Space::inbox, owner, bytes));
      for (int rank = 0; rank < n_ && push_; ++rank)
        results_[index(owner)].push_back(rank == owner ? Region{}
                                                       : b_.alloc(Space::inbox, owner, bytes));
      if (!push_) results_[index(owner)].push_back(b_.alloc(Space::scratch, owner, bytes));
    }
  }

  void push(int rank, const Region& dst, const Region& src) {
    b_.copy(lane(rank), dst, src, direct_path(b_.topology(), b_.device(rank), b_.device(dst.rank)),
            0);
  }

  void reduce(int owner) {
    std::vector<Region> srcs;
    for (int rank = 0; rank < n_; ++rank)
      srcs.push_back(rank == owner
                         ? b_.input(owner, shard(owner))
                         : slice(inbox_[index(owner)][index(rank)], {0, shard(owner).bytes}));
    const Region out = b_.output(owner, shard(owner));
    b_.reduce(lane(owner), push_ ? out : slice(results_[index(owner)][0], {0, out.bytes}), srcs,
              true);
  }

  void push_results() {
    std::vector<std::vector<Event>> ready(index(n_), std::vector<Event>(index(n_)));
    for (int step = 1; step < n_; ++step)
      for (int owner = 0; owner < n_; ++owner) {
        if (shard(owner).bytes == 0) continue;
        const int rank = (owner + step) % n_;
        push(owner, slice(results_[index(rank)][index(owner)], {0, shard(owner).bytes}),
             b_.output(owner, shard(owner)));
        ready[index(rank)][index(owner)] = b_.signal(lane(owner), rank);
      }
    for (int rank = 0; rank < n_; ++rank)
      for (int step = 1; step < n_; ++step) {
        const int owner = (rank + n_ - step) % n_;
        if (shard(owner).bytes == 0) continue;
        b_.wait(lane(rank), ready[index(rank)][index(owner)]);
        b_.copy(lane(rank), b_.output(rank, shard(owner)),
                slice(results_[index(rank)][index(owner)], {0, shard(owner).bytes}));
      }
  }

  void pull_results() {
    std::vector<std::vector<Event>> ready(index(n_), std::vector<Event>(index(n_)));
    std::vector<std::vector<Event>> read(index(n_));
    for (int owner = 0; owner < n_; ++owner) {
      const Range range = shard(owner);
      if (range.bytes == 0) continue;
      for (int step = 1; step < n_; ++step) {
        const int rank = (owner + step) % n_;
        ready[index(rank)][index(owner)] = b_.signal(lane(owner), rank);
      }
      b_.copy(lane(owner), b_.output(owner, range),
              slice(results_[index(owner)][0], {0, range.bytes}));
    }
    for (int step = 1; step < n_; ++step)
      for (int rank = 0; rank < n_; ++rank) {
        const int owner = (rank + n_ - step) % n_;
        const Range range = shard(owner);
        if (range.bytes == 0) continue;
        b_.wait(lane(rank), ready[index(rank)][index(owner)]);
        b_.copy(lane(rank), b_.output(rank, range),
                slice(results_[index(owner)][0], {0, range.bytes}),
                direct_path(b_.topology(), b_.device(owner), b_.device(rank)), 0);
        read[index(owner)].push_back(b_.signal(lane(rank), owner));
      }
    for (int owner = 0; owner < n_; ++owner)
      for (const Event& event : read[index(owner)]) b_.wait(lane(owner), event);
  }

  Builder& b_;
  int n_;
  bool push_;
  std::vector<Range> shards_;
  std::vector<std::vector<Region>> inbox_;    // [owner][sender]
  std::vector<std::vector<Region>> results_;  // push: [rank][owner] in the inbox; pull: [owner][0]
};

std::vector<Params> candidates(const Topology&, const Request&) {
  return {{{"push", 1}}, {{"push", 0}}};
}

Plan build(const Topology& topology, const Request& request, const Params& params) {
  Builder builder(topology, request, "two_shot");
  const bool is_pushed = param_in(params, "push", 1, 0, 1) == 1;
  builder.param("push", is_pushed ? 1 : 0);
  const Range whole = whole_range(request);
  if (whole.bytes == 0) return builder.build();
  if (request.ranks == 1) {
    alone(builder);
    return builder.build();
  }
  const std::uint64_t shard =
      (partition(whole, request.ranks, builder.granule())[0].bytes + 127) / 128 * 128;
  const std::uint64_t slots = index(request.ranks - 1) * (is_pushed ? 2 : 1);
  if (shard > inbox_limit(topology) / slots || shard > scratch_limit(topology))
    throw Error(ErrorCode::unsupported,
                text("wanted an inbox of ", slots, " times ", shard, " bytes a rank, found ",
                     inbox_limit(topology), " (parameter inbox_bytes)"));
  builder.kernel("two_shot");
  TwoShot(builder, is_pushed).write();
  return builder.build();
}

}  // namespace

const Strategy& two_shot_strategy() {
  static const Strategy strategy{{"two_shot",
                                  "shards to their owners, reduced, results to all, in one pass",
                                  "practice (two-shot all-reduce kernels)",
                                  {Collective::all_reduce}},
                                 candidates,
                                 build};
  return strategy;
}

}  // namespace plait
