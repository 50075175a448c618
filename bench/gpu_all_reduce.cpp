// all_reduce on GPUs, plait beside NCCL in the same processes: every size with the fused kernels,
// the planner's plans and NCCL, by CUDA graphs and eagerly, checked on fresh data. Prints a table
// and appends CSV. Usage: bench_gpu --gpus 2 [--processes] [--what fused,plan,nccl] [--sweep] ...
// or --what push,engines,host: what paths give by themselves. All options: kOptions.
#include <cmath>
#include <map>
#include <set>

#include "base/env.hpp"
#include "base/text.hpp"
#include "bench/gpu_nccl.hpp"
#include "bench/gpu_paths.hpp"
#include "bench/gpu_ranks.hpp"
#include "exec/cuda/copies/exchange_cut.hpp"
#include "exec/cuda/cuda_rank.hpp"
#include "plait/error.hpp"
#include "plait/plan.hpp"

namespace plait::bench {
namespace {

using namespace plait::cuda;

struct Options {
  int gpus = 2;
  bool processes = false;
  bool sweep = false;
  bool eager = false;
  std::string engine = "automatic";
  std::string kernel;  // only this one, in a sweep and else
  bool graphs = true;
  unsigned tiled_blocks = 0;      // 0 = as they are launched by themselves; 64 = as under NCCL
  bool beside_computing = false;  // choices and blocks as under NCCL
  std::uint64_t tile_mib = 280, rotation_mib = 0, ring_mib = 16;
  // What a sweep of `rotation` goes through.
  std::vector<unsigned> blocks{0, 48}, piece_mib{0, 32}, permille{0, 80, kBestHostPermille, 100},
      cpu_permille{0}, path_permille, cuts{0, 1};
  LaneSpread spread;
  std::set<std::string> what{"fused", "nccl"};
  std::vector<std::string> types{"fp32"};
  std::vector<std::string> plans;
  std::uint64_t least = 1024, most = 64ull << 20;
  int factor = 4;
  Collective collective = Collective::all_reduce;
  std::vector<std::string> masks;
  std::string csv;
  std::string commit = "unknown";
};

struct Way {
  std::string name;
  std::string params;
  std::function<void(cuda::Stream)> enqueue;
};

struct Figure {
  double graph_us = 0, eager_us = 0;
  double wrong = 0;
};

std::set<std::string> words(const std::string& list) {
  const std::vector<std::string> all = split(list, ',');
  return {all.begin(), all.end()};
}

std::vector<unsigned> numbers(const std::string& list) {
  std::vector<unsigned> all;
  for (const std::string& word : split(list, ','))
    all.push_back(static_cast<unsigned>(std::stoul(word)));
  return all;
}

std::string size_name(std::uint64_t bytes) {
  if (bytes >= (1ull << 30)) return text(bytes >> 30, "G");
  if (bytes >= (1ull << 20)) return text(bytes >> 20, "M");
  return text(bytes >> 10, "K");
}

class Bench {
 public:
  Bench(const Options& options, Board* board, int rank, std::byte* rings, std::uint64_t ring_bytes)
      : o_(options), board_(board), rank_(rank) {
    CudaRankOptions given;
    given.device = rank % cuda::device_count();
    given.rank = rank;
    given.ranks = options.gpus;
    given.wait_s = 10;
    given.spread = options.spread;
    given.ring_bytes = given.exchange_ring_bytes = ring_bytes / 2;
    given.sizes.rotation_bytes = options.rotation_mib << 20;
    if (options.rotation_mib == 0)
      given.sizes.rotation_bytes = rotation_slots(options.gpus) * rotation_slot_bytes(options.gpus);
    for (int r = 0; r < options.gpus; ++r)
      rings_.push_back(rings + static_cast<std::uint64_t>(r) * ring_bytes);
    given.rings = rings_;
    std::byte* const words = rings + static_cast<std::uint64_t>(options.gpus) * ring_bytes;
    given.host_words = reinterpret_cast<HostWords*>(words);
    given.share_words = reinterpret_cast<Settled::Words*>(words + kHostWordsBytes);
    if (options.tiled_blocks != 0) given.most_tiled_blocks = options.tiled_blocks;
    given.beside_computing = options.beside_computing;
    given.sizes.tile_bytes = o_.tile_mib << 20;
    given.messages = o_.kernel == "messages";
    given.sizes.scratch_bytes = 2400ull << 20;
    given.sizes.inbox_bytes = 16ull << 20;
    cuda_ = std::make_unique<CudaRank>(
        given, [&](const std::string& mine) { return board_->exchange(rank_, mine); });
    PLAIT_CUDA_CALL(context_push, cuda_->context());
    PLAIT_CUDA_CALL(stream_create, &stream_, kStreamNonBlocking, 0);
    PLAIT_CUDA_CALL(event_create, &begin_, 0);
    PLAIT_CUDA_CALL(event_create, &end_, 0);
    PLAIT_CUDA_CALL(memory_alloc, &input_, o_.most);
    PLAIT_CUDA_CALL(memory_alloc, &output_, o_.most);
    PLAIT_CUDA_CALL(memory_alloc, &wrong_, 8);
    if (o_.what.contains("nccl") && Nccl::wanted()) {
      nccl_ = std::make_unique<Nccl>();
      const std::string id = board_->exchange(rank_, rank_ == 0 ? nccl_->new_id() : "")[0];
      nccl_->join(o_.gpus, id, rank_);
      if (rank_ == 0) std::printf("NCCL %d\n", nccl_->version());
    }
  }
  ~Bench() {
    if (nccl_) nccl_->leave();
  }

