// Platform of the drop-in for tests without a GPU: an engine whose kernels are tasks on the
// stand-in's streams. Tasks exchange data through a shared segment and reduce it by the reference
// executor.
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <optional>
#include <set>

#include "base/text.hpp"
#include "comm/bootstrap/socket.hpp"
#include "comm/gpu/drop_in.hpp"
#include "comm/gpu/tuning_machine.hpp"
#include "comm/shm/shown_memory.hpp"
#include "cpu/reference_reduce.hpp"
#include "gpu/arena/arena_layout.hpp"
#include "gpu/consensus/lazy_arena.hpp"
#include "gpu/consensus/suspend_vote.hpp"
#include "gpu/device/call_buffers.hpp"
#include "gpu/device/gpu_kind.hpp"
#include "gpu/path_check/proved_paths.hpp"
#include "gpu/select/gpu_tables.hpp"
#include "plait/error.hpp"
#include "plan/sum_order.hpp"
#include "shims/nccl/engine.hpp"
#include "shims/nccl/settings.hpp"
#include "tests/shims/host_bench.hpp"
#include "tests/shims/host_paths.hpp"
#include "tests/shims/host_staging.hpp"
#include "tests/shims/standin/segment.hpp"
#include "tests/shims/standin/streams.hpp"

namespace plait::nccl {
namespace {

/// Returns whether the test's variable names this device: STANDIN_REFUSE=1 makes device 1 refuse.
bool wished(const char* name, int device) {
  const char* given = std::getenv(name);
  return given != nullptr && std::atoi(given) == device;
}

/// State shared by tasks; outlives the engine while tasks are queued.
struct TaskState {
  GpuCallsOptions options;
  standin::Segment* segment = nullptr;
  std::atomic<bool> aborted{false};  // by the program
  std::atomic<bool> failed{false};   // a rank is lost
  std::atomic<bool> late{false};     // a rank missed the deadline wait_s
  std::atomic<std::uint64_t> sent{0};
  ~TaskState() { ::munmap(segment, sizeof(standin::Segment)); }
};

/// Length of an engine second in s; STANDIN_SECOND makes deadlines short.
double second() {
  const char* given = std::getenv("STANDIN_SECOND");
  return given == nullptr ? 1 : std::atof(given);
}

/// Runs this rank's part of a call in stream order. `stopped` ends the waits; the stream then
/// fails, unless the program has aborted, as with kernels. Tasks that need not wait do not check
/// `stopped`.
void push_call(Stream stream, const std::shared_ptr<TaskState>& shared,
               std::function<void(const std::function<bool()>& stopped)> call) {
  standin::push(stream, [stream, shared, call = std::move(call)] {
    using Clock = std::chrono::steady_clock;
    const auto began = Clock::now();
    const std::chrono::duration<double> longest(shared->options.rank.wait_s * second());
    const auto stopped = [&] {
      if (Clock::now() - began > longest) shared->late.store(true);
      return shared->aborted.load() || shared->failed.load() || shared->late.load();
    };
    try {
      return call(stopped);
    } catch (const std::exception&) {
      shared->late.store(true);
    }
    if (!shared->aborted.load()) standin_stream_fail(stream);
  });
}

/// Returns all ranks' inputs, each padded to the longest.
std::vector<char> inputs_of(TaskState& shared, const Request& request, const void* input,
                            const std::function<bool()>& stopped) {
  std::uint64_t longest = 0;
  for (int rank = 0; rank < request.ranks; ++rank)
    longest = std::max(longest, input_bytes(request, rank));
  const bool gives = input_bytes(request, shared.options.rank.rank) != 0;
  return standin::gather(shared.segment->streams, shared.options.rank.rank, request.ranks,
                         gives ? input : nullptr, longest, stopped);
}

/// Returns a rank's input times the rank's factor, each product rounded to the type.
std::vector<char> products_of(const Request& request, int rank, const cuda::ScaleFactor& factor,
                              const void* input) {
  const std::size_t element = bytes_of(request.type);
  std::vector<char> products(input_bytes(request, rank)), factors(products.size());
  const void* const one = factor.on_gpu == nullptr ? &factor.bits : factor.on_gpu;
  for (std::size_t at = 0; at < factors.size(); at += element)
    std::memcpy(factors.data() + at, one, element);
  reduce_reference(request.type, ReduceOp::prod, products.data(), {input, factors.data()},
                   products.size() / element, 2, true, {}, SumOrder::rank_order);
  return products;
}

void reduce_slice(const Request& request, const std::vector<char>& all, std::uint64_t first,
                  void* output) {
  const std::uint64_t stride = all.size() / static_cast<std::uint64_t>(request.ranks);
  std::vector<const void*> sources;
  for (std::uint64_t rank = 0; rank < static_cast<std::uint64_t>(request.ranks); ++rank)
    sources.push_back(all.data() + rank * stride + first);
  const SumOrder order = has_one_order(request) ? SumOrder::rank_order : demanded_order(read_env());
  reduce_reference(request.type, request.op, output, sources, request.count, request.ranks, true,
                   {}, order);
}

/// Computes this rank's output from all inputs.
void compute(const Request& request, int rank, const std::vector<char>& all, void* output) {
  const std::uint64_t piece = request.count * bytes_of(request.type);
  const auto me = static_cast<std::uint64_t>(rank), root = static_cast<std::uint64_t>(request.root),
             ranks = static_cast<std::uint64_t>(request.ranks);
  const std::uint64_t stride = all.size() / ranks;
  char* to = static_cast<char*>(output);
  switch (request.collective) {
    case Collective::all_reduce: return reduce_slice(request, all, 0, output);
    case Collective::reduce_scatter: return reduce_slice(request, all, me * piece, output);
    case Collective::reduce:
      if (rank == request.root) reduce_slice(request, all, 0, output);
      return;
    case Collective::all_gather: std::memcpy(to, all.data(), all.size()); return;
    case Collective::gather:
      if (rank == request.root) std::memcpy(to, all.data(), all.size());
      return;
    case Collective::broadcast: std::memcpy(to, all.data() + root * stride, piece); return;
    case Collective::scatter:
      std::memcpy(to, all.data() + root * stride + me * piece, piece);
      return;
    case Collective::all_to_all:
      for (std::uint64_t from = 0; from < ranks; ++from)
        std::memcpy(to + from * piece, all.data() + from * stride + me * piece, piece);
      return;
    default: return;
  }
}

/// A message in transit through the segment, a piece at a time.
struct MessageProgress {
  MessageEnd message;
  std::uint64_t at = 0;
  /// Moves a piece if possible; returns true if the piece moved.
  bool step(TaskState& shared) {
    const int me = shared.options.rank.rank, from = message.sends ? me : message.peer,
              to = message.sends ? message.peer : me;
    standin::MessageSlot& mail = shared.segment->mail[from][to];
    const bool is_full = mail.written.load() != mail.read.load();
    if (is_full == message.sends) return false;
    const std::size_t piece = std::min<std::size_t>(standin::kMailBytes, message.bytes - at);
    char* const data = static_cast<char*>(message.memory) + at;
    if (message.sends) {
      std::memcpy(mail.body, data, piece);
      mail.written.fetch_add(1);
    } else {
      std::memcpy(data, mail.body, piece);
      mail.read.fetch_add(1);
    }
    at += piece;
    return true;
  }
};

/// Moves all messages of a group concurrently; messages between the same two ranks in order.
void move_all(TaskState& shared, const std::vector<MessageEnd>& messages,
              const std::function<bool()>& stopped) {
  std::map<std::pair<int, bool>, std::deque<MessageProgress>> queues;
  for (const MessageEnd& one : messages)
    if (one.bytes != 0) queues[{one.peer, one.sends}].push_back({one, 0});
  while (!queues.empty())
    standin::wait_for(
        [&] {
          bool moved = false;
          for (auto queue = queues.begin(); queue != queues.end();) {
            moved = queue->second.front().step(shared) || moved;
            if (queue->second.front().at == queue->second.front().message.bytes)
              queue->second.pop_front();
            queue = queue->second.empty() ? queues.erase(queue) : std::next(queue);
          }
          return moved;
        },
        stopped);
}

class HostEngine : public CommEngine {
 public:
  HostEngine(const GpuCallsOptions& options, const Exchange& exchange, const BenchSource& source) {
    make_with_arenas(group_of(options, exchange), options, exchange, [&](GpuGroup group) {
      group_ = std::move(group);
      open(options, exchange, source);
    });
  }
  bool wants_arena(const LimitedRequest& request) const override {
    return !is_open() || is_large(request);
  }
  ArenaReservation reserve(const LimitedRequest& request, Stream stream, bool in_group) override {
    const bool is_first = !is_open();
    if (is_first) is_open_ = opening_->next(cuda::CallMode::alone);
    has_decided_.store(true);
    if (!is_open()) return {false, is_first, 0};
    if (!is_large(request)) return {true, is_first, 0};
    const bool captured = standin::stream_state(stream).capture != 0;
    const bool is_granted = lazy_arena_->next(captured   ? cuda::CallMode::captured
                                              : in_group ? cuda::CallMode::grouped
                                                         : cuda::CallMode::alone);
    if (is_granted && captured) lazy_arena_->pin();
    return {is_granted, is_first, 1};
  }
  void cancel(const ArenaReservation& reserved) noexcept override {
    if (reserved.large_steps != 0) lazy_arena_->cancel_last(reserved.is_granted);
    if (!reserved.is_first) return;
    opening_->cancel_last();
    is_open_ = opening_->is_on();
  }
  bool should_begin_arena() const noexcept override {
    if (lazy_arena_ != nullptr && lazy_arena_->is_ready() && !has_counted_ready_.exchange(true))
      standin_count("large arena ready");  // on all ranks
    return opening_ != nullptr && opening_->is_wanted() && !opening_->is_ready();
  }
  void begin_arena() override { opening_->begin(); }
  bool takes(const LimitedRequest& request) const override {
    const cuda::TuningRow* const row = group_.tuning.find(request, cuda::RowUse::overlap_compute);
    if (!why_not_order(request, shared_->options.sum_order).empty()) return false;
    if (request.limits.most_blocks == 1) return false;  // the test's engine needs 2
    if (row != nullptr && (!reduces(request.collective) || request.op == ReduceOp::sum))
      return row->ahead_of_nccl != false;
    const GpuCallsOptions& options = shared_->options;
    return (options.bitwise || group_.has_broken_paths || is_measured_beside_nccl(group_)) &&
           request.collective != Collective::send_recv && request.collective != Collective::copy;
  }
  std::string how(const LimitedRequest& request) const override {
    const CallLimits& limits = request.limits;
    return text("over host memory{}{}",
                limits.most_blocks == 0 ? "" : text(", at most {} blocks", limits.most_blocks),
                limits.engines_move ? ", by copy engines" : "");
  }
  /// STANDIN_NO_FACTORS=1: sums are served, and with factors they are not.
  const char* why_not_scaled(const LimitedRequest& sum) const override {
    if (std::getenv("STANDIN_NO_FACTORS") != nullptr) return "the test's engine takes no factor";
    return takes(sum) ? nullptr : "the test's engine does not take the sum";
  }
  int enqueue(const LimitedRequest& request, const void* input, void* output,
              Stream stream) override {
    return enqueue_call(request, {}, input, output, stream);
  }
  int enqueue_scaled(const LimitedRequest& sum, const cuda::ScaleFactor& factor, const void* input,
                     void* output, Stream stream) override {
    return enqueue_call(sum, factor, input, output, stream);
  }
  int enqueue_call(const LimitedRequest& request, const std::optional<cuda::ScaleFactor>& factor,
                   const void* input, void* output, Stream stream) {
    if (!has_first_arena_.load() || (is_large(request) && !has_large_arena_.load()))
      throw Error(ErrorCode::internal, "a call, and no room for it");
    if (is_suspended_.load()) throw Error(ErrorCode::invalid_argument, "suspended");
    cuda::check_alignment(request, shared_->options.rank.rank, input, output);
    // STANDIN_LAZY: code is loaded at first use, and the load waits for all running work, as in
    // CUDA.
    if (std::getenv("STANDIN_LAZY") != nullptr && loaded_.insert(request.collective).second)
      standin_stream_synchronize(stream);
    // STANDIN_BREAKS: this rank's call fails while being enqueued, as if a driver refused a launch.
    if (wished("STANDIN_BREAKS", shared_->options.rank.device))
      throw Error(ErrorCode::driver_error, "the test wants this call refused");
    shared_->sent += input_bytes(request, shared_->options.rank.rank);
    push_call(
        stream, shared_,
        [shared = shared_, request = Request(request), factor, input, output](const auto& stopped) {
          const int rank = shared->options.rank.rank;
          std::vector<char> products;
          if (factor) products = products_of(request, rank, *factor, input);
          const std::vector<char> all =
              inputs_of(*shared, request, factor ? products.data() : input, stopped);
          compute(request, rank, all, output);
        });
    if (is_large(request)) lazy_arena_->end_call();
    return kByPlait;
  }
  /// STANDIN_MESSAGES=1: also serves sends and receives that no table has measured.
  bool takes_messages() const override {
    return std::getenv("STANDIN_MESSAGES") != nullptr ||
           (group_.tuning.messages_are_ahead(group_.ranks).has_value() &&
            serves_messages(group_, shared_->options));
  }
  void messages(const std::vector<MessageEnd>& messages, Stream stream) override {
    push_call(stream, shared_, [shared = shared_, messages](const auto& stopped) {
      move_all(*shared, messages, stopped);
    });
  }
  void break_off(Stream stream, const std::exception&, bool was_eager) noexcept override {
    if (!was_eager && standin::stream_state(stream).capture != 0) return;
    has_broken_off_ = true;
    fail();
  }
  bool has_broken_off() const noexcept override { return has_broken_off_; }
  std::vector<FlightMemory> held() const override {
    return {{"segment", sizeof(standin::Segment)}};
  }
  /// Memory of processes can go, that of threads stays, as CudaRank's.
  GpuMemory gpu_memory() const noexcept override {
    const std::uint64_t bytes = (has_first_arena_.load() ? kSmallBytes : 0) +
                                (has_made_large_arena_.load() ? kLargeBytes : 0);
    return group_.in_processes ? GpuMemory{0, bytes} : GpuMemory{bytes, 0};
  }
  bool wants_trim() const noexcept override {
    return lazy_arena_ != nullptr && lazy_arena_->wants_trim();
  }
  void trim(const std::function<bool()>& have_ended) override { lazy_arena_->trim(have_ended); }
  bool agree_on_suspend(bool can, const std::function<void()>& give_up) override {
    if (page_.base() == nullptr) return can;
    const cuda::CudaRankOptions& me = shared_->options.rank;
    const bool has_arena = opening_ == nullptr || opening_->is_wanted();
    const cuda::SuspendVote::Vote all =
        suspends_.agree(page().suspends, me.rank, me.ranks, {can, has_arena}, give_up);
    has_arena_to_suspend_ = all.has_arena;
    return all.can;
  }
  void suspend() noexcept override {
    if (page_.base() == nullptr || is_suspended_.load() || !has_arena_to_suspend_) return;
    if (opening_ != nullptr && !opening_->await()) return;
    is_suspended_ = true;
    if (lazy_arena_ != nullptr) lazy_arena_->pause();
    for (const MemoryPart part : {MemoryPart::small_arena, MemoryPart::large_arena})
      held_.set(part, 0);
  }
  bool is_suspended() const noexcept override { return is_suspended_.load(); }
  void resume(const std::function<void()>& give_up) override {
    if (!is_suspended_.load()) return;
    cuda::PageExchange exchange(page().resumes, shared_->options.rank.rank,
                                shared_->options.rank.ranks);
    exchange.begin(++resumes_);
    try {
      if (wished("STANDIN_NO_ROOM_AGAIN", shared_->options.rank.device))
        throw Error(ErrorCode::out_of_memory, "the test wants no room here");
      exchange.exchange("resumes", give_up);
      if (wished("STANDIN_DIES_RESUMING", shared_->options.rank.device))
        ::kill(::getpid(), SIGKILL);
      exchange.exchange("resumed", give_up);
    } catch (const Error& error) {
      exchange.fail(error.what(), error.code());
      has_broken_off_ = true;
      throw;
    }
    if (has_first_arena_.load()) held_.set(MemoryPart::small_arena, kSmallBytes);
    if (has_large_arena_.load()) held_.set(MemoryPart::large_arena, kLargeBytes);
    is_suspended_ = false;
    if (lazy_arena_ != nullptr) lazy_arena_->unpause();
  }
  void check() const override {
    if (has_broken_off_) throw Error(ErrorCode::driver_error, "an earlier call was refused");
    if (shared_->aborted.load()) throw Error(ErrorCode::aborted, "aborted");
    if (shared_->late.load()) throw Error(ErrorCode::timeout, "a rank did not come");
  }
  void abort() noexcept override {
    shared_->aborted.store(true);
    cancel_arenas();
  }
  void fail() noexcept override {
    shared_->failed.store(true);
    cancel_arenas();
  }
  void fail_if_peer_lost(Stream stream) override {
    standin::push(stream, [stream, shared = shared_] {
      if (shared->failed.load() && !shared->aborted.load()) standin_stream_fail(stream);
    });
  }
  ~HostEngine() override {
    opening_.reset();
    lazy_arena_.reset();
    standin_count("engine freed");
  }
  bool has_ended(bool) noexcept override {
    return shared_.use_count() == 1;
  }  // each task holds a reference
  void unmap_peers() noexcept override {
    for (const auto* const lazy : {&opening_, &lazy_arena_})
      if (*lazy != nullptr) (*lazy)->stop();
    standin_count("engine unmapped");
  }

