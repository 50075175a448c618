// A call is timed by events around several calls on one stream, in a graph and (large calls) one by
// one. Launches of all ways lie behind each other on the stream, so that ranks enter each one at
// nearly the same time.
#include "comm/gpu/gpu_bench.hpp"

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/log.hpp"
#include "base/text.hpp"
#include "comm/bootstrap/socket.hpp"
#include "comm/bootstrap/vote.hpp"
#include "comm/choose/what_runs.hpp"
#include "comm/gpu/bench_launches.hpp"
#include "comm/gpu/measurement.hpp"
#include "driver/cuda/api.hpp"
#include "gpu/select/gpu_tables.hpp"
#include "plait/error.hpp"

namespace plait {
namespace {

constexpr std::uint64_t kMostBytes = 1ull << 30;  // of a message
constexpr std::uint64_t kMemoryShare = 8;         // buffers take at most this part of free memory
constexpr std::uint64_t kEagerFrom = 1 << 20;     // smaller calls are bound by the host
constexpr std::uint64_t kCopyEnginesFrom = 4 << 20;  // smaller copies are bound by the driver
constexpr double kDeadlineS = 5.0;                   // calls that take longer never end

/// A graph that is ready to launch; null = none.
class Graph {
 public:
  Graph() = default;
  explicit Graph(cuda::GraphExec exec) : exec_(exec) {}
  Graph(Graph&& other) noexcept : exec_(std::exchange(other.exec_, nullptr)) {}
  Graph& operator=(Graph&& other) noexcept {
    std::swap(exec_, other.exec_);
    return *this;
  }
  ~Graph() {
    if (exec_ != nullptr) cuda::api().graph_exec_destroy(exec_);
  }
  explicit operator bool() const { return exec_ != nullptr; }
  void launch(cuda::Stream stream) const { PLAIT_CUDA_CALL(graph_launch, exec_, stream); }

 private:
  cuda::GraphExec exec_ = nullptr;
};

/// Captures the work into a graph. The capture is relaxed, since other threads of the program may
/// capture or allocate meanwhile.
Graph captured(cuda::Stream stream, const std::function<void()>& work) {
  PLAIT_CUDA_CALL(stream_begin_capture, stream, cuda::kCaptureRelaxed);
  cuda::Graph graph = nullptr;
  try {
    work();
  } catch (...) {
    if (cuda::api().stream_end_capture(stream, &graph) == cuda::kSuccess && graph != nullptr)
      cuda::api().graph_destroy(graph);
    throw;
  }
  PLAIT_CUDA_CALL(stream_end_capture, stream, &graph);
  cuda::GraphExec exec = nullptr;
  const cuda::Result made = cuda::api().graph_instantiate(&exec, graph, 0);
  if (graph != nullptr) cuda::api().graph_destroy(graph);
  cuda::require(made, "cuGraphInstantiateWithFlags");
  Graph ready(exec);
  PLAIT_CUDA_CALL(graph_upload, exec, stream);
  return ready;
}

/// Times of steps one after another.
class Stopwatch {
 public:
  /// Ends a step.
  void lap(const char* step) {
    const std::int64_t now = now_ns();
    text_ += text("{}{} us {}", text_.empty() ? "" : ", ", (now - last_ns_) / 1000, step);
    last_ns_ = now;
  }
  const std::string& laps() const { return text_; }

 private:
  std::int64_t last_ns_ = now_ns();
  std::string text_;
};

class GpuBench : public CallBench {
 public:
  GpuBench(const GpuGroup& group, const GpuCallsOptions& options, const BenchSource& source)
      : group_(group), options_(options), source_(source) {}
  ~GpuBench() override { free(); }

  void open(const cuda::Exchange& exchange) override {
    exchange_ = exchange;
    Stopwatch watch;
    GpuCallsOptions wanted = options_;
    wanted.beats_nccl = false;
    wanted.has_lazy_arena = false;
    wanted.forced = {};
    wanted.rank.messages = source_.beside != nullptr;
    GpuGroup untuned = group_;
    untuned.tuning = {};
    calls_ = std::make_unique<GpuCalls>(std::move(untuned), wanted, exchange_);
    exchange_("calls are made");  // else a rank might wait in the library for one without calls
    watch.lap("plait's calls");
    const cuda::Current current(calls_->rank().context());
    if (source_.beside) beside_ = source_.beside();
    watch.lap("NCCL's communicator");
    for (const std::string& most : exchange_(text("{}", allocate())))
      most_bytes_ = std::min(most_bytes_, static_cast<std::uint64_t>(parse_integer(
                                              "bytes of a bench", most, 0, 1ll << 40)));
    watch.lap("buffers");
    make_guesses();
    watch.lap("guesses");
    explain(watch, "a bench");
  }

