// Communicators that get GPUs after they were made, and that give up GPU memory for a while: a
// process per rank over a fake driver. Calls on host memory compute sums; calls on GPUs
// are recorded instead of run.
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "comm/bootstrap/vote.hpp"
#include "comm/trace/flight.hpp"
#include "fake_cuda/fake_gpu.hpp"
#include "plait/communicator.hpp"
#include "tests/fake_gpu/on_ranks.hpp"
#include "tests/fake_gpu/require.hpp"
#include "tests/gpu/ranks.hpp"

using namespace plait;
using namespace plait_test;

namespace {

void* const kMemory = reinterpret_cast<void*>(std::uintptr_t{1} << 20);
void* const kOther = reinterpret_cast<void*>(std::uintptr_t{1} << 33);

Request all_reduce(int ranks, std::uint64_t count) {
  Request request;
  request.ranks = ranks;
  request.count = count;
  return request;
}

void sum_on_host(Communicator& comm) {
  const int ranks = comm.ranks();
  std::vector<float> in(1000, static_cast<float>(comm.rank() + 1)), out(in.size());
  comm.run(all_reduce(ranks, in.size()), in.data(), out.data());
  const auto wanted = static_cast<float>(ranks * (ranks + 1) / 2);
  require(out == std::vector<float>(out.size(), wanted), "a sum on host memory");
}

std::size_t kernels_noted() {
  std::size_t found = 0;
  for (const FakeNote& note : fake_cuda().notes.all()) found += note.what.rfind("plait_", 0) == 0;
  return found;
}

void sum_on_gpus(Communicator& comm) {
  const std::size_t before = kernels_noted();
  comm.enqueue(all_reduce(comm.ranks(), 1 << 10), kMemory, kOther, nullptr);
  comm.check();
  // A single rank copies.
  require(comm.ranks() == 1 || kernels_noted() > before, "no kernel ran");
}

/// Requires that `work` throws an error of the code with `words` in the text.
void require_error(ErrorCode code, const std::string& words, const std::function<void()>& work) {
  const std::optional<Error> found = attempt(work);
  require(found.has_value(), "no error: " + words);
  require(found->code() == code && std::string(found->what()).find(words) != std::string::npos,
          found->what());
}

/// Runs `body` on a communicator without a GPU in each of `ranks` processes. meanwhile, and
/// interrupt with the rank: as of the communicator's options.
int on_ranks(int ranks, const std::function<void(Communicator&, bench::Board&)>& body,
             const std::function<bool()>& meanwhile = nullptr,
             const std::function<void(int)>& interrupt = nullptr) {
  fake_cuda().gpu = {};
  const std::string id = unique_id();
  return run_on_ranks(ranks, [&](const RankProcess& mine) {
    fake_cuda().gpu.number = static_cast<char>(mine.rank);
    CommunicatorOptions options;
    options.rank = mine.rank;
    options.ranks = ranks;
    options.unique_id = id;
    options.arrive_s = 30;
    options.meanwhile = meanwhile;
    if (interrupt) options.interrupt = [&, rank = mine.rank] { interrupt(rank); };
    {
      const std::unique_ptr<Communicator> comm = Communicator::create(options);
      require(comm->device() == kNoDevice, "the communicator was made with a GPU");
      body(*comm, mine.board);
      mine.board.barrier();
    }
    // A rank that waits too long for its peers' end frees its memory later, in another thread.
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (fake_cuda().memory.bytes != 0 && std::chrono::steady_clock::now() < end)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    require(fake_cuda().memory.bytes == 0, "memory of the GPU was kept");
  });
}

}  // namespace

