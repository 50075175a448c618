// A rank's GPU for communicators of plait's own: met over their sockets, watched over by a thread,
// and left together. Each step is a vote, so that all ranks have a device or none; and at the end
// ranks wait a moment for each other, since late stores still come into an arena.
#include "comm/gpu_side.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>

#include "base/departures.hpp"
#include "base/life_word.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "base/threads.hpp"
#include "comm/descriptor.hpp"
#include "driver/cuda/api.hpp"
#include "exec/cuda/device/direct_access.hpp"
#include "plait/error.hpp"

namespace plait {
namespace {

constexpr std::uint64_t kPairsPerBudget = 3;  // a communicator of two that only moves
// Calls wait so long for room for large ones: others make it whatever their programs do meanwhile.
constexpr double kRoomS = 10.0;
constexpr double kGoodbyeS = 2.0;  // a rank that leaves waits for others so long
constexpr int kWatchMs = 20;

/// This process's number among the ranks of its machine; -1 where no launcher says.
int local_rank() {
  for (const char* name : {"LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID",
                           "MV2_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID"}) {
    const std::string value = foreign_env(name);
    if (!value.empty()) return static_cast<int>(parse_integer(name, value, 0, 1 << 20));
  }
  return -1;
}

/// The GPU that the options mean. A launcher that shows each rank one GPU alone has chosen it.
int wanted_ordinal(int device) {
  const int count = cuda::device_count();
  if (device == kDeviceByLauncher) {
    const int local = local_rank();
    if (local < 0)
      throw Error(ErrorCode::no_device, "no launcher says which GPU is this rank's (LOCAL_RANK)");
    device = count == 1 ? 0 : local;
  }
  if (device >= count)
    throw Error(ErrorCode::no_device,
                text("wanted GPU ", device, ", found ", count, " (numbered from 0)"));
  return device;
}

Peer watched(const Peer& peer) {
  const int fd = fcntl(peer.process.get(), F_DUPFD_CLOEXEC, 0);
  if (fd < 0) throw Error(ErrorCode::io_error, "no file descriptor left to watch other ranks with");
  return {peer.rank, peer.pid, Fd(fd)};
}

}  // namespace

std::unique_ptr<GpuSide> GpuSide::create(const CommunicatorOptions& options, Joined& joined,
                                         const std::function<void()>& check, std::string& why_not) {
  if (options.device == kNoDevice) return nullptr;
  const Patience patience{deadline_in(options.arrive_s), check};
  try {
    return std::unique_ptr<GpuSide>(new GpuSide(options, joined, patience));
  } catch (const AgreedError& error) {
    // Masks of GPUs that could not be heeded are no reason to do without these.
    const bool masks_gpus = cuda::device_count() > 0 &&
                            !masks_of(masks_asked(options.masks, read_env()), false).empty();
    if (options.device != kDeviceByLauncher || masks_gpus) throw;
    why_not = reason_of(error);
    // A GPU that is there and does not work is news to people, one that is not there is none.
    const bool is_news = error.code() == ErrorCode::driver_error;
    log(is_news ? LogLevel::warn : LogLevel::info, options.rank, text("no GPUs: ", why_not));
    return nullptr;
  }
}

GpuSide::GpuSide(const CommunicatorOptions& options, Joined& joined, const Patience& patience)
    : options_(options), joined_(joined), owner_(getpid()) {
  const cuda::Exchange exchange = [&](const std::string& mine) {
    std::vector<std::string> cards;
    for (Contribution& one : vote(*joined_.rendezvous, std::nullopt, mine, {}, patience))
      cards.push_back(std::move(one.bytes));
    return cards;
  };
  std::optional<AgreedError> agreed;
  const std::optional<Error> failure = attempt([&] {
    try {
      set_up(exchange);
    } catch (const AgreedError& error) {
      agreed = error;
    }
  });
  if (agreed) throw AgreedError(*agreed);
  vote(*joined_.rendezvous, failure, "", {}, patience);
  if (options_.ranks == 1) return;
  watcher_ = std::make_unique<std::thread>(quiet_thread([this] { watch(); }));
}

void GpuSide::set_up(const cuda::Exchange& exchange) {
  const Env env = read_env();
  if (const std::string why = cuda::why_no_cuda(); !why.empty())
    throw Error(ErrorCode::no_device, text("wanted a GPU; ", why));
  if (!cuda::has_device_code())
    throw Error(ErrorCode::unsupported,
                "wanted kernels, found a build without device code: build with nvcc on PATH");
  GpuGroup group =
      meet_gpus(exchange, options_.rank, options_.ranks, wanted_ordinal(options_.device));
  const std::string name = options_.topology.empty() ? env.topology : options_.topology;
  learn_topology(
      group, exchange, [&] { return name.empty() ? discovered() : load_topology(name); },
      masks_of(masks_asked(options_.masks, env), false));
  load_tuning(group, exchange, env);
  log(LogLevel::info, options_.rank,
      text("GPU ", group.ordinals[static_cast<std::size_t>(options_.rank)], " of ",
           group.topology.name));
  cuda::require_direct_access(cuda::direct_access(), options_.rank, group.uuids,
                              cuda::distance_between);
  calls_ = std::make_unique<GpuCalls>(std::move(group), calls_options(env), exchange);
  for (const Peer& peer : joined_.peers) peers_.push_back(watched(peer));
  wake_ = Fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
}

GpuCallsOptions GpuSide::calls_options(const Env& env) const {
  GpuCallsOptions made;
  made.forced = joined_.forced;
  made.bitwise = joined_.bitwise;
  made.grows = !env.has("PLAIT_DEVICE_MEMORY");
  made.checks = joined_.topology;
  cuda::CudaRankOptions& rank = made.rank;
  rank.memory.budget_bytes = env.device_memory / (options_.moves_only ? kPairsPerBudget : 1);
  rank.memory.moves_only = options_.moves_only;
  rank.memory.plans = true;
  rank.memory.plan_scratch = env.device_scratch;
  rank.room_patience_s = std::min(kRoomS, options_.arrive_s);
  rank.wait_s = options_.arrive_s;
  rank.beside_computing = options_.beside_computing;
  rank.mixes_graphs = options_.graph_mixing;
  rank.most_blocks = static_cast<unsigned>(options_.sm_budget);
  return made;
}

void GpuSide::enqueue(const Request& request, const void* input, void* output, void* stream,
                      const CallOptions& options) {
  if (failed_.load(std::memory_order_relaxed))
    throw Error(ErrorCode::aborted,
                text("this communicator's GPU side ended earlier: ", cause()->what()));
  calls_->rank().check();
  calls_->enqueue(request, input, output, static_cast<cuda::Stream>(stream), options);
}

/// First reason stands, and the others are told. Kernels that wait for a lost rank fail their
/// stream. Where a rank's program has aborted, this one has as long to do the same as ranks have to
/// answer.
void GpuSide::fail(const Error& error) {
  {
    const std::lock_guard lock(guard_);
    if (cause_) return;
    cause_ = error;
  }
  failed_.store(true);
  if (error.code() == ErrorCode::aborted)
    fails_ns_.store(deadline_in(options_.deadline_s));
  else
    calls_->rank().fail();
  joined_.controls.raise_failure(error.code(), reason_of(error));
  log(LogLevel::warn, options_.rank, text("GPU side failed: ", error.what()));
}

std::optional<Error> GpuSide::cause() const {
  const std::lock_guard lock(guard_);
  return cause_;
}

/// False once some rank has failed or ended. One that closed its communicator may end.
bool GpuSide::look_at_peers(const std::vector<short>& events) {
  for (const bool words : {false, true})  // who died is named before who says so
    for (std::size_t i = 0; i < peers_.size(); ++i) {
      const Peer& peer = peers_[i];
      const auto said = joined_.controls.failure_of(peer.rank);
      const bool closed = joined_.controls.has_left_device(peer.rank, Left::work_ended);
      const bool ended = events[i] != 0 || holder_died(joined_.controls.of(peer.rank).life);
      if (!words && ended && !closed && !said) {
        fail(Error(ErrorCode::peer_lost, text("rank ", peer.rank, " (pid ", peer.pid,
                                              ") ended; see its output for why")));
        return false;
      }
      if (words && said) {
        const bool told = said->second.find(" reports: ") != std::string::npos;
        fail(Error(said->first,
                   told ? said->second : text("rank ", peer.rank, " reports: ", said->second)));
        return false;
      }
    }
  return true;
}

void GpuSide::watch() {
  const LifeWord life(joined_.controls.mine().life);
  bool watching = true;
  while (!stopping_.load()) {
    std::vector<pollfd> entries{{wake_.get(), POLLIN, 0}};
    for (const Peer& peer : peers_) {
      // The descriptor of a process that has ended is readable from then on: poll() would return at
      // once for ever. So ranks that have closed are not polled.
      const bool closed = joined_.controls.has_left_device(peer.rank, Left::work_ended);
      entries.push_back({watching && !closed ? peer.process.get() : -1, POLLIN, 0});
    }
    poll(entries.data(), entries.size(), kWatchMs);
    std::vector<short> events;
    for (std::size_t i = 1; i < entries.size(); ++i) events.push_back(entries[i].revents);
    if (watching) watching = look_at_peers(events);
    if (watching && calls_->rank().should_grow()) calls_->rank().begin_to_grow();
    if (watching) {
      const std::optional<Error> met = attempt([&] { calls_->rank().check(); });
      if (met) fail(*met), watching = false;
    }
    const std::int64_t fails_ns = fails_ns_.load();
    if (fails_ns != 0 && now_ns() > fails_ns) calls_->rank().fail();
  }
}

void GpuSide::check() {
  // A lost rank is an error of the calls that waited for it, and of those to come.
  const std::optional<Error> met = attempt([&] { calls_->rank().check(); });
  if (!met) return;
  const std::optional<Error> known = cause();
  if (!known) fail(*met);
  throw Error(known ? *known : *met);
}

void GpuSide::abort() noexcept { calls_->rank().abort(); }

void GpuSide::begin_closing() {
  if (closed_ns_ == 0) closed_ns_ = deadline_in(kGoodbyeS);
}

/// What this rank has on streams ends; or it goes on without it, by its own deadline.
void GpuSide::end_work() {
  begin_closing();
  if (has_ended_ || calls_ == nullptr) return;
  bool ended = calls_->rank().has_ended();
  while (!ended && now_ns() < closed_ns_) {
    usleep(100);
    ended = calls_->rank().has_ended();
  }
  if (ended) joined_.controls.leave_device(Left::work_ended);
  has_ended_ = true;
}

void GpuSide::stop_watching() {
  stopping_.store(true);
  if (watcher_ == nullptr) return;
  const std::uint64_t one = 1;
  if (write(wake_.get(), &one, sizeof one) < 0) log(LogLevel::warn, options_.rank, "no wake-up");
  watcher_->join();
}

/// What a rank keeps until no other one can touch it any more, and what it sees of the others.
struct GpuSide::Remains {
  std::unique_ptr<GpuCalls> calls;
  std::vector<Peer> peers;
  Controls controls;

