// What it costs on one GPU to keep calls of a communicator one after the other: events beside eager
// launches, nodes beside captured ones. Small kernels stand for calls; each notes whether another
// one ran at the same time, so that the orders that hold are told from those that do not.
//   bench_graph_order [--kernels N] [--cycles CLOCKS] [--csv FILE]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <functional>
#include <string>
#include <vector>

#include "base/text.hpp"
#include "driver/cuda/api.hpp"
#include "exec/cuda/device/event_marker.hpp"
#include "plait/error.hpp"

namespace {

using namespace plait;
using namespace plait::cuda;

// entry(words, cycles): words[0] = one is running, words[1] = how often two were, words[2] = runs.
// As plait's kernels: it waits for the grid before, and lets the next one in at its end.
constexpr char kKernel[] = R"(.version 8.0
.target sm_90
.address_size 64
.visible .entry small_call(.param .u64 words, .param .u32 cycles) {
  .reg .pred %p<3>;
  .reg .u32 %r<6>;
  .reg .u64 %rd<6>;
  griddepcontrol.wait;
  ld.param.u64 %rd1, [words];
  ld.param.u32 %r1, [cycles];
  cvt.u64.u32 %rd2, %r1;
  atom.global.exch.b32 %r2, [%rd1], 1;
  setp.eq.u32 %p1, %r2, 0;
  @%p1 bra BEGIN;
  red.global.add.u32 [%rd1+4], 1;
BEGIN:
  mov.u64 %rd3, %clock64;
SPIN:
  mov.u64 %rd4, %clock64;
  sub.u64 %rd5, %rd4, %rd3;
  setp.lt.u64 %p2, %rd5, %rd2;
  @%p2 bra SPIN;
  red.global.add.u32 [%rd1+8], 1;
  membar.gl;
  atom.global.exch.b32 %r3, [%rd1], 0;
  griddepcontrol.launch_dependents;
  ret;
}
)";

