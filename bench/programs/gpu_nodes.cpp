// Runs pretended nodes on the GPUs of one machine: a process per node, a thread per rank, plait
// within a node, NCCL between nodes. NCCL takes the processes for several hosts (NCCL_HOSTID) and
// uses sockets. Ranks share the GPUs in turn, so one GPU is enough. The program checks every
// collective against the reference, eager and captured, times all_reduces by rails and by NCCL
// among all ranks in turn, and kills a node.
//   PLAIT_NCCL_LIB=/path/libnccl.so.2 bench_gpu_nodes [nodes=2] [ranks=1] [seconds=240] [kill=0]
// Prints a JSON line a result. Status 1: a result is wrong. NVLink multicast stays off.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>

#include "base/text.hpp"
#include "comm/multinode/gpu_multinode.hpp"
#include "comm/node/setup.hpp"
#include "comm/transport/nccl/native.hpp"
#include "cpu/reference.hpp"
#include "gpu/device/gpu_kind.hpp"
#include "plait/error.hpp"
#include "tests/gpu/ranks.hpp"

namespace {

using namespace plait;
using bench::Board;
using Bytes = std::vector<std::byte>;
using Clock = std::chrono::steady_clock;

struct NodeRunOptions {
  int nodes = 2, ranks = 1;  ///< nodes; ranks of a node
  int seconds = 240;         ///< limit of the run, at which every process ends
  bool kill = false;
  int all() const { return nodes * ranks; }
};

double ms_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

/// Returns a rank's input: whole numbers, so that sums are exact in every order and type.
Bytes values(const Request& request, int rank) {
  const std::uint64_t bytes = input_bytes(request, rank), element = bytes_of(request.type);
  Bytes made(bytes);
  for (std::uint64_t i = 0; i < bytes / element; ++i) {
    const auto value = static_cast<unsigned>((i * 7 + static_cast<unsigned>(rank) * 3 + 1) % 13);
    const float real = static_cast<float>(value);
    std::uint32_t word = 0;
    std::memcpy(&word, &real, sizeof word);
    if (request.type == DataType::bf16) word >>= 16;
    if (!is_float(request.type)) word = value;
    std::memcpy(&made[i * element], &word, std::min<std::uint64_t>(element, sizeof word));
  }
  return made;
}

/// Returns the expected output of each rank.
std::vector<Bytes> expected(Request request) {
  const Topology machine = load_topology("hgx-h200");
  const Plan plan = propose_one(machine, checked(request, machine), "direct");
  std::vector<Bytes> inputs, outputs;
  std::vector<const void*> from;
  std::vector<void*> to;
  for (int rank = 0; rank < request.ranks; ++rank) {
    inputs.push_back(values(request, rank));
    outputs.emplace_back(output_bytes(request, rank));
  }
  for (int rank = 0; rank < request.ranks; ++rank) {
    from.push_back(inputs[static_cast<std::size_t>(rank)].data());
    to.push_back(outputs[static_cast<std::size_t>(rank)].data());
  }
  run_reference(plan, from, to);
  return outputs;
}

/// A rank with its GPU, its node and its rail.
class NodeRank {
 public:
  static constexpr std::uint64_t kBytes = 64ull << 20;

  NodeRank(Board* board, const NodeRunOptions& wanted, int rank)
      : board_(board), wanted_(wanted), rank_(rank), device_(rank % cuda::device_count()) {
    std::vector<std::string> hosts;
    for (int peer = 0; peer < wanted.all(); ++peer)
      hosts.push_back(text("{}", peer / wanted.ranks));
    nodes_ = nodes_of(hosts, 0, rank);
    const cuda::Exchange all = [this](const std::string& mine) {
      return board_->exchange(rank_, mine);
    };
    make_calls(all);
    shares_ = wanted.ranks > cuda::device_count();
    current_ = std::make_unique<cuda::Current>(calls_->rank().context());
    if (shares_)
      make_rails_alone(all);
    else
      make_over(all);
    PLAIT_CUDA_CALL(stream_create, &stream_, cuda::kStreamNonBlocking, 0);
    PLAIT_CUDA_CALL(memory_alloc, &input_, kBytes);
    PLAIT_CUDA_CALL(memory_alloc, &output_, kBytes);
    for (cuda::Event& event : events_) PLAIT_CUDA_CALL(event_create, &event, 0);
  }