TEST_CASE("a communicator that adopts GPUs serves host memory before and after, and GPU memory") {
  for (const int ranks : {1, 2, 3})
    CHECK(on_ranks(ranks, [](Communicator& comm, bench::Board&) {
            sum_on_host(comm);
            require_error(ErrorCode::no_device, "call adopt_device() on all ranks",
                          [&] { comm.enqueue(all_reduce(comm.ranks(), 8), kMemory, kOther, {}); });
            require(fake_cuda().memory.bytes == 0, "GPU memory before adopt_device()");
            comm.adopt_device(0);
            require(comm.device() == 0 && fake_cuda().memory.bytes > 0, "the adopted GPU");
            for (int turn = 0; turn < 3; ++turn) {
              sum_on_gpus(comm);
              sum_on_host(comm);
            }
            require(comm.counters().calls == 7, "counted calls of both kinds");
          }) == 0);
}

TEST_CASE("a suspended communicator has no GPU memory, serves host memory, and resumes") {
  for (const int ranks : {2, 3})
    CHECK(on_ranks(ranks, [](Communicator& comm, bench::Board& board) {
            require_error(ErrorCode::no_device, "adopt_device()", [&] { comm.suspend(); });
            require_error(ErrorCode::no_device, "adopt_device()", [&] { comm.resume(); });
            require(comm.gpu_memory().suspendable == 0, "GPU memory without a GPU");
            fake_cuda().gpu.maps_memory = true;
            comm.adopt_device(0);
            comm.resume();  // without a suspend
            for (int turn = 0; turn < 3; ++turn) {
              sum_on_gpus(comm);
              const GpuMemory held = comm.gpu_memory();
              const std::size_t taken = fake_cuda().memory.bytes;
              require(held.suspendable > 8'000'000, "all memory stays");
              const int waits = fake_cuda().waits_for_all;
              comm.suspend();
              require(fake_cuda().waits_for_all > waits, "a suspend beside work of the GPU");
              comm.suspend();   // again
              board.barrier();  // the memory is freed once no rank maps the memory
              require(fake_cuda().memory.bytes == taken - held.suspendable,
                      "a suspended communicator kept memory");
              require(comm.gpu_memory().suspendable == held.suspendable, "forgotten bytes");
              require_error(ErrorCode::invalid_argument, "is suspended: resume the communicator",
                            [&] { sum_on_gpus(comm); });
              sum_on_host(comm);
              board.barrier();
              const int waits_so_far = fake_cuda().waits_for_all;
              comm.resume();
              require(fake_cuda().waits_for_all == waits_so_far,
                      "a resume waits for the GPU's other work");
              require(fake_cuda().memory.bytes == taken, "not as before");
            }
            sum_on_gpus(comm);
          }) == 0);
}

TEST_CASE(
    "ranks that suspend and ranks that do not get the same error, and all keep their memory") {
  CHECK(on_ranks(2, [](Communicator& comm, bench::Board&) {
          fake_cuda().gpu.maps_memory = true;
          comm.adopt_device(0);
          const std::size_t held = fake_cuda().memory.bytes;
          require_error(ErrorCode::mismatch, "rank 0 asks for suspend, rank 1 for barrier", [&] {
            if (comm.rank() == 0)
              comm.suspend();
            else
              comm.barrier();
          });
          require(fake_cuda().memory.bytes == held, "memory went");
          sum_on_gpus(comm);
          sum_on_host(comm);
        }) == 0);
}

TEST_CASE("calls of other threads during a suspend or a resume get errors that name the step") {
  std::atomic<bool> waits{false};
  const auto body = [&](Communicator& comm, bench::Board& board) {
    fake_cuda().gpu.maps_memory = true;
    comm.adopt_device(0);
    // Rank 0 waits in the step for rank 1. Rank 1 begins the step behind the call of rank 0's other
    // thread.
    const auto other_gets = [&](const std::string& words, const std::function<void()>& step) {
      std::string failed;
      waits.store(false);
      std::thread other([&] {
        const auto late = std::chrono::steady_clock::now() + std::chrono::seconds(20);
        while (comm.rank() == 0 && !waits.load() && std::chrono::steady_clock::now() < late)
          std::this_thread::yield();
        const auto caught = attempt([&] {
          if (comm.rank() == 0)
            require_error(ErrorCode::invalid_argument, words,
                          [&] { comm.enqueue(all_reduce(2, 8), kMemory, kOther, nullptr); });
        });
        failed = caught ? caught->what() : "";
        board.barrier();
      });
      if (comm.rank() == 1) other.join();
      const auto wrong = attempt(step);
      if (comm.rank() == 0) other.join();
      require(!wrong && failed.empty(), wrong ? wrong->what() : failed);
    };
    other_gets("another thread suspends this communicator", [&] { comm.suspend(); });
    other_gets("another thread resumes this communicator", [&] { comm.resume(); });
    board.barrier();
    sum_on_gpus(comm);
    sum_on_host(comm);
  };
  CHECK(on_ranks(2, body, [&] {
          waits.store(true);
          return false;
        }) == 0);
}

