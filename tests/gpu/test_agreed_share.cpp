// What of an exchange goes through host memory is each rank's own finding, and must be the same on
// both. Ranks are forked, so this file's name comes before those that use CUDA in this process.
#include <doctest/doctest.h>
#include <unistd.h>

#include <map>
#include <random>

#include "base/text.hpp"
#include "tests/gpu/bay.hpp"

namespace plait::cuda {
namespace {

/// Exchanges large enough for a share, enqueued by hosts that lag behind each other at random.
std::size_t wrong_of_shares(Bay& bay) {
  constexpr std::uint64_t kMost = 416ull << 20;
  DevicePointer input = 0, output = 0, wrong = 0;
  PLAIT_CUDA_CALL(memory_alloc, &input, kMost);
  PLAIT_CUDA_CALL(memory_alloc, &output, kMost);
  PLAIT_CUDA_CALL(memory_alloc, &wrong, 8);
  PLAIT_CUDA_CALL(memory_set_async, wrong, 0, 8, bay.stream);
  bay.finish();
  bay.board->meet();
  std::minstd_rand random(static_cast<unsigned>(bay.rank) + 1);
  for (unsigned seed = 1; seed <= 60; ++seed) {
    Request request;
    request.ranks = 2;
    request.count = (kMost - (seed % 4 << 23)) / 4 - seed % 3;
    if (random() % 2 == 0) ::usleep(static_cast<unsigned>(random() % 3000));
    bay.sum_large("rotation", request, input, output, wrong, seed);
    if (random() % 4 == 0) bay.finish();  // so that times are known to one rank before the other
  }
  bay.finish();
  unsigned long long found = 0;
  PLAIT_CUDA_CALL(memory_copy, reinterpret_cast<DevicePointer>(&found), wrong, 8);
  bay.board->meet();
  for (const DevicePointer one : {input, output, wrong}) api().memory_free(one);
  return found;
}

TEST_CASE("processes: two ranks agree on the share through host memory, whoever comes first") {
  if (gpus_for_processes() == 0) {
    MESSAGE("skipped: needs two GPUs");
    return;
  }
  bench::Board* board = bench::make_board(2);
  std::byte* rings = bench::shared_memory(kRingBytes * 2);
  auto* words = reinterpret_cast<Settled::Words*>(bench::shared_memory(sizeof(Settled::Words)));
  Findings* findings = Findings::shared();
  const int failed = bench::run_ranks(board, true, [&](int rank) {
    Bay bay(board, rank, rings, 20, words);
    const std::size_t wrong = wrong_of_shares(bay);
    if (wrong != 0) findings->add(rank, text(wrong, " values wrong\n"));
  });
  CHECK(failed == 0);
  findings->check_none();
  std::map<std::uint64_t, int> levels;
  for (int call = 0; call < 60; ++call) ++levels[words->said[call] & 255];
  std::string said;
  for (const auto& [level, calls] : levels) said += text(" ", level, ": ", calls);
  MESSAGE("levels of the share, and calls:" << said);
  CHECK(words->passed[0] == 60);
  CHECK(words->passed[1] == 60);
  CHECK(levels.size() > levels.count(0));  // some share was taken
}

}  // namespace
}  // namespace plait::cuda