  void run() {
    if (o_.what.contains("push") || o_.what.contains("engines") || o_.what.contains("host"))
      measure_paths();
    for (const std::string& type : o_.types) {
      if (rank_ == 0)
        std::printf("\n%s %s, %d GPUs, %s\n", name_of(o_.collective), type.c_str(), o_.gpus,
                    o_.processes ? "processes" : "threads");
      for (std::uint64_t bytes = o_.least; bytes <= o_.most;
           bytes *= static_cast<std::uint64_t>(o_.factor))
        one_size(parse_type(type), bytes);
    }
  }

 private:
  void measure_paths() {
    PathBench paths({o_.gpus, o_.processes, board_, rank_, cuda_.get(), stream_, rings_,
                     o_.ring_mib << 20, [this](const std::function<void(cuda::Stream)>& enqueue) {
                       return time_eager({"", "", enqueue}, 3, 3);
                     }});
    if (o_.what.contains("push")) paths.push();
    if (o_.what.contains("engines")) paths.engines();
    if (o_.what.contains("host")) paths.host_memory();
  }

  void fill(DataType type, std::uint64_t count, unsigned seed) {
    int rank = rank_;
    cuda_->kernels().launch(cuda_->kernels().find(text("plait_fill_", name_of(type))),
                            {264, 512, false}, stream_, {&input_, &count, &seed, &rank});
    PLAIT_CUDA_CALL(memory_set_async, output_, 0xa5, count * bytes_of(type), stream_);
    PLAIT_CUDA_CALL(stream_synchronize, stream_);
  }
  /// `count` output elements from `at` on hold the sum over `ranks` ranks from `first` on of their
  /// inputs' elements from `from` on.
  void expect(DataType type, unsigned seed, std::uint64_t at, std::uint64_t count, int first,
              int ranks, std::uint64_t from) {
    const DevicePointer data = output_ + at * bytes_of(type);
    cuda_->kernels().launch(
        cuda_->kernels().find(text("plait_check_", name_of(type))), {264, 512, false}, stream_,
        {const_cast<DevicePointer*>(&data), &count, &seed, &first, &ranks, &from, &wrong_});
  }
  double wrong(const Request& request, unsigned seed) {
    const std::uint64_t n = request.count;
    const int all = request.ranks;
    const auto me = static_cast<std::uint64_t>(rank_);
    PLAIT_CUDA_CALL(memory_set_async, wrong_, 0, 8, stream_);
    switch (request.collective) {
      case Collective::all_reduce: expect(request.type, seed, 0, n, 0, all, 0); break;
      case Collective::reduce:
        if (rank_ == 0) expect(request.type, seed, 0, n, 0, all, 0);
        break;
      case Collective::reduce_scatter: expect(request.type, seed, 0, n, 0, all, me * n); break;
      case Collective::broadcast: expect(request.type, seed, 0, n, 0, 1, 0); break;
      case Collective::send_recv:
        expect(request.type, seed, 0, n, (rank_ + all - 1) % all, 1, 0);
        break;
      case Collective::copy:
        if (rank_ == 1) expect(request.type, seed, 0, n, 0, 1, 0);
        break;
      case Collective::scatter: expect(request.type, seed, 0, n, 0, 1, me * n); break;
      case Collective::gather:
        if (rank_ != 0) break;
        [[fallthrough]];
      default:  // all_gather, all_to_all
        for (int from = 0; from < all; ++from)
          expect(request.type, seed, static_cast<std::uint64_t>(from) * n, n, from, 1,
                 request.collective == Collective::all_to_all ? me * n : 0);
    }
    unsigned long long bad = 0;
    PLAIT_CUDA_CALL(stream_synchronize, stream_);
    PLAIT_CUDA_CALL(memory_copy, reinterpret_cast<DevicePointer>(&bad), wrong_, 8);
    cuda_->check();
    return board_->total(rank_, static_cast<double>(bad));
  }

