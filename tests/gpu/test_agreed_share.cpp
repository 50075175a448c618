// Each rank measures a host share of large calls, and all ranks must use the same share. Ranks are
// forked, hence this file sorts before tests that use CUDA in this process.
#include <doctest/doctest.h>
#include <unistd.h>

#include <map>
#include <random>

#include "base/text.hpp"
#include "tests/gpu/gpu_fixture.hpp"

namespace plait::cuda {
namespace {

/// Calls large enough for a share, enqueued by hosts that lag behind each other at random. In
/// broadcasts of two ranks only the receiver votes.
void check_shares(GpuFixture& gpu, GpuFindings& findings) {
  constexpr std::uint64_t kMost = 416ull << 20;
  LongCalls calls(gpu, kMost);
  std::minstd_rand random(static_cast<unsigned>(gpu.rank) + 1);
  for (unsigned call = 1; call <= 60; ++call) {
    Request request;
    request.ranks = gpu.board->ranks;
    request.count = (kMost - (call % 4 << 23)) / 4 - call % 3;
    if (request.ranks == 2 && call % 3 == 0) {
      request.collective = Collective::broadcast;
      request.root = static_cast<int>(call / 3 % 2);
    }
    if (random() % 2 == 0) ::usleep(static_cast<unsigned>(random() % 3000));
    calls.enqueue(request.ranks == 2 ? "rotation" : "tiled", request);
    if (random() % 4 == 0) gpu.finish();  // So that a rank knows the times before the peer.
  }
  if (const auto wrong = calls.wrong(); wrong != 0)
    findings.add(gpu.rank, text("{} values wrong\n", wrong));
}

TEST_CASE("processes: ranks agree on the share through host memory, whoever comes first") {
  const int most = gpus_for_processes();
  if (skipped(most)) return;
  for (const int ranks : {2, 4}) {
    if (ranks > most) continue;
    auto* words = reinterpret_cast<AgreedNumber::NumberPage*>(
        bench::shared_memory(sizeof(AgreedNumber::NumberPage)));
    on_gpus(ranks, true, check_shares, words);
    std::map<std::uint64_t, int> levels;
    for (int call = 0; call < 60; ++call) ++levels[words->decided[call] & 255];
    std::string said;
    for (const auto& [level, calls] : levels) said += text(" {}: {}", level, calls);
    MESSAGE(ranks << " ranks, levels of the share, and calls:" << said);
    for (int rank = 0; rank < ranks; ++rank) CHECK(words->calls_done[rank] == 60);
    CHECK(levels.size() > levels.count(0));  // Some share was used.
  }
}

}  // namespace
}  // namespace plait::cuda