double now_us() {
  using namespace std::chrono;
  return duration<double, std::micro>(steady_clock::now().time_since_epoch()).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

struct Counts {
  std::uint32_t running, overlaps, runs;
};

class Bench {
 public:
  Bench(unsigned cycles, std::FILE* table) : cycles_(cycles), table_(table) {
    Device device = 0;
    Context context = nullptr;
    PLAIT_CUDA_CALL(device_get, &device, 0);
    PLAIT_CUDA_CALL(primary_retain, &context, device);
    PLAIT_CUDA_CALL(context_push, context);
    Library library = nullptr;
    PLAIT_CUDA_CALL(library_load, &library, kKernel, nullptr, nullptr, 0, nullptr, nullptr, 0);
    Kernel kernel = nullptr;
    PLAIT_CUDA_CALL(library_kernel, &kernel, library, "small_call");
    PLAIT_CUDA_CALL(kernel_function, &function_, kernel);
    PLAIT_CUDA_CALL(memory_alloc, &words_, sizeof(Counts));
    for (Stream& stream : streams) PLAIT_CUDA_CALL(stream_create, &stream, kStreamNonBlocking, 0);
    for (Event& event : events) PLAIT_CUDA_CALL(event_create, &event, kEventDisableTiming);
    char name[100] = {};
    PLAIT_CUDA_CALL(device_name, name, sizeof name, device);
    std::fprintf(table_, "# %s; kernels of %u clocks\npart,what,kernels,us,host_us,overlaps\n",
                 name, cycles);
    reset();
  }

  Stream streams[3] = {};
  Event events[3] = {};  // the first: the end of the last call; the others: within captures

  void launch(Stream stream, bool programmatic, Event event = nullptr) {
    LaunchAttribute attributes[2] = {};
    unsigned count = 0;
    if (programmatic) {
      attributes[count].id = kProgrammaticSerialization;
      attributes[count++].value.programmatic_serialization = 1;
    }
    if (event != nullptr) {
      attributes[count].id = kProgrammaticEvent;
      attributes[count++].value.programmatic_event = {event, 0, 0};
    }
    void* arguments[] = {&words_, &cycles_};
    const LaunchConfig config{1, 1, 1, 1, 1, 1, 0, stream, attributes, count};
    PLAIT_CUDA_CALL(launch, &config, function_, arguments, nullptr);
  }
  void wait_all() { PLAIT_CUDA_CALL(context_synchronize); }
  void reset() {
    PLAIT_CUDA_CALL(memory_set_async, words_, 0, sizeof(Counts), streams[0]);
    wait_all();
  }
  Counts counts() {
    Counts found{};
    wait_all();
    PLAIT_CUDA_CALL(memory_copy, reinterpret_cast<DevicePointer>(&found), words_, sizeof found);
    return found;
  }
  void row(const char* part, const std::string& what, int kernels, double us, double host_us) {
    const Counts found = counts();
    std::fprintf(table_, "%s,%s,%d,%.3f,%.3f,%u\n", part, what.c_str(), kernels, us, host_us,
                 found.overlaps);
    std::fflush(table_);
    reset();
  }
  /// Medians over batches of so many calls: until the GPU is through, and of the host alone.
  void time(const char* part, const std::string& what, int kernels, int calls,
            const std::function<void()>& call) {
    constexpr int kBatches = 60;
    std::vector<double> whole, host;
    for (int batch = -5; batch < kBatches; ++batch) {
      const double begin = now_us();
      for (int i = 0; i < calls; ++i) call();
      const double handed = now_us();
      wait_all();
      if (batch < 0) continue;
      whole.push_back((now_us() - begin) / calls);
      host.push_back((handed - begin) / calls);
    }
    row(part, what, kernels, median(whole) / kernels, median(host));
  }

 private:
  Function function_ = nullptr;
  DevicePointer words_ = 0;
  unsigned cycles_;
  std::FILE* table_;
};

void time_eager(Bench& bench) {
  constexpr int kCalls = 100;
  Stream stream = bench.streams[0];
  Event event = bench.events[0];
  const auto time = [&](const char* what, const std::function<void()>& call) {
    bench.time("eager", what, 1, kCalls, call);
  };
  const auto launch = [&] { bench.launch(stream, true); };
  for (int turn = 0; turn < 3; ++turn) {
    time("launch", launch);
    time("launch; stream id", [&] {
      std::uint64_t id = 0;
      PLAIT_CUDA_CALL(stream_id, stream, &id);
      launch();
    });
    time("launch; is it capturing", [&] {
      int status = 0;
      PLAIT_CUDA_CALL(stream_is_capturing, stream, &status);
      launch();
    });
    time("launch; record", [&] {
      launch();
      PLAIT_CUDA_CALL(event_record, event, stream);
    });
    time("wait; launch; record", [&] {
      PLAIT_CUDA_CALL(stream_wait_event, stream, event, 0);
      launch();
      PLAIT_CUDA_CALL(event_record, event, stream);
    });
    time("launch with a programmatic event", [&] { bench.launch(stream, true, event); });
    int at = 0;
    time("two streams in turn: wait; launch; record", [&] {
      Stream mine = bench.streams[at ^= 1];
      PLAIT_CUDA_CALL(stream_wait_event, mine, event, 0);
      bench.launch(mine, true);
      PLAIT_CUDA_CALL(event_record, event, mine);
    });
  }
}

/// What is put into a capture beside its kernels.
struct Way {
  const char* name;
  bool programmatic = true;
  enum Wait { none, in_chain, beside } wait = none;
  enum Record {
    no_record,
    recorded_in_chain,
    chained_leaves,
    one_leaf,
    moved_leaf,
    last_only
  } record = no_record;
  bool two_streams = false;  // the kernels on two streams in turn, ordered by events
};

class Captured {
 public:
  Captured(Bench& bench, const Way& way, int kernels) : bench_(bench), way_(way) {
    Stream main = bench.streams[0];
    PLAIT_CUDA_CALL(stream_begin_capture, main, kCaptureThreadLocal);
    look(main);
    begin(main);
    for (int i = 0; i < kernels; ++i) {
      Stream stream = bench.streams[way.two_streams ? i % 2 : 0];
      if (way.two_streams) follow(stream, i == 0 ? main : bench.streams[(i + 1) % 2]);
      bench.launch(stream, way.programmatic);
      end_call(stream, i + 1 == kernels);
    }
    if (way.two_streams && kernels > 1) follow(main, bench.streams[1]);
    Graph graph = nullptr;
    PLAIT_CUDA_CALL(stream_end_capture, main, &graph);
    PLAIT_CUDA_CALL(graph_instantiate, &exec_, graph, 0);
    PLAIT_CUDA_CALL(graph_destroy, graph);
    PLAIT_CUDA_CALL(graph_upload, exec_, main);
    bench.wait_all();
  }
  ~Captured() { api().graph_exec_destroy(exec_); }
  Captured(const Captured&) = delete;
  Captured& operator=(const Captured&) = delete;
  void replay(Stream stream) { PLAIT_CUDA_CALL(graph_launch, exec_, stream); }

 private:
  void look(Stream stream) {
    int status = 0;
    std::uint64_t id = 0;
    const GraphNode* tails = nullptr;
    std::size_t count = 0;
    PLAIT_CUDA_CALL(stream_capture_info, stream, &status, &id, &graph_, &tails, &count);
    tails_.assign(tails, tails + count);
  }
  void begin(Stream stream) {
    if (way_.wait == Way::in_chain)
      PLAIT_CUDA_CALL(stream_wait_event, stream, bench_.events[0], kEventExternal);
    if (way_.wait != Way::beside) return;
    GraphNode node = nullptr;
    PLAIT_CUDA_CALL(graph_add_wait, &node, graph_, nullptr, 0, bench_.events[0]);
    PLAIT_CUDA_CALL(stream_update_capture, stream, &node, 1, kAddCaptureDependencies);
  }
  void follow(Stream stream, Stream before) {
    if (stream == before) return;
    PLAIT_CUDA_CALL(event_record, bench_.events[1], before);
    PLAIT_CUDA_CALL(stream_wait_event, stream, bench_.events[1], 0);
  }
  void end_call(Stream stream, bool is_last) {
    if (way_.record == Way::recorded_in_chain)
      PLAIT_CUDA_CALL(event_record_flags, bench_.events[0], stream, kEventExternal);
    if (way_.record == Way::no_record || way_.record == Way::recorded_in_chain) return;
    if (way_.record == Way::last_only && !is_last) return;
    look(stream);
    if ((way_.record != Way::one_leaf && way_.record != Way::moved_leaf) || leaf_ == nullptr) {
      GraphNode before = leaf_;
      PLAIT_CUDA_CALL(graph_add_record, &leaf_, graph_, tails_.data(), tails_.size(),
                      bench_.events[0]);
      if (before != nullptr) PLAIT_CUDA_CALL(graph_add_edges, graph_, &before, &leaf_, 1);
      leaf_after_ = tails_;
      return;
    }
    if (way_.record == Way::moved_leaf)
      for (const GraphNode& tail : leaf_after_)
        PLAIT_CUDA_CALL(graph_remove_edges, graph_, &tail, &leaf_, 1);
    leaf_after_ = tails_;
    for (const GraphNode& tail : tails_) PLAIT_CUDA_CALL(graph_add_edges, graph_, &tail, &leaf_, 1);
  }

  Bench& bench_;
  Way way_;
  Graph graph_ = nullptr;
  GraphNode leaf_ = nullptr;
  std::vector<GraphNode> tails_, leaf_after_;
  GraphExec exec_ = nullptr;
};

constexpr Way kWays[] = {
    {.name = "plain", .programmatic = false},
    {.name = "programmatic edges"},
    {.name = "wait in chain", .wait = Way::in_chain},
    {.name = "wait beside", .wait = Way::beside},
    {.name = "wait in chain; records in chain",
     .wait = Way::in_chain,
     .record = Way::recorded_in_chain},
    {.name = "wait in chain; chained leaves", .wait = Way::in_chain, .record = Way::chained_leaves},
    {.name = "wait in chain; one leaf behind all", .wait = Way::in_chain, .record = Way::one_leaf},
    {.name = "wait beside; one leaf behind all", .wait = Way::beside, .record = Way::one_leaf},
    {.name = "wait in chain; one leaf behind the last",
     .wait = Way::in_chain,
     .record = Way::last_only},
    {.name = "wait in chain; leaf moved to the last",
     .wait = Way::in_chain,
     .record = Way::moved_leaf},
    {.name = "wait beside; leaf moved to the last", .wait = Way::beside, .record = Way::moved_leaf},
    {.name = "two streams", .two_streams = true},
    {.name = "two streams; wait in chain; leaf moved to the last",
     .wait = Way::in_chain,
     .record = Way::moved_leaf,
     .two_streams = true},
};

/// Runs `body`; a driver that refuses a way is a line of the table, not the end of it.
void tried(std::FILE* table, const char* part, const std::string& what,
           const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    std::fprintf(table, "%s,%s,refused,,,\n# %s\n", part, what.c_str(), error.what());
  }
}

