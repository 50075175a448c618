// Times the links between GPUs: every shift, one rank to several peers at once, one to all and all
// to one, by stores and loads of kernels, by bulk copies and by copy engines. Ranks are threads of
// one process with a GPU each (or all on the only one), and a gate on the GPUs releases them
// together. Each row is checked on fresh data, printed, and written to a CSV file at once.
#include <chrono>
#include <optional>

#include "base/env.hpp"
#include "base/text.hpp"
#include "driver/cuda/api.hpp"
#include "gpu/abi/tile_args.hpp"
#include "gpu/device/kernels.hpp"
#include "tests/gpu/ranks.hpp"
#include "tests/gpu/trial_kernels.hpp"

namespace plait::bench {
namespace {

using namespace plait::cuda;

struct LinkOptions {
  int gpus = 2;
  double budget_s = 120;
  std::string csv;
  std::vector<std::uint64_t> mib{1024, 4096, 256};
};

/// A kernel that moves bytes, or copy engines (blocks = 0).
struct TransferMethod {
  const char* name;
  const char* kernel;
  unsigned blocks, threads;
  bool pushes;
};
constexpr unsigned kBulkRoom = kPushStages * kBulkBytes;
const TransferMethod kMethods[] = {
    {"copy engines", nullptr, 0, 0, true},      {"push", "push", 264, 512, true},
    {"pull", "pull", 264, 512, false},          {"bulk push", "push_bulk", 100, 32, true},
    {"bulk pull", "pull_bulk", 100, 32, false}, {"bulk push", "push_bulk", 32, 32, true},
    {"bulk pull", "pull_bulk", 32, 32, false},
};

/// The senders and receivers of a row. A rank splits its bytes into parts().
struct Pattern {
  enum PatternShape { shift, peers, one_to_all, all_to_one } shape;
  int k;  ///< distance of a shift, else number of peers
  int parts() const { return shape == shift ? 1 : k; }
  std::string name() const {
    const char* const names[] = {"shift", "peers", "one to all", "all to one"};
    return names[shape];
  }
};

std::vector<Pattern> patterns(int ranks) {
  std::vector<Pattern> all;
  for (int k = 1; k < ranks; ++k) all.push_back({Pattern::shift, k});
  for (int k = 2; k < ranks; ++k) all.push_back({Pattern::peers, k});
  if (ranks > 2)
    for (const auto shape : {Pattern::one_to_all, Pattern::all_to_one})
      all.push_back({shape, ranks - 1});
  return all;
}

/// A part in transit: the rank at the other end, and the number of the part.
struct LinkTransfer {
  int other, part;
};

/// Returns the consecutive parts that a rank sends (or receives, is_sender false).
std::vector<LinkTransfer> moves_of(const Pattern& pattern, int rank, int ranks, bool is_sender) {
  const int sign = is_sender ? 1 : -1;
  const auto at = [&](int distance) { return (rank + sign * distance + ranks) % ranks; };
  if (pattern.shape == Pattern::shift) return {{at(pattern.k), 0}};
  std::vector<LinkTransfer> found;
  for (int distance = 1; distance <= pattern.k; ++distance) {
    const int other = at(distance);
    const int sender = is_sender ? rank : other, taker = is_sender ? other : rank;
    if (pattern.shape == Pattern::one_to_all && sender != 0) continue;
    if (pattern.shape == Pattern::all_to_one && taker != 0) continue;
    found.push_back({other, distance - 1});
  }
  return found;
}

struct LinkKernelArgs {
  DevicePointer remote[kMaxCudaRanks];
  DevicePointer local;
  unsigned long long units;
  int peers;
};
struct GateKernelArgs {
  DevicePointer flags[kMaxCudaRanks];
  DevicePointer mine, late;
  unsigned count;
  int ranks;
};

class LinkTimer {
 public:
  LinkTimer(const LinkOptions& options, Board* board, int rank)
      : o_(options), board_(board), rank_(rank), began_(std::chrono::steady_clock::now()) {
    const int found = device_count();
    if (found == 0) throw std::runtime_error("wanted GPUs, found none");
    Device device = 0;
    PLAIT_CUDA_CALL(device_get, &device, rank % found);
    PLAIT_CUDA_CALL(primary_retain, &context_, device);
    PLAIT_CUDA_CALL(context_push, context_);
    kernels_.emplace();
    most_bytes_ = *std::max_element(o_.mib.begin(), o_.mib.end()) << 20;
    for (DevicePointer* one : {&input_, &output_}) PLAIT_CUDA_CALL(memory_alloc, one, most_bytes_);
    PLAIT_CUDA_CALL(memory_alloc, &flags_, 4096);
    for (Stream& one : streams_) PLAIT_CUDA_CALL(stream_create, &one, kStreamNonBlocking, 0);
    for (Event* one : {&begin_, &end_}) PLAIT_CUDA_CALL(event_create, one, 0);
    for (Event& one : done_) PLAIT_CUDA_CALL(event_create, &one, 0);
    PLAIT_CUDA_CALL(memory_set_async, flags_, 0, 4096, stream());
    PLAIT_CUDA_CALL(stream_synchronize, stream());
    show(found);
    if (rank_ == 0) head();
  }

