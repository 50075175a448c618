// Ranks for tests on GPUs: how many there are, one with buffers of its own, what they found.
#pragma once
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "bench/gpu_ranks.hpp"
#include "exec/cuda/cuda_rank.hpp"

namespace plait::cuda {

using Bytes = std::vector<std::uint8_t>;
constexpr std::uint64_t kMostBytes = 4ull << 20;
constexpr std::uint64_t kRingBytes = 8ull << 20;

inline int gpus_to_use() {
  const int found = device_count();
  return found >= 4 ? 4 : found >= 2 ? 2 : 0;
}

/// The same, asked of a child: a process that has used CUDA cannot fork ranks that do.
inline int gpus_for_processes() {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(gpus_to_use());
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 0;
}

/// What ranks found, be they threads or processes.
struct Findings {
  std::atomic<int> checked{0};
  char lists[bench::kBoardRanks][4096] = {};

  static Findings* shared() { return new (bench::shared_memory(sizeof(Findings))) Findings; }
  void add(int rank, const std::string& line) {
    char* list = lists[rank];
    const std::size_t used = std::strlen(list);
    if (used + line.size() + 1 < sizeof lists[rank])
      std::memcpy(list + used, line.c_str(), line.size() + 1);
  }
  void check_none() const {
    for (const auto& list : lists) CHECK(std::string(list) == "");
  }
};

/// Any bits at all: NaNs, infinities and subnormals included.
inline Bytes random_bytes(std::uint64_t bytes, unsigned seed) {
  std::mt19937_64 source(seed);
  Bytes data((bytes + 7) / 8 * 8);
  for (std::size_t i = 0; i < data.size(); i += 8) {
    const std::uint64_t word = source();
    std::memcpy(&data[i], &word, 8);
  }
  data.resize(bytes);
  return data;
}

/// A rank with buffers of its own.
class Bay {
 public:
  /// words: for two ranks whose exchanges have a share through host memory.
  Bay(bench::Board* shared, int my_rank, std::byte* rings, double wait_s = 20,
      Settled::Words* words = nullptr)
      : board(shared), rank(my_rank) {
    CudaRankOptions options;
    const int gpus = device_count();
    options.device = rank % gpus;
    if (board->ranks > gpus) options.most_blocks = 50;  // kernels of two ranks run side by side
    options.rank = rank;
    options.ranks = board->ranks;
    options.wait_s = wait_s;
    options.sizes.bare_bytes = 32ull << 20;
    options.sizes.flagged_bytes = 64ull << 20;
    options.sizes.inbox_bytes = 64ull << 20;
    options.sizes.scratch_bytes = 256ull << 20;
    options.ring_bytes = options.exchange_ring_bytes = kRingBytes / 2;
    options.sizes.rotation_bytes = rotation_slots(board->ranks) << 20;
    options.exchange_words = words;
    for (int r = 0; r < board->ranks; ++r)
      options.rings.push_back(rings + static_cast<std::uint64_t>(r) * kRingBytes);
    cuda = std::make_unique<CudaRank>(options, [this](const std::string& mine) {
      return this->board->exchange(this->rank, mine);
    });
    PLAIT_CUDA_CALL(context_push, cuda->context());
    PLAIT_CUDA_CALL(stream_create, &stream, kStreamNonBlocking, 0);
    PLAIT_CUDA_CALL(memory_alloc, &input, kMostBytes + 256);
    PLAIT_CUDA_CALL(memory_alloc, &output, kMostBytes + 256);
  }
  ~Bay() {
    api().memory_free(input);
    api().memory_free(output);
    api().stream_destroy(stream);
  }
  static void to_gpu(DevicePointer dst, const Bytes& src) {
    if (src.empty()) return;
    PLAIT_CUDA_CALL(memory_copy, dst, reinterpret_cast<DevicePointer>(src.data()), src.size());
    PLAIT_CUDA_CALL(context_synchronize);  // from pageable memory: the copy may return early
  }
  static Bytes from_gpu(DevicePointer src, std::uint64_t bytes) {
    Bytes dst(bytes);
    if (bytes != 0)
      PLAIT_CUDA_CALL(memory_copy, reinterpret_cast<DevicePointer>(dst.data()), src, bytes);
    return dst;
  }
  /// Enqueues a sum of `request` from data made on the GPU into a poisoned output; what is wrong of
  /// it is added to the 64-bit count at `wrong`.
  void sum_large(const std::string& kernel, Request request, DevicePointer from, DevicePointer to,
                 DevicePointer wrong, unsigned seed) {
    int me = rank, first = 0, ranks = request.ranks;
    std::uint64_t start = 0;
    const std::string type = name_of(request.type);
    const auto launch = [&](const std::string& name, std::vector<void*> args) {
      cuda->kernels().launch(cuda->kernels().find(name), {264, 512, false}, stream, args);
    };
    launch("plait_fill_" + type, {&from, &request.count, &seed, &me});
    PLAIT_CUDA_CALL(memory_set_async, to, 0xa5, request.count * bytes_of(request.type), stream);
    cuda->run_fused(kernel, request, reinterpret_cast<const void*>(from),
                    reinterpret_cast<void*>(to), stream);
    launch("plait_check_" + type, {&to, &request.count, &seed, &first, &ranks, &start, &wrong});
  }
  void finish() {
    PLAIT_CUDA_CALL(stream_synchronize, stream);
    cuda->check();
  }

  bench::Board* board;
  int rank;
  std::unique_ptr<CudaRank> cuda;
  Stream stream = nullptr;
  DevicePointer input = 0, output = 0;
};

}  // namespace plait::cuda
