// Fixture of GPU tests: number of ranks, a rank with buffers, and the ranks' findings.
#pragma once
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "comm/shm/socket_files.hpp"
#include "gpu/copy/copy_memory.hpp"
#include "gpu/copy/exchange_cut.hpp"
#include "gpu/lanes/plan_memory.hpp"
#include "gpu/ll/ll_memory.hpp"
#include "gpu/rank/cuda_rank.hpp"
#include "tests/gpu/by_name.hpp"
#include "tests/gpu/ranks.hpp"
#include "tests/gpu/trial_kernels.hpp"

namespace plait::cuda {

using Bytes = std::vector<std::uint8_t>;
constexpr std::uint64_t kMostBytes = 4ull << 20;     // Input of a sum.
constexpr std::uint64_t kBufferBytes = 16ull << 20;  // Holds all ranks' parts of a collective.
// 16 MiB by two_shot reuse the packets.
constexpr std::uint64_t kFlaggedBytes = (32ull << 20) - 512;
constexpr std::uint64_t kRingBytes = 8ull << 20;

inline int gpus_to_use() {
  const int found = device_count();
  return found >= 8 ? 8 : found >= 4 ? 4 : found;
}

/// Ranks as threads: a rank per GPU, or two that share a single GPU. 0 = no GPU.
inline int ranks_to_use() {
  const int gpus = gpus_to_use();
  return gpus == 1 ? 2 : gpus;
}

/// Number of GPUs, queried in a child, because a process that has used CUDA cannot fork ranks that
/// do. 0 = fewer than `least`: processes take turns on a shared GPU, hence ranks that wait for each
/// other need a GPU each.
inline int gpus_for_processes(int least = 2) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(gpus_to_use());
  int status = 0;
  ::waitpid(child, &status, 0);
  const int found = WIFEXITED(status) ? WEXITSTATUS(status) : 0;
  return found >= least ? found : 0;
}

/// GpuFindings of ranks, which are threads or processes.
struct GpuFindings {
  std::atomic<int> checked{0};
  char lists[bench::kBoardRanks][4096] = {};

  static GpuFindings* shared() {
    return new (bench::shared_memory(sizeof(GpuFindings))) GpuFindings;
  }
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

/// Any bits, including NaNs, infinities and subnormals.
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

/// Host memory of all ranks, with HostFlags and the slots of long messages behind the flags.
inline std::byte* shared_rings(int ranks) {
  return bench::shared_memory(kRingBytes * static_cast<std::uint64_t>(ranks) + kHostFlagsBytes +
                              kMessageHostBytes);
}

/// While one lives, ranks of fixtures have their arenas in host memory, as ranks whose GPUs do not
/// address each other. Made before ranks fork, since all ranks map the memory.
class ArenasInHost {
 public:
  ArenasInHost() { base_ = bench::shared_memory(kBytesOfRank * bench::kBoardRanks); }
  ~ArenasInHost() {
    ::munmap(base_, kBytesOfRank * bench::kBoardRanks);
    base_ = nullptr;
  }
  ArenasInHost(const ArenasInHost&) = delete;
  ArenasInHost& operator=(const ArenasInHost&) = delete;
  /// Null without an ArenasInHost.
  static HostMemory memory(int ranks) {
    if (base_ == nullptr) return nullptr;
    return [ranks](const Exchange&, std::uint64_t bytes) {
      REQUIRE(bytes <= kBytesOfRank);
      std::vector<std::byte*> bases;
      for (int rank = 0; rank < ranks; ++rank)
        bases.push_back(base_ + static_cast<std::uint64_t>(rank) * kBytesOfRank);
      return bases;
    };
  }