TEST_CASE("a large call that is refused while suspended counts on no rank") {
  CHECK(on_ranks(2, [](Communicator& comm, bench::Board& board) {
          const Request large = all_reduce(2, 1 << 20);
          fake_cuda().gpu.maps_memory = true;
          comm.adopt_device(0);
          sum_on_gpus(comm);
          comm.suspend();
          const std::size_t suspended = fake_cuda().memory.bytes;
          const auto began = std::chrono::steady_clock::now();
          if (comm.rank() == 0)
            require_error(ErrorCode::invalid_argument, "is suspended",
                          [&] { comm.enqueue(large, kMemory, kOther, nullptr); });
          const auto took = std::chrono::steady_clock::now() - began;
          require(took < std::chrono::seconds(8), "a wait for the large arena");
          board.barrier();
          comm.resume();
          const std::size_t resumed = fake_cuda().memory.bytes;
          require(resumed > suspended, "no memory after the resume");
          for (int turn = 0; turn < 2; ++turn) {  // the second turn uses the large arena
            comm.enqueue(large, kMemory, kOther, nullptr);
            board.barrier();
          }
          require(fake_cuda().memory.bytes > resumed, "no large arena");
          comm.suspend();
          board.barrier();
          require(fake_cuda().memory.bytes == suspended, "the large arena stayed");
          comm.resume();
        }) == 0);
}

TEST_CASE("a rank without memory at the resume ends the communicator on every rank") {
  CHECK(on_ranks(3, [](Communicator& comm, bench::Board& board) {
          fake_cuda().gpu.maps_memory = true;
          comm.adopt_device(0);
          comm.suspend();
          board.barrier();
          const std::size_t most = fake_cuda().memory.most;
          if (comm.rank() == 1) fake_cuda().memory.most = fake_cuda().memory.bytes;
          require_error(ErrorCode::out_of_memory, "", [&] { comm.resume(); });
          fake_cuda().memory.most = most;
          const auto later = attempt([&] { sum_on_host(comm); });
          require(later.has_value(), "the communicator goes on");
        }) == 0);
}

TEST_CASE("an interrupt in adopt_device() on one rank is an error on all ranks") {
  using Clock = std::chrono::steady_clock;
  std::atomic<bool> is_armed{false};  // in each process
  std::atomic<int> rank{-1};
  Clock::time_point began;
  const auto body = [&](Communicator& comm, bench::Board& board) {
    rank.store(comm.rank());
    board.barrier();
    began = Clock::now();
    is_armed.store(true);
    if (comm.rank() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(200));
    require_error(ErrorCode::aborted, "Ctrl-C", [&] { comm.adopt_device(0); });
    require(comm.device() == kNoDevice, "a device");
    require(fake_cuda().memory.bytes == 0, "memory is kept");
    board.barrier();
  };
  const auto slow_rank_0 = [&] {
    if (rank == 0 && is_armed.exchange(false)) std::this_thread::sleep_for(std::chrono::seconds(1));
    return false;
  };
  const auto interrupt_rank_1 = [&](int asked) {
    const bool is_time =
        asked == 1 && is_armed && Clock::now() - began > std::chrono::milliseconds(500);
    if (is_time && is_armed.exchange(false)) throw Error(ErrorCode::aborted, "Ctrl-C");
  };
  CHECK(on_ranks(2, body, slow_rank_0, interrupt_rank_1) == 0);
}