void time_graphs(Bench& bench, const std::vector<int>& sizes, std::FILE* table) {
  for (const int kernels : sizes)
    for (int turn = 0; turn < 2; ++turn)
      for (const Way& way : kWays)
        tried(table, "graph", way.name, [&] {
          Captured graph(bench, way, kernels);
          bench.time("graph", way.name, kernels, std::max(5, 200 / kernels),
                     [&] { graph.replay(bench.streams[0]); });
        });
}

/// Replays of two graphs and eager calls on three streams in turn: how often did two run at once?
void check_order(Bench& bench, const Way& way, bool eager_ordered, int kernels) {
  Captured first(bench, way, kernels), second(bench, way, kernels);
  bench.reset();
  const double begin = now_us();
  constexpr int kRounds = 600;
  for (int i = 0; i < kRounds; ++i) {
    Stream stream = bench.streams[i % 3];
    if (i % 4 != 3) {
      (i % 2 == 0 ? first : second).replay(stream);
      continue;
    }
    if (eager_ordered) PLAIT_CUDA_CALL(stream_wait_event, stream, bench.events[0], 0);
    bench.launch(stream, true);
    if (eager_ordered) PLAIT_CUDA_CALL(event_record, bench.events[0], stream);
  }
  const double handed = now_us();
  bench.wait_all();
  bench.row("order", text(way.name, eager_ordered ? "; eager calls by events" : ""), kernels,
            (now_us() - begin) / kRounds, (handed - begin) / kRounds);
}

