// Times calls on GPUs without Python: the chosen engine at every size (or --kernel, --params), in
// CUDA graphs and eagerly, checked on fresh data. Ranks are threads or processes. old_and_new.py
// runs this program, and it serves machines that take programs alone; `plait bench` times more.
// gpu_links.cpp times the links themselves.
#include <cmath>
#include <map>

#include "base/env.hpp"
#include "base/text.hpp"
#include "gpu/copy/rotation.hpp"
#include "gpu/rank/cuda_rank.hpp"
#include "plait/error.hpp"
#include "plait/plan.hpp"
#include "tests/gpu/by_name.hpp"
#include "tests/gpu/ranks.hpp"
#include "tests/gpu/trial_kernels.hpp"

namespace plait::bench {
namespace {

using namespace plait::cuda;

struct CallBenchOptions {
  int gpus = 2;
  bool processes = false, eager = false;
  std::string kernel, csv;
  std::string params_as_given;  ///< --params, parameters of --kernel
  std::map<std::string, std::int64_t> params;
  std::vector<std::string> types{"fp32"};
  std::uint64_t least = 1024, most = 64ull << 20;
  int factor = 4;
  std::uint64_t sentinel_bytes = 0;  ///< half an inbox of sentinel packets; 0 = the usual budget
  Collective collective = Collective::all_reduce;
};

constexpr std::uint64_t kRingBytes = 16ull << 20;  // host memory of each rank
/// Flags follow the rings, and slots of long messages follow the flags at the next page.
constexpr std::uint64_t kSlotsAfterFlags =
    (kHostFlagsBytes + sizeof(AgreedNumber::NumberPage) + 4095) / 4096 * 4096;

class CallBench {
 public:
  CallBench(const CallBenchOptions& options, Board* board, int rank, std::byte* rings)
      : o_(options), board_(board), rank_(rank) {
    if (device_count() == 0) throw std::runtime_error("wanted GPUs, found none");
    CudaRankOptions given;
    given.device = rank % cuda::device_count();
    given.rank = rank;
    given.ranks = options.gpus;
    given.wait_s = 10;
    // Kernels of all ranks on a GPU must run side by side, since they wait for each other.
    if (const int on_each = (options.gpus + device_count() - 1) / device_count(); on_each > 1)
      given.most_blocks = 100u / static_cast<unsigned>(on_each);
    given.ring_bytes = given.exchange_ring_bytes = kRingBytes / 2;
    given.sizes.copy_slots_bytes = rotation_slots(options.gpus) * rotation_slot_bytes(options.gpus);
    given.sizes.tile_bytes = 280ull << 20;
    given.sizes.scratch_bytes = 2400ull << 20;
    given.sizes.inbox_bytes = 16ull << 20;
    given.sizes.sentinel_bytes = options.sentinel_bytes;
    given.rings = [rings, ranks = options.gpus](const cuda::Exchange&) {
      std::vector<std::byte*> all;
      for (int r = 0; r < ranks; ++r)
        all.push_back(rings + static_cast<std::uint64_t>(r) * kRingBytes);
      return all;
    };
    std::byte* const flags = rings + static_cast<std::uint64_t>(options.gpus) * kRingBytes;
    given.host_flags = reinterpret_cast<HostFlags*>(flags);
    given.share_page = reinterpret_cast<AgreedNumber::NumberPage*>(flags + kHostFlagsBytes);
    given.messages = options.kernel == "messages";
    if (options.gpus == 2) given.message_slots = flags + kSlotsAfterFlags;
    cuda_ = std::make_unique<CudaRank>(
        given, [&](const std::string& mine) { return board_->exchange(rank_, mine); });
    PLAIT_CUDA_CALL(context_push, cuda_->context());
    for (int turn = 0; turn < options.gpus; ++turn) {  // as in GpuFixture
      board_->barrier();
      if (turn == rank_) PLAIT_CUDA_CALL(stream_create, &stream_, kStreamNonBlocking, 0);
    }
    PLAIT_CUDA_CALL(event_create, &begin_, 0);
    PLAIT_CUDA_CALL(event_create, &end_, 0);
    PLAIT_CUDA_CALL(memory_alloc, &input_, o_.most);
    PLAIT_CUDA_CALL(memory_alloc, &output_, o_.most);
    PLAIT_CUDA_CALL(memory_alloc, &wrong_, 8);
  }

