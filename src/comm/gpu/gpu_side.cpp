// GPU side of plait's own communicators: set up over the bootstrap sockets, checked by the watch
// thread, closed by all ranks together. Each set-up step is a vote: all ranks have a device or
// none. Closing ranks wait a moment for peers, since late stores still arrive in an arena.
#include "comm/gpu/gpu_side.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/deferred_teardown.hpp"
#include "base/error_reason.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "comm/gpu/gpu_bench.hpp"
#include "driver/cuda/api.hpp"
#include "gpu/device/device_code.hpp"
#include "plait/error.hpp"

namespace plait {
namespace {

// Longest wait of a call for the large arena. Peers allocate independently of the programs.
constexpr double kLargeArenaWaitS = 10.0;
constexpr double kGoodbyeS = 2.0;  // longest wait of a closing rank for the peers

/// Returns the GPU that the options name, or the only GPU that a launcher shows the rank.
int wanted_ordinal(int device) {
  const int count = cuda::device_count();
  if (device == kDeviceByLauncher) {
    const int local = rank_on_host();
    if (local < 0)
      throw Error(ErrorCode::no_device, "no launcher says which GPU is this rank's (LOCAL_RANK)");
    device = count == 1 ? 0 : local;
  }
  if (device >= count)
    throw Error(ErrorCode::no_device,
                text("wanted GPU {}, found {} (numbered from 0)", device, count));
  return device;
}

}  // namespace

std::unique_ptr<GpuSide> GpuSide::create(const CommunicatorOptions& options, HostSide& host,
                                         const PairOf* pair, std::string& why_not) {
  if (options.device == kNoDevice) return nullptr;
  try {
    return std::unique_ptr<GpuSide>(new GpuSide(options, host, pair));
  } catch (const AgreedError& error) {
    // GPUs must not be ignored if masks for GPUs could not be applied.
    const bool masks_gpus = cuda::device_count() > 0 &&
                            !masks_of(requested_masks(options.masks, read_env()), false).empty();
    if (options.device != kDeviceByLauncher || masks_gpus) throw;
    why_not = reason_of(error);
    // A present GPU that fails deserves a warning; a missing GPU does not.
    const bool is_news = error.code() == ErrorCode::driver_error;
    log(is_news ? LogLevel::warn : LogLevel::info, options.rank, text("no GPUs: {}", why_not));
    return nullptr;
  }
}

GpuSide::GpuSide(const CommunicatorOptions& options, HostSide& host, const PairOf* pair)
    : DeviceSide(kNoDevice),
      PeerObserver(0),
      options_(options),
      host_(host),
      pair_bytes_(pair == nullptr ? std::nullopt : std::optional(pair->device_bytes)),
      pair_through_host_(pair == nullptr ? std::string() : pair->through_host) {
  const Deadline deadline{
      deadline_in(options.arrive_s),
      pair == nullptr ? host.peers_check("the ranks set up their GPUs") : pair->check};
  const cuda::Exchange exchange = [&](const std::string& mine) {
    std::vector<std::string> records;
    for (Contribution& one : vote(*host_.joined().rendezvous, std::nullopt, mine, {}, deadline))
      records.push_back(std::move(one.bytes));
    return records;
  };
  std::optional<AgreedError> agreed;
  const std::optional<Error> failure = attempt([&] {
    try {
      set_up(exchange, deadline);
      bootstrap_peers(deadline);
    } catch (const AgreedError& error) {
      agreed = error;
    }
  });
  if (agreed) throw AgreedError(*agreed);
  vote(*host_.joined().rendezvous, failure, "", {}, deadline);
  if (options_.ranks > 1) watch_peers();
}

/// Exchanges the liveness pages and pidfds as descriptors, so that no rank looks up a pid.
void GpuSide::bootstrap_peers(const Deadline& deadline) {
  if (options_.ranks == 1) return;
  const std::string mine = publish_liveness(liveness_slot_.number);
  if (mine.empty())
    throw Error(ErrorCode::out_of_memory, "no shared memory for this process's liveness page");
  const std::vector<Contribution> all =
      vote(*host_.joined().rendezvous, std::nullopt, mine, {liveness_page_fd()}, deadline);
  peers_ = std::make_shared<WatchedPeers>();
  for (const Peer& peer : host_.peers().all()) {
    const Contribution& shown = all[static_cast<std::size_t>(peer.rank)];
    if (shown.fds.size() != 1) throw Error(ErrorCode::mismatch, "a rank sent no liveness page");
    Fd process;
    if (peer.pid != getpid()) process = Fd(fcntl(peer.process.get(), F_DUPFD_CLOEXEC, 0));
    if (peer.pid != getpid() && !process.valid())
      throw Error(ErrorCode::io_error, "no file descriptor left for watching other ranks");
    peers_->add(peer.rank, PeerLiveness::open(shown.bytes, shown.fds[0]), std::move(process));
  }
}

void GpuSide::set_up(const cuda::Exchange& exchange, const Deadline& deadline) {
  const Env env = read_env();
  if (const std::string why = cuda::why_no_cuda(); !why.empty())
    throw Error(ErrorCode::no_device, text("wanted a GPU; {}", why));
  if (const std::string& why = cuda::device_code().why_none; !why.empty())
    throw Error(ErrorCode::unsupported, text("wanted kernels, {}", why));
  ordinal_ = wanted_ordinal(options_.device);
  GpuGroup group = bootstrap_gpus(exchange, options_.rank, options_.ranks, ordinal_);
  const std::string name = options_.topology.empty() ? env.topology : options_.topology;
  learn_topology(
      group, exchange, [&] { return name.empty() ? discovered() : load_topology(name); },
      masks_of(requested_masks(options_.masks, env), false));
  log(LogLevel::info, options_.rank, text("GPU {} of {}", ordinal_, group.topology.name));
  const std::string& of_pair = pair_through_host_;
  const std::string why = of_pair.empty() ? why_no_direct_access(group, env) : of_pair;
  make_with_arenas(group, exchange, env, why, direct_peers(group, env), [&](GpuGroup agreed) {
    GpuCallsOptions wanted = calls_options(env, agreed);
    wanted.share_memory = [&](std::uint64_t bytes) {
      const CommunicatorOptions& mine = options_;
      return share_memory(*host_.joined().rendezvous, mine.rank, mine.ranks, bytes, deadline);
    };
    const bool is_pair = pair_bytes_.has_value();
    learn_tuning(agreed, exchange, env, own_first_start(agreed, wanted, is_pair, deadline.check));
    calls_ = std::make_unique<GpuCalls>(std::move(agreed), wanted, exchange);
  });
}

GpuCallsOptions GpuSide::calls_options(const Env& env, const GpuGroup& group) const {
  GpuCallsOptions made;
  made.forced = host_.node_algo();
  made.bitwise = host_.joined().bitwise;
  made.sum_order = host_.joined().sum_order;
  made.has_lazy_arena = !env.has("PLAIT_DEVICE_MEMORY");
  made.checks = host_.joined().topology;
  cuda::CudaRankOptions& rank = made.rank;
  rank.memory = {.budget_bytes = env.has("PLAIT_DEVICE_MEMORY") ? env.device_memory : 0,
                 .pairs = true,
                 .plans = true,
                 .plan_scratch = env.device_scratch};
  if (pair_bytes_) {
    rank.memory = cuda::pair_arena_options(*pair_bytes_);
    made.has_lazy_arena &= rank.memory.two_tiers;
    rank.memory.plans |= !group.reach.why_no_kernels.empty() || !made.forced.strategy.empty();
  }
  rank.large_arena_wait_s = std::min(kLargeArenaWaitS, options_.arrive_s);
  rank.wait_s = options_.arrive_s;
  rank.trim_s = env.trim_s;
  rank.overlap_compute = options_.overlap_compute;
  rank.messages = options_.messages;
  rank.mixes_graphs = options_.graph_mixing;
  rank.most_blocks = static_cast<unsigned>(options_.sm_budget);
  rank.names = host_.joined().names;
  return made;
}

/// Throws the error that ended this side, if any.
void GpuSide::check_running() const {
  if (failed_.load(std::memory_order_relaxed))
    throw Error(ErrorCode::aborted,
                text("this communicator's GPU side ended earlier: {}", cause()->what()));
  calls_->rank().check();
}

/// Stores the first failure and reports to the peers. Kernels that wait for a lost rank fail their
/// stream. After an abort in another rank's program, this rank's program gets as long to abort as
/// ranks have to answer.
void GpuSide::fail(const Error& error) {
  {
    const std::lock_guard lock(guard_);
    if (cause_) return;
    cause_ = error;
  }
  failed_.store(true);
  if (error.code() == ErrorCode::aborted)
    fail_streams_in(options_.deadline_s);
  else
    calls_->rank().fail();
  host_.joined().controls.raise_failure(error.code(), reason_of(error));
  log(LogLevel::warn, options_.rank, text("GPU side failed: {}", error.what()));
}

std::optional<Error> GpuSide::cause() const {
  const std::lock_guard lock(guard_);
  return cause_;
}

/// A rank that has published a failure and then exits is not lost: the failure is the cause.
void GpuSide::lost(int rank, int process, Loss) {
  if (!host_.joined().controls.failure_of(rank))
    fail(Error(ErrorCode::peer_lost,
               text("{} (pid {}) ended; see its output for why", name_of(rank), process)));
}

std::string GpuSide::name_of(int rank) const {
  return host_.joined().names.empty() ? text("rank {}", rank)
                                      : host_.joined().names[static_cast<std::size_t>(rank)];
}

void GpuSide::look() {
  if (failed_.load()) return;
  for (int rank = 0; rank < options_.ranks; ++rank) {
    if (rank == options_.rank) continue;
    if (const auto said = host_.joined().controls.failure_of(rank))
      return fail(reported_by(name_of(rank), said->first, said->second));
  }
  calls_->rank().begin_large_arena(calls_->rank().wanted_steps());
  const std::optional<Error> caught = attempt([&] { calls_->rank().check(); });
  // A rank with kernels that fail because of a lost peer names that peer itself.
  if (caught && caught->code() != ErrorCode::peer_lost) return fail(*caught);
  if (hang_->is_due() || calls_->rank().wants_trim()) query_once();
}

void GpuSide::check() {
  // A lost rank is an error of the calls that waited for that rank, and of later calls.
  const std::optional<Error> caught = attempt([&] { calls_->rank().check(); });
  if (!caught) return;
  const std::optional<Error> reported = cause();
  if (!reported) fail(*caught);
  throw Error(reported ? *reported : *caught);
}

void GpuSide::abort() noexcept { calls_->rank().abort(); }

void GpuSide::begin_closing() {
  if (closed_ns_ == 0) closed_ns_ = deadline_in(kGoodbyeS);
}

/// Waits for this rank's work on streams, at most until the deadline.
void GpuSide::end_work() {
  begin_closing();
  if (has_ended_ || calls_ == nullptr) return;
  bool ended = calls_->rank().has_ended();
  while (!ended && now_ns() < closed_ns_) {
    usleep(100);
    ended = calls_->rank().has_ended();
  }
  if (ended) publish_detach(liveness_slot_.number, DetachStage::work_ended);
  has_ended_ = true;
}

void GpuSide::leave() {
  const auto left = std::make_shared<std::unique_ptr<GpuCalls>>(std::move(calls_));
  const auto peers_reached = [peers = peers_](DetachStage stage, bool elsewhere) {
    return peers == nullptr || peers->peers_reached(stage, elsewhere);
  };
  DeferredTeardown teardown;
  teardown.has_ended = [left] { return (*left)->rank().has_ended(); };
  teardown.publish = [slot = std::exchange(liveness_slot_.number, -1)](DetachStage stage) {
    publish_detach(slot, stage);
  };
  teardown.peers_reached = peers_reached;
  teardown.unmap = [left] { (*left)->rank().unmap_peers(); };
  teardown.free = [left] { left->reset(); };
  defer_teardown(std::move(teardown), {.own_work_s = 0.1, .peers_work_s = kGoodbyeS});
  if (!peers_reached(DetachStage::work_ended, true))
    log(LogLevel::warn, options_.rank,
        "device arena kept until all ranks have closed their communicator");
}

GpuSide::~GpuSide() {
  if (!host_.is_owner()) {  // a forked child has neither the thread nor the GPU
    static_cast<void>(calls_.release());
    return;
  }
  end_work();
  unwatch(*this);
  end_flight();
  if (calls_ != nullptr) leave();
}

}  // namespace plait