 private:
  bool is_open() const { return opening_ == nullptr || is_open_; }
  bool is_large(const Request& request) const {
    return lazy_arena_ != nullptr &&
           message_bytes(request) > cuda::small_request_bytes(request.ranks, true);
  }
  void cancel_arenas() noexcept {
    for (const auto* const lazy : {&opening_, &lazy_arena_})
      if (*lazy != nullptr) (*lazy)->cancel();
  }
  static GpuGroup group_of(const GpuCallsOptions& options, const Exchange& exchange) {
    GpuGroup group;
    group.rank = options.rank.rank;
    group.ranks = options.rank.ranks;
    const RankLocation here = platform().location(options.rank.device);
    std::vector<std::string> kinds;
    for (const std::string& record : exchange(pack({here.device, here.gpu}))) {
      const std::vector<std::string> parts = unpack(record);
      group.uuids.push_back(parts.at(0));
      kinds.push_back(parts.at(1));
    }
    group.kind = cuda::common_kind(kinds);
    group.topology = machine();
    group.tuning_machine = tuning_machine(group.topology, group.devices_of_ranks());
    return group;
  }
  /// Maps a new segment of rank 0 on all ranks.
  static standin::Segment* common_segment(const GpuCallsOptions& options,
                                          const Exchange& exchange) {
    standin::SegmentHandle mine;
    if (options.rank.rank == 0) mine = standin::make_segment();
    std::string bytes(reinterpret_cast<const char*>(&mine), sizeof mine);
    const std::vector<std::string> shown = exchange(bytes);
    std::memcpy(&mine, shown[0].data(), sizeof mine);
    standin::Segment* const mapped = standin::map_segment(mine);
    exchange("mapped");
    if (options.rank.rank == 0) ::close(mine.file);
    return mapped;
  }
  void open(const GpuCallsOptions& options, const Exchange& exchange, const BenchSource& source) {
    shared_ = std::make_shared<TaskState>();
    const std::vector<std::string> processes = exchange(text("{}", ::getpid()));
    group_.in_processes = std::set(processes.begin(), processes.end()).size() == processes.size();
    const auto prove_paths_by = [&](const Exchange& steps) {
      const TaskState proof{.options = options, .segment = common_segment(options, steps)};
      prove_host_paths(*proof.segment, options, steps);
    };
    const auto bench = [&] { return host_bench(options.rank.rank, source, prove_paths_by); };
    const auto prove_paths = [&] { prove_paths_by(exchange); };
    learn_what_beats_nccl(group_, options, exchange, {bench, prove_paths, host_bench_seconds()});
    if (wished("STANDIN_DIES", options.rank.device)) ::kill(::getpid(), SIGKILL);
    if (wished("STANDIN_FAIL_EARLY", options.rank.device))
      throw Error(ErrorCode::out_of_memory, "the test wants no memory here");
    shared_->options = options;
    shared_->segment = common_segment(options, exchange);
    const bool opens_later = agree_to_open_later(options, exchange);
    if (!opens_later) open_first_arena();
    if (group_.through_host.empty() && !opens_later) {
      prove_host_paths(*shared_->segment, options, exchange);
      cuda::note_proved_paths(group_.uuids);
    } else if (!group_.through_host.empty())
      arenas_ = show_memory(exchange, options.rank.rank, options.rank.ranks, 1 << 20);
    if (wished("STANDIN_FAIL_LATE", options.rank.device))
      throw Error(ErrorCode::no_device, "the test wants no peer access here");
    if (group_.in_processes)
      page_ = memory_of_rank_0(exchange, options.rank.rank, sizeof(HostPage));
    if (opens_later)
      opening_ = std::make_unique<cuda::LazyArena>(
          page().first_arena, options.rank.rank, options.rank.ranks, wait_s("STANDIN_FIRST_WAIT_S"),
          [this](const cuda::LazyArena::Exchange& opening_exchange) {
            if (wished("STANDIN_NO_FIRST_ARENA", shared_->options.rank.device))
              throw Error(ErrorCode::out_of_memory, "the test wants no room here");
            if (wished("STANDIN_DIES_OPENING", shared_->options.rank.device))
              ::kill(::getpid(), SIGKILL);
            // STANDIN_OPENS_BEHIND: this rank opens once its first call has been decided.
            if (wished("STANDIN_OPENS_BEHIND", shared_->options.rank.device))
              for (int i = 0; i < 60'000 && !has_decided_.load(); ++i) ::usleep(1000);
            opening_exchange("mapped");
            open_first_arena();
          },
          cuda::LazyArena::kNoRetryS);
    if (page_.base() != nullptr && options.has_lazy_arena && !group_.has_broken_paths)
      lazy_arena_ = std::make_unique<cuda::LazyArena>(
          page().lazy_arena, options.rank.rank, options.rank.ranks, wait_s("STANDIN_ARENA_WAIT_S"),
          [this](const cuda::LazyArena::Exchange& growth_exchange) {
            allocate_arena(growth_exchange);
          });
    if (lazy_arena_ != nullptr && options.rank.trim_s > 0)
      lazy_arena_->allow_trim(options.rank.trim_s, [this] {
        has_large_arena_.store(false);
        held_.set(MemoryPart::large_arena, 0);
        standin_count("large arena given up");
      });
  }
  /// Allocates the large arena as CudaRank does: exchange of handles, then of "mapped".
  void allocate_arena(const cuda::LazyArena::Exchange& growth_exchange) {
    if (wished("STANDIN_NO_ARENA", shared_->options.rank.device))
      throw Error(ErrorCode::out_of_memory, "the test wants no room here");
    const std::vector<std::string> records =
        growth_exchange(text("record {}", shared_->options.rank.rank));
    for (std::size_t rank = 0; rank < records.size(); ++rank)
      if (records[rank] != text("record {}", rank))
        throw Error(ErrorCode::mismatch, "record of another rank");
    growth_exchange("mapped");
    held_.set(MemoryPart::large_arena, kLargeBytes);
    has_large_arena_.store(true);
    has_made_large_arena_.store(true);
    standin_count("large arena made");
  }
  /// As CudaRank: if all ranks have proved the paths for an earlier communicator, and send no
  /// messages.
  bool agree_to_open_later(const GpuCallsOptions& options, const Exchange& exchange) const {
    const bool can = options.opens_at_first_call && group_.in_processes &&
                     group_.through_host.empty() && cuda::are_paths_proved(group_.uuids) &&
                     !takes_messages();
    bool all = true;
    for (const std::string& one : exchange(can ? "1" : "0")) all = all && one == "1";
    return all;
  }
  void open_first_arena() {
    held_.set(MemoryPart::small_arena, kSmallBytes);
    has_first_arena_.store(true);
    standin_count("first arena made");
  }
  /// STANDIN_FIRST_WAIT_S, STANDIN_ARENA_WAIT_S: how long calls wait for the first arena, and for
  /// the large one, in total.
  static double wait_s(const char* name) {
    const char* given = std::getenv(name);
    return given == nullptr ? 10 : std::atof(given);
  }

  static Topology machine() {
    try {
      const std::string& name = settings().env.topology;
      return name.empty() ? discover() : load_topology(name);
    } catch (const Error&) {  // discovery failed
      return {};
    }
  }

  GpuGroup group_;
  struct HostPage {
    cuda::LazyArenaPage lazy_arena, first_arena;
    cuda::PageExchange::ExchangePage resumes;
    cuda::SuspendVote::VotesPage suspends;
  };
  HostPage& page() { return *reinterpret_cast<HostPage*>(page_.base()); }
  std::vector<Mapping> arenas_;  // Of ranks that do not address each other.
  std::shared_ptr<TaskState> shared_;
  Mapping page_;
  std::unique_ptr<cuda::LazyArena> lazy_arena_, opening_;
  bool is_open_ = false;
  static constexpr std::uint64_t kSmallBytes = 1'000'000, kLargeBytes = 20'000'000;  // pretended
  MemoryHeld held_;
  std::atomic<bool> has_first_arena_{false}, has_large_arena_{false}, has_made_large_arena_{false},
      has_broken_off_{false}, is_suspended_{false};
  mutable std::atomic<bool> has_counted_ready_{false};
  std::atomic<bool> has_decided_{false};  ///< its first call
  std::uint32_t resumes_ = 0;
  cuda::SuspendVote suspends_;
  bool has_arena_to_suspend_ = true;
  std::set<Collective> loaded_;
  const CountedPaths paths_{[this] {
    return std::map<std::string, std::uint64_t>{{"host memory", shared_->sent.load()}};
  }};
};

class HostMarker : public Marker {
 public:
  cuda::StreamPlace place(Stream stream) const override {
    const standin::StreamState found = standin::stream_state(standin::accepted(stream, "place"));
    return {found.stream, found.capture};
  }
  void record(Stream at) override { standin::record(end_, standin::accepted(at, "record"), false); }
  void wait(Stream at) override { standin::wait(standin::accepted(at, "wait"), end_, false); }
  void wait_at_replay(Stream stream) override { standin::wait(stream, end_, true); }
  void go_behind(Stream stream, const cuda::CapturedCalls& calls) override {
    std::vector<std::size_t> ends;
    for (cuda::GraphNode node : calls.ends) ends.push_back(number_of(node));
    standin::go_behind(stream, ends);
  }
  void end(Stream stream, cuda::CapturedCalls& calls, bool records) override {
    const std::vector<std::size_t> ends = standin::capture_ends(stream);
    calls.ends.clear();
    for (const std::size_t end : ends) calls.ends.push_back(node_of(end));
    if (records && calls.record == nullptr)
      calls.record = node_of(standin::add_record(stream, end_, ends));
    else if (records)
      standin::move_behind(stream, number_of(calls.record), ends);
  }
  bool is_ahead() const noexcept override { return false; }  // the engine counts the tasks

