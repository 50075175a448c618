// Writes reductions by CPU cores: every rank copies its part to its host ring, a CPU lane of the
// shard's owner reduces the rings in rank order into the owner's ring, and readers copy the result
// from that ring. Chunks pass through a few ring slots: the rings stay in the last-level cache.
// Source: collaborative all-reduce on GPUs and CPUs (two GPUs, pipelined chunks).
#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "planner/exchange.hpp"
#include "planner/transfer.hpp"

namespace plait {
namespace {

constexpr std::uint64_t kSlots = 3;  // one being filled, one being reduced, one being copied out
constexpr std::uint64_t kMostChunkBytes = 1 << 20;
constexpr std::uint64_t kMostChunks = 1024;  // for all shards together

struct PieceSlot {
  Region region;
  std::vector<Event> emptied;
};

class HostReductionWriter {
 public:
  HostReductionWriter(Builder& builder, const ExchangeOptions& exchange)
      : b_(builder), x_(exchange), n_(builder.ranks()), c_(builder.request().collective) {}

  void write() {
    if (x_.range.bytes == 0) return;
    const std::vector<Range> shards = shards_of(b_, x_.range);
    make_slots(largest(shards));
    const std::uint64_t chunks = (largest(shards) + chunk_bytes_ - 1) / chunk_bytes_;
    std::vector<std::vector<Range>> cut;
    for (const Range& shard : shards)
      cut.push_back(partition(shard, static_cast<int>(chunks), b_.granule()));
    for (std::size_t chunk = 0; chunk < chunks; ++chunk)
      for (int owner = 0; owner < n_; ++owner)
        if (cut[index(owner)][chunk].bytes != 0) reduce(owner, cut[index(owner)][chunk]);
    for (int rank = 0; rank < n_; ++rank) {
      for (const PieceSlot& slot : in_[index(rank)]) await(lane_out(rank), slot);
      for (const PieceSlot& slot : results_[index(rank)]) await(lane_cpu(rank), slot);
    }
  }

 private:
  static std::size_t index(int i) { return static_cast<std::size_t>(i); }
  int lane_out(int rank) { return b_.lane(rank, LaneKind::copy_engine, x_.name + "d2h"); }
  int lane_in(int rank) { return b_.lane(rank, LaneKind::copy_engine, x_.name + "h2d"); }
  int lane_cpu(int rank) { return b_.lane(rank, LaneKind::cpu, x_.name + "cpu"); }
  const Path& path(int from, int to) {
    Path& path = path_of_[{from, to}];
    if (path.links.empty()) path = x_.path(from, to);
    return path;
  }
  void await(int lane, const PieceSlot& slot) {
    for (const Event& event : slot.emptied) b_.wait(lane, event);
  }

  // Two thirds of a ring hold input chunks (of all ranks, awaited together), the last third holds
  // results.
  void make_slots(std::uint64_t shard_bytes) {
    const std::uint64_t granule = b_.granule();
    const std::uint64_t most = std::max(shard_bytes / kMostChunks * index(n_), kMostChunkBytes);
    const std::uint64_t fitting = x_.ring_bytes / (2 * kSlots) / granule * granule;
    const std::uint64_t wanted = (std::min(shard_bytes, most) + granule - 1) / granule * granule;
    chunk_bytes_ = std::max(std::min(wanted, fitting), granule);
    in_.resize(index(n_));
    results_.resize(index(n_));
    next_in_.resize(index(n_));
    next_result_.resize(index(n_));
    for (int rank = 0; rank < n_; ++rank)
      for (std::uint64_t slot = 0; slot < kSlots; ++slot) {
        in_[index(rank)].push_back({b_.alloc(Space::ring, rank, chunk_bytes_), {}});
        results_[index(rank)].push_back({b_.alloc(Space::ring, rank, chunk_bytes_), {}});
      }
  }

  bool wants(int rank, int owner) const {
    if (c_ == Collective::reduce) return rank == b_.request().root;
    return c_ == Collective::all_reduce || rank == owner;
  }

  void reduce(int owner, Range piece) {
    const Range source =
        c_ == Collective::reduce_scatter ? in_block(b_.request(), owner, piece) : piece;
    std::vector<Region> srcs;
    std::vector<PieceSlot*> used;
    const int cpu = lane_cpu(owner);
    for (int rank = 0; rank < n_; ++rank) {
      PieceSlot& slot = in_[index(rank)][next_in_[index(rank)]++ % kSlots];
      const int out = lane_out(rank);
      await(out, slot);
      const Region ring = slice(slot.region, {0, piece.bytes});
      const int to = rank == owner ? (rank + 1) % n_ : owner;
      b_.copy(out, ring, b_.input(rank, source), path(rank, to), 0);
      b_.wait(cpu, b_.signal(out, owner));
      srcs.push_back(ring);
      used.push_back(&slot);
    }
    PieceSlot& result = results_[index(owner)][next_result_[index(owner)]++ % kSlots];
    await(cpu, result);
    result.emptied.clear();
    b_.reduce(cpu, slice(result.region, {0, piece.bytes}), srcs, true);
    for (int rank = 0; rank < n_; ++rank) {
      const Event reduced =
          b_.signal(cpu, rank);  // the input slot is free, and the result is ready
      used[index(rank)]->emptied = {reduced};
      if (!wants(rank, owner)) continue;
      const int in = lane_in(rank);
      b_.wait(in, reduced);
      const int from = rank == owner ? (rank + 1) % n_ : owner;
      b_.copy(in, b_.output(rank, piece), slice(result.region, {0, piece.bytes}), path(from, rank),
              1);
      result.emptied.push_back(b_.signal(in, owner));
    }
  }

  Builder& b_;
  const ExchangeOptions& x_;
  int n_;
  Collective c_;
  std::uint64_t chunk_bytes_ = 0;
  std::map<std::pair<int, int>, Path> path_of_;  // cache
  std::vector<std::vector<PieceSlot>> in_, results_;
  std::vector<std::size_t> next_in_, next_result_;
};

}  // namespace

void write_host_reduction(Builder& builder, const ExchangeOptions& exchange) {
  HostReductionWriter(builder, exchange).write();
}

}  // namespace plait
