// Times the links between GPUs: every shift, one rank to several peers at once, one to all and all
// to one, by stores and loads of kernels, by bulk copies and by copy engines. --rotation times a
// reduce_scatter by copy engines instead, in which each rank pushes to one owner after the other
// and owners add parts as they come. Ranks are threads of one process with a GPU each (or all on
// the only one), and a gate on the GPUs releases them together. Each row is checked on fresh data,
// printed, and written to a CSV file at once.
#include <algorithm>
#include <chrono>
#include <functional>
#include <optional>

#include "base/env.hpp"
#include "base/text.hpp"
#include "driver/cuda/api.hpp"
#include "gpu/abi/copy_args.hpp"
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
  std::vector<std::uint64_t> rotation_mib;  ///< pieces of rotations; empty = links alone
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

/// See tests/gpu/trial.cu.
struct PortStepArgs {
  DevicePointer awaited, raised, late;
  unsigned long long hold_ns;
  unsigned value;
};

/// The skewed rotation of n ranks: in block k, step t, owner o hears from rank o + 1 + t. Ranks
/// below the owner send piece k, ranks above the owner piece k - 1, so each owner hears all parts
/// of a piece in rank order and adds a part as it comes. Parts of the last piece from above come in
/// block 0, and wait in slots of their own.
struct RotationStep {
  int ranks, blocks, number;