  /// Two launches of a graph of K calls, the second timed: the first lines the ranks up.
  double time_graph(const Way& way, int calls, int rounds) {
    Graph graph = nullptr;
    GraphExec exec = nullptr;
    PLAIT_CUDA_CALL(stream_begin_capture, stream_, kCaptureThreadLocal);
    for (int k = 0; k < calls; ++k) way.enqueue(stream_);
    PLAIT_CUDA_CALL(stream_end_capture, stream_, &graph);
    PLAIT_CUDA_CALL(graph_instantiate, &exec, graph, 0);
    PLAIT_CUDA_CALL(graph_upload, exec, stream_);
    std::vector<double> us;
    for (int round = 0; round < rounds; ++round) {
      board_->meet();
      PLAIT_CUDA_CALL(graph_launch, exec, stream_);
      PLAIT_CUDA_CALL(event_record, begin_, stream_);
      PLAIT_CUDA_CALL(graph_launch, exec, stream_);
      PLAIT_CUDA_CALL(event_record, end_, stream_);
      us.push_back(elapsed_us() / calls);
    }
    board_->meet();  // freeing may wait for all GPUs of the process
    api().graph_exec_destroy(exec);
    api().graph_destroy(graph);
    std::sort(us.begin(), us.end());
    return us[us.size() / 2];
  }
  double time_eager(const Way& way, int calls, int rounds) {
    std::vector<double> us;
    for (int round = 0; round < rounds; ++round) {
      board_->meet();
      for (int k = 0; k < 3; ++k) way.enqueue(stream_);
      PLAIT_CUDA_CALL(event_record, begin_, stream_);
      for (int k = 0; k < calls; ++k) way.enqueue(stream_);
      PLAIT_CUDA_CALL(event_record, end_, stream_);
      us.push_back(elapsed_us() / calls);
    }
    std::sort(us.begin(), us.end());
    return us[us.size() / 2];
  }
  double elapsed_us() {
    PLAIT_CUDA_CALL(stream_synchronize, stream_);
    float ms = 0;
    PLAIT_CUDA_CALL(event_elapsed, &ms, begin_, end_);
    cuda_->check();
    return board_->largest(rank_, static_cast<double>(ms) * 1e3);
  }