  /// Times all rows, the most important sizes first, until the time is up.
  void run() {
    for (const std::uint64_t mib : o_.mib)
      for (const Pattern& pattern : patterns(o_.gpus))
        for (const TransferMethod& method : kMethods) {
          const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - began_;
          if (board_->largest(rank_, spent.count()) > o_.budget_s) return;
          one(mib << 20, pattern, method);
        }
  }

 private:
  static constexpr int kRounds = 5;

  Stream stream() const { return streams_[0]; }

  /// Exchanges the addresses of all ranks' buffers.
  void show(int found) {
    const DevicePointer mine[] = {input_, output_, flags_,
                                  reinterpret_cast<DevicePointer>(context_)};
    const auto all =
        board_->exchange(rank_, std::string(reinterpret_cast<const char*>(mine), sizeof mine));
    for (int r = 0; r < o_.gpus; ++r) {
      DevicePointer theirs[4];
      std::memcpy(theirs, all[static_cast<std::size_t>(r)].data(), sizeof theirs);
      inputs_.push_back(theirs[0]);
      outputs_.push_back(theirs[1]);
      all_flags_.push_back(theirs[2]);
      if (r % found != rank_ % found)
        PLAIT_CUDA_CALL(context_enable_peer, reinterpret_cast<Context>(theirs[3]), 0);
    }
    board_->barrier();
  }

  void launch(Function function, const KernelLaunchConfig& config, Stream on,
              std::vector<void*> arguments) {
    kernels_->launch(function, config, on, std::move(arguments));
  }
  static Function trial(const std::string& name) { return trial_kernels().find(name); }

  void gate() {
    GateKernelArgs args{};
    for (int r = 0; r < o_.gpus; ++r)
      args.flags[r] = all_flags_[static_cast<std::size_t>(r)] + 4 * static_cast<unsigned>(rank_);
    args.mine = flags_;
    args.late = flags_ + 4 * kMaxCudaRanks;
    args.count = ++gates_;
    args.ranks = o_.gpus;
    launch(trial("plait_link_gate"), {1, 32, false, 0}, stream(), {&args});
  }

  /// Moves the parts after the gate; end_ follows all of them.
  void move(const std::vector<LinkTransfer>& moves, std::uint64_t part_bytes,
            const TransferMethod& method) {
    const auto place = [&](const LinkTransfer& one) {
      return static_cast<unsigned>(one.part) * part_bytes;
    };
    if (method.kernel == nullptr) return copy(moves, part_bytes);
    if (moves.empty()) return;
    LinkKernelArgs args{};
    args.local = (method.pushes ? input_ : output_) + place(moves.front());
    args.units = part_bytes / 16;
    args.peers = static_cast<int>(moves.size());
    for (std::size_t i = 0; i < moves.size(); ++i)
      args.remote[i] =
          (method.pushes ? outputs_ : inputs_)[static_cast<std::size_t>(moves[i].other)] +
          place(moves[i]);
    const KernelLaunchConfig config{method.blocks, method.threads, false,
                                    method.threads == 32 ? kBulkRoom : 0};
    launch(trial(std::string("plait_link_") + method.kernel), config, stream(), {&args});
  }
  /// Copies on a stream for each peer, so that engines serve all peers at once.
  void copy(const std::vector<LinkTransfer>& moves, std::uint64_t part_bytes) {
    for (std::size_t i = 0; i < moves.size(); ++i) {
      const Stream on = streams_[i];
      const std::uint64_t place = static_cast<unsigned>(moves[i].part) * part_bytes;
      if (i != 0) PLAIT_CUDA_CALL(stream_wait_event, on, begin_, 0);
      PLAIT_CUDA_CALL(memory_copy_async, outputs_[static_cast<std::size_t>(moves[i].other)] + place,
                      input_ + place, part_bytes, on);
      if (i == 0) continue;
      PLAIT_CUDA_CALL(event_record, done_[i], on);
      PLAIT_CUDA_CALL(stream_wait_event, stream(), done_[i], 0);
    }
  }

  /// Returns the number of wrong elements over all ranks.
  double wrong(const Pattern& pattern, std::uint64_t part_bytes) {
    DevicePointer counted = flags_ + 2048;
    PLAIT_CUDA_CALL(memory_set_async, counted, 0, 8, stream());
    for (const LinkTransfer& one : moves_of(pattern, rank_, o_.gpus, false)) {
      DevicePointer data = output_ + static_cast<unsigned>(one.part) * part_bytes;
      std::uint64_t count = part_bytes / 4, from = static_cast<unsigned>(one.part) * count;
      int sender = one.other, ranks = 1;
      launch(trial("plait_check_fp32"), {264, 512, false, 0}, stream(),
             {&data, &count, &seed_, &sender, &ranks, &from, &counted});
    }
    unsigned long long bad = 0;
    unsigned late = 0;
    PLAIT_CUDA_CALL(stream_synchronize, stream());
    PLAIT_CUDA_CALL(memory_copy, reinterpret_cast<DevicePointer>(&bad), counted, 8);
    PLAIT_CUDA_CALL(memory_copy, reinterpret_cast<DevicePointer>(&late), flags_ + 4 * kMaxCudaRanks,
                    4);
    if (late != 0) throw std::runtime_error("a GPU did not come to the gate in two seconds");
    return board_->total(rank_, static_cast<double>(bad));
  }

