// The kernel that waits and signals for copy engines, on host threads. Rank 0 copies numbers into a
// slot of rank 1, and rank 1 reads each number. A rank comes after the peer's deadline, or the
// rank's program aborts while copies still go on: no number is taken for another.
#include <doctest/doctest.h>

#include <memory>
#include <random>
#include <vector>

#include "conformance/device_on_host.hpp"
// Needs device_on_host.hpp first, for the definitions of a device.
#include "base/text.hpp"
#include "cpu/reference_reduce.hpp"
#include "gpu/copy/engines.cuh"
#include "unit/scale.hpp"

using namespace plait;
using namespace plait::cuda;

namespace {

constexpr std::uint32_t kBefore = 0u - 4, kNumbers = 12;  // flags wrap around

struct EngineStepGpu {
  EngineStepGpu() {
    auto* const words = reinterpret_cast<std::uint32_t*>(&flags);
    std::fill(words, words + sizeof flags / sizeof *words, kBefore);
    flags.poisoned = 0;
  }
  DeviceState state{};
  StopPage stop_page{};
  EngineFlags flags{};
  std::atomic<bool> stream_failed{false};
};

struct EngineStepPair {
  EngineStepGpu gpus[2];
  std::atomic<std::uint32_t> slot{0};
  std::vector<std::uint32_t> read;  // by rank 1: a number for each completed step
  int late = -1;
  std::uint32_t late_at = 0, wrong = 0;

  EngineStep blank(int rank, double wait_s) {
    EngineStep step{};
    step.state = &gpus[rank].state;
    step.stop_page = &gpus[rank].stop_page;
    step.wait_ns = static_cast<std::uint64_t>(wait_s * 1e9);
    step.counted = &gpus[rank].flags.exchanged;
    for (int r = 0; r < 2; ++r) step.flags[r] = &gpus[r].flags;
    step.rank = rank;
    step.ranks = 2;
    return step;
  }
  /// Returns false if nothing later on the stream runs any more.
  bool launch(int rank, const EngineStep& step) {
    plait_test::launch({1, kMaxCudaRanks, {kMaxCudaRanks}, &gpus[rank].stream_failed},
                       [&] { engine_step(step); });
    return !gpus[rank].stream_failed;
  }
  void await_turn(int rank, std::uint32_t number, double wait_s) const {
    if (rank == late && number == late_at)
      std::this_thread::sleep_for(std::chrono::duration<double>(3 * wait_s));
  }
  void send_all(double wait_s) {
    for (std::uint32_t number = 1; number <= kNumbers; ++number) {
      await_turn(0, number, wait_s);
      EngineStep waits = blank(0, wait_s), signalling = waits;
      waits.waits[0] = {gpus[0].flags.link_handled, 1u << 1, number - 1};
      signalling.signal[1] = &gpus[1].flags.link_arrived[0];
      signalling.signal_value = number;
      if (!launch(0, waits)) return;
      slot = number;  // by an engine
      if (!launch(0, signalling)) return;
    }
  }
  void take_all(double wait_s) {
    for (std::uint32_t number = 1; number <= kNumbers; ++number) {
      await_turn(1, number, wait_s);
      EngineStep waits = blank(1, wait_s), signalling = waits;
      waits.waits[0] = {gpus[1].flags.link_arrived, 1u << 0, number};
      signalling.signal[0] = &gpus[0].flags.link_handled[1];
      signalling.signal_value = number;
      if (!launch(1, waits)) return;
      std::this_thread::yield();
      const std::uint32_t got = slot;
      if (!launch(1, signalling)) return;
      if (gpus[1].state.failed == kNoFault) read.push_back(got);
    }
  }
  void run(double wait_s, int aborted, unsigned pause_us) {
    std::thread sender([&] { send_all(wait_s); }), taker([&] { take_all(wait_s); });
    if (aborted >= 0) {
      std::this_thread::sleep_for(std::chrono::microseconds(pause_us));
      std::atomic_ref(gpus[aborted].stop_page.stop).store(kFaultAborted);
    }
    sender.join();
    taker.join();
    for (std::uint32_t i = 0; i < read.size(); ++i) wrong += read[i] == i + 1 ? 0 : 1;
  }
};

}  // namespace

