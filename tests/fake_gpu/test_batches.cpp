// Copies to several peers by one call of the driver's: eagerly, and one by one in a capture.
#include <doctest/doctest.h>

#include "exec/cuda/copies/engine_queue.hpp"
#include "fake_gpu/fake_gpu.hpp"

using namespace plait::cuda;
using plait_test::fake_cuda;

TEST_CASE("copies to peers are one call of the driver's, but in captures") {
  fake_cuda().gpu = {};
  fake_cuda().batches.clear();
  Kernels kernels;
  DriverQueue queue(kernels, nullptr);
  Stream stream = nullptr;
  PLAIT_CUDA_CALL(stream_create, &stream, kStreamNonBlocking, 0);
  char memory[4] = {};
  const std::vector<OneCopy> copies{{memory, memory + 1, 1}, {memory + 2, memory + 3, 1}};

  queue.copy_all(stream, copies);
  REQUIRE(fake_cuda().batches.size() == 1);
  CHECK(fake_cuda().batches[0].bytes == std::vector<std::size_t>{1, 1});
  CHECK(fake_cuda().batches[0].flags == kCopyBesideComputing);
  CHECK(fake_cuda().batches[0].source_order == kSourceInStreamOrder);

  queue.copy_all(stream, {copies.front()});  // one is no batch
  fake_cuda().is_capturing = true;
  queue.copy_all(stream, copies);
  fake_cuda().is_capturing = false;
  CHECK(fake_cuda().batches.size() == 1);
}
