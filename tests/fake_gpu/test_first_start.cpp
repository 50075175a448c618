// The measurement at the first start over a fake driver: two processes, a GPU each whose kernels
// take a time that the test chooses.
#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/text.hpp"
#include "comm/bootstrap/vote.hpp"
#include "comm/gpu/bench_launches.hpp"
#include "comm/gpu/first_start.hpp"
#include "comm/gpu/gpu_bench.hpp"
#include "comm/gpu/measurement.hpp"
#include "comm/gpu/tuning_machine.hpp"
#include "fake_cuda/fake_gpu.hpp"
#include "gpu/select/tuning_file.hpp"
#include "plait/communicator.hpp"
#include "plait/error.hpp"
#include "tests/fake_gpu/on_ranks.hpp"
#include "tests/fake_gpu/require.hpp"
#include "tests/gpu/ranks.hpp"

using namespace plait;
using namespace plait_test;

namespace {

constexpr int kRanks = 2;
constexpr const char* kKind = "Some GPU, 132 multiprocessors, no NVLink";

/// A cache folder that is removed with the object.
struct CacheFolder {
  CacheFolder() {
    char name[] = "/tmp/plait-first-XXXXXX";
    require(::mkdtemp(name) != nullptr, "no folder");
    path = name;
    ::setenv("XDG_CACHE_HOME", name, 1);
  }
  ~CacheFolder() {
    ::unsetenv("XDG_CACHE_HOME");
    std::filesystem::remove_all(path);
  }
  /// Files of tables and marks.
  std::vector<std::string> files() const {
    std::vector<std::string> found;
    if (std::filesystem::exists(path / "plait"))
      for (const auto& one : std::filesystem::directory_iterator(path / "plait"))
        found.push_back(one.path());
    return found;
  }
  std::filesystem::path path;
};

Env measuring() {
  Env env;
  env.autotune = true;
  return env;
}

GpuGroup group_of(int rank) {
  GpuGroup group;
  group.rank = rank;
  group.ranks = kRanks;
  group.ordinals.assign(kRanks, 0);
  group.kind = kKind;
  group.in_processes = true;
  group.topology = load_topology("l40s-x4");
  group.tuning_machine = tuning_machine(group.topology, group.devices_of_ranks());
  return group;
}

GpuCallsOptions options_of() {
  GpuCallsOptions options = options_without_kernels("l40s-x4");
  options.rank.memory.plans = true;
  return options;
}

/// Kernels of LL packets take 2 us, all other kernels 8 us.
void choose_times() {
  fake_cuda().launch_ns = [](const std::string& kernel) {
    return kernel.find("tiled") == std::string::npos ? 2000.0 : 8000.0;
  };
}

using Body = std::function<void(int rank, const cuda::Exchange& exchange)>;

void on_ranks(const Body& body) {
  CHECK(run_on_ranks(kRanks, [&](const RankProcess& mine) {
          choose_times();
          const auto bytes = fake_cuda().memory.bytes;  // of earlier tests of this program
          const int streams = fake_cuda().streams;
          body(mine.rank, mine.exchange);
          require(fake_cuda().memory.bytes == bytes, "memory of the GPU was kept");
          require(fake_cuda().streams == streams, "a stream was kept");
          mine.board.barrier();
        }) == 0);
}

Request all_reduce(std::uint64_t bytes) {
  Request request;
  request.ranks = kRanks;
  request.count = bytes / bytes_of(request.type);
  return request;
}

/// Events give times in float ms.
bool are_near(double one, double other) { return std::abs(one - other) < 0.001; }

FirstStart first_start(const GpuGroup& group, int& benches) {
  FirstStart first;
  first.when = cuda::RowUse::alone;
  first.budget_s = 60;  // machines of tests are busy
  first.bench = [&group, &benches] {
    ++benches;
    return gpu_bench(group, options_of(), {});
  };
  return first;
}

/// Launches of each instance of a graph, by the first launch.
std::vector<int> launches_by_instance() {
  std::vector<const void*> instances;
  std::vector<int> launches;
  for (const void* const launched : fake_cuda().graph_launches) {
    const auto found = std::ranges::find(instances, launched);
    if (found == instances.end()) launches.push_back(0);
    ++launches[static_cast<std::size_t>(found - instances.begin())];
    if (found == instances.end()) instances.push_back(launched);
  }
  return launches;
}

}  // namespace

