// Writes collectives of blocks over several nodes, if all nodes have the same number of consecutive
// ranks; else write_by_library() does. Rail p joins place p of all nodes, so data for a remote node
// first moves to the destination's place, or spreads from that place after arrival. A piece is a
// part of each block.
#include <algorithm>

#include "planner/rails.hpp"

namespace plait {
namespace {

std::size_t at(int index) { return static_cast<std::size_t>(index); }

class Blocks {
 public:
  Blocks(Builder& builder, Rails& rails, const Params& params)
      : builder_(builder),
        rails_(rails),
        request_(builder.request()),
        nodes_(static_cast<int>(rails.groups().size())),
        places_(static_cast<int>(rails.groups().front().size())),
        element_(bytes_of(request_.type)),
        slots_(request_.collective == Collective::send_recv    ? 1
               : request_.collective == Collective::all_to_all ? 2 * nodes_ * places_
                                                               : nodes_),
        pieces_(rails.pieces(params, request_.count, 1, times())) {}

  void write() {
    rails_.stage(pieces_, slots_);
    rails_.run(
        pieces_, [&](const Portion& piece, std::size_t index) { in(piece, index); },
        [&](const Portion& piece, std::size_t index) { return across(piece, index); },
        [&](const Portion& piece, std::size_t index) { out(piece, index); });
  }

 private:
  /// Scratch in units of a message: blocks of two pieces in turn, and a message for each block that
  /// plans inside nodes move.
  double times() const {
    if (request_.count == 0) return 0;
    const auto blocks = static_cast<double>(2 * slots_ + (slots_ > 1 ? places_ : 1));
    return blocks * static_cast<double>(stride()) / static_cast<double>(message_bytes(request_));
  }
  std::uint64_t bytes(const Portion& piece) const { return piece.each * element_; }
  std::uint64_t stride() const { return request_.count * element_; }
  bool is_rooted() const {
    return request_.collective == Collective::gather || request_.collective == Collective::scatter;
  }
  int root_node() const { return is_rooted() ? request_.root / places_ : 0; }
  const std::vector<int>& group(int node) const { return rails_.groups()[at(node)]; }

  /// A piece's part of a block; blocks are a stride apart.
  Region block(Space space, int rank, int block, const Portion& piece) const {
    return {space, rank, static_cast<std::uint64_t>(block) * stride() + piece.begin * element_,
            bytes(piece)};
  }
  /// Block `slot` of a rank's staging.
  Region staged(int rank, std::size_t index, int slot, const Portion& piece) const {
    const std::uint64_t each = bytes(piece);
    Region all = rails_.staged(rank, index, each * static_cast<std::uint64_t>(slot + 1));
    return slice(all, {each * static_cast<std::uint64_t>(slot), each});
  }
  /// All blocks of a rank's staging as a single region.
  Region staged(int rank, std::size_t index, const Portion& piece, int slots) const {
    return rails_.staged(rank, index, bytes(piece) * static_cast<std::uint64_t>(slots));
  }

  void in(const Portion& piece, std::size_t index);
  std::vector<int> across(const Portion& piece, std::size_t index);
  void out(const Portion& piece, std::size_t index);
  Part across_part(int rank, int node, const Portion& piece, std::size_t index) const;
  void place_rows(int rank, const Portion& piece, std::size_t index);

