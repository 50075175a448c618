// Lets a first start measure GPUs whose shipped table is hidden, then times its choices and those
// of the shipped table in turn, at 30 sizes of 6 collectives. NCCL is measured beside plait if each
// rank has a GPU. On fewer GPUs, ranks are threads that share GPUs, and plait is timed alone.
//   PLAIT_NCCL_LIB=/path/libnccl.so.2 bench_gpu_first_start [ranks=2] [alone=0]
// Prints a JSON line a point, then one of the whole. alone=1: calls of plait's own communicators.
// NCCL_P2P_DISABLE=1 sends both libraries through host memory, as under `plait run`.
// PLAIT_DEBUG=EXPLAIN prints on stderr where the first start's time went.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <optional>

#include "base/env.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "comm/choose/what_runs.hpp"
#include "comm/gpu/first_start.hpp"
#include "comm/gpu/gpu_bench.hpp"
#include "comm/gpu/measurement.hpp"
#include "comm/transport/nccl/native.hpp"
#include "comm/transport/nccl/nccl_transport.hpp"
#include "driver/cuda/primary.hpp"
#include "gpu/device/direct_access.hpp"
#include "gpu/device/gpu_kind.hpp"
#include "gpu/select/gpu_tables.hpp"
#include "gpu/select/select.hpp"
#include "plait/error.hpp"
#include "tests/gpu/ranks.hpp"
#include "tests/unit/requests.hpp"

namespace {

using namespace plait;

struct FirstRun {
  int ranks = 2;
  bool alone = false;
  bool shares = false;  ///< ranks share GPUs
  bool has_nccl = false;
};

/// The communicator of a program whose first start measures.
nccl::Comm program_comm(const cuda::Exchange& exchange, int rank, int ranks) {
  nccl::UniqueId id{};
  if (rank == 0 && nccl::native().get_unique_id(&id) != nccl::ncclSuccess)
    throw Error(ErrorCode::io_error, "ncclGetUniqueId failed");
  const std::string named = exchange(std::string(id.bytes, sizeof id.bytes))[0];
  named.copy(id.bytes, sizeof id.bytes);
  nccl::Comm comm = nullptr;
  if (nccl::native().init_rank(&comm, ranks, id, rank) != nccl::ncclSuccess)
    throw Error(ErrorCode::io_error, "ncclCommInitRank failed");
  return comm;
}

/// A communicator split off the program's, as under `plait run`.
class NcclOfRanks : public BesideLibrary {
 public:
  NcclOfRanks(nccl::Comm program, int rank) : rank_(rank) {
    nccl::Comm comm = nullptr;
    if (nccl::native().split(program, 0, rank, &comm, nullptr) != nccl::ncclSuccess)
      throw Error(ErrorCode::io_error, "ncclCommSplit failed");
    transport_ = std::make_unique<nccl::NcclTransport>(comm, true, nullptr);
  }
  ~NcclOfRanks() override { transport_->end(); }
  bool takes(const Request& request) const override { return nccl::why_no_call(request).empty(); }
  void enqueue(const Request& request, const void* input, void* output,
               cuda::Stream stream) override {
    transport_->call(request, true, rank_, input, output, stream);
  }
  void abort() noexcept override { transport_->abort(); }