  /// False if the strategy has no communicator: NCCL refuses two ranks of one process on one GPU.
  bool has(const std::string& strategy) const { return !shares_ || strategy != "library"; }
  int nodes() const { return nodes_.count(); }

  void enqueue(const Request& request, const CallOptions& options, bool in_place = false) {
    const void* const from = reinterpret_cast<const void*>(in_place ? output_ : input_);
    if (multinode_ != nullptr)
      multinode_->enqueue(request, from, reinterpret_cast<void*>(output_), stream_, options);
    else
      alone_->enqueue(*alone_->program(request, options), from, reinterpret_cast<void*>(output_),
                      stream_);
  }
  void finish() {
    const auto start = Clock::now();
    cuda::Result result = cuda::kNotReady;
    while ((result = cuda::api().stream_query(stream_)) == cuda::kNotReady) {
      if (multinode_ != nullptr) multinode_->check(true);
      if (ms_since(start) > 60e3) throw std::runtime_error("a call did not end in 60 s");
      ::usleep(50);
    }
    cuda::require(result, "cuStreamQuery");
  }

  /// Returns the wrong bytes of a call, eager and captured.
  std::uint64_t wrong(const Request& request, const CallOptions& options, bool captured) {
    const Bytes mine = values(request, rank_);
    const Bytes want = expected(request)[static_cast<std::size_t>(rank_)];
    if (!mine.empty())
      PLAIT_CUDA_CALL(memory_copy, input_, reinterpret_cast<cuda::DevicePointer>(mine.data()),
                      mine.size());
    Bytes found(want.size());
    std::uint64_t wrong = 0;
    PLAIT_CUDA_CALL(memory_set_async, output_, 0xa5, std::max<std::uint64_t>(want.size(), 4),
                    stream_);
    enqueue(request, options);
    finish();
    const auto compare = [&] {
      if (want.empty()) return;
      PLAIT_CUDA_CALL(memory_copy, reinterpret_cast<cuda::DevicePointer>(found.data()), output_,
                      found.size());
      for (std::size_t i = 0; i < found.size(); ++i) wrong += found[i] != want[i];
    };
    compare();
    if (!captured) return wrong;
    cuda::Graph graph = nullptr;
    cuda::GraphExec exec = nullptr;
    constexpr int kThreadLocal = 1;
    PLAIT_CUDA_CALL(stream_begin_capture, stream_, kThreadLocal);
    enqueue(request, options);
    PLAIT_CUDA_CALL(stream_end_capture, stream_, &graph);
    PLAIT_CUDA_CALL(graph_instantiate, &exec, graph, 0);
    for (int turn = 0; turn < 3; ++turn) {
      PLAIT_CUDA_CALL(memory_set_async, output_, 0xa5, std::max<std::uint64_t>(want.size(), 4),
                      stream_);
      PLAIT_CUDA_CALL(graph_launch, exec, stream_);
      finish();
      compare();
    }
    PLAIT_CUDA_CALL(graph_exec_destroy, exec);
    PLAIT_CUDA_CALL(graph_destroy, graph);
    return wrong;
  }

