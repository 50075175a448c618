// Communicators on GPUs that do not address each other: NCCL's settings forbid access, the driver
// maps no memory of a peer, or the path check finds lost data. All ranks agree on arenas in host
// memory. A process per rank over a fake driver, so calls are recorded instead of run.
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/text.hpp"
#include "comm/bootstrap/vote.hpp"
#include "fake_cuda/fake_gpu.hpp"
#include "plait/communicator.hpp"
#include "tests/fake_gpu/on_ranks.hpp"
#include "tests/fake_gpu/require.hpp"
#include "tests/gpu/ranks.hpp"

using namespace plait;
using namespace plait_test;

namespace {

using Clock = std::chrono::steady_clock;
void* const kMemory = reinterpret_cast<void*>(std::uintptr_t{1} << 20);
void* const kOther = reinterpret_cast<void*>(std::uintptr_t{1} << 33);

constexpr double kNoticedS = 20;  // on a busy machine, of 30 s that ranks wait for each other

bool holds_soon(const std::function<bool()>& holds, double seconds = 5) {
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  while (!holds() && Clock::now() < end) usleep(1000);
  return holds();
}

/// Arenas in host memory that this process maps. Liveness pages, which stay as long as the process,
/// and other pages of plait are smaller.
int mappings() {
  constexpr std::uint64_t kArenaBytes = 2 << 20;
  std::ifstream maps("/proc/self/maps");
  int found = 0;
  for (std::string line; std::getline(maps, line);) {
    unsigned long begin = 0, end = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx", &begin, &end) != 2) continue;
    found += line.find("memfd:plait") != line.npos && end - begin >= kArenaBytes;
  }
  return found;
}

std::size_t named_memory() {
  std::size_t found = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm"))
    found += entry.path().filename().string().find("plait") != std::string::npos;
  return found;
}

void call_on_gpus(Communicator& comm) {
  for (const std::uint64_t count : {std::uint64_t{1} << 10, std::uint64_t{1} << 16}) {
    Request request;
    request.ranks = comm.ranks();
    request.count = count;
    comm.enqueue(request, kMemory, kOther, nullptr);
  }
  comm.check();
}

/// Of a new communicator: other pieces of host memory come with large calls.
bool is_through_host() { return mappings() >= 2; }

using Body = std::function<void(const CommunicatorOptions&, bench::Board&)>;

/// Runs `body` in each of `ranks` processes with that environment; `spoil` breaks a rank's driver.
int on_ranks(int ranks, const std::vector<std::pair<const char*, const char*>>& env,
             const std::function<void(int rank)>& spoil, const Body& body) {
  fake_cuda().gpu = {};
  const std::string id = unique_id();
  return run_on_ranks(ranks, [&](const RankProcess& mine) {
    for (const auto& [name, value] : env) ::setenv(name, value, 1);
    fake_cuda().gpu.number = static_cast<char>(mine.rank);
    if (spoil) spoil(mine.rank);
    CommunicatorOptions options;
    options.rank = mine.rank;
    options.ranks = ranks;
    options.unique_id = id;
    options.arrive_s = 30;
    options.device = 0;
    body(options, mine.board);
    require(holds_soon([] { return fake_cuda().memory.bytes == 0; }), "memory of the GPU was kept");
    require(holds_soon([] { return mappings() == 0; }), text("{} mappings were kept", mappings()));
  });
}

const Body kServes = [](const CommunicatorOptions& options, bench::Board& board) {
  const std::unique_ptr<Communicator> comm = Communicator::create(options);
  require(comm->device() == 0 && is_through_host(), "arenas are not in host memory");
  for (int turn = 0; turn < 3; ++turn) call_on_gpus(*comm);
  board.barrier();
};

const Body kIsDirect = [](const CommunicatorOptions& options, bench::Board& board) {
  const std::unique_ptr<Communicator> comm = Communicator::create(options);
  require(comm->device() == 0 && !is_through_host(), "arenas are in host memory");
  call_on_gpus(*comm);
  board.barrier();
};

/// Requires that all ranks get this error, and that nothing is left.
Body refused(ErrorCode code, const std::string& words) {
  return [=](const CommunicatorOptions& options, bench::Board&) {
    const std::optional<Error> found = attempt([&] { Communicator::create(options); });
    require(found.has_value(), "no error: " + words);
    require(found->code() == code && std::string(found->what()).find(words) != std::string::npos,
            found->what());
  };
}

constexpr int kPeerAccessUnsupported = 217, kNotSupported = 801;

/// The driver of the last rank opens no memory of rank 0, or exports none.
std::function<void(int)> lacks(const char* function, int result, int last) {
  return [=](int rank) {
    if (rank == last) fake_cuda().refuses.of(function, 1, result);
  };
}

/// What GPU 0 stores into GPU 1 is lost.
void lose(int rank) {
  if (rank == 1) fake_cuda().loses_from = 0;
}

}  // namespace