 private:
  static constexpr std::uint64_t kBytesOfRank = 2ull << 30;
  static inline std::byte* base_ = nullptr;
};

/// A rank with separate buffers.
class GpuFixture {
 public:
  /// page: for ranks that agree on a host share of large calls; the inbox is then large enough for
  /// a share. overlap_compute: as under NCCL.
  GpuFixture(bench::Board* shared, int my_rank, std::byte* rings, double wait_s = 20,
             AgreedNumber::NumberPage* page = nullptr, bool overlap_compute = false)
      : board(shared), rank(my_rank) {
    CudaRankOptions options;
    const int gpus = device_count(), ranks_a_gpu = (board->ranks + gpus - 1) / gpus;
    options.device = rank % gpus;
    shares_gpu = ranks_a_gpu > 1;
    // Kernels of all ranks on a GPU run side by side.
    if (shares_gpu) options.most_blocks = most_blocks = 100u / static_cast<unsigned>(ranks_a_gpu);
    options.rank = rank;
    options.ranks = board->ranks;
    options.wait_s = wait_s;
    options.sizes[kSentinelPackets] = 32ull << 20;
    options.sizes[kFlagPackets] = kFlaggedBytes;
    options.sizes[kPlanInbox] = 64ull << 20;
    options.sizes[kPlanScratch] = 256ull << 20;
    options.ring_bytes = options.exchange_ring_bytes = kRingBytes / 2;
    options.sizes[kCopyMemory] =
        page == nullptr ? rotation_slots(board->ranks) << 20 : kLeastSharingInbox;
    options.share_page = page;
    options.overlap_compute = overlap_compute;
    options.messages = true;
    options.arenas_in_host = ArenasInHost::memory(board->ranks);
    options.files = [] { return open_socket_files(); };
    std::byte* const behind = rings + static_cast<std::uint64_t>(board->ranks) * kRingBytes;
    options.host_flags = reinterpret_cast<HostFlags*>(behind);
    if (board->ranks == 2) options.message_slots = behind + kHostFlagsBytes;
    options.rings = [rings, ranks = board->ranks](const Exchange&) {
      std::vector<std::byte*> all;
      for (int r = 0; r < ranks; ++r)
        all.push_back(rings + static_cast<std::uint64_t>(r) * kRingBytes);
      return all;
    };
    cuda = std::make_unique<CudaRank>(options, [this](const std::string& mine) {
      return this->board->exchange(this->rank, mine);
    });
    PLAIT_CUDA_CALL(context_push, cuda->context());
    // Ranks create streams in turn: streams of ranks that share a GPU must not share a hardware
    // queue, or a rank's kernel could queue behind a kernel that waits for another rank.
    for (int turn = 0; turn < board->ranks; ++turn) {
      board->barrier();
      if (turn == rank) PLAIT_CUDA_CALL(stream_create, &stream, kStreamNonBlocking, 0);
    }
    PLAIT_CUDA_CALL(memory_alloc, &input, kBufferBytes + 256);
    PLAIT_CUDA_CALL(memory_alloc, &output, kBufferBytes + 256);
  }
  ~GpuFixture() {
    api().memory_free(input);
    api().memory_free(output);
    api().stream_destroy(stream);
  }
  static void to_gpu(DevicePointer dst, const Bytes& src) {
    if (src.empty()) return;
    PLAIT_CUDA_CALL(memory_copy, dst, reinterpret_cast<DevicePointer>(src.data()), src.size());
    PLAIT_CUDA_CALL(context_synchronize);  // From pageable memory: the copy may return early.
  }
  static Bytes from_gpu(DevicePointer src, std::uint64_t bytes) {
    Bytes dst(bytes);
    if (bytes != 0)
      PLAIT_CUDA_CALL(memory_copy, reinterpret_cast<DevicePointer>(dst.data()), src, bytes);
    return dst;
  }
  void finish() {
    const Result ended = api().stream_synchronize(stream);
    cuda->check();  // Reports why a stream has failed.
    require(ended, "stream_synchronize");
  }