 private:
  const int rank_;
  std::unique_ptr<nccl::NcclTransport> transport_;
};

GpuGroup group_of(int rank, const FirstRun& wanted, const cuda::Exchange& exchange) {
  const int ordinal = rank % cuda::device_count();
  GpuGroup group;
  if (!wanted.shares) {
    group = bootstrap_gpus(exchange, rank, wanted.ranks, ordinal);
  } else {
    group.rank = rank;
    group.ranks = wanted.ranks;
    for (int peer = 0; peer < wanted.ranks; ++peer) {
      group.ordinals.push_back(peer % cuda::device_count());
      group.uuids.emplace_back();  // several ranks have the same GPU
    }
    group.kind = cuda::gpu_kind(ordinal);
  }
  learn_topology(group, exchange,
                 [&] { return wanted.shares ? load_topology("hgx-h200") : discovered(); }, {});
  agree_on_arenas(
      group, exchange,
      why_no_direct_access(group, read_env(), cuda::distance_between, cuda::address_each_other));
  return group;
}

GpuCallsOptions options_of(const GpuGroup& group, const FirstRun& wanted) {
  GpuCallsOptions options;
  options.checks = load_topology("hgx-h200");
  options.rank.wait_s = 20;
  options.rank.overlap_compute = !wanted.alone && !wanted.shares;
  // Kernels of all ranks of a GPU run side by side.
  if (wanted.shares)
    options.rank.most_blocks = 100u / static_cast<unsigned>(wanted.ranks / cuda::device_count());
  options.rank.memory.floats_only = true;
  options.has_lazy_arena = false;
  static_cast<void>(group);
  return options;
}

/// What serves a call: an engine, or NCCL.
struct Served {
  CallWay way;
  bool by_plait = false;
};

/// By the table of the first start.
Served by_found(const cuda::TuningTable& table, const Request& request, cuda::RowUse when,
                bool beside_nccl) {
  const cuda::TuningRow* const row = table.find(request, when);
  if (row == nullptr) return {};
  return {{row->engine, row->tuning}, !beside_nccl || row->ahead_of_nccl == true};
}

Served by_shipped(const cuda::Selector& selector, const Request& request, bool beside_nccl) {
  const auto choice = selector.best(request);
  if (!choice) return {};
  return {{choice->engine, choice->tuning}, !beside_nccl || choice->beats_nccl.value_or(false)};
}

struct Judged {
  int all = 0, near = 0, missing = 0;
  double worst = 0, worst_nccl = 0;
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/// Returns about what a call takes over links: calls through host memory are timed more often than
/// they need.
double about_us(std::uint64_t bytes) {
  constexpr double kLatencyUs = 4, kBytesPerUs = 200e3;
  return kLatencyUs + static_cast<double>(bytes) / kBytesPerUs;
}

/// us of each way and of NCCL, on the slowest rank; the median of turns of the slower of graphs and
/// single calls.
std::vector<double> timed(CallBench& bench, const cuda::Exchange& exchange, const Request& request,
                          const std::vector<CallWay>& ways) {
  constexpr int kRounds = 5;
  std::vector<std::vector<double>> us(ways.size() + 1);
  const std::vector<bool> ready =
      bench.prepare(request, ways, true, about_us(message_bytes(request)));
  for (int round = 0; round < kRounds; ++round) {
    exchange("ready");
    const std::vector<CallTimes> times = bench.run(ready);
    std::string mine;
    for (const CallTimes& one : times) mine += text("{} ", one.captured_us);
    std::vector<double> most(us.size());
    for (const std::string& record : exchange(mine)) {
      const std::vector<std::string> words = split(record, ' ');
      for (std::size_t i = 0; i < most.size(); ++i)
        most[i] = std::max(most[i], std::atof(words[i].c_str()));
    }
    for (std::size_t i = 0; i < most.size(); ++i) us[i].push_back(most[i]);
  }
  std::vector<double> medians;
  for (const std::vector<double>& one : us) medians.push_back(median(one));
  return medians;
}

void judge(const FirstRun& wanted, const Request& request, const Served& found,
           const Served& shipped, const std::vector<double>& us, int rank, Judged& judged) {
  const double nccl_us = us[2];
  const auto effective = [&](const Served& one, double own_us) {
    return one.by_plait || !wanted.has_nccl ? own_us : nccl_us;
  };
  const bool has_choice = found.way.engine != nullptr || wanted.has_nccl;
  const double found_us = has_choice ? effective(found, us[0]) : 0;
  const double shipped_us = effective(shipped, us[1]);
  ++judged.all;
  if (found_us <= 0 || shipped_us <= 0) {
    ++judged.missing;
  } else {
    judged.near += found_us <= 1.05 * shipped_us;
    judged.worst = std::max(judged.worst, found_us / shipped_us);
    if (nccl_us > 0) judged.worst_nccl = std::max(judged.worst_nccl, found_us / nccl_us);
  }
  if (rank != 0) return;
  std::printf(
      "{\"collective\": \"%s\", \"bytes\": %llu, \"found\": \"%s\", \"found_us\": %.2f, "
      "\"shipped\": \"%s\", \"shipped_us\": %.2f, \"nccl_us\": %.2f}\n",
      name_of(request.collective), static_cast<unsigned long long>(message_bytes(request)),
      found.by_plait ? label(found.way).c_str() : "nccl", found_us,
      shipped.by_plait ? label(shipped.way).c_str() : "nccl", shipped_us, nccl_us);
  std::fflush(stdout);
}

void run_rank(bench::Board* board, const FirstRun& wanted, int rank) {
  const cuda::Exchange exchange = [&](const std::string& mine) {
    return board->exchange(rank, mine);
  };
  GpuGroup group = group_of(rank, wanted, exchange);
  const GpuCallsOptions options = options_of(group, wanted);
  BenchSource source;
  std::optional<cuda::Primary> gpu;
  std::optional<cuda::Current> current;
  std::unique_ptr<nccl::NcclTransport> program;
  if (wanted.has_nccl) {
    gpu.emplace(rank % cuda::device_count());
    current.emplace(gpu->context());
    const nccl::Comm comm = program_comm(exchange, rank, wanted.ranks);
    program = std::make_unique<nccl::NcclTransport>(comm, true, nullptr);
    source.beside = [comm, rank] { return std::make_unique<NcclOfRanks>(comm, rank); };
  }
  const auto bench = [&] { return gpu_bench(group, options, source); };
  set_log(read_env().debug, "");
  FirstStart first;
  first.when = wanted.alone || wanted.shares ? cuda::RowUse::alone : cuda::RowUse::overlap_compute;
  if (wanted.has_nccl) first.nccl = text("{}", nccl::native().version);
  first.bench = bench;
  const std::int64_t began_ns = now_ns();
  learn_tuning(group, exchange, read_env(), first);
  const double took_s = static_cast<double>(now_ns() - began_ns) / 1e9;
  set_log("WARN", "");

  const std::unique_ptr<CallBench> after = bench();
  after->open(exchange);
  const cuda::Group whole = cuda::usual_group(wanted.ranks, options.rank.overlap_compute, 0, 0, {},
                                              !group.through_host.empty());
  const cuda::Selector shipped(whole, {}, true, nullptr, cuda::table_of(group.kind));
  Judged judged;
  for (const Request& request : plait_test::first_start_points(wanted.ranks)) {
    if (message_bytes(request) > after->most_bytes()) continue;
    const Served mine = by_found(group.tuning, request, first.when, wanted.has_nccl);
    const Served theirs = by_shipped(shipped, request, wanted.has_nccl);
    const CallWay some{cuda::engine_named("direct_ll", request), {}};
    const CallWay own = mine.way.engine == nullptr ? some : mine.way;
    const CallWay other = theirs.way.engine == nullptr ? some : theirs.way;
    std::vector<CallWay> ways{own};
    if (own != other) ways.push_back(other);
    std::vector<double> us = timed(*after, exchange, request, ways);
    if (own == other) us.insert(us.begin(), us.front());  // two times of a way differ by noise
    judge(wanted, request, mine, theirs, us, rank, judged);
  }
  after->close();
  if (program != nullptr) program->end();
  if (rank == 0)
    std::printf(
        "{\"ranks\": %d, \"gpus\": %d, \"kind\": \"%s\", \"through_host\": %s, \"nccl\": %d, "
        "\"first_start_s\": %.2f, "
        "\"rows\": %zu, \"points\": %d, \"without_a_choice\": %d, \"at_most_5_percent_slower\": "
        "%.3f, \"worst\": %.3f, \"worst_against_nccl\": %.3f}\n",
        wanted.ranks, cuda::device_count(), group.kind.c_str(),
        group.through_host.empty() ? "false" : "true", wanted.has_nccl ? nccl::native().version : 0,
        took_s, group.tuning.rows().size(), judged.all, judged.missing,
        static_cast<double>(judged.near) / std::max(1, judged.all - judged.missing), judged.worst,
        judged.worst_nccl);
}

int number_of(int count, char** arguments, const std::string& name, int otherwise) {
  for (int i = 1; i < count; ++i)
    if (std::string(arguments[i]).rfind(name + "=", 0) == 0)
      return std::atoi(arguments[i] + name.size() + 1);
  return otherwise;
}

/// GPUs of this machine, asked in a child: a process that has used CUDA cannot fork ranks that do.
int gpus_of_machine() {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(cuda::device_count());
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 0;
}

}  // namespace

int main(int count, char** arguments) {
  FirstRun wanted;
  wanted.ranks = number_of(count, arguments, "ranks", 2);
  wanted.alone = number_of(count, arguments, "alone", 0) == 1;
  const int gpus = gpus_of_machine();
  if (wanted.ranks < 2 || wanted.ranks > 8 || gpus == 0) {
    std::fprintf(stderr, "usage: bench_gpu_first_start [ranks=2] [alone=0], found %d GPUs\n", gpus);
    return 2;
  }
  char cache[] = "/tmp/plait-first-start-XXXXXX";
  if (::mkdtemp(cache) == nullptr) return 2;
  ::setenv("XDG_CACHE_HOME", cache, 1);
  ::setenv("PLAIT_TEST_HIDE_TABLES", "1", 1);
  ::setenv("PLAIT_AUTOTUNE", "1", 1);
  ::setenv("NCCL_NVLS_ENABLE", "0", 0);
  ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  wanted.shares = wanted.ranks > gpus;
  wanted.has_nccl = !wanted.shares && !wanted.alone && nccl::native().why_absent.empty() &&
                    nccl::native().split != nullptr;
  bench::Board* const board = bench::make_board(wanted.ranks);
  const int failed =
      bench::run_ranks(board, !wanted.shares, [&](int rank) { run_rank(board, wanted, rank); });
  std::filesystem::remove_all(cache);
  return failed;
}