  int block() const { return number / (ranks - 1); }
  int sender_to(int owner) const { return (owner + 1 + number % (ranks - 1)) % ranks; }
  int owner_of(int sender) const { return (sender + 2 * ranks - 1 - number % (ranks - 1)) % ranks; }
  bool waits(int sender, int owner) const { return sender > owner && block() == 0; }
  int piece(int sender, int owner) const {
    return sender < owner ? block() : (block() + blocks - 1) % blocks;
  }
  /// Two slots in turn, then the slots of parts that wait.
  int slot(int sender, int owner) const {
    return waits(sender, owner) ? 1 + sender - owner : number % 2;
  }
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
    PLAIT_CUDA_CALL(memory_alloc, &flags_, kFlagBytes);
    for (Stream& one : streams_) PLAIT_CUDA_CALL(stream_create, &one, kStreamNonBlocking, 0);
    for (Event* one : {&begin_, &end_}) PLAIT_CUDA_CALL(event_create, one, 0);
    for (Event& one : done_) PLAIT_CUDA_CALL(event_create, &one, 0);
    PLAIT_CUDA_CALL(memory_set_async, flags_, 0, kFlagBytes, stream());
    PLAIT_CUDA_CALL(stream_synchronize, stream());
    show(found);
    if (rank_ == 0) head();
  }

  /// Times all rows, the most important sizes first, until the time is up.
  void run() {
    if (!o_.rotation_mib.empty()) load_kernels();
    for (const std::uint64_t mib : o_.rotation_mib) rotations(mib << 20);
    if (!o_.rotation_mib.empty()) return;
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
  enum RotationRow : int { kArrived, kGranted };  // words behind the first page of the flags
  static constexpr int kMostSteps = 1024;
  static constexpr std::size_t kFlagBytes = 4096 + 2 * 4 * kMostSteps;

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
    return counted_wrong(counted);
  }
  /// Returns the number of wrong elements over all ranks.
  double counted_wrong(DevicePointer counted) {
    unsigned long long bad = 0;
    unsigned late = 0;
    PLAIT_CUDA_CALL(stream_synchronize, stream());
    PLAIT_CUDA_CALL(memory_copy, reinterpret_cast<DevicePointer>(&bad), counted, 8);
    PLAIT_CUDA_CALL(memory_copy, reinterpret_cast<DevicePointer>(&late), flags_ + 4 * kMaxCudaRanks,
                    4);
    if (late != 0) throw std::runtime_error("a GPU waited two seconds at the gate or for a port");
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

  // --- rotation ---------------------------------------------------------------------------------

  struct RotationCall {
    std::uint64_t piece_bytes;
    int blocks;
    double hold_us;  // from the grant of a port to the copy; < 0 = the owner grants at arrivals
  };
  int steps(const RotationCall& call) const { return call.blocks * (o_.gpus - 1); }
  DevicePointer word(int rank, int row, int step) const {
    return all_flags_[static_cast<std::size_t>(rank)] + 4096u +
           4u * static_cast<unsigned>(row * kMostSteps + step);
  }
  void port(Stream on, DevicePointer awaited, DevicePointer raised, double hold_us) {
    PortStepArgs args{awaited, raised, flags_ + 4 * kMaxCudaRanks,
                      static_cast<unsigned long long>(std::max(0.0, hold_us) * 1e3), calls_};
    launch(trial("plait_link_port"), {1, 1, false, 0}, on, {&args});
  }
  DevicePointer input_of(int owner, int piece, const RotationCall& call) const {
    return input_ + static_cast<unsigned>(owner * call.blocks + piece) * call.piece_bytes;
  }
  /// Adds what came from `sender` to the sum of the piece, in rank order.
  void add(int sender, int piece, DevicePointer part, const RotationCall& call) {
    const DevicePointer sum = output_ + static_cast<unsigned>(piece) * call.piece_bytes;
    const DevicePointer own = input_of(rank_, piece, call);
    const auto put = [&](DevicePointer first, DevicePointer second) {
      PieceArgs args{};
      args.state = reinterpret_cast<DeviceState*>(flags_ + 3072);
      args.source[0] = reinterpret_cast<const char*>(first);
      args.source[1] = reinterpret_cast<const char*>(second);
      args.sources = second == 0 ? 1 : 2;
      args.dst = reinterpret_cast<char*>(sum);
      args.bytes = call.piece_bytes;
      std::fill(std::begin(args.scalars), std::end(args.scalars), 1.0);
      launch(kernels_->find(second == 0 ? "plait_piece_move" : "plait_piece_fp32_sum_2"),
             {48, 512, false, 0}, streams_[1], {&args});
    };
    if (sender == 0)
      put(part, 0);
    else
      put(rank_ == 0 && sender == 1 ? own : sum, part);
    if (sender == rank_ - 1) put(sum, own);
  }
  /// Enqueues the pushes of this rank on the first stream, and its sums on the second.
  void rotate(const RotationCall& call) {
    const int n = o_.gpus, all = steps(call);
    ++calls_;
    PLAIT_CUDA_CALL(stream_wait_event, streams_[1], begin_, 0);
    const DevicePointer slots = static_cast<unsigned>(call.blocks) * call.piece_bytes;
    const auto slot_at = [&](int rank, int slot) {
      return outputs_[static_cast<std::size_t>(rank)] + slots +
             static_cast<unsigned>(slot) * call.piece_bytes;
    };
    const bool is_timed = call.hold_us >= 0;
    const auto grant = [&](int number) {
      const RotationStep step{n, call.blocks, number};
      if (number < all) port(streams_[1], 0, word(step.sender_to(rank_), kGranted, number), 0);
    };
    if (is_timed) grant(1);
    for (int number = 0; number < all; ++number) {
      const RotationStep step{n, call.blocks, number};
      const int owner = step.owner_of(rank_), sender = step.sender_to(rank_);
      if (number != 0) port(stream(), word(rank_, kGranted, number), 0, call.hold_us);
      PLAIT_CUDA_CALL(memory_copy_async, slot_at(owner, step.slot(rank_, owner)),
                      input_of(owner, step.piece(rank_, owner), call), call.piece_bytes, stream());
      port(stream(), 0, word(owner, kArrived, number), 0);
      port(streams_[1], word(rank_, kArrived, number), 0, 0);
      if (!is_timed) grant(number + 1);
      if (!step.waits(sender, rank_))
        add(sender, step.piece(sender, rank_), slot_at(rank_, number % 2), call);
      if (is_timed) grant(number + 2);
    }
    for (int number = 0; number < n - 1; ++number) {
      const RotationStep step{n, call.blocks, number};
      const int sender = step.sender_to(rank_);
      if (step.waits(sender, rank_))
        add(sender, step.piece(sender, rank_), slot_at(rank_, step.slot(sender, rank_)), call);
    }
    PLAIT_CUDA_CALL(event_record, done_[1], streams_[1]);
    PLAIT_CUDA_CALL(stream_wait_event, stream(), done_[1], 0);
  }
  /// The copies of a rotation alone, to one rank.
  void push_pieces(const RotationCall& call) {
    const auto next = static_cast<std::size_t>((rank_ + 1) % o_.gpus);
    for (int number = 0; number < steps(call); ++number)
      PLAIT_CUDA_CALL(memory_copy_async, outputs_[next] + number % 2 * call.piece_bytes,
                      input_ + number % call.blocks * call.piece_bytes, call.piece_bytes, stream());
  }
  double time_us(const std::function<void()>& move) {
    std::vector<double> us;
    for (int round = 0; round <= kRounds; ++round) {
      board_->barrier();
      gate();
      PLAIT_CUDA_CALL(event_record, begin_, stream());
      move();
      PLAIT_CUDA_CALL(event_record, end_, stream());
      PLAIT_CUDA_CALL(stream_synchronize, stream());
      float ms = 0;
      PLAIT_CUDA_CALL(event_elapsed, &ms, begin_, end_);
      const double slowest = board_->largest(rank_, static_cast<double>(ms) * 1e3);
      if (round != 0) us.push_back(slowest);
    }
    std::sort(us.begin(), us.end());
    return us[us.size() / 2];
  }
  /// Loads the kernels of rotations by launches without work: the driver may let a first use wait
  /// for kernels that wait for a peer.
  void load_kernels() {
    PortStepArgs step{};
    launch(trial("plait_link_port"), {1, 1, false, 0}, stream(), {&step});
    PieceArgs piece{};
    for (const char* const name : {"plait_piece_move", "plait_piece_fp32_sum_2"})
      launch(kernels_->find(name), {1, 512, false, 0}, stream(), {&piece});
    PLAIT_CUDA_CALL(stream_synchronize, stream());
    board_->barrier();
  }
  /// Times rotations of as many blocks as the buffers hold, up to eight: ports granted at arrivals,
  /// and ports granted a step ahead and held for a time.
  void rotations(std::uint64_t piece_bytes) {
    const auto n = static_cast<std::uint64_t>(o_.gpus);
    const std::uint64_t pieces = most_bytes_ / piece_bytes;  // of a buffer
    const auto most = static_cast<int>(std::min(pieces / n, pieces - std::min(pieces, n + 1)));
    RotationCall call{piece_bytes, std::min({8, most, kMostSteps / (o_.gpus - 1)}), -1};
    if (call.blocks < 2)
      throw std::runtime_error(
          "--rotation: wanted --mib of at least two pieces for each rank, and ranks + 3 pieces");
    const std::uint64_t part = static_cast<unsigned>(call.blocks) * piece_bytes;
    const double alone = time_us([&] { push_pieces(call); }), step_us = alone / steps(call);
    report("pieces to one rank", call, alone, step_us, 0);
    // A copy is to begin 24 us before the copy before it ends; adding a piece takes 30 us.
    for (const double hold_us : {-1.0, 0.0, step_us - 54, step_us - 42, step_us - 30}) {
      if (hold_us < -1) continue;
      call.hold_us = hold_us;
      fill(n * part);
      const double us = time_us([&] { rotate(call); });
      report(hold_us < 0 ? "granted at arrivals" : text("held {} us", hold_us), call, us, step_us,
             wrong_sums(part));
    }
  }
  double wrong_sums(std::uint64_t part_bytes) {
    DevicePointer counted = flags_ + 2048, data = output_;
    PLAIT_CUDA_CALL(memory_set_async, counted, 0, 8, stream());
    std::uint64_t count = part_bytes / 4, from = static_cast<unsigned>(rank_) * count;
    int sender = 0, ranks = o_.gpus;
    launch(trial("plait_check_fp32"), {264, 512, false, 0}, stream(),
           {&data, &count, &seed_, &sender, &ranks, &from, &counted});
    return counted_wrong(counted);
  }
  void report(const std::string& way, const RotationCall& call, double us, double step_us,
              double bad) {
    if (rank_ != 0) return;
    const auto bytes = static_cast<double>(call.piece_bytes) * steps(call);
    const std::string row = text("rotation,{},{},{} MiB,{},{},{},{} us a step lost,{},{}\n",
                                 steps(call), way, call.piece_bytes >> 20, o_.gpus, bytes, us,
                                 us / steps(call) - step_us, bytes / us / 1e3, bad);
    std::printf("%s", row.c_str());
    if (o_.csv.empty()) return;
    std::FILE* const file = std::fopen(o_.csv.c_str(), "a");
    if (file == nullptr) return;
    std::fputs(row.c_str(), file);
    std::fclose(file);
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
  unsigned seed_ = 0, gates_ = 0, calls_ = 0;
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
    else if (name == "--mib" || name == "--rotation") {
      std::vector<std::uint64_t>& sizes = name == "--mib" ? options.mib : options.rotation_mib;
      sizes.clear();
      for (const std::string& one : split(value, ',')) sizes.push_back(std::stoull(one));
    } else
      throw std::runtime_error(
          "wanted --gpus N, --mib 1024,4096, --rotation 16,24,32, --budget-s S or --csv FILE, "
          "found " +
          name);
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