/// The rule that calls go by (exec/cuda/device/call_order.hpp): fork, a call on either stream,
/// join, and a thousand turns of replays of two such graphs and calls on streams, some of them
/// destroyed at once.
class Ruled {
 public:
  Ruled(Bench& bench, bool ordered) : bench_(bench), ordered_(ordered) { marker_.open(); }
  void run() {
    GraphExec graphs[] = {capture(), capture()};
    bench_.reset();
    constexpr int kTurns = 1000;
    const double begin = now_us();
    for (int i = 0; i < kTurns; ++i) {
      if (i % 4 != 3) {
        PLAIT_CUDA_CALL(graph_launch, graphs[i % 2], bench_.streams[i % 3]);
      } else if (i % 16 != 15) {
        call(bench_.streams[i % 3]);
      } else {
        Stream brief = nullptr;
        PLAIT_CUDA_CALL(stream_create, &brief, kStreamNonBlocking, 0);
        call(brief);
        PLAIT_CUDA_CALL(stream_destroy, brief);
      }
    }
    const double handed = now_us();
    bench_.wait_all();
    bench_.row("rule", ordered_ ? "the order of calls" : "no order", 2, (now_us() - begin) / kTurns,
               (handed - begin) / kTurns);
    for (GraphExec graph : graphs) PLAIT_CUDA_CALL(graph_exec_destroy, graph);
    marker_.close();
  }

 private:
  void call(Stream stream) {
    if (!ordered_) return bench_.launch(stream, true);
    const StreamPlace place = order_.before(marker_, stream);
    bench_.launch(stream, true);
    order_.after(marker_, stream, place);
  }
  void follow(Stream stream, Stream before) {
    PLAIT_CUDA_CALL(event_record, bench_.events[1], before);
    PLAIT_CUDA_CALL(stream_wait_event, stream, bench_.events[1], 0);
  }
  GraphExec capture() {
    Stream main = bench_.streams[0];
    PLAIT_CUDA_CALL(stream_begin_capture, main, kCaptureThreadLocal);
    for (int i : {1, 2}) follow(bench_.streams[i], main);
    for (int i : {1, 2}) call(bench_.streams[i]);
    for (int i : {1, 2}) follow(main, bench_.streams[i]);
    Graph graph = nullptr;
    GraphExec exec = nullptr;
    PLAIT_CUDA_CALL(stream_end_capture, main, &graph);
    PLAIT_CUDA_CALL(graph_instantiate, &exec, graph, 0);
    PLAIT_CUDA_CALL(graph_destroy, graph);
    return exec;
  }

  Bench& bench_;
  bool ordered_;
  EventMarker marker_{api()};
  CallOrder<EventMarker, Stream> order_;
};

void run(int kernels, unsigned cycles, std::FILE* table) {
  Bench bench(cycles, table);
  for (const bool ordered : {true, false})
    tried(table, "rule", ordered ? "the order of calls" : "no order",
          [&] { Ruled(bench, ordered).run(); });
  time_eager(bench);
  time_graphs(bench, {1, 10, kernels}, table);
  for (const int few : {1, 10})
    for (const Way& way : kWays) {
      const bool ordered = way.record != Way::no_record && way.wait != Way::none;
      tried(table, "order", way.name, [&] { check_order(bench, way, ordered, few); });
    }
}

}  // namespace

int main(int argc, char** argv) {
  int kernels = 100;
  unsigned cycles = 2500;
  std::FILE* table = stdout;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::strcmp(argv[i], "--kernels") == 0) kernels = std::max(1, std::atoi(argv[i + 1]));
    if (std::strcmp(argv[i], "--cycles") == 0)
      cycles = static_cast<unsigned>(std::max(1, std::atoi(argv[i + 1])));
    if (std::strcmp(argv[i], "--csv") == 0) table = std::fopen(argv[i + 1], "w");
  }
  if (table == nullptr) return 2;
  try {
    run(kernels, cycles, table);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
