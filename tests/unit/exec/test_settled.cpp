// Two sides that never meet settle one number a call: always the same on both, always one that one
// of them asked for, whoever is ahead and however far.
#include <doctest/doctest.h>

#include <cstdint>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "exec/cuda/settled.hpp"
#include "plait/error.hpp"

namespace plait::cuda {
namespace {

TEST_CASE("who comes first says what both take") {
  const auto words = std::make_unique<Settled::Words>();
  Settled first(*words, 0, 1.0), second(*words, 1, 1.0);
  CHECK(first.next(7) == 7);
  CHECK(first.next(255) == 255);
  CHECK(second.next(3) == 7);
  CHECK(second.next(0) == 255);
  CHECK(second.next(0) == 0);
  CHECK(first.next(12) == 0);
}

TEST_CASE("two at once settle the same numbers, over many times around") {
  constexpr std::size_t kMany = 20 * Settled::kCalls + 17;
  const auto words = std::make_unique<Settled::Words>();
  std::vector<int> wanted[2], got[2];
  for (int rank = 0; rank < 2; ++rank) {
    std::minstd_rand random(static_cast<unsigned>(rank) + 5);
    for (std::size_t i = 0; i < kMany; ++i) wanted[rank].push_back(static_cast<int>(random() % 13));
    got[rank].reserve(kMany);
  }
  const auto side = [&](int rank) {
    Settled settled(*words, rank, 60.0);
    for (const int mine : wanted[rank]) got[rank].push_back(settled.next(mine));
  };
  std::thread other(side, 1);
  side(0);
  other.join();
  CHECK(got[0] == got[1]);
  std::size_t strange = 0, own[2] = {0, 0};
  for (std::size_t i = 0; i < kMany; ++i) {
    for (int rank = 0; rank < 2; ++rank) own[rank] += got[0][i] == wanted[rank][i] ? 1 : 0;
    strange += got[0][i] != wanted[0][i] && got[0][i] != wanted[1][i] ? 1 : 0;
  }
  CHECK(strange == 0);
  CHECK(own[0] + own[1] >= kMany);
}

TEST_CASE("one far ahead waits, and says for whom") {
  const auto words = std::make_unique<Settled::Words>();
  Settled ahead(*words, 1, 0.01), behind(*words, 0, 0.01);
  for (std::uint64_t i = 0; i < Settled::kCalls; ++i) REQUIRE(ahead.next(1) == 1);
  try {
    ahead.next(1);
    FAIL("went on");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::timeout);
    CHECK(std::string(error.what()).find("rank 0") != std::string::npos);
  }
  CHECK(behind.next(2) == 1);  // what was said is not lost,
  CHECK(ahead.next(4) == 4);   // and one call more is free
}

}  // namespace
}  // namespace plait::cuda