TEST_CASE("a bench times each way by its kernels, and frees everything") {
  on_ranks([](int rank, const cuda::Exchange& exchange) {
    const GpuGroup group = group_of(rank);
    const std::unique_ptr<CallBench> bench = gpu_bench(group, options_of(), {});
    bench->open(exchange);
    require(bench->most_bytes() > 0, "no room");
    for (const std::uint64_t bytes : {std::uint64_t{4096}, std::uint64_t{4} << 20}) {
      const std::vector<CallWay> ways = bench->ways(all_reduce(bytes));
      require(ways.size() >= 3, "few ways");
      const std::vector<bool> ready = bench->prepare(all_reduce(bytes), ways, true, 0);
      exchange("prepared");
      const std::vector<CallTimes> times = bench->run(ready);
      require(times.size() == ways.size() + 1, "a time each");
      require(times.back().captured_us == 0, "NCCL is not there");
      bool has_ll = false;
      for (std::size_t i = 0; i < ways.size(); ++i) {
        if (label(ways[i]) != "two_shot") continue;
        has_ll = true;
        const double eager_us = bytes > 4096 ? 2.0 : 0.0;
        require(ready[i] && are_near(times[i].captured_us, 2.0),
                text("us {}", times[i].captured_us));
        require(are_near(times[i].eager_us, eager_us), text("us {}", times[i].eager_us));
      }
      require(has_ll, "no two_shot");
    }
    bench->close();
  });
}

TEST_CASE("a bench warms an idle GPU up, and launches long calls twice in graphs and twice alone") {
  on_ranks([](int rank, const cuda::Exchange& exchange) {
    const GpuGroup group = group_of(rank);
    const std::unique_ptr<CallBench> bench = gpu_bench(group, options_of(), {});
    bench->open(exchange);
    Request request = all_reduce(std::uint64_t{1} << 20);
    const std::vector<CallWay> ways{{cuda::engine_named("two_shot", request), {}},
                                    {cuda::engine_named("two_shot", request), {}}};
    // Kernels enqueued one by one, and launches of each instance of a graph.
    const auto launches_of = [&](double call_us) {
      const std::vector<bool> ready = bench->prepare(request, ways, true, call_us);
      exchange("prepared");
      fake_cuda().launches.clear();
      fake_cuda().graph_launches.clear();
      const std::vector<CallTimes> times = bench->run(ready);
      require(are_near(times[0].captured_us, 2.0) && are_near(times[1].eager_us, 2.0), "times");
      return std::pair(fake_cuda().launches.size(), launches_by_instance());
    };
    const BenchLaunches made = bench_launches(120);
    require(made.calls == 2 && made.first_warms == 2, "of a call of 120 us");
    require(launches_of(120) == std::pair(std::size_t{2 * 2 * (1 + 3)}, std::vector{2 + 3, 1 + 3}),
            "of short calls");
    // Both launches of a way are of instances of their own.
    require(launches_of(5000) == std::pair(std::size_t{2 * 2}, std::vector{1, 1, 1, 1}),
            "of long calls");
    bench->close();
  });
}

TEST_CASE("beside a library the bench times sends and receives, on any path") {
  class Silent : public BesideLibrary {
   public:
    bool takes(const Request&) const override { return false; }
    void enqueue(const Request&, const void*, void*, cuda::Stream) override {}
    void abort() noexcept override {}
  };
  for (const bool through_host : {false, true})
    on_ranks([&](int rank, const cuda::Exchange& exchange) {
      GpuGroup group = group_of(rank);
      agree_on_arenas(group, exchange, through_host ? "the driver grants none" : "");
      BenchSource source;
      source.beside = [] { return std::make_unique<Silent>(); };
      const std::unique_ptr<CallBench> bench = gpu_bench(group, options_of(), source);
      bench->open(exchange);
      for (const Collective collective : {Collective::send_recv, Collective::all_to_all}) {
        Request request = all_reduce(std::uint64_t{1} << 20);
        request.collective = collective;
        const std::vector<CallWay> ways = bench->ways(request);
        require(ways.back().by_messages, "no messages");
        require((ways.size() == 1) == (collective == Collective::send_recv), "other ways");
        fake_cuda().launches.clear();
        const std::vector<bool> ready = bench->prepare(request, ways, true, 0);
        exchange("prepared");
        require(ready.back(), "not ready");
        require(fake_cuda().launches.back().kernel == "plait_messages", "another kernel");
        const std::vector<CallTimes> times = bench->run(ready);
        require(are_near(times[ways.size() - 1].captured_us, 2.0), "time of a kernel");
      }
      require(!bench->ways(all_reduce(1 << 20)).back().by_messages, "messages reduce nothing");
      bench->close();
    });
}