  Figure measure(const Way& way, const Request& request, bool check) {
    const DataType type = request.type;
    const std::uint64_t bytes = message_bytes(request), count = bytes / bytes_of(type);
    const int calls = bytes <= (256 << 10)  ? 100
                      : bytes <= (4 << 20)  ? 40
                      : bytes <= (64 << 20) ? 10
                      : bytes <= (1 << 30)  ? 3
                                            : 2;
    Figure figure;
    if (check) {
      fill(type, count, ++seed_);
      board_->meet();
      way.enqueue(stream_);
      figure.wrong += wrong(request, seed_);
      fill(type, count, ++seed_);
    }
    for (int k = 0; k < 3; ++k) way.enqueue(stream_);  // NCCL connects at its first call
    PLAIT_CUDA_CALL(stream_synchronize, stream_);
    cuda_->check();
    if (o_.graphs && o_.engine != "copy_engines")
      figure.graph_us = time_graph(way, calls, o_.sweep ? 3 : 5);
    if (check) figure.wrong += wrong(request, seed_);
    if (o_.eager) figure.eager_us = time_eager(way, calls, 3);
    return figure;
  }

  /// This rank's ends of the messages that a collective is made of.
  std::vector<Message> messages_of(const Request& request) const {
    const std::uint64_t bytes = request.count * bytes_of(request.type);
    const int all = request.ranks, next = (rank_ + 1) % all, last = (rank_ + all - 1) % all;
    void* const in = reinterpret_cast<void*>(input_);
    void* const out = reinterpret_cast<void*>(output_);
    if (request.collective == Collective::send_recv)
      return {{true, next, in, bytes}, {false, last, out, bytes}};
    if (request.collective == Collective::copy) {
      if (rank_ > 1) return {};
      return {rank_ == 0 ? Message{true, 1, in, bytes} : Message{false, 0, out, bytes}};
    }
    std::vector<Message> ends;
    if (request.collective != Collective::all_to_all) return ends;
    for (int peer = 0; peer < all; ++peer) {
      const std::uint64_t at = static_cast<std::uint64_t>(peer) * bytes;
      ends.push_back({true, peer, reinterpret_cast<void*>(input_ + at), bytes});
      ends.push_back({false, peer, reinterpret_cast<void*>(output_ + at), bytes});
    }
    return ends;
  }
  /// By lines, and by tiles of several sizes; without a sweep as it is shipped.
  void add_messages(std::vector<Way>& ways, const Request& request) {
    const std::vector<Message> ends = messages_of(request);
    const auto add = [&](const std::string& name, const MessageTuning& tuning) {
      ways.push_back({"plait messages", name, [this, ends, tuning](cuda::Stream stream) {
                        cuda_->messages(ends, stream, tuning);
                      }});
    };
    if (!o_.sweep) return add("messages", {});
    if (request.count * bytes_of(request.type) <= (256 << 10)) add("lines", {1 << 20, 4096});
    for (const std::uint32_t kib : {32u, 64u}) add(text("tiles of ", kib, " KiB"), {0, kib << 6});
  }