  void run() {
    for (const std::string& type : o_.types)
      for (std::uint64_t bytes = o_.least; bytes <= o_.most;
           bytes *= static_cast<std::uint64_t>(o_.factor))
        one_size(parse_type(type), bytes);
  }

 private:
  using Call = std::function<void()>;

  void launch(const std::string& name, const KernelLaunchConfig& config,
              std::vector<void*> arguments) {
    cuda_->kernels().launch(trial_kernels().find(name), config, stream_, std::move(arguments));
  }
  /// Waits for the stream; raises the error of a kernel whose wait timed out.
  void finish() {
    const Result ended = api().stream_synchronize(stream_);
    cuda_->check();
    require(ended, "stream_synchronize");
  }
  void fill(DataType type, std::uint64_t count) {
    int rank = rank_;
    ++seed_;
    launch(text("plait_fill_", name_of(type)), {264, 512, false}, {&input_, &count, &seed_, &rank});
    PLAIT_CUDA_CALL(memory_set_async, output_, 0xa5, count * bytes_of(type), stream_);
    finish();
  }
  /// Checks `count` output elements from `at` on: the sum over `ranks` ranks, from rank `first` on,
  /// of their input elements from `from` on.
  void expect(DataType type, std::uint64_t at, std::uint64_t count, int first, int ranks,
              std::uint64_t from) {
    DevicePointer data = output_ + at * bytes_of(type);
    launch(text("plait_check_", name_of(type)), {264, 512, false},
           {&data, &count, &seed_, &first, &ranks, &from, &wrong_});
  }
  double wrong(const Request& request) {
    const std::uint64_t n = request.count, me = static_cast<std::uint64_t>(rank_);
    const int all = request.ranks;
    PLAIT_CUDA_CALL(memory_set_async, wrong_, 0, 8, stream_);
    switch (request.collective) {
      case Collective::all_reduce: expect(request.type, 0, n, 0, all, 0); break;
      case Collective::reduce_scatter: expect(request.type, 0, n, 0, all, me * n); break;
      case Collective::reduce:
        if (rank_ == request.root) expect(request.type, 0, n, 0, all, 0);
        break;
      case Collective::broadcast: expect(request.type, 0, n, 0, 1, 0); break;
      case Collective::all_gather:
      case Collective::all_to_all:
        for (int from = 0; from < all; ++from)
          expect(request.type, static_cast<std::uint64_t>(from) * n, n, from, 1,
                 request.collective == Collective::all_to_all ? me * n : 0);
        break;
      case Collective::send_recv:  // from the previous rank
        expect(request.type, 0, n, (rank_ + o_.gpus - 1) % o_.gpus, 1, 0);
        break;
      case Collective::copy:
        if (rank_ == 1) expect(request.type, 0, n, 0, 1, 0);
        break;
      default:
        throw std::runtime_error(
            "wanted --collective all_reduce, reduce_scatter, reduce, broadcast, all_gather, "
            "all_to_all, send_recv or copy; `plait bench` has the others");
    }
    unsigned long long bad = 0;
    finish();
    PLAIT_CUDA_CALL(memory_copy, reinterpret_cast<DevicePointer>(&bad), wrong_, 8);
    return board_->total(rank_, static_cast<double>(bad));
  }