TEST_CASE("steps of copy engines: a late or aborted rank leaves no rank with a wrong result") {
  std::size_t right = 0, failed = 0;
  for (const bool is_aborted : {false, true})
    for (int seed = 1; seed <= plait_test::rounds(30); ++seed) {
      std::mt19937 random(static_cast<unsigned>(seed));
      const auto pair = std::make_unique<EngineStepPair>();
      const int one = static_cast<int>(random() % 2);
      pair->late = is_aborted ? 1 - one : one;  // the peer comes late to the aborted call
      pair->late_at = 1 + static_cast<std::uint32_t>(random() % kNumbers);
      pair->run(0.03, is_aborted ? one : -1, static_cast<unsigned>(random() % 20000));
      CAPTURE(
          text("seed {}, late rank {}, aborted rank {}", seed, pair->late, is_aborted ? one : -1));
      CHECK(pair->wrong == 0);
      right += pair->read.size();
      failed += pair->gpus[0].stream_failed || pair->gpus[1].stream_failed ? 1 : 0;
      for (int rank = 0; rank < 2; ++rank) {  // a rank that gave up has poisoned the peer
        const DeviceState& state = pair->gpus[rank].state;
        CHECK((state.failed == kNoFault || pair->gpus[1 - rank].flags.poisoned == rank + 1u));
        CHECK(pair->gpus[rank].stream_failed == (state.failed == kFaultDeadline));
      }
    }
  CHECK(plait_test::seen(right));
  CHECK(plait_test::seen(failed));
}

/// Pieces of whole and partial units, by more or fewer threads than units, with any alignment of
/// source and destination.
TEST_CASE("a piece that is moved has all of its bytes and no others") {
  DeviceState state{};
  for (const std::uint64_t bytes : {1u, 15u, 16u, 17u, 1000u, 16u * 8 * 9 + 5})
    for (const std::size_t from : {0u, 16u, 3u})
      for (const std::size_t to : {0u, 32u, 5u}) {
        CAPTURE(bytes);
        CAPTURE(from);
        CAPTURE(to);
        std::vector<char> src(bytes + 64), dst(bytes + 96, '\x5a');
        for (std::size_t i = 0; i < src.size(); ++i) src[i] = static_cast<char>(i * 31 + 7);
        const auto aligned = [](std::vector<char>& one) {
          return one.data() + (16 - reinterpret_cast<std::uintptr_t>(one.data()) % 16) % 16;
        };
        PieceArgs args{};
        args.state = &state;
        args.sources = 1;
        args.source[0] = aligned(src) + from;
        args.dst = aligned(dst) + to;
        args.bytes = bytes;
        std::vector<char> wanted = dst;
        std::copy_n(args.source[0], bytes, wanted.data() + (args.dst - dst.data()));
        plait_test::launch({2, 4, {4}, nullptr}, [&] { move_piece(args); });
        CHECK(dst == wanted);
      }
}

TEST_CASE(
    "a piece of several ranks is reduced in rank order and in trees, whatever the alignment") {
  constexpr std::uint64_t kCount = 16 * 8 * 9 / 4 + 3;
  constexpr int kSum = static_cast<int>(ReduceOp::sum);
  DeviceState state{};
  std::mt19937 random(3);
  for (const int ranks : {2, 4, 8, 16})
    for (const SumOrder order : {SumOrder::rank_order, SumOrder::tree, SumOrder::tree_rounded})
      for (const std::size_t skew : {0u, 1u}) {
        std::vector<std::vector<float>> sources;
        std::vector<const void*> srcs;
        PieceArgs args{};
        args.state = &state;
        args.sources = ranks;
        args.order = static_cast<std::int32_t>(order);
        args.bytes = kCount * 4;
        for (int rank = 0; rank < ranks; ++rank) {
          auto& source = sources.emplace_back(kCount + 8);
          for (float& one : source)
            one = static_cast<float>(std::normal_distribution<double>()(random));
        }
        for (int rank = 0; rank < ranks; ++rank) {
          const float* const at = sources[static_cast<std::size_t>(rank)].data() + skew;
          srcs.push_back(at);
          args.source[rank] = reinterpret_cast<const char*>(at);
          args.scalars[rank] = 1.0;
        }
        std::vector<float> wanted(kCount), found(kCount + 1, -7.0f);
        args.dst = reinterpret_cast<char*>(found.data());
        const SumOrder of = ranks == 2 ? SumOrder::rank_order : order;
        args.order = static_cast<std::int32_t>(of);
        reduce_reference(DataType::fp32, ReduceOp::sum, wanted.data(), srcs, kCount, ranks, true,
                         {}, of);
        plait_test::launch({2, 4, {4}, nullptr}, [&] {
          if (ranks == 2) return reduce_piece<DataType::fp32, kSum, 2>(args);
          if (is_tree(of)) {
            if (ranks == 4) return reduce_piece<DataType::fp32, kTreeSum, 4>(args);
            if (ranks == 8) return reduce_piece<DataType::fp32, kTreeSum, 8>(args);
            return reduce_piece_in_tree<DataType::fp32>(args);
          }
          if (ranks == 4) return reduce_piece<DataType::fp32, kSum, 4>(args);
          if (ranks == 8) return reduce_piece<DataType::fp32, kSum, 8>(args);
          reduce_piece<DataType::fp32, kAnyOp, 0>(args);
        });
        CAPTURE(ranks);
        CAPTURE(name_of(order));
        CHECK(found.back() == -7.0f);
        found.pop_back();
        CHECK(found == wanted);
      }
}