TEST_CASE("a second adopt_device() is refused on every rank, and changes nothing") {
  CHECK(on_ranks(2, [](Communicator& comm, bench::Board&) {
          comm.adopt_device(0);
          require_error(ErrorCode::invalid_argument, "this communicator has GPU 0 already",
                        [&] { comm.adopt_device(0); });
          sum_on_gpus(comm);
          sum_on_host(comm);
        }) == 0);
}

TEST_CASE("a call on GPU memory that one rank alone refuses keeps the ranks' numbers alike") {
  CHECK(on_ranks(2, [](Communicator& comm, bench::Board& board) {
          comm.adopt_device(0);
          sum_on_gpus(comm);
          void* const odd = static_cast<char*>(kMemory) + 1;
          if (comm.rank() == 1)
            require_error(ErrorCode::invalid_argument, "",
                          [&] { comm.enqueue(all_reduce(2, 1 << 10), odd, kOther, nullptr); });
          sum_on_gpus(comm);
          board.barrier();
          int rings = 0;
          for_each_flight([&](const FlightInfo& info) {
            if (info.memory != "GPU") return;
            ++rings;
            require(info.mine->enqueued() == info.mine->written(), "calls that are not enqueued");
            for (const FlightRank& one : info.here)
              require(one.ring->numbered() == 2, "a number was lost");
          });
          require(rings == 1, "no recorder of calls on GPU memory");
        }) == 0);
}

TEST_CASE("one rank that cannot adopt a GPU leaves all without, and all may try again") {
  CHECK(on_ranks(3, [](Communicator& comm, bench::Board&) {
          const bool lacks = comm.rank() == 1;
          require_error(ErrorCode::no_device, "rank 1: wanted GPU 5, found 1",
                        [&] { comm.adopt_device(lacks ? 5 : 0); });
          require_error(ErrorCode::invalid_argument, "rank 1: adopt_device: wanted a CUDA ordinal",
                        [&] { comm.adopt_device(lacks ? kNoDevice : 0); });
          if (lacks) fake_cuda().memory.most = 0;
          require_error(ErrorCode::out_of_memory, "rank 1", [&] { comm.adopt_device(0); });
          fake_cuda().memory.most = ~std::size_t{0};
          if (lacks) fake_cuda().refuses.of("primary_retain", 1);
          require_error(ErrorCode::out_of_memory, "rank 1", [&] { comm.adopt_device(0); });
          fake_cuda().refuses.none();
          require(comm.device() == kNoDevice && fake_cuda().memory.bytes == 0, "a GPU was kept");
          sum_on_host(comm);
          comm.adopt_device(0);
          sum_on_gpus(comm);
          sum_on_host(comm);
        }) == 0);
}

TEST_CASE("a launcher without local ranks gives no GPU: all ranks say so") {
  CHECK(on_ranks(2, [](Communicator& comm, bench::Board&) {
          require_error(ErrorCode::no_device, "no launcher says which GPU is this rank's",
                        [&] { comm.adopt_device(kDeviceByLauncher); });
          sum_on_host(comm);
        }) == 0);
}

TEST_CASE("ranks that make another call at the same time all get the mismatch") {
  CHECK(on_ranks(2, [](Communicator& comm, bench::Board&) {
          require_error(ErrorCode::mismatch, "rank 0 asks for adopt_device, rank 1 for barrier",
                        [&] {
                          if (comm.rank() == 0)
                            comm.adopt_device(0);
                          else
                            comm.barrier();
                        });
          sum_on_host(comm);
        }) == 0);
}

TEST_CASE("after abort() no GPU is adopted") {
  CHECK(on_ranks(2, [](Communicator& comm, bench::Board& board) {
          if (comm.rank() == 0) {
            std::thread other([&] {
              std::this_thread::sleep_for(std::chrono::milliseconds(50));
              comm.abort();
            });
            require_error(ErrorCode::aborted, "abort()", [&] { comm.adopt_device(0); });
            other.join();
            require_error(ErrorCode::aborted, "", [&] { comm.adopt_device(0); });
          }
          board.barrier();
          if (comm.rank() == 1)
            require_error(ErrorCode::aborted, "rank 0 reports", [&] { comm.adopt_device(0); });
          require(comm.device() == kNoDevice && fake_cuda().memory.bytes == 0, "a GPU was kept");
        }) == 0);
}

