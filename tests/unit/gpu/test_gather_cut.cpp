// The part of an all_reduce's results that goes through host memory, by bytes, ring and permille.
#include <doctest/doctest.h>

#include <algorithm>

#include "gpu/host_path/host_gather.hpp"

using namespace plait::cuda;

namespace {

void check_cut(std::uint64_t bytes, std::uint64_t ring, std::uint32_t permille, int ranks) {
  CAPTURE(bytes);
  CAPTURE(ring);
  CAPTURE(permille);
  CAPTURE(ranks);
  const auto n = static_cast<std::uint64_t>(ranks);
  const GatherCut cut = cut_gather(bytes, ring, permille, ranks);
  CHECK(cut.bytes < bytes);
  CHECK(cut.bytes <= bytes / 1000 * permille);
  CHECK(std::min(bytes / 1000 * permille, bytes - 1) < cut.bytes + n * 4096);
  CHECK(kChunkSlots * cut.chunk_bytes <= ring);
  CHECK(cut.segments.size() <= kGatherSegments);
  std::uint64_t from = 0;
  std::uint32_t chunks = 0;
  for (const GatherSegment& one : cut.segments) {
    CHECK(one.part_bytes != 0);
    CHECK(one.part_bytes % 4096 == 0);
    CHECK(one.from == from);
    CHECK(one.first_chunk == chunks);
    from += n * one.part_bytes;
    chunks += static_cast<std::uint32_t>((one.part_bytes + cut.chunk_bytes - 1) / cut.chunk_bytes);
  }
  CHECK(from == cut.bytes);
  CHECK(chunks == cut.chunks);
}

}  // namespace

TEST_CASE("a message's first bytes, whole pages a rank, in chunks that rings hold") {
  for (int ranks = 2; ranks <= 16; ++ranks)
    for (const std::uint64_t ring : {4 * 4096ull, 1ull << 20, 16ull << 20})
      for (const std::uint32_t permille : {1u, 90u, 180u, 999u, 1000u})
        for (const std::uint64_t bytes : {1ull << 20, (1ull << 20) + 4, 123456788ull, 5ull << 30})
          check_cut(bytes, ring, permille, ranks);
}

TEST_CASE("no host part if a rank would get less than a page, or rings hold none") {
  CHECK(cut_gather(16000, 1 << 20, 1000, 4).chunks == 0);
  CHECK(cut_gather(1 << 30, 4 * 4095, 100, 4).chunks == 0);
  CHECK(cut_gather(1 << 30, 16 << 20, 0, 4).chunks == 0);
}

TEST_CASE("of many results a few come first; chunks stay in the host's cache") {
  const GatherCut large = cut_gather(1ull << 30, 16 << 20, 180, 4);
  REQUIRE(large.segments.size() == 2);
  CHECK(large.segments[0].part_bytes <= large.segments[1].part_bytes / 7 + large.chunk_bytes);
  CHECK(large.chunk_bytes == 2 << 20);
  CHECK(cut_gather(2 << 20, 16 << 20, 180, 4).segments.size() == 1);
}
