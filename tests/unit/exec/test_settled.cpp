// Two sides that never meet settle one number a call: always the same on both, and no more than
// either wished when it was said, whoever is ahead and however far.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "exec/cuda/settled.hpp"
#include "plait/error.hpp"

namespace plait::cuda {
namespace {

constexpr std::uint64_t kAbout = 512ull << 20;

TEST_CASE("who comes first says what both take: the less of both wishes") {
  const auto words = std::make_unique<Settled::Words>();
  Settled first(*words, 0, 1.0), second(*words, 1, 1.0);
  CHECK(first.next(7, kAbout) == 7);  // the other has wished nothing yet
  CHECK(first.next(255, kAbout) == 255);
  CHECK(second.next(3, kAbout) == 7);
  CHECK(first.next(12, kAbout) == 3);
  CHECK(second.next(12, kAbout) == 255);
  CHECK(second.next(12, kAbout) == 3);
  CHECK(second.next(0, kAbout) == 0);
  CHECK(first.next(12, kAbout) == 0);
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
    for (std::size_t i = 0; i < kMany; ++i) got[rank].push_back(settled.next(wanted[rank][i], i));
  };
  std::thread other(side, 1);
  side(0);
  other.join();
  CHECK(got[0] == got[1]);
  std::size_t above_both = 0;
  for (std::size_t i = 0; i < kMany; ++i)
    above_both += got[0][i] > std::max(wanted[0][i], wanted[1][i]) ? 1 : 0;
  CHECK(above_both == 0);
}

TEST_CASE("one far ahead waits, and says for whom") {
  const auto words = std::make_unique<Settled::Words>();
  Settled ahead(*words, 1, 0.01), behind(*words, 0, 0.01);
  for (std::uint64_t i = 0; i < Settled::kCalls; ++i) REQUIRE(ahead.next(1, kAbout) == 1);
  try {
    ahead.next(1, kAbout);
    FAIL("went on");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::timeout);
    CHECK(std::string(error.what()).find("rank 0") != std::string::npos);
  }
  CHECK(behind.next(4, kAbout) == 1);  // what was said is not lost,
  CHECK(ahead.next(4, kAbout) == 4);   // and one call more is free
}

TEST_CASE("two that make different calls are told so") {
  const auto words = std::make_unique<Settled::Words>();
  Settled first(*words, 0, 1.0), second(*words, 1, 1.0);
  CHECK(first.next(5, 1000) == 5);
  try {
    second.next(5, 1001);
    FAIL("went on");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::mismatch);
    CHECK(std::string(error.what()).find("rank 0's large call number 0") != std::string::npos);
  }
}

}  // namespace
}  // namespace plait::cuda