TEST_CASE("the first start keeps a table, the second one reads it") {
  const CacheFolder cache;
  on_ranks([&](int rank, const cuda::Exchange& exchange) {
    GpuGroup group = group_of(rank), again = group_of(rank);
    int benches = 0;
    learn_tuning(group, exchange, measuring(), first_start(group, benches));
    require(benches == 1 && !group.tuning.rows().empty(), "nothing was measured");
    require(cache.files().size() == 1, "files");
    require(group.tuning.find(all_reduce(4096), cuda::RowUse::alone) != nullptr, "no row");
    learn_tuning(again, exchange, measuring(), first_start(again, benches));
    require(benches == 1, "measured again");
    require(again.tuning.rows().size() == group.tuning.rows().size(), "another table");
  });
}

TEST_CASE("nothing is measured if the program or the entry point says so") {
  const CacheFolder cache;
  on_ranks([&](int rank, const cuda::Exchange& exchange) {
    GpuGroup group = group_of(rank);
    int benches = 0;
    Env off;
    off.autotune = rank != 0;  // rank 0 decides
    learn_tuning(group, exchange, off, first_start(group, benches));
    FirstStart refused = first_start(group, benches);
    refused.why_not = "a pair of ranks";
    learn_tuning(group, exchange, measuring(), refused);
    group.kind = "NVIDIA H200, 132 multiprocessors, 18 NVLinks to switches";
    learn_tuning(group, exchange, measuring(), first_start(group, benches));
    require(benches == 0 && group.tuning.rows().empty() && cache.files().empty(), "measured");
  });
}

TEST_CASE("while the program captures, the bench stays on streams of its own") {
  on_ranks([](int rank, const cuda::Exchange& exchange) {
    fake_cuda().is_capturing = true;
    {
      const GpuGroup group = group_of(rank);
      const std::unique_ptr<CallBench> bench = gpu_bench(group, options_of(), {});
      bench->open(exchange);
      fake_cuda().notes.clear();
      const Request request = all_reduce(4096);
      const std::vector<bool> ready = bench->prepare(request, bench->ways(request), true, 0);
      exchange("prepared");
      static_cast<void>(bench->run(ready));
      for (const FakeNote& note : fake_cuda().notes.all())
        require(note.stream != nullptr, "work on a stream of the program: " + note.what);
      bench->close();
    }
    fake_cuda().is_capturing = false;
  });
}

TEST_CASE("a rank that cannot capture leaves all ranks without a table") {
  const CacheFolder cache;
  on_ranks([&](int rank, const cuda::Exchange& exchange) {
    GpuGroup group = group_of(rank);
    int benches = 0;
    FirstStart first = first_start(group, benches);
    first.bench = [&, bench = first.bench] {
      if (rank == 1) fake_cuda().refuses.of("stream_begin_capture", 1);
      return bench();
    };
    learn_tuning(group, exchange, measuring(), first);
    fake_cuda().refuses.none();
    require(group.tuning.rows().empty(), "a table");
    exchange("learnt");
    const std::vector<std::string> files = cache.files();
    require(files.size() == 1 && files[0].find(".measuring") != std::string::npos, "the mark");
    learn_tuning(group, exchange, measuring(), first_start(group, benches));
    require(benches == 1, "measured again");
  });
}

TEST_CASE("a rank without memory for the bench leaves all ranks without a table, and no mark") {
  const CacheFolder cache;
  // Attempts until the refused call lies behind the bench: the arena, state of the group, buffers.
  for (int refused_rank = 0; refused_rank < kRanks; ++refused_rank)
    for (const char* function : {"memory_alloc", "stream_create", "event_create", "host_register"})
      on_ranks([&](int rank, const cuda::Exchange& exchange) {
        int refusals = 0;
        for (int nth = 1; nth <= 3; ++nth) {
          GpuGroup group = group_of(rank);
          group.kind = text("{} {}{}", kKind, function, nth);  // not in memory from before
          int benches = 0;
          FirstStart first = first_start(group, benches);
          first.bench = [&, bench = first.bench] {
            if (rank == refused_rank) fake_cuda().refuses.of(function, nth);
            return bench();
          };
          learn_tuning(group, exchange, measuring(), first);
          const bool was_refused = rank == refused_rank && !fake_cuda().refuses.is_ahead();
          fake_cuda().refuses.none();
          const std::vector<std::string> all = exchange(was_refused ? "refused" : "");
          const bool one_was = all[0] != all[1];
          refusals += one_was ? 1 : 0;
          require(group.tuning.rows().empty() == one_was, text("{} {}", function, nth));
          exchange("learnt");
          if (one_was) require(cache.files().empty(), "a mark or a table");
          learn_tuning(group, exchange, measuring(), first_start(group, benches));
          require(benches == 1, "measured again");
          exchange("learnt again");
          if (rank == 0) std::filesystem::remove_all(cache.path / "plait");
          exchange("removed");
        }
        require(refusals > 0, text("no call of {} was refused", function));
      });
}