  /// Returns the milliseconds of a call on the slowest rank.
  double time_ms(const Request& request, const CallOptions& options) {
    constexpr int kCalls = 5;
    board_->barrier();
    PLAIT_CUDA_CALL(event_record, events_[0], stream_);
    for (int call = 0; call < kCalls; ++call) enqueue(request, options);
    PLAIT_CUDA_CALL(event_record, events_[1], stream_);
    finish();
    float ms = 0;
    PLAIT_CUDA_CALL(event_elapsed, &ms, events_[0], events_[1]);
    return board_->largest(rank_, ms / kCalls);
  }
  std::string explain(const Request& request) {
    return multinode_ != nullptr ? multinode_->explain(request) : "";
  }
  void end() {
    board_->barrier();
    multinode_.reset();
    if (alone_ != nullptr) alone_->nccl_transport().end();
    board_->barrier();
    cuda::api().memory_free(input_);
    cuda::api().memory_free(output_);
    cuda::api().stream_destroy(stream_);
    alone_.reset();
    board_->barrier();
  }

 private:
  void make_calls(const cuda::Exchange& all) {
    GpuGroup group;
    group.rank = nodes_.place;
    group.ranks = nodes_.size();
    for (const int peer : nodes_.peers()) group.ordinals.push_back(peer % cuda::device_count());
    group.kind = cuda::gpu_kind(device_);
    group.in_processes = wanted_.ranks == 1;
    group.topology = load_topology("hgx-h200");
    GpuCallsOptions options;
    options.has_lazy_arena = false;
    options.knows_links = false;  // so no share goes through host memory
    options.checks = load_topology("hgx-h200");
    options.rank.proves_paths = wanted_.all() <= cuda::device_count();
    options.rank.wait_s = 30;
    options.rank.most_blocks = 40;  // ranks that share a GPU fit side by side, with NCCL
    options.rank.memory.budget_bytes = 256ull << 20;
    options.rank.memory.plans = true;
    calls_ = std::make_unique<GpuCalls>(group, options, [&](const std::string& mine) {
      const std::vector<std::string> records = all(mine);
      std::vector<std::string> found;
      for (const int peer : nodes_.peers())
        found.push_back(records[static_cast<std::size_t>(peer)]);
      return found;
    });
  }
  void make_over(const cuda::Exchange& all) {
    const NodeSide side{calls_.get(),
                        [this] {
                          const std::lock_guard lock(guard_);
                          return failure_;
                        },
                        [this](const Error& error) {
                          const std::lock_guard lock(guard_);
                          if (!failure_) failure_ = error;
                          calls_->rank().fail();
                        }};
    GpuMultinodeOptions options;
    options.arrive_s = 30;
    multinode_ = std::make_unique<GpuMultinode>(nodes_, side, options, all,
                                                Deadline{deadline_in(60), nullptr});
  }
  /// Makes the rails for ranks of a node that share a GPU, without a communicator of all ranks.
  void make_rails_alone(const cuda::Exchange& all) {
    nccl::UniqueId id{};
    if (nodes_.mine == 0 && nccl::native().get_unique_id(&id) != nccl::ncclSuccess)
      throw std::runtime_error("ncclGetUniqueId");
    const auto shown = all({id.bytes, sizeof id.bytes});
    const int first = nodes_.members[0][static_cast<std::size_t>(nodes_.place)];
    std::memcpy(id.bytes, shown[static_cast<std::size_t>(first)].data(), sizeof id.bytes);
    nccl::Comm rail = nullptr;
    const auto made = nccl::native().init_rank(&rail, nodes_.count(), id, nodes_.mine);
    if (made != nccl::ncclSuccess)
      throw std::runtime_error(text("ncclCommInitRank returned {}", static_cast<int>(made)));
    InNode inside;
    inside.enqueue = [this](const Request& request, const void* from, void* to, void* stream) {
      calls_->enqueue(request, from, to, static_cast<cuda::Stream>(stream), {});
    };
    alone_ = std::make_unique<NodeProgramRunner>(
        nodes_, inside, nccl::cuda_side_stream(device_),
        std::make_unique<nccl::NcclTransport>(nullptr, false, rail), CallOptions{}, false);
  }