TEST_CASE("GPUs that may not address each other are served through host memory by default") {
  const std::size_t before = named_memory();
  for (const int ranks : {2, 4}) {
    CHECK(on_ranks(ranks, {{"NCCL_P2P_DISABLE", "1"}}, nullptr, kServes) == 0);
    CHECK(on_ranks(ranks, {{"PLAIT_THROUGH_HOST", "1"}}, nullptr, kServes) == 0);
    CHECK(on_ranks(ranks, {{"NCCL_P2P_DISABLE", "1"}, {"PLAIT_THROUGH_HOST", "0"}}, nullptr,
                   refused(ErrorCode::unsupported,
                           "PLAIT_THROUGH_HOST=auto takes the way through "
                           "host memory")) == 0);
    CHECK(on_ranks(ranks, {}, nullptr, kIsDirect) == 0);
  }
  CHECK(named_memory() == before);
}

TEST_CASE("a rank that may not address its peers decides for all") {
  const auto one_forbids = [](int rank) {
    if (rank == 1) ::setenv("NCCL_P2P_DISABLE", "1", 1);
  };
  CHECK(on_ranks(4, {}, one_forbids, kServes) == 0);
}

TEST_CASE("a driver that maps no memory of a peer sends all ranks through host memory") {
  for (const int ranks : {2, 4}) {
    const auto opens_none = lacks("ipc_open", kPeerAccessUnsupported, ranks - 1);
    const auto exports_none = lacks("ipc_get", kNotSupported, ranks - 1);
    CHECK(on_ranks(ranks, {}, opens_none, kServes) == 0);
    CHECK(on_ranks(ranks, {}, exports_none, kServes) == 0);
    CHECK(on_ranks(ranks, {{"PLAIT_THROUGH_HOST", "0"}}, opens_none,
                   refused(ErrorCode::no_device, "memory of rank 0's GPU cannot be mapped")) == 0);
  }
}

TEST_CASE("memory that runs out while peers are mapped is an error, not a reason for host memory") {
  constexpr int kOutOfMemory = 2;
  CHECK(on_ranks(2, {}, lacks("ipc_open", kOutOfMemory, 1),
                 refused(ErrorCode::out_of_memory, "ipc_open")) == 0);
}

TEST_CASE("a broken path of one pair sends all ranks through host memory") {
  for (const int ranks : {2, 4}) {
    CHECK(on_ranks(ranks, {}, lose, kServes) == 0);
    CHECK(on_ranks(ranks, {{"PLAIT_THROUGH_HOST", "0"}}, lose,
                   refused(ErrorCode::driver_error,
                           "direct access between GPUs is broken here, though the driver grants "
                           "it: data that rank 0's GPU")) == 0);
  }
}