  std::uint64_t most_bytes() const override { return most_bytes_; }

  std::vector<CallWay> ways(const Request& request) override {
    std::vector<CallWay> all;
    const CallWay messages{nullptr, {}, true};
    if (beside_ != nullptr && request.collective == Collective::send_recv)
      return times_messages(request) ? std::vector{messages} : all;
    const auto add = [&](const CallWay& way) {
      if (std::find(all.begin(), all.end(), way) == all.end()) all.push_back(way);
    };
    for (const cuda::Selector& guess : guesses_)
      if (const auto choice = guess.best(request))
        add({choice->engine, choice->tuning});
      else if (beside_ == nullptr && guess.prefers_plan(request))
        add({});
    for (const cuda::Engine* const engine : cuda::engines()) {
      if (goes_by_copy_engines(*engine) && message_bytes(request) < kCopyEnginesFrom) continue;
      if (cuda::why_not(*engine, request, {}, calls_->rank().full_group()).empty())
        add({engine, {}});
    }
    if (times_messages(request)) all.push_back(messages);
    return all;
  }

  std::vector<bool> prepare(const Request& request, const std::vector<CallWay>& ways,
                            bool beside_nccl, double call_us) override {
    const cuda::Current current(calls_->rank().context());
    Stopwatch watch;
    drop_prepared();
    request_ = request;
    launches_ = bench_launches(call_us);
    watch.lap("free the graphs before");
    if (beside_nccl && beside_ != nullptr && beside_->takes(request)) {
      nccl_.eager = [this] { beside_->enqueue(request_, input(), output(), stream_); };
      nccl_.eager();  // connects the ranks
      watch.lap("NCCL's first call");
      nccl_.graph = graph_of(nccl_.eager);
      watch.lap("NCCL's graph");
    }
    std::vector<bool> ready;
    for (const CallWay& way : ways) {
      prepared_.emplace_back();
      try {
        make_ready(prepared_.back(), way);
      } catch (const Error& error) {
        if (error.code() != ErrorCode::unsupported) throw;
        prepared_.back() = {};
      }
      ready.push_back(prepared_.back().eager != nullptr);
    }
    watch.lap("plait's graphs");
    explain(watch, text("{} of {} bytes", name_of(request.collective), message_bytes(request)));
    return ready;
  }

  std::vector<CallTimes> run(const std::vector<bool>& ready) override {
    const cuda::Current current(calls_->rank().context());
    std::vector<Timing> timings;
    try {
      timings = enqueue_all(ready);
      await();
      calls_->rank().check();
    } catch (...) {
      end_calls();  // so that the GPU stays usable
      throw;
    }
    std::vector<CallTimes> found;
    for (const Timing& timing : timings)
      found.push_back({us_of(timing.captured), us_of(timing.eager)});
    return found;
  }

  void close() override {
    if (calls_ != nullptr) {
      const cuda::Current current(calls_->rank().context());
      // A call beside may wait for a rank whose own call has failed.
      if (stream_ != nullptr && attempt([&] { await(); })) end_calls();
      drop_prepared();
    }
    exchange_("calls have ended");
    if (calls_ != nullptr) calls_->rank().unmap_peers();
    exchange_("memory is unmapped");
    is_closed_ = true;
  }

 private:
  /// A call that can be made, and a graph of several.
  struct Prepared {
    std::unique_ptr<cuda::PreparedCall> call;
    std::function<void()> eager;
    Graph graph;
    Graph again;  ///< a second instance for calls that are launched twice; else null
  };
  /// Events around the launches of a way: indices of the first.
  struct Launches {
    std::size_t first = 0;
    int count = 0;
  };
  struct Timing {
    Launches captured, eager;
  };

  void* input() const { return reinterpret_cast<void*>(input_); }
  void* output() const { return reinterpret_cast<void*>(output_); }