  void fill(std::uint64_t bytes) {
    std::uint64_t count = bytes / 4;
    int rank = rank_;
    ++seed_;
    launch(trial("plait_fill_fp32"), {264, 512, false, 0}, stream(),
           {&input_, &count, &seed_, &rank});
    PLAIT_CUDA_CALL(memory_set_async, output_, 0xa5, bytes, stream());
    PLAIT_CUDA_CALL(stream_synchronize, stream());
  }

  void one(std::uint64_t bytes, const Pattern& pattern, const TransferMethod& method) {
    const std::uint64_t part_bytes =
        bytes / static_cast<unsigned>(pattern.parts()) / kBulkBytes * kBulkBytes;
    const auto moves = moves_of(pattern, rank_, o_.gpus, method.pushes);
    fill(bytes);
    std::vector<double> us;
    for (int round = 0; round <= kRounds; ++round) {
      board_->barrier();
      gate();
      PLAIT_CUDA_CALL(event_record, begin_, stream());
      move(moves, part_bytes, method);
      PLAIT_CUDA_CALL(event_record, end_, stream());
      PLAIT_CUDA_CALL(stream_synchronize, stream());
      float ms = 0;
      PLAIT_CUDA_CALL(event_elapsed, &ms, begin_, end_);
      const double slowest = board_->largest(rank_, static_cast<double>(ms) * 1e3);
      if (round != 0) us.push_back(slowest);  // the first round warms up
    }
    std::sort(us.begin(), us.end());
    write_row(pattern, method, part_bytes * static_cast<unsigned>(pattern.parts()), us,
              wrong(pattern, part_bytes));
  }

  void head() {
    if (o_.csv.empty()) return;
    std::FILE* const file = std::fopen(o_.csv.c_str(), "a");
    if (file == nullptr) throw std::runtime_error("cannot write " + o_.csv);
    std::fprintf(file, "pattern,k,way,blocks,gpus,bytes,us,least_us,gb_per_s,wrong\n");
    std::fclose(file);
  }
  void write_row(const Pattern& pattern, const TransferMethod& method, std::uint64_t bytes,
                 const std::vector<double>& us, double bad) {
    if (rank_ != 0) return;
    const double median = us[us.size() / 2], speed = static_cast<double>(bytes) / median / 1e3;
    const std::string row =
        text("{},{},{},{},{},{},{},{},{},{}\n", pattern.name(), pattern.k, method.name,
             method.blocks, o_.gpus, bytes, median, us.front(), speed, bad);
    std::printf("%s", row.c_str());
    std::FILE* const file = o_.csv.empty() ? nullptr : std::fopen(o_.csv.c_str(), "a");
    if (file == nullptr) return;
    std::fputs(row.c_str(), file);
    std::fclose(file);
  }

  const LinkOptions& o_;
  Board* board_;
  const int rank_;
  const std::chrono::steady_clock::time_point began_;
  Context context_ = nullptr;
  std::optional<Kernels> kernels_;
  std::uint64_t most_bytes_ = 0;
  Stream streams_[kBoardRanks] = {};
  Event begin_ = nullptr, end_ = nullptr, done_[kBoardRanks] = {};
  DevicePointer input_ = 0, output_ = 0, flags_ = 0;
  std::vector<DevicePointer> inputs_, outputs_, all_flags_;
  unsigned seed_ = 0, gates_ = 0;
};

LinkOptions parse(int count, char** arguments) {
  LinkOptions options;
  for (int i = 1; i < count; i += 2) {
    const std::string name = arguments[i];
    if (i + 1 == count) throw std::runtime_error(name + ": wanted a value, found none");
    const std::string value = arguments[i + 1];
    if (name == "--gpus")
      options.gpus = std::stoi(value);
    else if (name == "--csv")
      options.csv = value;
    else if (name == "--budget-s")
      options.budget_s = std::stod(value);
    else if (name == "--mib") {
      options.mib.clear();
      for (const std::string& one : split(value, ',')) options.mib.push_back(std::stoull(one));
    } else
      throw std::runtime_error(
          "wanted --gpus N, --mib 1024,4096, --budget-s S or --csv FILE, found " + name);
  }
  if (options.gpus < 2 || options.gpus > kBoardRanks)
    throw std::runtime_error(text("--gpus: wanted 2 to {}, found {}", kBoardRanks, options.gpus));
  return options;
}

}  // namespace
}  // namespace plait::bench

int main(int count, char** arguments) {
  using namespace plait::bench;
  trace_crashes();
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  try {
    const LinkOptions options = parse(count, arguments);
    Board* board = make_board(options.gpus);
    return run_ranks(board, false, [&](int rank) { LinkTimer(options, board, rank).run(); });
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