  Builder& builder_;
  Rails& rails_;
  const Request& request_;
  int nodes_, places_;
  std::uint64_t element_;
  int slots_;  ///< blocks that a rank stages for a piece
  std::vector<Portion> pieces_;
};

// For each destination node: moves its blocks from all local ranks to the destinations' places.
void Blocks::in(const Portion& piece, std::size_t index) {
  const Collective what = request_.collective;
  if (what == Collective::all_gather || what == Collective::gather) return;
  for (int node = 0; node < nodes_; ++node)
    for (int target = 0; target < (what == Collective::send_recv ? 1 : nodes_); ++target) {
      if (what == Collective::scatter && node != root_node()) continue;
      std::vector<Part> parts;
      for (const int rank : group(node)) {
        Part part{rank, block(Space::input, rank, target * places_, piece),
                  staged(rank, index, target, piece), stride()};
        if (what == Collective::all_to_all) part.dst = staged(rank, index, target * places_, piece);
        if (what == Collective::scatter && rank != request_.root) part.src = {};
        if (what == Collective::send_recv) {
          part.src = block(Space::input, rank, 0, piece);
          if (rank != group(node).front()) part.dst = block(Space::output, rank, 0, piece);
        }
        parts.push_back(part);
      }
      const int root = what == Collective::scatter ? request_.root % places_ : 0;
      rails_.calls().inside(what, piece.each, root, parts);
    }
}

/// Returns the regions that a rank gives to its rail and gets back.
Part Blocks::across_part(int rank, int node, const Portion& piece, std::size_t index) const {
  const Region own_in = block(Space::input, rank, 0, piece);
  const Region own_out = block(Space::output, rank, 0, piece);
  const Region row = staged(rank, index, piece, std::min(nodes_, slots_));
  switch (request_.collective) {
    case Collective::reduce_scatter: return {rank, row, own_out};
    case Collective::all_gather: return {rank, own_in, row};
    case Collective::gather: return {rank, own_in, node == root_node() ? row : Region{}};
    case Collective::scatter: return {rank, node == root_node() ? row : Region{}, own_out};
    case Collective::send_recv: return {rank, staged(rank, index, 0, piece), own_out};
    default: break;
  }
  const Region rows = staged(rank, index, piece, nodes_ * places_ * 2);
  const std::uint64_t half = rows.bytes / 2;
  const bool is_whole = pieces_.size() == 1;
  return {rank, slice(rows, {0, half}),
          is_whole ? builder_.output(rank, {0, half}) : slice(rows, {half, half})};
}

/// Copies data received from all places to the blocks of the output.
void Blocks::place_rows(int rank, const Portion& piece, std::size_t index) {
  if (pieces_.size() == 1) return;
  for (int from = 0; from < request_.ranks; ++from)
    rails_.calls().copy(block(Space::output, rank, from, piece),
                        staged(rank, index, nodes_ * places_ + from, piece));
}

std::vector<int> Blocks::across(const Portion& piece, std::size_t index) {
  const bool all_to_all = request_.collective == Collective::all_to_all;
  const bool sums = reduces(request_.collective);
  const std::uint64_t each =
      all_to_all ? piece.each * static_cast<std::uint64_t>(places_) : piece.each;
  std::vector<int> made;
  for (int rail = 0; rail < (request_.collective == Collective::send_recv ? 1 : places_); ++rail) {
    std::vector<Part> parts;
    for (int node = 0; node < nodes_; ++node)
      parts.push_back(across_part(group(node)[at(rail)], node, piece, index));
    made.push_back(rails_.calls().across(request_.collective, each, root_node(), parts,
                                         sums && !rails_.averages()));
  }
  return made;
}

void Blocks::out(const Portion& piece, std::size_t index) {
  const Collective what = request_.collective;
  for (int node = 0; node < nodes_; ++node) {
    if (what == Collective::gather && node != root_node()) continue;
    for (const int rank : group(node)) {
      if (what == Collective::all_to_all) place_rows(rank, piece, index);
      if (what == Collective::reduce_scatter && rails_.averages())
        rails_.divide(block(Space::output, rank, 0, piece));
    }
    if (what != Collective::all_gather && what != Collective::gather) continue;
    for (int source = 0; source < nodes_; ++source) {
      std::vector<Part> parts;
      for (const int rank : group(node)) {
        Part part{rank, staged(rank, index, source, piece),
                  block(Space::output, rank, source * places_, piece), 0, stride()};
        if (what == Collective::gather && rank != request_.root) part.dst = {};
        parts.push_back(part);
      }
      rails_.calls().inside(what, piece.each,
                            what == Collective::gather ? request_.root % places_ : 0, parts);
    }
  }
}

}  // namespace

bool are_in_turn(const Groups& groups) {
  int next = 0;
  for (const std::vector<int>& group : groups)
    for (const int rank : group)
      if (rank != next++) return false;
  return true;
}

bool are_alike(const Groups& groups) {
  return are_in_turn(groups) && std::all_of(groups.begin(), groups.end(), [&](const auto& group) {
           return group.size() == groups.front().size();
         });
}

void write_blocks(Builder& builder, Rails& rails, const Params& params) {
  const bool has_places = builder.request().collective != Collective::send_recv;
  if (has_places ? !are_alike(rails.groups()) : !are_in_turn(rails.groups()))
    return write_by_library(builder, rails.calls());
  Blocks(builder, rails, params).write();
}

}  // namespace plait
