// fold: an all-reduce in two groups that keeps rank order. The lower half of the ranks
// reduce-scatters. Owner i of the lower half sends its partial sum to owner i of the upper half,
// and the upper owner continues the sum with the parts of the upper half. The result returns to the
// lower owner, and both halves gather. A fold moves as many bytes as a direct exchange with half as
// many peers, and the cut between the halves carries the message once in each direction. Source:
// folds of hierarchical MPI collectives; in MPI the upper owner adds two sums instead.
#include <algorithm>

#include "base/text.hpp"
#include "plait/courier.hpp"
#include "plait/error.hpp"

namespace plait {
namespace {

class Fold {
 public:
  Fold(Builder& builder, Courier& courier, Range chunk)
      : builder_(builder),
        courier_(courier),
        half_(builder.ranks() / 2),
        turn_(chunk.offset / chunk.bytes),
        shards_(partition(chunk, half_, builder.granule())) {}

  static constexpr std::size_t kSteps = 5;
  /// Each step needs the data of the previous step.
  void write(std::size_t step) {
    if (step == 0) scatter(0);
    if (step == 1) scatter(half_);
    for (int i = 0; i < half_; ++i) {
      if (step == 1) sum_lower(i);
      if (step == 2) sum_upper(i);
      if (step == 3) take(i, half_ + i, i);
    }
    if (step == 2) send_results(half_);
    if (step == 3) send_results(0);
    if (step >= 3) gather(step == 3 ? half_ : 0);
  }

 private:
  Range shard(int i) const { return shards_[static_cast<std::size_t>(i)]; }

  /// Concurrent chunks start with different peers, because peers may have separate links.
  int step(int nth) const {
    return 1 + static_cast<int>((static_cast<std::uint64_t>(nth) + turn_) %
                                static_cast<std::uint64_t>(half_ - 1));
  }
  /// Ranks send parts to the owners of their half.
  void scatter(int first) {
    for (int nth = 1; nth < half_; ++nth)
      for (int i = 0; i < half_; ++i) {
        const int owner = (i + step(nth)) % half_;
        courier_.send(first + i, first + owner, {builder_.input(first + i, shard(owner))});
      }
  }
  /// Returns the parts of owner i's half in rank order, with the owner's part.
  std::vector<Region> parts(int first, int i, std::vector<Message>& came) {
    std::vector<Region> srcs;
    for (int j = 0; j < half_; ++j) {
      if (j != i) came.push_back(courier_.receive(first + i, first + j, shard(i).bytes));
      srcs.push_back(j == i ? builder_.input(first + i, shard(i)) : came.back().region);
    }
    return srcs;
  }
  void sum_lower(int i) {
    if (shard(i).bytes == 0) return;
    std::vector<Message> came;
    const std::vector<Region> srcs = parts(0, i, came);
    const Region sum = came.empty() ? srcs.front() : came.front().region;
    if (!came.empty()) courier_.reduce(i, sum, srcs, false);
    courier_.send(i, half_ + i, {sum});
    for (const Message& message : came) courier_.release(message);
  }
  void sum_upper(int i) {
    if (shard(i).bytes == 0) return;
    std::vector<Message> came;
    std::vector<Region> srcs = parts(half_, i, came);
    came.push_back(courier_.receive(half_ + i, i, shard(i).bytes));
    srcs.insert(srcs.begin(), came.back().region);
    courier_.reduce(half_ + i, builder_.output(half_ + i, shard(i)), srcs, true);
    for (const Message& message : came) courier_.release(message);
    courier_.send(half_ + i, i, {builder_.output(half_ + i, shard(i))});
  }
  void take(int rank, int from, int owner) {
    const Message message = courier_.receive(rank, from, shard(owner).bytes);
    courier_.copy(rank, builder_.output(rank, shard(owner)), message.region);
    courier_.release(message);
  }
  void send_results(int first) {
    for (int nth = 1; nth < half_; ++nth)
      for (int i = 0; i < half_; ++i)
        courier_.send(first + i, first + (i + step(nth)) % half_,
                      {builder_.output(first + i, shard(i))});
  }
  void gather(int first) {
    for (int nth = 1; nth < half_; ++nth)
      for (int i = 0; i < half_; ++i) take(first + (i + step(nth)) % half_, first + i, i);
  }

  Builder& builder_;
  Courier& courier_;
  const int half_;
  const std::uint64_t turn_;
  std::vector<Range> shards_;
};

int default_chunks(const Request& request) {
  const std::uint64_t bytes = message_bytes(request);
  return bytes <= 256ULL << 10 ? 1 : bytes <= 4ULL << 20 ? 4 : 16;
}

std::vector<Params> candidates(const Topology& topology, const Request& request) {
  const std::vector<int> devices = rank_devices(topology);
  const bool is_cpu =
      !devices.empty() &&
      topology.devices[static_cast<std::size_t>(devices[0])].kind == DeviceKind::cpu;
  if (is_cpu) return {{{"chunks", 1}}};  // small chunks were not measured on CPUs
  const int chunks = default_chunks(request);
  std::vector<Params> out{{{"chunks", chunks}}};
  // With more lanes chunks are smaller, in the same scratch. Large messages would have too many to
  // prove.
  if (chunks == 1 || message_bytes(request) > 512ULL << 20) return out;
  out.push_back({{"chunks", chunks}, {"lanes", 8}});
  const bool is_short = 4 * chunks * request.ranks * request.ranks <= 4096;
  if (chunks > 4 && is_short) out.push_back({{"chunks", 4 * chunks}, {"lanes", 8}});
  return out;
}

void write(Builder& builder, const Params& params) {
  const Request& request = builder.request();
  CourierCut cut = cut_from(builder, params, "chunks", default_chunks(request), 4);
  if (request.ranks == 1) return alone(builder);
  if (request.ranks % 2 != 0)
    throw Error(ErrorCode::unsupported,
                text("needs an even number of ranks, found {}", request.ranks));
  if (is_widened(request.type) && request.ranks > 2)
    throw Error(ErrorCode::unsupported,
                text("sends sums so far from half to half, and those of {} are wider than the type",
                     name_of(request.type)));
  cut.lane_name = "fold";
  cut.slots = 3;
  cut.scratch_per_byte = 3.0;
  // A step of a chunk runs next to the previous step of the next chunk, so that links carry all
  // steps at once.
  in_lanes(builder, cut, [&](Courier& courier, const std::vector<Range>& chunks) {
    std::vector<Fold> folds;
    for (const Range& chunk : chunks) folds.emplace_back(builder, courier, chunk);
    for (std::size_t turn = 0; turn < folds.size() + Fold::kSteps - 1; ++turn)
      for (std::size_t step = 0; step < Fold::kSteps; ++step)
        if (turn - step < folds.size()) folds[turn - step].write(step);
  });
}

}  // namespace

const Strategy& fold_strategy() {
  static const Strategy strategy{
      {"fold",
       "two halves reduce-scatter, the upper continues the lower's sums, both gather",
       "folds of hierarchical collectives, in rank order",
       {Collective::all_reduce}},
      candidates,
      write,
      {"chunks", "lanes"}};
  return strategy;
}

}  // namespace plait