  double elapsed_us() {
    finish();
    float ms = 0;
    PLAIT_CUDA_CALL(event_elapsed, &ms, begin_, end_);
    return board_->largest(rank_, static_cast<double>(ms) * 1e3);
  }
  /// Returns the median over rounds of the slowest rank's time of `timed`, after `before`.
  double time(int rounds, const Call& before, const Call& timed) {
    std::vector<double> us;
    for (int round = 0; round < rounds; ++round) {
      board_->barrier();
      before();
      PLAIT_CUDA_CALL(event_record, begin_, stream_);
      timed();
      PLAIT_CUDA_CALL(event_record, end_, stream_);
      us.push_back(elapsed_us());
    }
    std::sort(us.begin(), us.end());
    return us[us.size() / 2];
  }
  double time_eager(const Call& call, int calls) {
    const auto repeat = [&](int times) {
      for (int k = 0; k < times; ++k) call();
    };
    // Hosts that share their cores are slower now and then: short calls get more rounds.
    const int rounds = calls >= 40 ? 15 : 3;
    return time(rounds, [&] { repeat(3); }, [&] { repeat(calls); }) / calls;
  }
  /// Launches a graph of K calls twice and times the second; the first launch aligns the ranks.
  double time_graph(const Call& call, int calls) {
    Graph graph = nullptr;
    GraphExec exec = nullptr;
    PLAIT_CUDA_CALL(stream_begin_capture, stream_, kCaptureThreadLocal);
    for (int k = 0; k < calls; ++k) call();
    PLAIT_CUDA_CALL(stream_end_capture, stream_, &graph);
    PLAIT_CUDA_CALL(graph_instantiate, &exec, graph, 0);
    PLAIT_CUDA_CALL(graph_upload, exec, stream_);
    const Call replay = [&] { PLAIT_CUDA_CALL(graph_launch, exec, stream_); };
    const double us = time(5, replay, replay) / calls;
    board_->barrier();  // freeing may wait for all GPUs of the process
    api().graph_exec_destroy(exec);
    api().graph_destroy(graph);
    return us;
  }

  void one_size(DataType type, std::uint64_t bytes) {
    Request request;
    request.collective = o_.collective;
    request.type = type;
    request.ranks = o_.gpus;
    request.count = bytes_of(type);  // so that message_bytes is a factor of it
    request.count = bytes / (message_bytes(request) / request.count);
    request.root = 0;
    request.peer = 1;
    if (o_.kernel == "messages") return time_call(request, bytes, "messages", messages(request));
    const std::string kernel =
        o_.kernel.empty() ? built_in(*cuda_, request).value().engine->info().name : o_.kernel;
    const Tuning tuning = tuning_from(kernel, o_.params);
    if (const std::string why = why_not(engine(kernel, request), request, tuning, cuda_->group());
        !why.empty()) {
      if (rank_ == 0)
        std::printf("%11llu refused: %s\n", static_cast<unsigned long long>(bytes), why.c_str());
      return;
    }
    const std::unique_ptr<PreparedCall> ready =
        cuda_->prepare(engine(kernel, request), request, tuning);
    const Call call = [&] {
      cuda_->run(*ready, request,
                 {reinterpret_cast<const void*>(input_), reinterpret_cast<void*>(output_), {}},
                 stream_);
    };
    time_call(request, bytes, kernel, call);
  }
  /// Times a send_recv or copy of two ranks by the kernel of messages.
  Call messages(const Request& request) {
    if (o_.gpus != 2) throw std::runtime_error("--kernel messages: wanted two GPUs");
    const std::uint64_t bytes = request.count * bytes_of(request.type);
    std::vector<MessageEnd> ends;
    if (request.collective == Collective::send_recv || rank_ == 0)
      ends.push_back({true, 1 - rank_, reinterpret_cast<void*>(input_), bytes});
    if (request.collective == Collective::send_recv || rank_ == 1)
      ends.push_back({false, 1 - rank_, reinterpret_cast<void*>(output_), bytes});
    MessageTuning tuning;
    for (const auto& [name, value] : o_.params) {
      if (name == "shared_from_mib")
        tuning.shared_from = static_cast<std::uint64_t>(value) << 20;
      else if (name == "host_channels")
        tuning.host_channels = static_cast<std::uint32_t>(value);
      else
        throw std::runtime_error("--params: messages know shared_from_mib and host_channels");
    }
    return [this, ends, tuning] { cuda_->messages(ends, stream_, tuning); };
  }
  void time_call(const Request& request, std::uint64_t bytes, const std::string& kernel,
                 const Call& call) {
    const DataType type = request.type;
    fill(type, bytes / bytes_of(type));
    board_->barrier();
    call();
    double bad = wrong(request);
    fill(type, bytes / bytes_of(type));
    const int calls = bytes <= (256 << 10)  ? 100
                      : bytes <= (4 << 20)  ? 40
                      : bytes <= (64 << 20) ? 10
                                            : 3;
    const double graph_us = time_graph(call, calls);
    bad += wrong(request);
    const std::string params = o_.params_as_given.empty() ? "" : ":" + o_.params_as_given;
    write_row(request, bytes, "plait " + kernel + params, graph_us,
              o_.eager ? time_eager(call, calls) : 0, bad);
    board_->barrier();
  }
  /// Prints a line, and writes a row of the CSV file.
  void write_row(const Request& request, std::uint64_t bytes, const std::string& variant,
                 double graph_us, double eager_us, double bad) {
    if (rank_ != 0) return;
    std::printf("%11llu %s %s: %.2f us in a graph, %.2f eager, wrong %.0f\n",
                static_cast<unsigned long long>(bytes), name_of(request.type), variant.c_str(),
                graph_us, eager_us, bad);
    std::FILE* file = o_.csv.empty() ? nullptr : std::fopen(o_.csv.c_str(), "a");
    if (file == nullptr) return;
    std::fprintf(file, "%s,%d,%s,%s,%llu,%s,,%.3f,%.3f,%.0f,\n", name_of(request.collective),
                 o_.gpus, o_.processes ? "processes" : "threads", name_of(request.type),
                 static_cast<unsigned long long>(bytes), variant.c_str(), graph_us, eager_us, bad);
    std::fclose(file);
  }

