// one_shot: everyone pushes its whole message (or the block meant for each) into everyone's inbox,
// and each takes what it needs from its own: one step, no entry barrier, lowest latency, n - 1
// times the bytes. Inboxes are kept twice, and every rank hears from every rank, so calls may
// follow at once. Source: low-latency practice (data and flag lines); on GPUs a kernel of the same
// name does so, in lines.
#include <vector>

#include "base/text.hpp"
#include "plait/error.hpp"
#include "planner/courier.hpp"
#include "planner/stripes.hpp"
#include "planner/transfer.hpp"

namespace plait {
namespace {

std::size_t index(int i) { return static_cast<std::size_t>(i); }

class OneShot {
 public:
  explicit OneShot(Builder& builder)
      : b_(builder),
        n_(builder.ranks()),
        c_(builder.request().collective),
        bytes_(whole_range(builder.request()).bytes) {}

  void write() {
    std::vector<std::vector<Region>> inbox(index(n_));  // [owner][sender]
    for (int owner = 0; owner < n_; ++owner)
      for (int rank = 0; rank < n_; ++rank)
        inbox[index(owner)].push_back(rank == owner ? Region{}
                                                    : b_.alloc(Space::inbox, owner, bytes_));
    std::vector<std::vector<Event>> arrived(index(n_));
    for (int step = 1; step < n_; ++step)
      for (int rank = 0; rank < n_; ++rank) {
        const int owner = (rank + step) % n_;
        b_.copy(lane(rank), inbox[index(owner)][index(rank)], b_.input(rank, sent(owner)),
                direct_path(b_.topology(), b_.device(rank), b_.device(owner)), 0);
        arrived[index(owner)].push_back(b_.signal(lane(rank), owner));
      }
    for (int owner = 0; owner < n_; ++owner) {
      for (const Event& event : arrived[index(owner)]) b_.wait(lane(owner), event);
      take(owner, inbox[index(owner)]);
    }
  }

 private:
  int lane(int rank) { return b_.lane(rank, LaneKind::kernel, "one_shot"); }
  Range block(int rank) const { return {index(rank) * bytes_, bytes_}; }
  // What of a rank's input goes to `owner`.
  Range sent(int owner) const {
    const bool is_per_owner = c_ == Collective::reduce_scatter || c_ == Collective::all_to_all;
    return is_per_owner ? block(owner) : Range{0, bytes_};
  }
  void take(int owner, const std::vector<Region>& inbox) {
    const Region own = b_.input(owner, sent(owner));
    std::vector<Region> srcs = inbox;
    srcs[index(owner)] = own;
    if (reduces(c_)) return b_.reduce(lane(owner), b_.output(owner, {0, bytes_}), srcs, true);
    for (int rank = 0; rank < n_; ++rank)
      b_.copy(lane(owner), b_.output(owner, block(rank)), srcs[index(rank)]);
  }

  Builder& b_;
  int n_;
  Collective c_;
  std::uint64_t bytes_;
};

std::vector<Params> candidates(const Topology&, const Request&) { return {{}}; }

Plan build(const Topology& topology, const Request& request, const Params&) {
  Builder builder(topology, request, "one_shot");
  const std::uint64_t bytes = whole_range(request).bytes;
  if (bytes == 0) return builder.build();
  if (request.ranks == 1) {
    alone(builder);
    return builder.build();
  }
  const std::uint64_t limit = inbox_limit(topology);
  const std::uint64_t slot = (bytes + 127) / 128 * 128;
  if (slot > limit / index(request.ranks - 1))
    throw Error(ErrorCode::unsupported,
                text("wanted an inbox of ", request.ranks - 1, " times ", slot,
                     " bytes a rank, found ", limit, " (parameter inbox_bytes)"));
  if (request.collective == Collective::all_reduce) builder.kernel("one_shot");
  OneShot(builder).write();
  return builder.build();
}

}  // namespace

const Strategy& one_shot_strategy() {
  static const Strategy strategy{
      {"one_shot",
       "everyone pushes all to everyone's inbox, each reduces in rank order",
       "low-latency practice",
       {Collective::all_reduce, Collective::reduce_scatter, Collective::all_gather,
        Collective::all_to_all}},
      candidates,
      build};
  return strategy;
}

}  // namespace plait
