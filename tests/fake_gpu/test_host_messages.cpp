// Sends and receives between GPUs that do not address each other. Processes make calls over a fake
// driver, and the message kernel runs on host threads in the arenas that all of them map.
#include <doctest/doctest.h>

#include <chrono>
#include <functional>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "conformance/device_on_host.hpp"
// Needs device_on_host.hpp first, for the definitions of a device.
#include "base/text.hpp"
#include "comm/bootstrap/vote.hpp"
#include "comm/gpu/gpu_calls.hpp"
#include "fake_cuda/fake_gpu.hpp"
#include "gpu/p2p/message_bulk.cuh"
#include "gpu/p2p/message_memory.hpp"
#include "gpu/p2p/messages.hpp"
#include "plait/error.hpp"
#include "tests/fake_gpu/h200_group.hpp"
#include "tests/fake_gpu/on_ranks.hpp"
#include "unit/scale.hpp"

using namespace plait;
using namespace plait::cuda;
using namespace plait_test;

namespace {

constexpr unsigned kTeamThreads = 2;

/// Fails the test by an exception, because doctest's output does not reach the parent process.
void must(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error(what);
}

/// Both teams of a block, as a thread of the block sees them.
void run_team(const MessageArgs& args) {
  if (args.notes != 0) return note_works(args);
  struct SharedMessages {
    MessageTeamShared sides[2];
  };
  PLAIT_SHARED(SharedMessages, shared);
  const unsigned side = threadIdx.x / kTeamThreads;
  MessageTeam end(args, shared.sides[side], {side, kTeamThreads, threadIdx.x % kTeamThreads},
                  blockIdx.x, side);
  end.run([](MessageTeam&, const MessageWork&, unsigned) { return false; });
}

/// Runs the message kernels that this process enqueues, at once.
class PlayedKernels {
 public:
  PlayedKernels() {
    fake_cuda().on_launch = [this](const std::string& kernel, unsigned, unsigned,
                                   const void* given) {
      MessageArgs args;
      if (kernel != "plait_messages") return;
      std::memcpy(&args, given, sizeof args);
      if (args.state == nullptr) return;  // a probe
      args.state = &state_;               // the driver's GPU memory has no content
      launches_.push_back(args);
      play(launches_.back());
    };
  }
  ~PlayedKernels() { fake_cuda().on_launch = nullptr; }
  PlayedKernels(const PlayedKernels&) = delete;
  PlayedKernels& operator=(const PlayedKernels&) = delete;
  void forget() { launches_.clear(); }
  /// As a graph that captured the launches since forget().
  void replay() {
    for (const MessageArgs& args : launches_) play(args);
  }
  bool has_failed() const { return stream_failed_; }

 private:
  void play(const MessageArgs& args) {
    plait_test::launch(
        {message_blocks(args), 2 * kTeamThreads, {kTeamThreads, kTeamThreads}, &stream_failed_},
        [&] { run_team(args); });
  }
  DeviceState state_{};
  std::atomic<bool> stream_failed_{false};
  std::vector<MessageArgs> launches_;
};

using Body = std::function<void(CudaRank&, PlayedKernels&, bench::Board&)>;

void on_ranks(int ranks, double wait_s, const Body& body) {
  CHECK(run_on_ranks(ranks, [&](const RankProcess& mine) {
          GpuCallsOptions options = options_without_kernels();  // but those of messages
          options.rank.messages = true;
          options.rank.most_blocks = 4;  // A thread each for few blocks.
          options.rank.wait_s = wait_s;
          PlayedKernels played;
          const std::string why = mine.rank == 0 ? "the driver grants none" : "";
          with_calls(mine, h200_group(mine.rank, ranks, mine.exchange, why), options,
                     [&](GpuCalls& calls) {
                       must(calls.rank().full_group().through_host,
                            "arenas are not in host memory");
                       must(calls.rank().takes_messages(), "no room for messages");
                       body(calls.rank(), played, mine.board);
                     });
        }) == 0);
}

/// A message between two ranks, with bytes that both know.
struct Sent {
  std::size_t from, to;
  std::vector<std::uint8_t> data, got;
  void fill(std::mt19937& random) {
    for (std::uint8_t& one : data) one = static_cast<std::uint8_t>(random());
    std::fill(got.begin(), got.end(), std::uint8_t{0xa5});
  }
};

std::vector<Sent> random_group(std::mt19937& random, std::size_t ranks) {
  std::vector<Sent> all;
  for (std::size_t from = 0; from < ranks; ++from)
    for (std::size_t to = 0; to < ranks; ++to)
      for (auto left = random() % 3; left > 0; --left) {
        const auto which = random() % 8;
        // Beyond 256 KiB messages go by tiles.
        const std::size_t bytes = which == 0  ? (256 << 10) + random() % 100'000
                                  : which < 4 ? random() % 50
                                              : random() % 30'000;
        all.push_back({from, to, std::vector<std::uint8_t>(bytes), {}});
        all.back().got.resize(bytes);
      }
  return all;
}

void check_group(const std::vector<Sent>& group, std::size_t me, int number) {
  for (const Sent& one : group)
    must(one.to != me || one.got == one.data,
         text("group {}: {} bytes from rank {} to {} are wrong", number, one.data.size(), one.from,
              one.to));
}

}  // namespace

