// The large arena in steps on GPUs, a process a rank: calls by tiles, by copy engines and by
// packets make the steps that they need, with the data of all ranks; steps go and come back. Copies
// cross from the tiles' memory to the memory behind with more than two ranks. Ranks are forked,
// hence this file sorts before tests that use CUDA in this process.
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <thread>

#include "base/text.hpp"
#include "gpu/select/large_steps.hpp"
#include "tests/gpu/gpu_fixture.hpp"

namespace plait::cuda {
namespace {

constexpr std::uint64_t kMostBlock = 96ull << 20;

/// A rank as under NCCL, whose buffers hold an all_gather of kMostBlock.
class SteppedRank {
 public:
  SteppedRank(bench::Board& board, int rank, LargeArenaPage& page) : board_(board) {
    CudaRankOptions options;
    options.device = options.rank = rank;
    options.ranks = board.ranks;
    options.overlap_compute = true;
    options.memory.floats_only = true;
    options.norms = false;
    options.wait_s = 20;
    options.trim_s = 0.2;
    options.lazy_arena = &page;
    options.large_arena_wait_s = 30;
    options.files = [] { return open_socket_files(); };
    cuda_ = std::make_unique<CudaRank>(
        options, [&board, rank](const std::string& mine) { return board.exchange(rank, mine); });
    PLAIT_CUDA_CALL(context_push, cuda_->context());
    PLAIT_CUDA_CALL(stream_create, &stream_, kStreamNonBlocking, 0);
    PLAIT_CUDA_CALL(memory_alloc, &in_, kMostBlock);
    PLAIT_CUDA_CALL(memory_alloc, &out_, kMostBlock * static_cast<unsigned>(board.ranks));
  }
  ~SteppedRank() {
    api().stream_synchronize(stream_);
    board_.barrier();
    cuda_->unmap_peers();
    board_.barrier();
    api().memory_free(in_);
    api().memory_free(out_);
    api().stream_destroy(stream_);
    cuda_.reset();
  }
  SteppedRank(const SteppedRank&) = delete;
  SteppedRank& operator=(const SteppedRank&) = delete;

  /// Gathers `bytes` of each rank by the engine, with the steps that its calls need. Returns the
  /// number of wrong bytes.
  std::uint64_t gather(const char* engine, std::uint64_t bytes, int turn) {
    Request request;
    request.collective = Collective::all_gather;
    request.ranks = board_.ranks;
    request.count = bytes / bytes_of(request.type);
    EngineChoice choice;
    choice.engine = &bench::engine(engine, request);
    const unsigned steps = large_steps_of(choice, request, cuda_->full_group());
    while (!cuda_->reserve_large_arena(CallMode::alone, steps)) std::this_thread::yield();
    PLAIT_CUDA_CALL(memory_set_async, in_, value(cuda_->rank(), turn), bytes, stream_);
    PLAIT_CUDA_CALL(memory_set_async, out_, 0, bytes * static_cast<unsigned>(board_.ranks),
                    stream_);
    bench::run(*cuda_, engine, request,
               {reinterpret_cast<void*>(in_), reinterpret_cast<void*>(out_), {}}, stream_);
    cuda_->end_large_call(steps);
    PLAIT_CUDA_CALL(stream_synchronize, stream_);
    cuda_->check();
    return wrong_bytes(bytes, turn);
  }
  std::uint64_t held() const { return cuda_->memory().of(MemoryPart::large_arena); }
  int rank() const { return cuda_->rank(); }
  /// Returns whether all steps were given up within some seconds.
  bool trim() {
    for (int look = 0; look < 2000 && held() != 0; ++look) {
      if (cuda_->wants_trim()) cuda_->trim([&] { return cuda_->has_ended(); });
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return held() == 0;
  }

 private:
  static unsigned char value(int rank, int turn) {
    return static_cast<unsigned char>(1 + 16 * (turn % 8) + rank);
  }
  std::uint64_t wrong_bytes(std::uint64_t bytes, int turn) const {
    std::vector<unsigned char> found(bytes * static_cast<unsigned>(board_.ranks));
    PLAIT_CUDA_CALL(memory_copy, reinterpret_cast<DevicePointer>(found.data()), out_, found.size());
    std::uint64_t wrong = 0;
    for (int owner = 0; owner < board_.ranks; ++owner) {
      const auto from = found.begin() + static_cast<std::ptrdiff_t>(bytes) * owner;
      wrong += bytes - static_cast<std::uint64_t>(std::count(
                           from, from + static_cast<std::ptrdiff_t>(bytes), value(owner, turn)));
    }
    return wrong;
  }

  bench::Board& board_;
  std::unique_ptr<CudaRank> cuda_;
  Stream stream_ = nullptr;
  DevicePointer in_ = 0, out_ = 0;
};

}  // namespace

TEST_CASE("processes: calls make the steps of the large arena that they need") {
  const int ranks = gpus_for_processes();
  if (skipped(ranks)) return;
  bench::Board* const board = bench::make_board(ranks);
  auto* const page = new (bench::shared_memory(sizeof(LargeArenaPage))) LargeArenaPage{};
  GpuFindings* const findings = GpuFindings::shared();
  const char* const by_copies = ranks == 2 ? "copy_exchange" : "copy_ring";
  CHECK(bench::run_ranks(board, true, [&](int number) {
          SteppedRank rank(*board, number, *page);
          for (int round = 0; round < 2; ++round) {
            std::uint64_t before = 0;
            int turn = 4 * round;
            for (const char* const engine : {"tiled", by_copies, "direct_ll", "tiled"}) {
              const std::uint64_t bytes = engine[0] == 'd' ? 4ull << 20 : kMostBlock;
              if (const std::uint64_t wrong = rank.gather(engine, bytes, turn++); wrong != 0)
                findings->add(number, text("{}: {} wrong bytes; ", engine, wrong));
              if (number == 0)
                std::printf("%s: %.0f MB more for large calls\n", engine,
                            static_cast<double>(rank.held() - before) / 1e6);
              before = rank.held();
            }
            board->barrier();
            if (!rank.trim()) findings->add(number, text("{} bytes stay; ", rank.held()));
            board->barrier();
          }
        }) == 0);
  findings->check_none();
}

}  // namespace plait::cuda
