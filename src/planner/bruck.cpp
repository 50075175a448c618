// bruck: all-gather and all-to-all in ceil(log2 n) rounds for any number of ranks. In round k of an
// all-to-all every rank sends all blocks with bit k in the distance to the rank 2^k after it. In
// round k of an all-gather every rank sends its first blocks, at most 2^k, to the rank 2^k before
// it. Blocks lie in scratch in order of distance, and are copied to the output in rank order.
// Source: Bruck, Ho, Kipnis, Upfal, Weathersby, "Efficient Algorithms for All-to-All Communications
// in Multiport Message-Passing Systems" (1997).
#include <algorithm>
#include <bit>

#include "plait/courier.hpp"
#include "plait/error.hpp"

namespace plait {
namespace {

class BruckRounds {
 public:
  BruckRounds(Builder& builder, Courier& courier, Range chunk)
      : builder_(builder),
        courier_(courier),
        chunk_(chunk),
        n_(builder.ranks()),
        held_(static_cast<std::size_t>(n_)) {}

  // held_[r][j]: the block of rank r + j.
  void all_gather() {
    for (int rank = 0; rank < n_; ++rank) at(rank).push_back(builder_.input(rank, chunk_));
    for (int step = 1; step < n_; step *= 2) {
      const int blocks = std::min(step, n_ - step);
      std::vector<int> sent;
      for (int j = 0; j < blocks; ++j) sent.push_back(j);
      for (int rank = 0; rank < n_; ++rank) send(rank, turned(rank, -step), sent);
      for (int rank = 0; rank < n_; ++rank)
        for (const Region& block : receive(rank, turned(rank, step), blocks))
          at(rank).push_back(block);
    }
    for (int rank = 0; rank < n_; ++rank)
      for (int j = 0; j < n_; ++j) put(rank, turned(rank, j), at(rank)[index(j)]);
    release();
  }

  // held_[r][j]: a block on rank r with distance j. Each round moves the blocks with the round's
  // bit in j; after the last round, this is the block from rank r - j.
  void all_to_all() {
    for (int rank = 0; rank < n_; ++rank)
      for (int j = 0; j < n_; ++j)
        at(rank).push_back(
            builder_.input(rank, in_block(builder_.request(), turned(rank, j), chunk_)));
    for (int step = 1; step < n_; step *= 2) {
      std::vector<int> sent;
      for (int j = 0; j < n_; ++j)
        if ((j & step) != 0) sent.push_back(j);
      for (int rank = 0; rank < n_; ++rank) send(rank, turned(rank, step), sent);
      for (int rank = 0; rank < n_; ++rank) {
        const std::vector<Region> blocks =
            receive(rank, turned(rank, -step), static_cast<int>(sent.size()));
        for (std::size_t i = 0; i < sent.size(); ++i) at(rank)[index(sent[i])] = blocks[i];
      }
    }
    for (int rank = 0; rank < n_; ++rank)
      for (int j = 0; j < n_; ++j) put(rank, turned(rank, -j), at(rank)[index(j)]);
    release();
  }

 private:
  static std::size_t index(int j) { return static_cast<std::size_t>(j); }
  std::vector<Region>& at(int rank) { return held_[static_cast<std::size_t>(rank)]; }
  int turned(int rank, int by) const { return ((rank + by) % n_ + n_) % n_; }

  void send(int from, int to, const std::vector<int>& blocks) {
    std::vector<Region> regions;
    for (const int j : blocks) {
      const Region& next = at(from)[index(j)];
      Region* last = regions.empty() ? nullptr : &regions.back();
      // Adjacent blocks are a single copy.
      if (last != nullptr && last->space == next.space && last->offset + last->bytes == next.offset)
        last->bytes += next.bytes;
      else
        regions.push_back(next);
    }
    courier_.send(from, to, regions);
  }

  std::vector<Region> receive(int to, int from, int blocks) {
    const Message message =
        courier_.receive(to, from, static_cast<std::uint64_t>(blocks) * chunk_.bytes);
    unreleased_.push_back(message);
    std::vector<Region> regions;
    for (int i = 0; i < blocks; ++i)
      regions.push_back(
          slice(message.region, {static_cast<std::uint64_t>(i) * chunk_.bytes, chunk_.bytes}));
    return regions;
  }

  void put(int rank, int block, const Region& src) {
    courier_.copy(rank, builder_.output(rank, in_block(builder_.request(), block, chunk_)), src);
  }

  void release() {
    for (const Message& message : unreleased_) courier_.release(message);
  }

  Builder& builder_;
  Courier& courier_;
  Range chunk_;
  int n_;
  std::vector<std::vector<Region>> held_;
  std::vector<Message> unreleased_;
};

int default_chunks(const Request& request) { return message_bytes(request) <= 1ULL << 20 ? 1 : 2; }

std::vector<Params> candidates(const Topology&, const Request& request) {
  const int chunks = default_chunks(request);
  std::vector<Params> out{{{"chunks", chunks}}};
  if (chunks > 1) out.push_back({{"chunks", 1}});
  return out;
}

void write(Builder& builder, const Params& params) {
  const Request& request = builder.request();
  CourierCut cut = cut_from(builder, params, "chunks", default_chunks(request), 2);
  if (request.ranks == 1) return alone(builder);
  const bool gathers = request.collective == Collective::all_gather;
  const double rounds = std::bit_width(static_cast<unsigned>(request.ranks - 1));
  cut.lane_name = "bruck";
  cut.scratch_per_byte = gathers ? request.ranks : rounds * (request.ranks + 1) / 2;
  in_chunks(builder, cut, [&](Courier& courier, Range chunk) {
    BruckRounds rounds_of_chunk(builder, courier, chunk);
    gathers ? rounds_of_chunk.all_gather() : rounds_of_chunk.all_to_all();
  });
}

}  // namespace

const Strategy& bruck_strategy() {
  static const Strategy strategy{
      {"bruck",
       "round k moves all blocks with bit k in their distance to the rank 2^k away",
       "Bruck et al. 1997",
       {Collective::all_gather, Collective::all_to_all}},
      candidates,
      write,
      {"chunks", "lanes"}};
  return strategy;
}

}  // namespace plait