  void add_fused(std::vector<Way>& ways, const Request& request) {
    if (o_.kernel == "messages") return add_messages(ways, request);
    if (!o_.sweep) {
      std::vector<std::string> kernels{cuda_->fused_choice(request)};
      if (request.collective != Collective::all_reduce && !o_.beside_computing)
        kernels = {"hop", "tiled", "rotation"};
      if (!o_.kernel.empty()) kernels = {o_.kernel};
      for (const std::string& kernel : kernels)
        if (cuda_->has_fused(kernel, request))
          ways.push_back({"plait " + kernel, kernel, [this, kernel, request](cuda::Stream stream) {
                            cuda_->run_fused(kernel, request, reinterpret_cast<const void*>(input_),
                                             reinterpret_cast<void*>(output_), stream);
                          }});
      return;
    }
    const std::uint64_t bytes = request.count * bytes_of(request.type);
    for (const std::string kernel : {"one_shot", "two_shot", "hop", "tiled", "rotation"}) {
      if (!o_.kernel.empty() && kernel != o_.kernel) continue;
      if (kernel == "tiled" && bytes < (1 << 20)) continue;
      if (kernel == "hop" && request.collective == Collective::all_reduce) continue;
      if (kernel == "one_shot" && bytes > (o_.gpus == 2 ? 64ull << 20 : 1ull << 20)) continue;
      if (kernel == "two_shot" && bytes < (64 << 10)) continue;
      if (kernel == "rotation" && bytes < (8 << 20)) continue;
      for (const FusedTuning& tuning : beside_cores(!o_.path_permille.empty() ? path_tunings()
                                                    : kernel == "tiled"       ? tiled_tunings()
                                                    : kernel == "rotation"    ? rotation_tunings()
                                                    : kernel == "hop"         ? hop_tunings()
                                                                              : tunings(bytes))) {
        if (!cuda_->has_fused(kernel, request, tuning)) continue;
        ways.push_back({kernel,
                        text("bare=", tuning.bare, " blocks=", tuning.blocks,
                             " threads=", tuning.threads, " ahead=", tuning.ahead,
                             " tile=", tuning.tile_units, " pdl=", tuning.programmatic,
                             " host=", tuning.host_permille, " cpu=", tuning.host_cpu_permille),
                        [this, kernel, request, tuning](cuda::Stream stream) {
                          cuda_->run_fused(kernel, request, reinterpret_cast<const void*>(input_),
                                           reinterpret_cast<void*>(output_), stream, {}, tuning);
                        }});
      }
    }
  }
  /// Each share that goes through host memory beside a kernel, and each number of its blocks.
  std::vector<FusedTuning> path_tunings() const {
    std::vector<FusedTuning> all;
    for (const unsigned blocks : o_.blocks)
      for (const unsigned permille : o_.path_permille) {
        FusedTuning tuning;
        tuning.blocks = blocks;
        tuning.host_permille = static_cast<int>(permille);
        all.push_back(tuning);
      }
    return all;
  }
  /// Each with every share that CPU cores reduce.
  std::vector<FusedTuning> beside_cores(const std::vector<FusedTuning>& tunings) const {
    std::vector<FusedTuning> all;
    for (const unsigned permille : o_.cpu_permille)
      for (FusedTuning tuning : tunings) {
        tuning.host_cpu_permille = static_cast<int>(permille);
        all.push_back(tuning);
      }
    return all;
  }
  std::vector<FusedTuning> tiled_tunings() const {
    std::vector<FusedTuning> all(1);
    if (!o_.sweep || o_.cpu_permille != std::vector<unsigned>{0}) return all;
    all.clear();
    for (const unsigned blocks : {16u, 24u, 32u, 48u, 66u, 132u})
      for (const std::uint32_t tile_kib : {8u, 16u, 32u, 64u}) {
        FusedTuning tuning;
        tuning.blocks = blocks;
        tuning.tile_units = tile_kib << 6;
        tuning.host_permille = 0;
        all.push_back(tuning);
      }
    return all;
  }
  std::vector<FusedTuning> hop_tunings() const {
    std::vector<FusedTuning> all(1);
    for (const unsigned blocks : {16u, 24u, 32u, 48u, 64u, 132u})
      for (const int ahead : {1, 2}) {
        FusedTuning tuning;
        tuning.blocks = blocks;
        tuning.threads = 512;
        tuning.ahead = ahead;
        all.push_back(tuning);
      }
    return all;
  }
  std::vector<FusedTuning> rotation_tunings() const {
    std::vector<FusedTuning> all;
    for (const unsigned blocks : o_.blocks)
      for (const unsigned piece_mib : o_.piece_mib)
        for (const unsigned permille : o_.permille)
          for (const unsigned cuts : o_.cuts) {
            FusedTuning tuning;
            tuning.blocks = blocks;
            tuning.tile_units = piece_mib << 16;
            tuning.host_permille = static_cast<int>(permille);
            tuning.ahead = static_cast<int>(cuts);
            all.push_back(tuning);
          }
    return all;
  }
  std::vector<FusedTuning> tunings(std::uint64_t bytes) const {
    if (!o_.sweep) return {FusedTuning{}};
    std::vector<FusedTuning> all;
    const bool small = bytes <= (256 << 10), large = bytes >= (8 << 20);
    for (const int ahead : {1, 2, 3, 4, 6}) {  // else as it is launched by itself
      FusedTuning tuning;
      tuning.ahead = ahead;
      if (large) all.push_back(tuning);
    }
    for (const int bare : bytes <= (64 << 10) ? std::vector<int>{1, 0} : std::vector<int>{1})
      for (const unsigned blocks :
           small ? std::vector<unsigned>{8, 16, 32, 64} : std::vector<unsigned>{16, 32, 64, 132})
        for (const unsigned threads : {128u, 256u, 512u})
          for (const int ahead : large                ? std::vector<int>{1, 2, 4}
                                 : bytes >= (1 << 20) ? std::vector<int>{0, 1, 2}
                                                      : std::vector<int>{0})
            for (const bool programmatic :
                 small ? std::vector<bool>{true, false} : std::vector<bool>{true}) {
              if (!small && threads == 128) continue;
              FusedTuning tuning;
              tuning.blocks = blocks;
              tuning.threads = threads;
              tuning.ahead = ahead;
              tuning.programmatic = programmatic;
              tuning.bare = bare;
              all.push_back(tuning);
            }
    return all;
  }

