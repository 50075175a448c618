// Parts round a ring: every rank gets every other rank's part once, and passes on what came.
#include <doctest/doctest.h>

#include <vector>

#include "base/text.hpp"
#include "exec/cuda/engine_ring.hpp"

using namespace plait;
using namespace plait::cuda;

namespace {

struct Case {
  int ranks;
  std::uint64_t part, total, most;
};

const std::vector<Case> kCases{{3, 4096, 12288, 1 << 20},     {4, 16, 64, 4096},
                               {4, 100000, 400000, 4096},     {4, 100000, 333333, 8192},
                               {8, 1 << 20, 8 << 20, 100000}, {5, 48, 100, 4096}};

bool same(const RingPiece& one, const RingPiece& other) {
  return one.owner == other.owner && one.from == other.from && one.bytes == other.bytes;
}

}  // namespace

TEST_CASE("round a ring every part comes to every rank once, piece by piece") {
  for (const auto& [ranks, part, total, most] : kCases) {
    const RingCut cut = cut_ring(ranks, part, total, most);
    CAPTURE(text(ranks, " ranks, parts of ", part, " of ", total, ", pieces of ", most));
    CHECK(cut.piece_bytes <= most);
    for (int rank = 0; rank < ranks; ++rank) {
      std::vector<int> came(total, 0);
      for (std::uint32_t step = 0; step < cut.steps; ++step) {
        const RingPiece piece = pushed_by(cut, (rank + ranks - 1) % ranks, step);
        CHECK(piece.owner != rank);
        CHECK(piece.bytes <= cut.piece_bytes);
        for (std::uint64_t i = 0; i < piece.bytes; ++i) ++came[piece.from + i];
      }
      std::vector<int> once(total, 1);
      const auto mine = static_cast<unsigned>(rank) * part;
      for (std::uint64_t i = mine; i < std::min(total, mine + part); ++i) once[i] = 0;
      CHECK(came == once);
    }
  }
}

TEST_CASE("round a ring a rank pushes its own part, or what came two steps before") {
  for (const auto& [ranks, part, total, most] : kCases) {
    const RingCut cut = cut_ring(ranks, part, total, most);
    for (int rank = 0; rank < ranks; ++rank)
      for (std::uint32_t step = 0; step < cut.steps; ++step) {
        const RingPiece piece = pushed_by(cut, rank, step);
        if (piece.owner == rank) continue;
        REQUIRE(step >= 2);
        CHECK(same(piece, pushed_by(cut, (rank + ranks - 1) % ranks, step - 2)));
      }
  }
}