  const CallBenchOptions& o_;
  Board* board_;
  int rank_;
  std::unique_ptr<CudaRank> cuda_;
  cuda::Stream stream_ = nullptr;
  cuda::Event begin_ = nullptr, end_ = nullptr;
  DevicePointer input_ = 0, output_ = 0, wrong_ = 0;
  unsigned seed_ = 0;
};

/// Parses "fold=1,blocks=32".
std::map<std::string, std::int64_t> params_in(const std::string& list) {
  std::map<std::string, std::int64_t> found;
  for (const std::string& item : split(list, ',')) {
    const std::size_t at = item.find('=');
    if (at == std::string::npos)
      throw std::runtime_error("--params: wanted name=value, found " + item);
    found[item.substr(0, at)] = std::stoll(item.substr(at + 1));
  }
  return found;
}

CallBenchOptions parse(int count, char** arguments) {
  CallBenchOptions options;
  for (int i = 1; i < count; ++i) {
    const std::string name = arguments[i];
    if (name == "--processes") options.processes = true;
    if (name == "--eager") options.eager = true;
    if (name == "--processes" || name == "--eager") continue;
    if (i + 1 == count) throw std::runtime_error(name + ": wanted a value, found none");
    const std::string value = arguments[++i];
    if (name == "--gpus")
      options.gpus = std::stoi(value);
    else if (name == "--kernel")
      options.kernel = value;
    else if (name == "--params")
      options.params = params_in(options.params_as_given = value);
    else if (name == "--csv")
      options.csv = value;
    else if (name == "--types")
      options.types = split(value, ',');
    else if (name == "--min")
      options.least = std::stoull(value);
    else if (name == "--max")
      options.most = std::stoull(value);
    else if (name == "--factor")
      options.factor = std::stoi(value);
    else if (name == "--bare-bytes")
      options.sentinel_bytes = std::stoull(value);
    else if (name == "--collective")
      options.collective = parse_collective(value);
    else
      throw std::runtime_error("unknown option " + name);
  }
  if (options.factor < 2) throw std::runtime_error("--factor: wanted a whole number from 2 on");
  return options;
}

}  // namespace
}  // namespace plait::bench

int main(int count, char** arguments) {
  using namespace plait::bench;
  trace_crashes();
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  try {
    const CallBenchOptions options = parse(count, arguments);
    std::byte* rings = shared_memory(kRingBytes * static_cast<std::uint64_t>(options.gpus) +
                                     kSlotsAfterFlags + plait::cuda::kMessageHostBytes);
    Board* board = make_board(options.gpus);
    return run_ranks(board, options.processes,
                     [&](int rank) { CallBench(options, board, rank, rings).run(); });
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
