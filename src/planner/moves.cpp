// Writes collectives that only move blocks: each sender stages its block in scratch piece by piece,
// and receivers pull from the scratch to their outputs, peers in rotation. Each block takes a
// single local copy, and a late receiver delays no other rank's output. In place, a receiver pulls
// a piece only after staging the input that the piece overwrites.
#include <algorithm>
#include <map>
#include <vector>

#include "base/text.hpp"
#include "plait/error.hpp"
#include "plan/blocks.hpp"
#include "planner/exchange.hpp"
#include "planner/transfer.hpp"

namespace plait {
namespace {

std::size_t index(int i) { return static_cast<std::size_t>(i); }

// A rank's block, or a part of a block, and the places in peers' outputs.
struct PieceMove {
  int from = 0;
  Range src;
  std::vector<std::pair<int, Range>> to;
  std::vector<Region> stage;             // [slot]
  std::vector<std::vector<Event>> read;  // [slot]: events after which the slot may be filled again
  std::map<int, Event> staged;           // by rank, for the current piece
};

class MoveWriter {
 public:
  MoveWriter(Builder& builder, const ExchangeOptions& exchange)
      : b_(builder), x_(exchange), n_(builder.ranks()), c_(builder.request().collective) {}
  void write();

 private:
  int home(int rank) { return b_.lane(rank, LaneKind::copy_engine, x_.name + "stage"); }
  Range sent(int from, int to) const {
    return part_of(sent_block(b_.request(), from, to), x_.range);
  }
  Range received(int from, int to) const {
    return part_of(received_block(b_.request(), from, to), x_.range);
  }
  void list(int from, int to) {
    moves_.push_back({from, sent(from, to), {{to, received(from, to)}}, {}, {}, {}});
  }
  // In place, a rank's received blocks overwrite its input.
  bool overwrites_input() const {
    return c_ == Collective::all_to_all || c_ == Collective::send_recv;
  }
  void list_to_all();
  void list_rooted();
  std::vector<Range> cut_and_alloc();
  void stage(Mover& mover, Range range, std::size_t slot);
  void pull(Mover& mover, Range range, std::size_t slot);
  void copy_own_blocks();