TEST_CASE("a pair inside an island is direct, a pair between islands goes through host memory") {
  for (const char* const through_host : {"auto", "1"})
    CHECK(on_ranks(
              4, {{"PLAIT_TOPOLOGY", "a100-pcie-x4"}, {"PLAIT_THROUGH_HOST", through_host}},
              [](int) { fake_cuda().gpu.seen = 4; },
              [&](const CommunicatorOptions& options, bench::Board& board) {
                CommunicatorOptions own = options;
                own.device = options.rank;
                const std::unique_ptr<Communicator> comm = Communicator::create(own);
                require(is_through_host(), "arenas are not in host memory");
                for (const int distance : {1, 2}) {
                  const int peer = options.rank ^ distance, opened = fake_cuda().opened;
                  require(comm->pair(peer).device() == options.rank, "the pair has no GPU");
                  const bool is_direct = fake_cuda().opened > opened;
                  require(is_direct == (distance == 1 && through_host[0] == 'a'),
                          text("pair with rank {}", peer));
                }
                board.barrier();
              }) == 0);
}

TEST_CASE("several communicators have host memory of their own, and free it") {
  const std::vector<std::string> ids = {unique_id(), unique_id(), unique_id()};
  CHECK(on_ranks(2, {{"NCCL_P2P_DISABLE", "1"}}, nullptr,
                 [&](const CommunicatorOptions& options, bench::Board& board) {
                   std::vector<std::unique_ptr<Communicator>> all;
                   for (const std::string& id : ids) {
                     CommunicatorOptions own = options;
                     own.unique_id = id;
                     all.push_back(Communicator::create(own));
                   }
                   const int most = mappings();
                   all.pop_back();
                   require(holds_soon([&] { return mappings() < most; }), "nothing was unmapped");
                   for (int turn = 0; turn < 3; ++turn)
                     for (const auto& comm : all) call_on_gpus(*comm);
                   board.barrier();
                 }) == 0);
}

TEST_CASE("a killed rank is named soon, and abort() ends calls, through host memory") {
  const std::size_t before = named_memory();
  const auto spoilt = {std::function<void(int)>(nullptr), std::function<void(int)>(lose)};
  for (const auto& spoil : spoilt) {
    const char* disabled = spoil ? "0" : "1";
    CHECK(on_ranks(3, {{"NCCL_P2P_DISABLE", disabled}}, spoil,
                   [](const CommunicatorOptions& options, bench::Board& board) {
                     std::unique_ptr<Communicator> comm = Communicator::create(options);
                     require(is_through_host(), "arenas are not in host memory");
                     call_on_gpus(*comm);
                     board.barrier();
                     if (options.rank == 2) bench::end_as_killed(0);
                     const auto killed = Clock::now();
                     std::string said;
                     require(holds_soon(
                                 [&] {
                                   const auto failure = attempt([&] { call_on_gpus(*comm); });
                                   if (failure) said = failure->what();
                                   return failure.has_value();
                                 },
                                 kNoticedS),
                             "the loss was not noticed soon");
                     require(said.find("rank 2") != said.npos && said.find("ended") != said.npos,
                             said);
                     const std::chrono::duration<double> took = Clock::now() - killed;
                     require(took.count() < kNoticedS, text("{} s are too late", took.count()));
                     // The communicator keeps its arena, with a thread, for the rank that ended.
                     comm.reset();
                     bench::end_as_killed(0);
                   }) == 0);
    CHECK(on_ranks(2, {{"NCCL_P2P_DISABLE", disabled}}, spoil,
                   [](const CommunicatorOptions& options, bench::Board& board) {
                     const std::unique_ptr<Communicator> comm = Communicator::create(options);
                     call_on_gpus(*comm);
                     board.barrier();
                     comm->abort();
                     const auto failure = attempt([&] { call_on_gpus(*comm); });
                     require(failure && failure->code() == ErrorCode::aborted, "no abort");
                   }) == 0);
  }
  CHECK(named_memory() == before);
}