  void add_plans(std::vector<Way>& ways, const Request& request);

  void one_size(DataType type, std::uint64_t bytes) {
    Request request;
    request.collective = o_.collective;
    request.peer = o_.collective == Collective::copy ? 1 : 0;
    request.type = type;
    request.ranks = o_.gpus;
    request.count = bytes_of(type);  // then message_bytes is a factor of it
    request.count = bytes / (message_bytes(request) / request.count);
    std::vector<Way> ways;
    bound_.clear();
    if (o_.what.contains("fused")) add_fused(ways, request);
    if (o_.what.contains("plan")) add_plans(ways, request);
    if (nccl_)
      ways.push_back({"nccl", "", [this, request](cuda::Stream stream) {
                        nccl_->run(request, rank_, reinterpret_cast<const void*>(input_),
                                   reinterpret_cast<void*>(output_), stream);
                      }});
    board_->meet();  // all have bound their plans
    std::map<std::string, std::vector<std::pair<Figure, std::string>>> by_name;
    for (const Way& way : ways) {
      const Figure figure = measure(way, request, way.name != "nccl");
      by_name[way.name].push_back({figure, way.params});
      write_csv(way, type, bytes, figure);
    }
    for (auto& [name, figures] : by_name) {
      std::sort(figures.begin(), figures.end(), [](const auto& a, const auto& b) {
        return std::pair(a.first.graph_us, a.first.eager_us) <
               std::pair(b.first.graph_us, b.first.eager_us);
      });
      double bad = 0;
      for (const auto& [figure, params] : figures) bad += figure.wrong;
      for (std::size_t i = 0; i < std::min<std::size_t>(figures.size(), o_.sweep ? 4 : 1); ++i) {
        const Figure& figure = figures[i].first;
        if (rank_ != 0) continue;
        Request shape;
        shape.collective = o_.collective;
        shape.ranks = o_.gpus;
        const double busbw = busbw_factor(shape) * static_cast<double>(bytes) /
                             (figure.graph_us > 0 ? figure.graph_us : figure.eager_us) / 1e3;
        std::printf("%6s %-22s %9.2f us %7.1f GB/s  eager %9.2f us  wrong %.0f  %s\n",
                    size_name(bytes).c_str(), name.c_str(), figure.graph_us, busbw, figure.eager_us,
                    bad, figures[i].second.c_str());
        std::fflush(stdout);
      }
    }
    board_->meet();
  }