  Board* board_;
  NodeRunOptions wanted_;
  int rank_, device_;
  bool shares_ = false;
  Nodes nodes_;
  std::mutex guard_;
  std::optional<Error> failure_;
  std::unique_ptr<GpuCalls> calls_;
  std::unique_ptr<cuda::Current> current_;
  std::unique_ptr<GpuMultinode> multinode_;
  std::unique_ptr<NodeProgramRunner> alone_;
  cuda::Stream stream_ = nullptr;
  cuda::DevicePointer input_ = 0, output_ = 0;
  cuda::Event events_[2]{};
};

void say(int rank, const std::string& line) {
  if (rank != 0) return;
  std::printf("{%s}\n", line.c_str());
  std::fflush(stdout);
}

Request request_of(Collective collective, std::uint64_t count, DataType type, int ranks) {
  Request request;
  request.collective = collective;
  request.type = type;
  request.ranks = ranks;
  request.count = count;
  request.root = ranks - 1;
  return request;
}

/// Checks every collective, by rails and by NCCL. Returns the wrong bytes.
double check_all(NodeRank& mine, Board* board, int rank, int ranks) {
  double all = 0;
  for (const char* strategy : {"multi_node", "library", "node_order"}) {
    if (!mine.has(strategy)) continue;
    CallOptions options;
    options.strategy = strategy;
    for (const Collective collective :
         {Collective::all_reduce, Collective::reduce_scatter, Collective::all_gather,
          Collective::broadcast, Collective::reduce, Collective::all_to_all, Collective::gather,
          Collective::scatter, Collective::send_recv, Collective::copy}) {
      const bool is_ordered = options.strategy == "node_order";  // serves all_reduces of two nodes
      if (is_ordered && (collective != Collective::all_reduce || mine.nodes() != 2)) continue;
      double wrong = 0;
      int cases = 0;
      const auto start = Clock::now();
      for (const DataType type : {DataType::fp32, DataType::bf16, DataType::int32})
        for (const std::uint64_t count : {64u, 4099u, 100003u}) {
          if (!is_ordered && !mine.has("library") && count % 2 != 0)
            continue;  // NCCL serves other calls
          if (is_ordered && type != DataType::fp32) continue;
          const bool captured = type == DataType::fp32 && count == 64;
          const Request request = request_of(collective, count, type, ranks);
          wrong += board->total(rank, static_cast<double>(mine.wrong(request, options, captured)));
          ++cases;
        }
      say(rank,
          text("\"check\": \"{}\", \"by\": \"{}\", \"cases\": {}, \"wrong_bytes\": {}, \"ms\": {}",
               name_of(collective), strategy, cases, wrong, static_cast<int>(ms_since(start))));
      all += wrong;
    }
  }
  return all;
}

/// Times all_reduces by each strategy in turn, over the same nodes.
void time_all(NodeRank& mine, int rank, int ranks) {
  for (const std::uint64_t bytes : {4096ull, 65536ull, 1048576ull, 16777216ull, 67108864ull}) {
    const Request request = request_of(Collective::all_reduce, bytes / 4, DataType::fp32, ranks);
    std::map<std::string, std::vector<double>> ms;
    for (int round = 0; round < 6; ++round)
      for (const char* strategy : {"multi_node", "library"}) {
        if (!mine.has(strategy)) continue;
        CallOptions options;
        options.strategy = strategy;
        if (options.strategy == "multi_node")
          options.params["pieces"] =
              static_cast<std::int64_t>(std::clamp<std::uint64_t>(bytes >> 23, 1, 16));
        const double one = mine.time_ms(request, options);
        if (round > 0) ms[strategy].push_back(one);  // the first round prepares the call
      }
    std::string line = text("\"all_reduce_bytes\": {}", bytes);
    for (auto& [strategy, all] : ms) {
      std::sort(all.begin(), all.end());
      line += text(", \"{}_ms\": {}", strategy, all[all.size() / 2]);
    }
    say(rank, line);
  }
}

/// Kills the last node. Calls of the other nodes must end in an error.
bool survives(NodeRank& mine, const NodeRunOptions& wanted, int rank) {
  const Request request = request_of(Collective::all_reduce, 1 << 20, DataType::fp32, wanted.all());
  mine.enqueue(request, {});
  mine.finish();
  if (rank / wanted.ranks == wanted.nodes - 1) {
    ::usleep(300000);
    ::_exit(0);
  }
  ::usleep(800000);
  const auto start = Clock::now();
  try {
    for (int call = 0; call < 1000 && ms_since(start) < 40e3; ++call) {
      mine.enqueue(request, {});
      mine.finish();
    }
  } catch (const std::exception& error) {
    std::string said = error.what();
    std::replace(said.begin(), said.end(), '"', '\'');
    say(rank, text("\"check\": \"a node is gone\", \"ms\": {}, \"error\": \"{}\"", ms_since(start),
                   said));
    return true;
  }
  say(rank, "\"check\": \"a node is gone\", \"error\": \"none\"");
  return false;
}

bool run_rank(Board* board, const NodeRunOptions& wanted, int rank) {
  NodeRank mine(board, wanted, rank);
  if (wanted.kill) {
    const bool survived = survives(mine, wanted, rank);
    std::fflush(nullptr);
    ::_exit(survived ? 0 : 1);  // NCCL with a lost node cannot shut down cleanly
  }
  const double wrong = check_all(mine, board, rank, wanted.all());
  time_all(mine, rank, wanted.all());
  say(rank,
      text("\"explain\": \"{}\"", split(mine.explain(request_of(Collective::all_reduce, 1 << 24,
                                                                DataType::fp32, wanted.all())),
                                        '\n')[0]));
  mine.end();
  say(rank, text("\"wrong_bytes\": {}", wrong));
  return wrong == 0;
}

/// Runs a process, with its ranks as threads.
int run_node(Board* board, const NodeRunOptions& wanted, int node) {
  ::alarm(static_cast<unsigned>(wanted.seconds));
  ::setenv("NCCL_HOSTID", text("pretended-{}", node).c_str(), 1);
  ::setenv("NCCL_NVLS_ENABLE", "0", 1);
  ::setenv("NCCL_MNNVL_ENABLE", "0", 0);
  ::setenv("NCCL_SOCKET_IFNAME", "lo", 0);
  ::setenv("NCCL_IB_DISABLE", "1", 0);
  ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  std::atomic<int> failed{0};
  std::vector<std::thread> threads;
  for (int place = 0; place < wanted.ranks; ++place)
    threads.emplace_back([&, place] {
      const int rank = node * wanted.ranks + place;
      try {
        if (!run_rank(board, wanted, rank)) failed = 1;
      } catch (const std::exception& error) {
        std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
        board->broken.store(1);
        failed = 1;
        ::usleep(200000);
        ::_exit(1);  // other ranks may wait for this one inside NCCL
      }
    });
  for (std::thread& thread : threads) thread.join();
  return failed;
}

}  // namespace

int main(int count, char** arguments) {
  NodeRunOptions wanted;
  for (int i = 1; i < count; ++i) {
    const std::vector<std::string> parts = split(arguments[i], '=');
    const int value = parts.size() == 2 ? std::atoi(parts[1].c_str()) : -1;
    if (parts[0] == "nodes") wanted.nodes = value;
    if (parts[0] == "ranks") wanted.ranks = value;
    if (parts[0] == "seconds") wanted.seconds = value;
    if (parts[0] == "kill") wanted.kill = value == 1;
  }
  if (wanted.nodes < 2 || wanted.ranks < 1 || wanted.all() > 8) {
    std::fprintf(stderr, "usage: bench_gpu_nodes [nodes=2] [ranks=1] [seconds=240] [kill=0]\n");
    return 2;
  }
  Board* const board = bench::make_board(wanted.all());
  const int failed =
      bench::in_processes(wanted.nodes, [&](int node) { return run_node(board, wanted, node); });
  std::printf("{\"nodes\": %d, \"ranks_of_a_node\": %d, \"ok\": %s}\n", wanted.nodes, wanted.ranks,
              failed == 0 ? "true" : "false");
  return failed;
}