  Builder& b_;
  const ExchangeOptions& x_;
  int n_;
  Collective c_;
  std::vector<PieceMove> moves_;
};

void MoveWriter::list_to_all() {
  for (int step = 1; step < n_; ++step)
    for (int from = 0; from < n_; ++from) {
      const int to = (from + step) % n_;
      if (c_ == Collective::all_to_all || (c_ == Collective::send_recv && step == 1))
        list(from, to);
      if (c_ == Collective::all_gather && step == 1) list(from, to);
      if (c_ == Collective::all_gather && step != 1)
        moves_[index(from)].to.push_back({to, received(from, to)});
    }
}

void MoveWriter::list_rooted() {
  const int root = b_.request().root, peer = b_.request().peer;
  if (c_ == Collective::copy && root != peer) list(root, peer);
  for (int step = 1; step < n_; ++step) {
    const int other = (root + step) % n_;
    if (c_ == Collective::gather) list(other, root);
    if (c_ == Collective::scatter) list(root, other);
  }
}

std::vector<Range> MoveWriter::cut_and_alloc() {
  std::vector<std::uint64_t> sends(index(n_), 0);
  for (const PieceMove& move : moves_) ++sends[index(move.from)];
  const std::uint64_t slots =
      static_cast<std::uint64_t>(x_.slots) * *std::max_element(sends.begin(), sends.end());
  const int pieces = pieces_fitting(x_.range.bytes * slots, x_.pieces, x_.scratch_bytes / 8 * 7,
                                    slots * 2 * b_.granule());
  std::vector<Range> cut = partition({0, x_.range.bytes}, pieces, b_.granule());
  std::erase_if(cut, [](const Range& range) { return range.bytes == 0; });
  for (PieceMove& move : moves_) {
    move.read.resize(index(x_.slots));
    for (int slot = 0; slot < std::min(x_.slots, pieces); ++slot)
      move.stage.push_back(
          b_.alloc(Space::scratch, move.from, std::min(largest(cut), move.src.bytes)));
  }
  return cut;
}

void MoveWriter::stage(Mover& mover, Range range, std::size_t slot) {
  for (PieceMove& move : moves_) {
    const int lane = home(move.from);
    for (const Event& event : move.read[slot]) b_.wait(lane, event);
    move.read[slot].clear();
    move.staged.clear();
    const Range piece = part_of(move.src, range);
    if (piece.bytes == 0) continue;
    b_.copy(lane, slice(move.stage[slot], {0, piece.bytes}), b_.input(move.from, piece));
    for (const auto& [to, dst] : move.to) {
      const int reader = mover.reader(move.from, to);
      if (!move.staged.contains(reader)) move.staged[reader] = b_.signal(lane, reader);
    }
  }
}

void MoveWriter::pull(Mover& mover, Range range, std::size_t slot) {
  std::vector<Event> all_staged(index(n_));
  for (int rank = 0; rank < n_ && overwrites_input(); ++rank)
    all_staged[index(rank)] = b_.signal(home(rank), rank);
  for (std::size_t k = 0; k < index(n_ - 1); ++k)
    for (PieceMove& move : moves_) {
      const std::uint64_t bytes = part_of(move.src, range).bytes;
      if (k >= move.to.size() || bytes == 0) continue;
      const auto& [to, dst] = move.to[k];
      std::vector<Event> after{move.staged.at(mover.reader(move.from, to))};
      if (overwrites_input()) after.push_back(all_staged[index(to)]);
      const int step = (to - move.from + n_) % n_ - 1;
      move.read[slot].push_back(mover
                                    .carry(move.from, to, b_.output(to, part_of(dst, range)),
                                           slice(move.stage[slot], {0, bytes}), after, step, false)
                                    .emptied);
    }
}

// Copies a rank's own block. In place this copies bytes onto themselves, so the copy is on the lane
// that reads the bytes.
void MoveWriter::copy_own_blocks() {
  const int root = b_.request().root;
  for (int rank = 0; rank < n_; ++rank) {
    const bool is_root = rank == root && (c_ == Collective::gather || c_ == Collective::scatter ||
                                          (c_ == Collective::copy && root == b_.request().peer));
    if (is_root || c_ == Collective::all_gather || c_ == Collective::all_to_all)
      b_.copy(home(rank), b_.output(rank, received(rank, rank)), b_.input(rank, sent(rank, rank)));
  }
}

void MoveWriter::write() {
  if (x_.range.bytes == 0) return;
  list_to_all();
  list_rooted();
  std::erase_if(moves_, [](const PieceMove& move) { return move.src.bytes == 0; });
  if (moves_.empty()) return copy_own_blocks();
  const std::vector<Range> cut = cut_and_alloc();
  Mover mover(b_, {x_.name, true, x_.throttle, largest(cut), x_.ring_bytes,
                   x_.scratch_bytes / 8 / static_cast<std::uint64_t>(n_), x_.path});
  const auto home_of = [this](int rank) { return home(rank); };
  for (const PieceMove& move : moves_)
    for (const auto& [to, dst] : move.to) mover.open(move.from, to, home_of);
  for (std::size_t piece = 0; piece < cut.size(); ++piece) {
    const std::size_t slot = piece % index(x_.slots);
    stage(mover, cut[piece], slot);
    pull(mover, cut[piece], slot);
  }
  copy_own_blocks();
  for (const PieceMove& move : moves_)
    for (const std::vector<Event>& events : move.read)
      for (const Event& event : events) b_.wait(home(move.from), event);
  mover.close(home_of);
}

}  // namespace

void write_moves(Builder& builder, const ExchangeOptions& exchange) {
  MoveWriter(builder, exchange).write();
}

}  // namespace plait