  void write_csv(const Way& way, DataType type, std::uint64_t bytes, const Figure& figure) {
    if (rank_ != 0 || o_.csv.empty()) return;
    std::FILE* file = std::fopen(o_.csv.c_str(), "a");
    if (file == nullptr) return;
    std::fprintf(file, "%s,%d,%s,%s,%llu,%s,%s,%.3f,%.3f,%.0f,%s\n", name_of(o_.collective),
                 o_.gpus, o_.processes ? "processes" : "threads", name_of(type),
                 static_cast<unsigned long long>(bytes), way.name.c_str(), way.params.c_str(),
                 figure.graph_us, figure.eager_us, figure.wrong, o_.commit.c_str());
    std::fclose(file);
  }

  const Options& o_;
  Board* board_;
  int rank_;
  std::unique_ptr<CudaRank> cuda_;
  std::unique_ptr<Nccl> nccl_;
  std::vector<std::unique_ptr<BoundPlan>> bound_;
  cuda::Stream stream_ = nullptr;
  cuda::Event begin_ = nullptr, end_ = nullptr;
  DevicePointer input_ = 0, output_ = 0, wrong_ = 0;
  std::vector<std::byte*> rings_;
  unsigned seed_ = 0;
};

/// "direct:pieces=2,throttle=1", cut at the first colon.
void Bench::add_plans(std::vector<Way>& ways, const Request& request) {
  const Topology topology = without(load_topology("hgx-h200"), o_.masks);
  for (const std::string& wanted : o_.plans) {
    const std::size_t colon = wanted.find(':');
    std::map<std::string, std::int64_t> params;
    if (colon != std::string::npos)
      for (const std::string& pair : words(wanted.substr(colon + 1)))
        params[pair.substr(0, pair.find('='))] = std::stoll(pair.substr(pair.find('=') + 1));
    try {
      const Plan plan =
          propose_one(topology, checked(request, topology), wanted.substr(0, colon), params);
      bound_.push_back(cuda_->bind(plan));
    } catch (const Error& error) {
      if (rank_ == 0) std::printf("%s: %s\n", wanted.c_str(), error.what());
      continue;
    }
    BoundPlan* bound = bound_.back().get();
    ways.push_back(
        {wanted,
         text("engine=", o_.engine, " reduce_blocks=", o_.spread.reduce_blocks,
              " copy_blocks=", o_.spread.copy_blocks, " ring_blocks=", o_.spread.ring_blocks),
         [this, bound](cuda::Stream stream) {
           cuda_->run(*bound, reinterpret_cast<const void*>(input_),
                      reinterpret_cast<void*>(output_), stream, {},
                      o_.engine == "copy_engines" ? Engine::copy_engines
                      : o_.engine == "one_kernel" ? Engine::one_kernel
                                                  : Engine::automatic);
         }});
  }
}

struct Option {
  const char* name;
  bool has_value;
  void (*set)(Options&, const std::string&);
};
const Option kOptions[] = {
    {"--gpus", true, [](Options& o, const std::string& v) { o.gpus = std::stoi(v); }},
    {"--processes", false, [](Options& o, const std::string&) { o.processes = true; }},
    {"--sweep", false, [](Options& o, const std::string&) { o.sweep = true; }},
    {"--eager", false, [](Options& o, const std::string&) { o.eager = true; }},
    {"--no-graphs", false, [](Options& o, const std::string&) { o.graphs = false; }},
    {"--what", true, [](Options& o, const std::string& v) { o.what = words(v); }},
    {"--types", true,
     [](Options& o, const std::string& v) {
       const auto set = words(v);
       o.types.assign(set.begin(), set.end());
     }},
    {"--plan", true, [](Options& o, const std::string& v) { o.plans.push_back(v); }},
    {"--collective", true,
     [](Options& o, const std::string& v) { o.collective = parse_collective(v); }},
    {"--without", true, [](Options& o, const std::string& v) { o.masks.push_back(v); }},
    {"--reduce-blocks", true,
     [](Options& o, const std::string& v) {
       o.spread.reduce_blocks = static_cast<unsigned>(std::stoul(v));
     }},
    {"--copy-blocks", true,
     [](Options& o, const std::string& v) {
       o.spread.copy_blocks = static_cast<unsigned>(std::stoul(v));
     }},
    {"--ring-blocks", true,
     [](Options& o, const std::string& v) {
       o.spread.ring_blocks = static_cast<unsigned>(std::stoul(v));
     }},
    {"--rotation-mib", true,
     [](Options& o, const std::string& v) { o.rotation_mib = std::stoull(v); }},
    {"--ring-mib", true, [](Options& o, const std::string& v) { o.ring_mib = std::stoull(v); }},
    {"--blocks", true, [](Options& o, const std::string& v) { o.blocks = numbers(v); }},
    {"--piece-mib", true, [](Options& o, const std::string& v) { o.piece_mib = numbers(v); }},
    {"--host", true, [](Options& o, const std::string& v) { o.permille = numbers(v); }},
    {"--host-cpu", true, [](Options& o, const std::string& v) { o.cpu_permille = numbers(v); }},
    {"--host-path", true, [](Options& o, const std::string& v) { o.path_permille = numbers(v); }},
    {"--cuts", true, [](Options& o, const std::string& v) { o.cuts = numbers(v); }},
    {"--beside-computing", false,
     [](Options& o, const std::string&) { o.beside_computing = true; }},
    {"--tiled-blocks", true,
     [](Options& o, const std::string& v) {
       o.tiled_blocks = static_cast<unsigned>(std::stoul(v));
     }},
    {"--tile-mib", true, [](Options& o, const std::string& v) { o.tile_mib = std::stoull(v); }},
    {"--engine", true, [](Options& o, const std::string& v) { o.engine = v; }},
    {"--kernel", true, [](Options& o, const std::string& v) { o.kernel = v; }},
    {"--min", true, [](Options& o, const std::string& v) { o.least = std::stoull(v); }},
    {"--max", true, [](Options& o, const std::string& v) { o.most = std::stoull(v); }},
    {"--factor", true, [](Options& o, const std::string& v) { o.factor = std::stoi(v); }},
    {"--csv", true, [](Options& o, const std::string& v) { o.csv = v; }},
    {"--commit", true, [](Options& o, const std::string& v) { o.commit = v; }},
};

Options parse(int count, char** arguments) {
  Options options;
  for (int i = 1; i < count; ++i) {
    const std::string name = arguments[i];
    const auto* const found = std::find_if(std::begin(kOptions), std::end(kOptions),
                                           [&](const Option& one) { return one.name == name; });
    if (found == std::end(kOptions)) throw std::runtime_error("unknown option " + name);
    found->set(options, found->has_value && i + 1 < count ? arguments[++i] : "");
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
    const Options options = parse(count, arguments);
    const std::uint64_t ring_bytes = options.ring_mib << 20;
    std::byte* rings =
        shared_memory(ring_bytes * static_cast<std::uint64_t>(options.gpus) +
                      plait::cuda::kHostWordsBytes + sizeof(plait::cuda::Settled::Words));
    Board* board = make_board(options.gpus);
    return run_ranks(board, options.processes,
                     [&](int rank) { Bench(options, board, rank, rings, ring_bytes).run(); });
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
