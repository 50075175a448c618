// phases: every rank exchanges with a single partner at a time, all pairs at once. Phase k pairs
// rank r with r xor k (a round-robin tournament if the number of ranks is no power of two). A rank
// continues when the partner has arrived: drift never makes two ranks meet at a third. In an
// all_reduce the parts of a slab are reduced during the exchange of the next slab's parts. Source:
// pairwise exchange of MPI libraries (Thakur 2005).
#include <algorithm>

#include "plait/courier.hpp"
#include "plait/error.hpp"

namespace plait {
namespace {

/// Returns a rank's partner in phase 1, 2, ...; with an odd number of ranks, the rank itself if it
/// has none.
int partner(int rank, int phase, int ranks) {
  if ((ranks & (ranks - 1)) == 0) return rank ^ phase;
  const int circle = ranks % 2 == 0 ? ranks - 1 : ranks;
  const auto facing = [&](int one) { return (2 * circle - one - phase) % circle; };
  if (rank == circle) {  // the last of an even number meets the rank that faces itself
    for (int one = 0; one < circle; ++one)
      if (facing(one) == one) return one;
  }
  const int other = facing(rank);
  return other != rank ? other : circle < ranks ? circle : rank;
}
int phases(int ranks) { return ranks % 2 == 0 ? ranks - 1 : ranks; }

class Phases {
 public:
  Phases(Builder& builder, Courier& courier, std::vector<Range> ins, std::vector<Range> outs)
      : builder_(builder),
        courier_(courier),
        n_(builder.ranks()),
        ins_(std::move(ins)),
        outs_(std::move(outs)) {}

  /// Sends parts to the owners.
  void scatter() {
    came_ = exchange([&](int from, int to) { return builder_.input(from, in(to)); });
  }
  /// Owners reduce the parts, alongside the next exchange.
  void reduce(const std::vector<Range>& results) {
    courier_.on("work");
    for (int rank = 0; rank < n_; ++rank) {
      const Range mine = in(rank);
      if (mine.bytes == 0) continue;
      courier_.follow(rank, "work", "");
      std::vector<Region> srcs;
      for (int from = 0; from < n_; ++from)
        srcs.push_back(from == rank ? builder_.input(rank, mine)
                                    : came_[at(rank)][at(from)].region);
      courier_.reduce(rank, builder_.output(rank, results[at(rank)]), srcs, true);
      for (const Message& message : came_[at(rank)]) courier_.release(message);
    }
    courier_.on("");
  }
  /// Orders later sends after the reductions so far.
  void await_results() {
    for (int rank = 0; rank < n_; ++rank) courier_.follow(rank, "", "work");
  }
  /// Sends results to all ranks.
  void gather() {
    move([&](int from, int) { return builder_.output(from, out(from)); });
  }
  /// Sends each peer its block, and copies received blocks to the output.
  void move(const std::function<Region(int from, int to)>& source) {
    const std::vector<std::vector<Message>> came = exchange(source);
    courier_.on("work");
    for (int rank = 0; rank < n_; ++rank) {
      courier_.follow(rank, "work", "");
      for (int from = 0; from < n_; ++from) {
        const Message& message = came[at(rank)][at(from)];
        if (from == rank || message.channel < 0) continue;
        courier_.copy(rank, builder_.output(rank, out(from)), message.region);
        courier_.release(message);
      }
    }
    courier_.on("");
  }

 private:
  static std::size_t at(int i) { return static_cast<std::size_t>(i); }
  Range in(int rank) const { return ins_[at(rank)]; }
  Range out(int rank) const { return outs_[at(rank)]; }

  /// Returns received messages as [receiver][sender].
  std::vector<std::vector<Message>> exchange(
      const std::function<Region(int from, int to)>& source) {
    std::vector<std::vector<Message>> came(at(n_), std::vector<Message>(at(n_)));
    for (int phase = 1; phase <= phases(n_); ++phase) {
      for (int rank = 0; rank < n_; ++rank)
        if (const int other = partner(rank, phase, n_); other != rank)
          courier_.send(rank, other, {source(rank, other)});
      for (int rank = 0; rank < n_; ++rank)
        if (const int other = partner(rank, phase, n_); other != rank)
          came[at(rank)][at(other)] = courier_.receive(rank, other, source(other, rank).bytes);
    }
    return came;
  }