  bench::Board* board;
  int rank;
  bool shares_gpu = false;     // With another rank.
  unsigned most_blocks = ~0u;  // Limit of a call.
  std::unique_ptr<CudaRank> cuda;
  Stream stream = nullptr;
  DevicePointer input = 0, output = 0;
};

/// Buffers for long calls, and the number of wrong values in the results.
class LongCalls {
 public:
  LongCalls(GpuFixture& gpu, std::uint64_t most_bytes) : gpu_(gpu) {
    PLAIT_CUDA_CALL(memory_alloc, &input_, most_bytes);
    PLAIT_CUDA_CALL(memory_alloc, &output_, most_bytes);
    PLAIT_CUDA_CALL(memory_alloc, &wrong_, 8);
    load_code(most_bytes);
    PLAIT_CUDA_CALL(memory_set_async, wrong_, 0, 8, gpu.stream);
    gpu.finish();
    gpu.board->barrier();
  }
  /// Destroyed once all ranks are done.
  ~LongCalls() {
    for (const DevicePointer one : {input_, output_, wrong_}) api().memory_free(one);
  }
  LongCalls(const LongCalls&) = delete;
  LongCalls& operator=(const LongCalls&) = delete;

  /// Enqueues a sum or a broadcast of data made on the GPU, into a poisoned output, and the check.
  void enqueue(const std::string& engine, Request request) {
    const bool sums = reduces(request.collective);
    int me = gpu_.rank, first = sums ? 0 : request.root, ranks = sums ? request.ranks : 1;
    std::uint64_t start = 0;
    ++seed_;
    const std::string type = name_of(request.type);
    launch("plait_fill_" + type, {&input_, &request.count, &seed_, &me});
    PLAIT_CUDA_CALL(memory_set_async, output_, 0xa5, request.count * bytes_of(request.type),
                    gpu_.stream);
    bench::run(*gpu_.cuda, engine, request,
               {reinterpret_cast<const void*>(input_), reinterpret_cast<void*>(output_), {}},
               gpu_.stream);
    launch("plait_check_" + type,
           {&output_, &request.count, &seed_, &first, &ranks, &start, &wrong_});
  }
  unsigned enqueued() const { return seed_; }
  /// Number of wrong values, once all ranks' calls have ended.
  unsigned long long wrong() {
    gpu_.finish();
    unsigned long long found = 0;
    PLAIT_CUDA_CALL(memory_copy, reinterpret_cast<DevicePointer>(&found), wrong_, 8);
    gpu_.board->barrier();
    return found;
  }

 private:
  /// Loads code before the test. Code loaded at first use would wait for the other ranks' kernels
  /// on this GPU, and the kernels for this rank. A communicator loads the communicator's code, but
  /// not the driver's and the checks'.
  void load_code(std::uint64_t most_bytes) {
    for (const std::uint64_t bytes : {most_bytes, most_bytes / 13, most_bytes - 2})
      PLAIT_CUDA_CALL(memory_set_async, output_, 0, bytes, gpu_.stream);
    std::uint64_t none = 0;
    int first = 0, ranks = 1;
    for (const std::string type : {"fp32", "bf16"}) {
      launch("plait_fill_" + type, {&input_, &none, &seed_, &first});
      launch("plait_check_" + type, {&output_, &none, &seed_, &first, &ranks, &none, &wrong_});
    }
  }
  void launch(const std::string& name, std::vector<void*> args) {
    gpu_.cuda->kernels().launch(trial_kernels().find(name), {264, 512, false}, gpu_.stream,
                                std::move(args));
  }
  GpuFixture& gpu_;
  DevicePointer input_ = 0, output_ = 0, wrong_ = 0;
  unsigned seed_ = 0;
};

/// True if a test with `ranks` ranks has too few GPUs; prints the reason.
inline bool skipped(int ranks, const std::string& why = "") {
  if (ranks == 0) MESSAGE("skipped: needs more GPUs. " << why);
  return ranks == 0;
}

/// Runs body(gpu, findings) on every rank; fails if a rank throws or reports findings.
inline GpuFindings* on_gpus(int ranks, bool processes,
                            const std::function<void(GpuFixture&, GpuFindings&)>& body,
                            AgreedNumber::NumberPage* page = nullptr) {
  bench::Board* board = bench::make_board(ranks);
  std::byte* rings = shared_rings(ranks);
  GpuFindings* findings = GpuFindings::shared();
  const int failed = bench::run_ranks(board, processes, [&](int rank) {
    GpuFixture gpu(board, rank, rings, 20, page);
    body(gpu, *findings);
    board->barrier();
  });
  CHECK(failed == 0);
  findings->check_none();
  return findings;
}

}  // namespace plait::cuda