TEST_CASE("random groups of messages through host memory arrive as sent, in replays too") {
  for (const int ranks : {2, 3})
    on_ranks(ranks, 60, [ranks](CudaRank& rank, PlayedKernels& played, bench::Board& board) {
      const auto me = static_cast<std::size_t>(rank.rank());
      std::mt19937 random(static_cast<unsigned>(ranks));  // alike on all ranks
      for (int number = 0; number < (plait_test::takes_few() ? 12 : 40); ++number) {
        std::vector<Sent> group = random_group(random, static_cast<std::size_t>(ranks));
        for (Sent& one : group) one.fill(random);
        std::vector<MessageEnd> ends;
        for (Sent& one : group) {
          if (one.from == me)
            ends.push_back({true, static_cast<int>(one.to), one.data.data(), one.data.size()});
          if (one.to == me)
            ends.push_back({false, static_cast<int>(one.from), one.got.data(), one.got.size()});
        }
        played.forget();
        rank.messages(ends, nullptr);
        check_group(group, me, number);
        for (int replay = 0; replay < 2; ++replay) {
          for (Sent& one : group) one.fill(random);
          played.replay();
          check_group(group, me, number);
        }
      }
      must(!played.has_failed(), "a stream failed");
      rank.check();
      board.barrier();
    });
}

TEST_CASE("a message through host memory that nobody sends ends at the deadline, by name") {
  on_ranks(2, 0.3, [](CudaRank& rank, PlayedKernels& played, bench::Board& board) {
    if (rank.rank() == 0) {
      std::vector<std::uint8_t> got(5000, 0xa5);
      rank.messages({{false, 1, got.data(), got.size()}}, nullptr);
      must(played.has_failed(), "the stream goes on");
      const std::optional<Error> found = attempt([&] { rank.check(); });
      must(found && found->code() == ErrorCode::timeout, "no timeout");
      must(std::string(found->what()).find("rank 1") != std::string::npos, found->what());
    }
    board.barrier();
  });
}

TEST_CASE("an abort ends a wait for a message through host memory at once") {
  on_ranks(2, 60, [](CudaRank& rank, PlayedKernels& played, bench::Board& board) {
    if (rank.rank() == 0) {
      std::vector<std::uint8_t> got(300 << 10, 0xa5);
      std::thread program([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        rank.abort();
      });
      rank.messages({{false, 1, got.data(), got.size()}}, nullptr);
      program.join();
      must(!played.has_failed(), "an abort of the program is no failure of the stream");
      const std::optional<Error> found = attempt([&] { rank.check(); });
      must(found && found->code() == ErrorCode::aborted, "not aborted");
    }
    board.barrier();
  });
}

TEST_CASE("slots of messages leave the engines theirs in arenas in host memory") {
  on_ranks(2, 60, [](CudaRank& rank, PlayedKernels&, bench::Board&) {
    const DeviceArenaSizes& sizes = rank.full_group().sizes;
    must(sizes[kMessageMemory] + sizes[kMessagePackets] == message_memory_bytes(2, 4),
         "the budget has other bytes for messages");
  });
}
