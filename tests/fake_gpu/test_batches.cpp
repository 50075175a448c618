// Copies to several peers: a single driver call eagerly, a call per copy in a capture.
#include <doctest/doctest.h>

#include <map>
#include <vector>

#include "fake_cuda/fake_gpu.hpp"
#include "gpu/copy/engine_queue.hpp"

using namespace plait::cuda;
using plait_test::fake_cuda;

TEST_CASE("copies to peers are one driver call, except in captures") {
  fake_cuda().gpu = {};
  fake_cuda().batches.clear();
  Kernels kernels;
  DriverQueue queue(kernels, nullptr);
  Stream stream = nullptr;
  PLAIT_CUDA_CALL(stream_create, &stream, kStreamNonBlocking, 0);
  std::vector<char> memory(4 << 20);
  char* const at = memory.data();
  const std::vector<OneCopy> copies{{at, at + 10, 1}, {at + 2, at + 11, 1}};

  queue.copy_all(stream, copies);
  REQUIRE(fake_cuda().batches.size() == 1);
  CHECK(fake_cuda().batches[0].bytes == std::vector<std::size_t>{1, 1});
  CHECK(fake_cuda().batches[0].flags == kCopyOverlapCompute);
  CHECK(fake_cuda().batches[0].source_order == kSourceInStreamOrder);
  queue.copy_all(stream, {{at, at + (2 << 20), 2 << 20}});
  REQUIRE(fake_cuda().batches.size() == 2);
  CHECK(fake_cuda().batches[1].bytes == std::vector<std::size_t>(4, 512 << 10));

  queue.copy_all(stream, {copies.front()});  // A single copy is no batch.
  queue.copy_all(nullptr, copies);           // The legacy stream takes no batches.
  fake_cuda().is_capturing = true;
  queue.copy_all(stream, copies);
  fake_cuda().is_capturing = false;
  CHECK(fake_cuda().batches.size() == 2);
}

TEST_CASE("chunks of a batch cover each copy once, in rotated order of targets") {
  std::vector<char> memory(8 << 20);
  char* const at = memory.data();
  for (const std::uint64_t bytes : {1ull, 4097ull, 262145ull, 1048577ull, 2000003ull}) {
    const std::vector<OneCopy> copies{{at, at + (4 << 20), bytes},
                                      {at + (2 << 20), at + (6 << 20), bytes / 2 + 1}};
    std::map<const char*, std::uint64_t> ends;  // By begin.
    std::vector<std::size_t> targets;
    for (const OneCopy& one : in_chunks(copies)) {
      const std::size_t which = one.dst < copies[1].dst ? 0 : 1;
      CHECK(one.src - one.dst == copies[which].src - copies[which].dst);
      targets.push_back(which);
      ends[one.dst] = one.bytes;
    }
    for (const OneCopy& one : copies) {
      std::uint64_t covered = 0;
      while (covered < one.bytes && ends.contains(one.dst + covered))
        covered += ends[one.dst + covered];
      CHECK(covered == one.bytes);
    }
    if (bytes > 2000000) CHECK(targets == std::vector<std::size_t>{0, 1, 1, 0, 0, 1, 1, 0});
  }
}