  Builder& builder_;
  Courier& courier_;
  const int n_;
  std::vector<std::vector<Message>> came_;
  std::vector<Range> ins_, outs_;  // by rank: part of all inputs, result in all outputs
};

std::vector<Range> in_blocks(const Builder& builder, Range chunk) {
  std::vector<Range> out;
  for (int rank = 0; rank < builder.ranks(); ++rank)
    out.push_back(in_block(builder.request(), rank, chunk));
  return out;
}

/// While a slab's parts are reduced, the results of the previous slab and the parts of the next are
/// in flight.
void write_all_reduce(Builder& builder, const CourierCut& cut) {
  in_lanes(builder, cut, [&](Courier& courier, const std::vector<Range>& slabs) {
    std::vector<std::vector<Range>> shards;
    std::vector<Phases> phases;
    for (const Range& slab : slabs) {
      shards.push_back(partition(slab, builder.ranks(), builder.granule()));
      phases.emplace_back(builder, courier, shards.back(), shards.back());
    }
    for (std::size_t slab = 0; slab <= slabs.size(); ++slab) {
      if (slab < slabs.size()) phases[slab].scatter();
      if (slab > 0) phases[slab - 1].await_results();
      if (slab < slabs.size()) phases[slab].reduce(shards[slab]);
      if (slab > 0) phases[slab - 1].gather();
    }
  });
}

void write_moves_of(Builder& builder, const CourierCut& cut) {
  const int n = builder.ranks();
  const bool gathers = builder.request().collective == Collective::all_gather;
  in_chunks(builder, cut, [&](Courier& courier, Range chunk) {
    const std::vector<Range> blocks = in_blocks(builder, chunk);
    const auto source = [&](int from, int to) {
      return builder.input(from, gathers ? chunk : blocks[static_cast<std::size_t>(to)]);
    };
    Phases(builder, courier, blocks, blocks).move(source);
    for (int rank = 0; rank < n; ++rank)
      courier.copy(rank, builder.output(rank, blocks[static_cast<std::size_t>(rank)]),
                   source(rank, rank));
  });
}

/// Plans stay below about 20,000 ops.
int most_slabs(const Request& request) {
  return std::max(1, 2048 / (request.ranks * request.ranks));
}
int default_slabs(const Request& request) {
  const std::uint64_t slabs = message_bytes(request) >> 27;
  return static_cast<int>(std::clamp<std::uint64_t>(slabs, 1, 16));
}

std::vector<Params> candidates(const Topology&, const Request& request) {
  const int slabs = std::min(default_slabs(request), most_slabs(request));
  std::vector<Params> out{{{"slabs", slabs}}};
  if (message_bytes(request) <= 4 << 20) return out;
  for (const int more : {2 * slabs, 8 * slabs})
    if (more <= most_slabs(request)) out.push_back({{"slabs", more}});
  return out;
}

void write(Builder& builder, const Params& params) {
  const Request& request = builder.request();
  CourierCut cut;
  cut.chunks = param_in(params, "slabs", default_slabs(request), 1, 4096);
  builder.param("slabs", cut.chunks);
  if (request.ranks == 1) return alone(builder);
  cut.lane_name = "phases";
  cut.slots = 2;
  const bool in_parts = request.collective == Collective::all_reduce;
  cut.scratch_per_byte = in_parts ? 2.0 : 2.0 * request.ranks;
  if (in_parts) return write_all_reduce(builder, cut);
  if (!reduces(request.collective)) return write_moves_of(builder, cut);
  in_chunks(builder, cut, [&](Courier& courier, Range chunk) {
    const std::vector<Range> blocks = in_blocks(builder, chunk);
    Phases phases(builder, courier, blocks, blocks);
    phases.scatter();
    phases.reduce(std::vector<Range>(static_cast<std::size_t>(builder.ranks()), chunk));
  });
}

}  // namespace

const Strategy& phases_strategy() {
  static const Strategy strategy{
      {"phases",
       "one partner at a time, all pairs at once (rank xor k); reductions overlap",
       "pairwise exchange of MPI libraries",
       {Collective::all_reduce, Collective::reduce_scatter, Collective::all_gather,
        Collective::all_to_all}},
      candidates,
      write,
      {"slabs"}};
  return strategy;
}

}  // namespace plait