  void free() noexcept {
    if (calls_ == nullptr) return;
    if (cuda::api().context_push(calls_->rank().context()) != cuda::kSuccess) return;
    if (!is_closed_) end_calls();
    drop_prepared();
    Stopwatch watch;
    beside_.reset();
    watch.lap("to destroy NCCL's communicator");
    for (cuda::Event event : events_) cuda::api().event_destroy(event);
    if (stream_ != nullptr) cuda::api().stream_destroy(stream_);
    for (const cuda::DevicePointer buffer : {input_, output_})
      if (buffer != 0) cuda::api().memory_free(buffer);
    watch.lap("to free buffers");
    cuda::Context popped = nullptr;
    cuda::api().context_pop(&popped);
    explain(watch, "the end of a bench");
  }

  /// Prints where the time went.
  void explain(const Stopwatch& watch, const std::string& what) const {
    if (group_.rank == 0) log(LogLevel::explain, 0, text("{}: {}", what, watch.laps()));
  }

  /// Allocates the stream and both buffers; returns the bytes of a buffer.
  std::uint64_t allocate() {
    std::size_t free_bytes = 0, total = 0;
    if (cuda::api().memory_info(&free_bytes, &total) != cuda::kSuccess) free_bytes = 0;
    std::uint64_t bytes = kMostBytes;
    while (free_bytes != 0 && bytes > free_bytes / kMemoryShare && bytes > 1 << 20) bytes /= 2;
    PLAIT_CUDA_CALL(stream_create, &stream_, cuda::kStreamNonBlocking, 0);
    PLAIT_CUDA_CALL(memory_alloc, &input_, bytes);
    PLAIT_CUDA_CALL(memory_alloc, &output_, bytes);
    for (const cuda::DevicePointer buffer : {input_, output_})
      PLAIT_CUDA_CALL(memory_set_async, buffer, 0, bytes, stream_);
    return bytes;
  }

  /// Choices without a measurement: the simulator's, then what is fastest on other kinds of GPU.
  void make_guesses() {
    const GpuGroup& group = calls_->group();
    const cuda::Group& full = calls_->rank().full_group();
    if (group.why_no_topology.empty() && beside_ == nullptr)
      guesses_.emplace_back(full, cuda::TuningTable(), false,
                            predictor(group.topology, full, group.devices), cuda::default_table(),
                            [this](const Request& request) { return calls_->plan_us(request); });
    for (const cuda::TuningTable* const table : cuda::guesses_for(group.kind))
      guesses_.emplace_back(full, cuda::TuningTable(), false, nullptr, *table);
  }

  static bool goes_by_copy_engines(const cuda::Engine& engine) {
    const std::string& name = engine.info().name;
    return name.rfind("copy_", 0) == 0 || name == "host_cores";
  }

  /// Whether sends and receives could make the call under NCCL.
  bool times_messages(const Request& request) const {
    return beside_ != nullptr && calls_->rank().takes_messages() &&
           (request.collective == Collective::send_recv ||
            request.collective == Collective::all_to_all);
  }

  void make_ready(Prepared& made, const CallWay& way) {
    if (way.by_messages) {
      made.eager = [this] {
        calls_->rank().messages(message_ends(request_, group_.rank, input(), output()), stream_);
      };
    } else if (way.engine == nullptr) {
      made.eager = [this] { calls_->enqueue(request_, input(), output(), stream_, {}); };
    } else {
      made.call = calls_->rank().prepare(*way.engine, request_, way.tuning);
      made.eager = [this, &call = *made.call] {
        calls_->rank().run(call, request_, {input(), output(), {}}, stream_);
      };
    }
    made.graph = graph_of(made.eager);
    if (launches_.least) made.again = graph_of(made.eager);
  }

  Graph graph_of(const std::function<void()>& call) {
    return captured(stream_, [&] {
      for (int i = 0; i < launches_.calls; ++i) call();
    });
  }

  cuda::Event next_event() {
    if (used_events_ == events_.size()) {
      cuda::Event made = nullptr;
      PLAIT_CUDA_CALL(event_create, &made, 0);
      events_.push_back(made);
    }
    return events_[used_events_++];
  }

  /// Enqueues `warms` launches that do not count, then `turns` timed ones between events.
  Launches launches(const std::function<void()>& launch, int warms, int turns) {
    Launches made{used_events_, turns};
    for (int warm = 0; warm < warms; ++warm) launch();
    PLAIT_CUDA_CALL(event_record, next_event(), stream_);
    for (int turn = 0; turn < made.count; ++turn) {
      launch();
      PLAIT_CUDA_CALL(event_record, next_event(), stream_);
    }
    return made;
  }