TEST_CASE("a communicator with GPUs measures once, and takes no more memory than without") {
  const CacheFolder cache;
  fake_cuda().gpu = {};
  fake_cuda().gpu.name = "Some GPU";
  const std::string ids[] = {unique_id(), unique_id(), unique_id()};
  bench::Board* const board = bench::make_board(kRanks);
  CHECK(bench::run_ranks(board, true, [&](int rank) {
          choose_times();
          fake_cuda().gpu.number = static_cast<char>(rank);
          CommunicatorOptions options;
          options.rank = rank;
          options.ranks = kRanks;
          options.device = 0;
          options.topology = "l40s-x4";
          options.arrive_s = 30;
          std::size_t bytes[3] = {}, launches[3] = {};
          for (int turn = 0; turn < 3; ++turn) {  // without measuring, measuring, with the table
            if (turn == 0) ::setenv("PLAIT_AUTOTUNE", "0", 1);
            if (turn == 1) ::unsetenv("PLAIT_AUTOTUNE");  // the default measures
            options.unique_id = ids[turn];
            fake_cuda().launches.clear();
            const std::unique_ptr<Communicator> comm = Communicator::create(options);
            bytes[turn] = fake_cuda().memory.bytes;
            launches[turn] = fake_cuda().launches.size();
            board->barrier();
          }
          require(bytes[1] == bytes[0] && bytes[2] == bytes[0], "memory");
          require(launches[1] > launches[0] + 100, "few launches");
          require(launches[2] == launches[0], "the table was not read");
          require(cache.files().size() == 1, "files");
        }) == 0);
  fake_cuda().gpu = {};
}

TEST_CASE("arenas in host memory have a table of their own, which communicators name and read") {
  const CacheFolder cache;
  constexpr const char* kTable =
      R"({"schema": "plait.tuning/4", "name": "made up", "nccl": "", "gpu": {"model": "*",
          "multiprocessors": 132, "links": ["*"], "upto_ranks": 2}, "rows": [{"when": "alone",
          "collective": "all_reduce", "upto_ranks": 2, "engine": "direct_ll",
          "source": "made up"}]})";
  constexpr const char* kByTable = "direct_ll";
  void* const kMemory = reinterpret_cast<void*>(std::uintptr_t{1} << 20);
  void* const kOther = reinterpret_cast<void*>(std::uintptr_t{1} << 33);
  const std::string ids[] = {unique_id(), unique_id(), unique_id()};
  bench::Board* const board = bench::make_board(kRanks);
  CHECK(bench::run_ranks(board, true, [&](int rank) {
          fake_cuda().gpu.number = static_cast<char>(rank);
          CommunicatorOptions options;
          options.rank = rank;
          options.ranks = kRanks;
          options.device = 0;
          options.topology = "hgx-h200";
          options.arrive_s = 30;
          std::string files[3], choices[3];
          for (int turn = 0; turn < 3; ++turn) {
            ::setenv("NCCL_P2P_DISABLE", turn == 2 ? "0" : "1", 1);
            options.unique_id = ids[turn];
            const std::unique_ptr<Communicator> comm = Communicator::create(options);
            files[turn] = comm->tuning_file();
            fake_cuda().launches.clear();
            comm->enqueue(all_reduce(4096), kMemory, kOther, nullptr);
            for (const plait_test::FakeLaunch& one : fake_cuda().launches)
              choices[turn] += one.kernel + " ";
            if (turn == 0 && rank == 0) cuda::write_tuning(files[0], kTable);
            require(comm->tuning_file("2.28.9").find("-nccl2.28.9-2.json") != std::string::npos,
                    comm->tuning_file("2.28.9"));
            board->barrier();
          }
          const std::string machine = tuning_machine(load_topology("hgx-h200"), {0, 1});
          require(files[0].find("/tuning-" + machine + "-host-cuda") != std::string::npos,
                  files[0]);
          require(files[1] == files[0] && files[2] != files[0], files[2]);
          require(files[2].find("/tuning-" + machine + "-cuda") != std::string::npos, files[2]);
          require(choices[0].find(kByTable) == std::string::npos, choices[0]);
          require(choices[1].find(kByTable) != std::string::npos, choices[1]);
          require(choices[2].find(kByTable) == std::string::npos, choices[2]);
          board->barrier();
        }) == 0);
  fake_cuda().gpu = {};
}
