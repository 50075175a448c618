// Tests what communicators hold, now and at most, by part.
#include <doctest/doctest.h>

#include <memory>
#include <thread>
#include <vector>

#include "base/memory_held.hpp"

using namespace plait;

namespace {

MemoryOfPart row_of(MemoryPart part) {
  for (const MemoryOfPart& row : memory_by_part())
    if (row.part == part) return row;
  return {};
}

}  // namespace

TEST_CASE("what communicators hold adds up, and what they held at most stays") {
  CHECK(memory_by_part().empty());
  auto one = std::make_unique<MemoryHeld>();
  {
    MemoryHeld other;
    one->set(MemoryPart::small_arena, 100);
    other.set(MemoryPart::small_arena, 30);
    other.set(MemoryPart::host_rings, 7);
    CHECK(row_of(MemoryPart::small_arena).now == 130);
    one->set(MemoryPart::small_arena, 60);
    CHECK(row_of(MemoryPart::small_arena).now == 90);
    CHECK(row_of(MemoryPart::small_arena).most == 130);
    CHECK(other.on_gpu() == 30);
    CHECK(other.of(MemoryPart::host_rings) == 7);
  }
  CHECK(row_of(MemoryPart::small_arena).now == 60);
  CHECK(row_of(MemoryPart::host_rings).now == 0);
  CHECK(row_of(MemoryPart::host_rings).most == 7);
  one.reset();
  CHECK(row_of(MemoryPart::small_arena).now == 0);
  CHECK(memory_by_part().size() == 2);
}

TEST_CASE("threads count together") {
  const std::uint64_t before = row_of(MemoryPart::streams).now;
  {
    MemoryHeld held[4];
    std::vector<std::thread> threads;
    for (MemoryHeld& one : held)
      threads.emplace_back([&one] {
        for (std::uint64_t i = 1; i <= 10'000; ++i) one.set(MemoryPart::streams, i);
      });
    for (std::thread& thread : threads) thread.join();
    CHECK(row_of(MemoryPart::streams).now == before + 40'000);
  }
  CHECK(row_of(MemoryPart::streams).now == before);
}

TEST_CASE("every part has a name and a place") {
  CHECK(is_on_gpu(MemoryPart::streams));
  CHECK(!is_on_gpu(MemoryPart::host_arenas));
  for (std::size_t part = 0; part < kMemoryParts; ++part)
    CHECK(name_of(static_cast<MemoryPart>(part)) != nullptr);
}
