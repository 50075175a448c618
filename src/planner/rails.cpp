// Writes collectives inside groups and between nodes, by pieces and shards (see rails.hpp).
#include "planner/rails.hpp"

#include <algorithm>
#include <cmath>

#include "planner/transfer.hpp"

namespace plait {
namespace {

std::size_t at(int index) { return static_cast<std::size_t>(index); }

}  // namespace

Rails::Rails(Builder& builder, const Params& params, Groups groups)
    : builder_(builder), calls_(builder, params), groups_(std::move(groups)) {
  std::size_t least = groups_.front().size();
  for (const std::vector<int>& group : groups_) least = std::min(least, group.size());
  const int all = static_cast<int>(least);
  shards_ = param_in(params, "rails", all, 1, all);
  if (shards_ != all) builder.param("rails", shards_);
}

std::uint64_t Rails::element() const { return bytes_of(builder_.request().type); }
bool Rails::averages() const { return builder_.request().op == ReduceOp::avg; }

Region Rails::in(int rank, const Portion& piece, int shard) const {
  const auto skipped = static_cast<std::uint64_t>(std::max(shard, 0)) * piece.each;
  const std::uint64_t count = piece.each * static_cast<std::uint64_t>(shard < 0 ? piece.shards : 1);
  return builder_.input(rank, {(piece.begin + skipped) * element(), count * element()});
}

Region Rails::out(int rank, const Portion& piece, int shard) const {
  Region region = in(rank, piece, shard);
  region.space = Space::output;
  return region;
}

std::vector<Portion> Rails::pieces(const Params& params, std::uint64_t count, int shards,
                                   double times) {
  constexpr int kMostPieces = 256;
  const double bytes = times * static_cast<double>(message_bytes(builder_.request()));
  constexpr double kUsed = 0.98;  // the rest is padding of parts to granules
  const double room =
      std::max(kUsed * static_cast<double>(scratch_limit(builder_.topology())), 1.0);
  int wanted = param_in(params, "pieces", 1, 1, kMostPieces);
  builder_.param("pieces", wanted);
  wanted = std::max(wanted, static_cast<int>(std::min(std::ceil(bytes / room), 1e6)));
  const std::uint64_t granule = std::max<std::uint64_t>(builder_.granule() / element(), 1);
  const auto parts = static_cast<std::uint64_t>(shards);
  std::vector<Portion> made;
  std::uint64_t done = 0;
  for (int left = wanted; left > 0; --left) {
    std::uint64_t each = (count - done) / parts / static_cast<std::uint64_t>(left);
    if (left > 1) each = each / granule * granule;
    if (each == 0) continue;
    made.push_back({done, each, shards});
    done += each * parts;
  }
  if (done < count) made.push_back({done, count - done, 1});
  return made;
}

/// With a shard for each rank of a group, the data of the rest of the group; else the shards of
/// several ranks.
double Rails::times_of_sums() const {
  const bool is_whole = std::all_of(groups_.begin(), groups_.end(), [&](const auto& group) {
    return static_cast<int>(group.size()) == shards_;
  });
  return is_whole ? (shards_ - 1.0) / shards_ : 2.0;
}

void Rails::sum_in(const std::vector<int>& group, const Portion& piece, const Where& src,
                   const Where& dst, bool finish, const Where& before) {
  const int size = static_cast<int>(group.size());
  const bool whole = size == piece.shards;
  for (int root = 0; root < (whole ? 1 : piece.shards); ++root) {
    std::vector<Part> parts;
    for (int place = 0; place < size; ++place) {
      const int rank = group[at(place)];
      parts.push_back({rank, src(rank, whole ? -1 : root)});
      if (!whole && place != root) continue;
      parts.back().dst = dst(rank, place);
      if (before) parts.back().before = before(rank, place);
    }
    calls_.inside(whole ? Collective::reduce_scatter : Collective::reduce, piece.each, root, parts,
                  finish);
  }
}

void Rails::spread_in(const std::vector<int>& group, const Portion& piece, const Where& src,
                      const Where& dst) {
  const int size = static_cast<int>(group.size());
  const bool whole = size == piece.shards;
  for (int root = 0; root < (whole ? 1 : piece.shards); ++root) {
    std::vector<Part> parts;
    for (int place = 0; place < size; ++place) {
      const int rank = group[at(place)];
      parts.push_back({rank, {}, dst(rank, whole ? -1 : root)});
      if (whole || place == root) parts.back().src = src(rank, place);
    }
    calls_.inside(whole ? Collective::all_gather : Collective::broadcast, piece.each, root, parts);
  }
}

void Rails::deal_in(const std::vector<int>& group, int root, const Portion& piece, const Where& src,
                    const Where& dst, bool gathers) {
  const int size = static_cast<int>(group.size()), rank = group[at(root)];
  std::vector<Part> parts;
  if (size == piece.shards) {
    for (int place = 0; place < size; ++place) {
      const int other = group[at(place)];
      parts.push_back({other});
      if (gathers || place == root) parts.back().src = src(other, gathers ? place : -1);
      if (!gathers || place == root) parts.back().dst = dst(other, gathers ? -1 : place);
    }
    calls_.inside(gathers ? Collective::gather : Collective::scatter, piece.each, root, parts);
    return;
  }
  for (int place = 0; place < piece.shards; ++place) {
    const int carrier = group[at(place)];
    const Region from = gathers ? src(carrier, place) : src(rank, place);
    const Region to = gathers ? dst(rank, place) : dst(carrier, place);
    if (carrier == rank)
      calls_.inside(Collective::copy, piece.each, 0, {{rank, from, to}});
    else if (gathers)
      calls_.inside(Collective::copy, piece.each, 0, {{carrier, from}, {rank, {}, to}}, false, 1);
    else
      calls_.inside(Collective::copy, piece.each, 0, {{rank, from}, {carrier, {}, to}}, false, 1);
  }
}

int Rails::across_on(int rail, Collective collective, const Portion& piece, int root,
                     const Where& src, const Where& dst, bool finish, int peer) {
  Request request = builder_.request();
  request.collective = collective;
  request.count = piece.each;
  request.ranks = static_cast<int>(groups_.size());
  request.root = root;
  request.peer = peer;
  std::vector<Part> parts;
  for (int group = 0; group < request.ranks; ++group) {
    const int rank = groups_[at(group)][at(rail)];
    parts.push_back({rank});
    if (input_bytes(request, group) != 0) parts.back().src = src(rank, rail);
    if (output_bytes(request, group) != 0) parts.back().dst = dst(rank, rail);
  }
  return calls_.across(collective, piece.each, root, parts, finish, peer);
}

std::vector<int> Rails::across(Collective collective, const Portion& piece, int root,
                               const Where& src, const Where& dst, bool finish, int peer) {
  std::vector<int> made;
  for (int rail = 0; rail < piece.shards; ++rail)
    made.push_back(across_on(rail, collective, piece, root, src, dst, finish, peer));
  return made;
}

std::vector<int> Rails::across_pair(const Portion& piece, int from, int to, const Where& src,
                                    const Where& dst) {
  std::vector<int> made;
  for (int rail = 0; rail < piece.shards; ++rail)
    made.push_back(across_pair_on(rail, piece, from, to, src, dst));
  return made;
}

int Rails::across_pair_on(int rail, const Portion& piece, int from, int to, const Where& src,
                          const Where& dst) {
  const int sender = groups_[at(from)][at(rail)], receiver = groups_[at(to)][at(rail)];
  return calls_.across(Collective::copy, piece.each, 0,
                       {{sender, src(sender, rail)}, {receiver, {}, dst(receiver, rail)}}, false,
                       1);
}

void Rails::run(const std::vector<Portion>& pieces,
                const std::function<void(const Portion&, std::size_t)>& in,
                const std::function<std::vector<int>(const Portion&, std::size_t)>& across,
                const std::function<void(const Portion&, std::size_t)>& out) {
  std::vector<int> in_flight;
  const auto end = [&](std::size_t index) {
    for (const int call : in_flight) calls_.await(call);
    out(pieces[index], index);
  };
  for (std::size_t index = 0; index < pieces.size(); ++index) {
    in(pieces[index], index);
    std::vector<int> next = across(pieces[index], index);
    if (index > 0) end(index - 1);
    in_flight = std::move(next);
  }
  if (!pieces.empty()) end(pieces.size() - 1);
}

void Rails::stage(const std::vector<Portion>& pieces, int shards) {
  std::uint64_t most = 0;
  for (const Portion& piece : pieces) most = std::max(most, piece.each * element());
  most *= static_cast<std::uint64_t>(shards);
  for (std::vector<Region>& half : staging_)
    for (int rank = 0; rank < builder_.ranks(); ++rank)
      half.push_back(builder_.alloc(Space::scratch, rank, most));
}

Region Rails::staged(int rank, std::size_t piece, std::uint64_t bytes) const {
  return slice(staging_[piece % 2][at(rank)], {0, bytes});
}

void Rails::all_reduce(const Params& params, bool sums_in_output,
                       const std::function<void(const Portion&)>& before,
                       const std::function<void(const Portion&)>& after) {
  const auto pieces =
      this->pieces(params, builder_.request().count, shards_, sums_in_output ? 2 : times_of_sums());
  run(
      pieces,
      [&](const Portion& piece, std::size_t) {
        before(piece);
        const Where at_output = [&](int rank, int shard) { return out(rank, piece, shard); };
        const Where at_input = [&](int rank, int shard) { return in(rank, piece, shard); };
        for (const std::vector<int>& group : groups_)
          if (group.size() > 1 || !sums_in_output)
            sum_in(group, piece, sums_in_output ? at_output : at_input, at_output);
      },
      [&](const Portion& piece, std::size_t) {
        const Where shard = [&](int rank, int rail) { return out(rank, piece, rail); };
        return across(Collective::all_reduce, piece, 0, shard, shard, !averages());
      },
      [&](const Portion& piece, std::size_t) {
        const Where shard = [&](int rank, int place) { return out(rank, piece, place); };
        for (const std::vector<int>& group : groups_) {
          for (int rail = 0; averages() && rail < piece.shards; ++rail)
            divide(out(group[at(rail)], piece, rail));
          if (group.size() > 1) spread_in(group, piece, shard, shard);
        }
        after(piece);
      });
}

namespace {

constexpr int kMostParts = 256;  // pieces times ranks; more ops take a choice too long

// Filling and draining the pipeline takes the time of a piece, and each piece has a fixed cost; the
// sum is least if the number of pieces grows as the root of the bytes. The estimate does not model
// that MPI sends a small piece while receiving another. Measured on two hosts of two ranks, a link
// of 6 Gb/s (2026-11-25): 4 pieces at 1 MiB and 8 at 4 MiB are best, 32 at 64 MiB within 2 % of the
// best.
int pieces_on_cpus(std::uint64_t bytes, int ranks) {
  constexpr std::uint64_t kLeast = 1 << 20;  // least message that is worth cutting
  if (bytes < kLeast) return 1;
  const double most = std::clamp(kMostParts / ranks, 1, 64);
  return static_cast<int>(std::min(4 * std::sqrt(static_cast<double>(bytes) / kLeast), most));
}

}  // namespace

// A piece of an all_to_all has ops for each pair of nodes, so with many ranks there is a single
// piece, or the least number that fits scratch (see Blocks), or no plan.
std::vector<Params> piece_candidates(const Topology& topology, const Request& request) {
  constexpr int kManyRanks = 16;  // from here on several sets take a choice too long
  const std::uint64_t bytes = message_bytes(request);
  const bool on_cpus = topology.devices[at(request.devices.front())].kind == DeviceKind::cpu;
  std::vector<Params> sets{{{"pieces", on_cpus ? pieces_on_cpus(bytes, request.ranks) : 1}}};
  for (const int pieces : {4, 16})
    if (!on_cpus && bytes >> 20 >= static_cast<std::uint64_t>(pieces) &&
        pieces * request.ranks <= kMostParts)
      sets.push_back({{"pieces", pieces}});
  if (request.ranks <= kManyRanks) return sets;
  if (request.collective != Collective::all_to_all) return {sets.back()};
  if (bytes > scratch_limit(topology) / 4) return {};
  return {{{"pieces", 1}}};
}

}  // namespace plait