 private:
  static cuda::GraphNode node_of(std::size_t number) {
    return reinterpret_cast<cuda::GraphNode>(number + 1);
  }
  static std::size_t number_of(cuda::GraphNode node) {
    return reinterpret_cast<std::size_t>(node) - 1;
  }
  standin::StreamEvent end_;
};

class HostSideStream : public SideStream {
 public:
  ~HostSideStream() override { standin_stream_destroy(side_); }
  Stream stream() override { return side_; }
  void fork(Stream main) override { order(main, side_); }
  void mark(int call) override { standin::record(of(call), side_, false); }
  void join(Stream main, int call) override { standin::wait(main, of(call), false); }
  void copy(void* dst, const void* src, std::uint64_t bytes, Stream main) override {
    standin::push(main, [dst, src, bytes] { std::memcpy(dst, src, bytes); });
  }
  void* scratch(std::uint64_t bytes) override {
    if (scratch_.empty() || scratch_.back().size() < bytes) scratch_.emplace_back(bytes);
    return scratch_.back().data();
  }

 private:
  static void order(Stream first, Stream then) {
    standin::StreamEvent reached;
    standin::record(reached, first, false);
    standin::wait(then, reached, false);
  }
  standin::StreamEvent& of(int call) { return marks_[static_cast<std::size_t>(call) % 8]; }
  std::deque<std::vector<char>> scratch_;
  standin::StreamEvent marks_[8];
  Stream side_ = standin_stream_create();
};

class HostTimer : public CallTimer {
 public:
  void stop(void*) override {}
  float elapsed_ms() override { return 0.001f; }
};

thread_local bool is_attaching_thread = false;  // NCCL has made the communicator

class HostPlatform : public Platform {
 public:
  bool has_kernels() const override { return true; }
  int current_device() override { return 0; }
  void enter_thread(int) override { is_attaching_thread = true; }
  RankLocation location(int device) override {
    if (wished("STANDIN_REFUSE", device))
      throw Error(ErrorCode::no_device, "the test wants no GPU here");
    const char* host = std::getenv("STANDIN_HOST");
    if (wished("STANDIN_ELSEWHERE", device)) host = "another machine";
    const char* gpu = std::getenv("STANDIN_GPU");
    std::string kind = gpu == nullptr ? cuda::default_table().gpus().kind() : gpu;
    if (wished("STANDIN_OTHER_GPU", device)) kind = "NVIDIA H100 PCIe";
    return {host == nullptr ? "here" : host, text("device {}", device), kind};
  }
  /// Devices 0 and 1 are joined by NVLink; all remaining devices have the largest distance.
  cuda::Distance distance(const std::string& device, const std::string& other) override {
    const bool joined = device != "device 2" && other != "device 2";
    return joined ? cuda::Distance::nvl : cuda::Distance::sys;
  }
  /// STANDIN_NO_ACCESS=1: the driver lets device 1 address no other.
  bool addresses(const std::string& device, const std::string&) override {
    const char* given = std::getenv("STANDIN_NO_ACCESS");
    return given == nullptr || device != text("device {}", given);
  }
  /// An allocation on a GPU may wait for every kernel of the process, another set-up exchange's
  /// among them.
  std::unique_ptr<ExchangeStaging> staging(int, int, std::uint64_t) override {
    standin_count("staging made");
    if (is_attaching_thread) standin_count("late staging");
    return std::make_unique<HostStaging>();
  }
  std::unique_ptr<CommEngine> engine(const GpuCallsOptions& options, const Exchange& exchange,
                                     const BenchSource& source) override {
    return std::make_unique<HostEngine>(options, exchange, source);
  }
  std::unique_ptr<Marker> marker(int) override { return std::make_unique<HostMarker>(); }
  std::unique_ptr<SideStream> side_stream(int) override {
    return std::make_unique<HostSideStream>();
  }
};

}  // namespace

Platform& platform() {
  static auto* const only = [] {
    time_calls_by(
        [](void*) -> std::unique_ptr<CallTimer> { return std::make_unique<HostTimer>(); });
    return new HostPlatform;
  }();
  return *only;
}

}  // namespace plait::nccl
