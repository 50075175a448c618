// Parts round a ring: every rank gets every other rank's part once, and passes on what came.
#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include "base/text.hpp"
#include "exec/cuda/copies/engine_ring.hpp"

using namespace plait;
using namespace plait::cuda;

namespace {

struct Case {
  int ranks;
  std::uint64_t part, most;
};

const std::vector<Case> kCases{{3, 4096, 1 << 20},   {4, 16, 4096}, {4, 100000, 4096},
                               {8, 1 << 20, 100000}, {5, 48, 4096}, {4, 1 << 20, 1 << 20}};

bool same(const RingPiece& one, const RingPiece& other) {
  return one.owner == other.owner && one.from == other.from && one.bytes == other.bytes;
}

}  // namespace

TEST_CASE("round a ring every part comes to every rank once, piece by piece") {
  for (const auto& [ranks, part, most] : kCases) {
    const RingCut cut = cut_ring(ranks, part, most);
    CAPTURE(text(ranks, " ranks, parts of ", part, ", pieces of ", most));
    CHECK(cut.piece_bytes <= most);
    for (int rank = 0; rank < ranks; ++rank) {
      std::vector<int> came(static_cast<unsigned>(ranks) * part, 0);
      for (std::uint32_t step = 0; step < cut.steps; ++step) {
        const RingPiece piece = pushed_by(cut, (rank + ranks - 1) % ranks, step);
        CHECK(piece.owner != rank);
        CHECK(piece.bytes <= cut.piece_bytes);
        for (std::uint64_t i = 0; i < piece.bytes; ++i) ++came[piece.from + i];
      }
      std::vector<int> once(came.size(), 1);
      std::fill_n(once.begin() + rank * static_cast<std::ptrdiff_t>(part), part, 0);
      CHECK(came == once);
    }
  }
}

TEST_CASE("round a ring a rank pushes its own part, or what came two steps before") {
  for (const auto& [ranks, part, most] : kCases) {
    const RingCut cut = cut_ring(ranks, part, most);
    for (int rank = 0; rank < ranks; ++rank)
      for (std::uint32_t step = 0; step < cut.steps; ++step) {
        const RingPiece piece = pushed_by(cut, rank, step);
        if (piece.owner == rank) continue;
        REQUIRE(step >= 2);
        CHECK(same(piece, pushed_by(cut, (rank + ranks - 1) % ranks, step - 2)));
      }
  }
}