TEST_CASE("abort() of an adopted GPU ends its calls") {
  CHECK(on_ranks(2, [](Communicator& comm, bench::Board& board) {
          comm.adopt_device(0);
          sum_on_gpus(comm);
          board.barrier();
          comm.abort();
          require_error(ErrorCode::aborted, "", [&] { sum_on_gpus(comm); });
        }) == 0);
}

TEST_CASE("a rank that closes its communicator instead is named by the rank that adopts") {
  const std::string id = unique_id();
  bench::Board* const board = bench::make_board(2);
  CHECK(bench::run_ranks(board, true, [&](int rank) {
          CommunicatorOptions options;
          options.rank = rank;
          options.ranks = 2;
          options.unique_id = id;
          options.arrive_s = 30;
          const std::unique_ptr<Communicator> comm = Communicator::create(options);
          if (rank == 0)
            require_error(ErrorCode::peer_lost, "rank 1", [&] { comm->adopt_device(0); });
        }) == 0);
}

TEST_CASE("other threads look while a GPU is adopted, then call on both kinds of memory at once") {
  CHECK(on_ranks(2, [](Communicator& comm, bench::Board&) {
          std::atomic<bool> is_over{false};
          std::atomic<long> looks{0};
          std::thread looker([&] {
            while (!is_over.load()) {
              const bool has_gpu = comm.device() == 0;
              if (has_gpu) static_cast<void>(comm.on_device(kMemory));
              looks += static_cast<long>(comm.counters().calls) + 1;
            }
          });
          while (looks.load() == 0) std::this_thread::yield();
          comm.adopt_device(0);
          std::string failed;
          std::thread on_gpus([&] {
            const auto caught = attempt([&] {
              for (int turn = 0; turn < 200; ++turn) sum_on_gpus(comm);
            });
            if (caught) failed = caught->what();
          });
          const auto caught = attempt([&] {
            for (int turn = 0; turn < 200; ++turn) sum_on_host(comm);
          });
          on_gpus.join();
          is_over.store(true);
          looker.join();
          require(!caught && failed.empty(), caught ? caught->what() : failed);
          require(comm.counters().calls == 400, "counted calls");
        }) == 0);
}

TEST_CASE("a pair that one rank asks for before the GPUs, and the other after, has GPUs") {
  CHECK(on_ranks(2, [](Communicator& comm, bench::Board& board) {
          std::string failed;
          const auto use_pair = [&] {
            const auto caught = attempt([&] {
              Communicator& pair = comm.pair(1 - comm.rank());
              require(pair.device() == 0, "the pair has no GPU");
              sum_on_host(pair);
            });
            if (caught) failed = caught->what();
          };
          std::thread early([&] {
            if (comm.rank() == 0) use_pair();
          });
          if (comm.rank() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(300));
          comm.adopt_device(0);
          board.barrier();
          if (comm.rank() == 1) use_pair();
          early.join();
          require(failed.empty(), failed);
        }) == 0);
}

TEST_CASE("a pair made before has no GPU, a pair made after has one") {
  CHECK(on_ranks(3, [](Communicator& comm, bench::Board&) {
          const int rank = comm.rank();
          if (rank < 2) {
            Communicator& early = comm.pair(1 - rank);
            comm.adopt_device(0);
            require(early.device() == kNoDevice, "the early pair has a GPU");
            require_error(ErrorCode::unsupported, "adopt_device: this is a pair of ranks",
                          [&] { early.adopt_device(0); });
            sum_on_host(early);
          } else {
            comm.adopt_device(0);
          }
          if (rank > 0) require(comm.pair(3 - rank).device() == 0, "the late pair has no GPU");
          sum_on_gpus(comm);
        }) == 0);
}