  /// warms: launches of the graph that do not count.
  Timing enqueue(const Prepared& ready, int warms, int turns) {
    Timing made;
    // Instances of a graph of copies differ by up to 18 % through host memory (E-0541).
    int launched = 0;
    made.captured = launches(
        [&] { (launched++ == 1 && ready.again ? ready.again : ready.graph).launch(stream_); },
        warms, turns);
    if (message_bytes(request_) >= kEagerFrom)
      made.eager = launches(
          [&] {
            for (int i = 0; i < launches_.calls; ++i) ready.eager();
          },
          launches_.warms, turns);
    return made;
  }

  std::vector<Timing> enqueue_all(const std::vector<bool>& ready) {
    used_events_ = 0;
    std::vector<Timing> timings;
    int warms = launches_.first_warms;
    const auto add = [&](const Prepared& prepared, bool is_ready, int turns) {
      timings.push_back(is_ready ? enqueue(prepared, warms, turns) : Timing{});
      if (is_ready) warms = launches_.warms;
    };
    for (std::size_t i = 0; i < prepared_.size(); ++i) add(prepared_[i], ready[i], launches_.turns);
    add(nccl_, nccl_.eager != nullptr, launches_.nccl_turns);
    return timings;
  }

  /// us a call: the median of the launches, or the least; 0 without launches.
  double us_of(const Launches& launches) const {
    if (launches.count == 0) return 0;
    std::vector<double> us;
    for (int turn = 0; turn < launches.count; ++turn) {
      const std::size_t at = launches.first + static_cast<std::size_t>(turn);
      float ms = 0;
      PLAIT_CUDA_CALL(event_elapsed, &ms, events_[at], events_[at + 1]);
      us.push_back(1e3 * static_cast<double>(ms) / launches_.calls);
    }
    std::sort(us.begin(), us.end());
    return launches_.least ? us.front() : us[us.size() / 2];
  }

  /// Waits for the calls. Throws Error(timeout) if they do not end.
  void await() {
    const std::int64_t until_ns = deadline_in(kDeadlineS);
    cuda::Result result = cuda::kNotReady;
    while ((result = cuda::api().stream_query(stream_)) == cuda::kNotReady) {
      source_.give_up();
      if (now_ns() > until_ns)
        throw Error(ErrorCode::timeout,
                    text("calls of {} of {} bytes did not end within {} s",
                         name_of(request_.collective), message_bytes(request_), kDeadlineS));
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
    cuda::require(result, "cuStreamQuery");
    if (used_events_ != 0) PLAIT_CUDA_CALL(event_synchronize, events_[used_events_ - 1]);
  }

  /// Ends kernels that wait for peers.
  void end_calls() noexcept {
    calls_->rank().abort();
    if (beside_ != nullptr) beside_->abort();
  }

  void drop_prepared() {
    prepared_.clear();
    nccl_ = {};
  }

  const GpuGroup& group_;
  const GpuCallsOptions options_;
  const BenchSource source_;
  cuda::Exchange exchange_;
  std::unique_ptr<GpuCalls> calls_;
  std::unique_ptr<BesideLibrary> beside_;
  std::vector<cuda::Selector> guesses_;
  cuda::Stream stream_ = nullptr;
  cuda::DevicePointer input_ = 0, output_ = 0;
  std::uint64_t most_bytes_ = kMostBytes;
  Request request_;
  BenchLaunches launches_;
  std::vector<Prepared> prepared_;
  Prepared nccl_;
  std::vector<cuda::Event> events_;
  std::size_t used_events_ = 0;
  bool is_closed_ = false;
};

}  // namespace

std::unique_ptr<CallBench> gpu_bench(const GpuGroup& group, const GpuCallsOptions& options,
                                     const BenchSource& source) {
  return std::make_unique<GpuBench>(group, options, source);
}

FirstStart own_first_start(const GpuGroup& group, const GpuCallsOptions& options, bool is_pair,
                           const std::function<void()>& give_up) {
  FirstStart first;
  first.when = options.rank.overlap_compute ? cuda::RowUse::overlap_compute : cuda::RowUse::alone;
  first.why_not = is_pair                         ? "a pair of ranks"
                  : group.ranks < 2               ? "one rank"
                  : !group.in_processes           ? "several ranks in one process"
                  : options.rank.most_blocks != 0 ? "calls have a budget of SMs"
                                                  : group.reach.why_no_kernels;
  first.arrive_s = options.rank.wait_s;
  first.bench = [&group, options, give_up] {
    BenchSource source;
    if (give_up) source.give_up = give_up;
    return gpu_bench(group, options, source);
  };
  return first;
}

}  // namespace plait