  bool have_left(Left left, bool elsewhere) const {
    return std::all_of(peers.begin(), peers.end(), [&](const Peer& peer) {
      if (elsewhere && peer.pid == getpid()) return true;
      pollfd ended{peer.process.get(), POLLIN, 0};
      return controls.has_left_device(peer.rank, left) || poll(&ended, 1, 0) > 0;
    });
  }
};

void GpuSide::leave() {
  const auto left = std::make_shared<Remains>();
  left->calls = std::move(calls_);
  left->peers = std::move(peers_);
  left->controls = joined_.controls;
  Departure departure;
  departure.has_ended = [left] { return left->calls->rank().has_ended(); };
  departure.show = [left](Left how_far) { left->controls.leave_device(how_far); };
  departure.have_left = [left](Left how_far, bool elsewhere) {
    return left->have_left(how_far, elsewhere);
  };
  departure.unmap = [left] { left->calls->rank().unmap_peers(); };
  departure.free = [left] { left->calls.reset(); };
  depart(std::move(departure), {.for_own = 0.1, .for_others = kGoodbyeS});
  if (!left->have_left(Left::work_ended, true))
    log(LogLevel::warn, options_.rank,
        "device arena kept until all ranks have closed their communicator");
}

GpuSide::~GpuSide() {
  if (getpid() != owner_) {  // a forked child has neither the thread nor the GPU
    static_cast<void>(watcher_.release());
    static_cast<void>(calls_.release());
    return;
  }
  end_work();
  stop_watching();
  if (calls_ != nullptr) leave();
}

}  // namespace plait
