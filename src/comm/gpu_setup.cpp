// Making and ending the GPU side. Each step is a vote, so that all ranks have a device or none; and
// at the end ranks wait a moment for each other, since late stores still come into an arena.
#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <set>

#include "base/departures.hpp"
#include "base/life_word.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "base/threads.hpp"
#include "comm/descriptor.hpp"
#include "comm/gpu_side.hpp"
#include "comm/what_runs.hpp"
#include "driver/cuda/api.hpp"
#include "exec/cuda/choices.hpp"
#include "exec/cuda/device/direct_access.hpp"
#include "exec/cuda/device/gpu_kind.hpp"
#include "plait/error.hpp"

namespace plait {
namespace {

// Of rank 0, behind its ring: where GPUs and cores meet, then what large calls settle, then from
// which call on these have room.
constexpr std::uint64_t kSharesAt = cuda::kHostWordsBytes;
constexpr std::uint64_t kGrowthAt = kSharesAt + sizeof(cuda::AgreedNumber::Words);
constexpr std::uint64_t kWordsBytes = kGrowthAt + sizeof(cuda::GrowthPage);
static_assert(kGrowthAt % alignof(cuda::GrowthPage) == 0);
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
  const Env env = read_env();
  pick_gpu(patience);
  learn_topology(env, patience);
  load_tuning(env, patience);
  rings_ = share_memory(*joined.rendezvous, options.rank, options.ranks,
                        cuda::kPlanRingBytes + cuda::kExchangeRingBytes + kWordsBytes, patience);
  log(LogLevel::info, options.rank, text("GPU ", ordinal_, " of ", topology_.name));
  set_up_rank(env, patience);  // last: from here on a thread watches
}

void GpuSide::make_chooser() {
  const cuda::DeviceArenaSizes& sizes = cuda_->whole_group().sizes;
  const PlanRoom room{sizes.scratch_bytes, sizes.inbox_bytes,
                      rings_.empty() ? 0 : cuda::kPlanRingBytes};
  plannable_ = for_plans(topology_, devices_of_ranks(), room);
  chooser_ =
      std::make_unique<Chooser>(plannable_, joined_.forced, joined_.bitwise,
                                [room](const Plan& plan) { return why_no_room(plan, room); });
}

void GpuSide::pick_gpu(const Patience& patience) {
  std::string uuid, kind;
  const std::optional<Error> failure = attempt([&] {
    if (const std::string why = cuda::why_no_cuda(); !why.empty())
      throw Error(ErrorCode::no_device, text("wanted a GPU; ", why));
    if (!cuda::has_device_code())
      throw Error(ErrorCode::unsupported,
                  "wanted kernels, found a build without device code: build with nvcc on PATH");
    ordinal_ = wanted_ordinal(options_.device);
    uuid = cuda::uuid_of(ordinal_);
    kind = cuda::gpu_kind(ordinal_);
  });
  const std::vector<Contribution> all =
      vote(*joined_.rendezvous, failure, pack({text(ordinal_), uuid, kind, text(getpid())}), {},
           patience);
  std::vector<std::string> kinds;
  std::set<std::string> processes;
  for (const Contribution& one : all) {
    const std::vector<std::string> parts = unpack(one.bytes);
    if (parts.size() != 4) throw AgreedError(ErrorCode::parse_error, "a malformed GPU card");
    ordinals_.push_back(static_cast<int>(parse_integer("ordinal", parts[0], 0, 1 << 20)));
    const auto same = std::find(uuids_.begin(), uuids_.end(), parts[1]);
    // Kernels of ranks that share a GPU would wait for each other's turn.
    if (same != uuids_.end())
      throw AgreedError(ErrorCode::invalid_argument,
                        text("ranks ", same - uuids_.begin(), " and ", uuids_.size(),
                             " have the same GPU: give each rank one of its own"));
    uuids_.push_back(parts[1]);
    kinds.push_back(parts[2]);
    processes.insert(parts[3]);
  }
  in_processes_ = processes.size() == all.size();
  as_measured_ = cuda::is_measured(cuda::common_kind(kinds));
}

/// What joins the GPUs: the topology that was asked for, else rank 0's discovery. Kernels need
/// none, so its lack is no failure.
void GpuSide::learn_topology(const Env& env, const Patience& patience) {
  const std::string name = options_.topology.empty() ? env.topology : options_.topology;
  topology_ = joined_.topology;
  const std::vector<std::string> masks = masks_of(masks_asked(options_.masks, env), false);
  if (name.empty()) {
    std::string json, reason;
    if (options_.rank == 0) {
      const std::optional<Error> failure = attempt([&] {
        const Topology found = discover();
        json = to_json(masks.empty() ? found : without(found, masks));
      });
      if (failure) reason = reason_of(*failure);
    }
    const std::vector<Contribution> all =
        vote(*joined_.rendezvous, std::nullopt, pack({json, reason}), {}, patience);
    const std::vector<std::string> parts = unpack(all[0].bytes);
    if (!parts[0].empty()) topology_ = topology_from_json(parts[0]);
    if (parts[0].empty()) why_no_topology_ = text("the machine's links are not known: ", parts[1]);
  }
  std::vector<int> devices;
  for (std::size_t rank = 0; rank < ordinals_.size(); ++rank) {
    const int device = device_of_gpu(topology_, uuids_[rank], ordinals_[rank]);
    if (device >= 0 && std::find(devices.begin(), devices.end(), device) == devices.end())
      devices.push_back(device);
  }
  // Ordinals count what each process is shown; where the topology has no uuids and they are no
  // places in it, ranks take its GPUs in order.
  if (devices.size() == ordinals_.size()) devices_ = devices;
  if (why_no_topology_.empty() && rank_devices(topology_).size() < ordinals_.size())
    why_no_topology_ = text("topology ", topology_.name, " has ", rank_devices(topology_).size(),
                            " devices for ", ordinals_.size(), " ranks");
  if (masks.empty()) return;
  if (!why_no_topology_.empty())
    throw AgreedError(ErrorCode::invalid_argument, text("masks of GPUs: ", why_no_topology_));
  reach_ = reach_of(topology_, devices_of_ranks(), masks);
}

/// As many as the topology has.
std::vector<int> GpuSide::devices_of_ranks() const {
  std::vector<int> devices = devices_.empty() ? rank_devices(topology_) : devices_;
  devices.resize(std::min(devices.size(), ordinals_.size()));
  return devices;
}

/// Rank 0's table for everybody.
void GpuSide::load_tuning(const Env& env, const Patience& patience) {
  std::string table;
  std::optional<Error> failure;
  if (options_.rank == 0)
    failure = attempt([&] {
      const std::string file = cuda::tuning_file(env, fingerprint(topology_), options_.ranks);
      table = cuda::offered_tuning(env, file, options_.rank);
    });
  tuning_ = cuda::TuningTable(vote(*joined_.rendezvous, failure, table, {}, patience)[0].bytes);
}

void GpuSide::set_up_rank(const Env& env, const Patience& patience) {
  cuda::CudaRankOptions options;
  options.device = ordinal_;
  options.rank = options_.rank;
  options.ranks = options_.ranks;
  options.memory.budget_bytes = env.device_memory / (options_.moves_only ? kPairsPerBudget : 1);
  options.memory.moves_only = options_.moves_only;
  options.memory.plans = true;
  options.memory.plan_scratch = env.device_scratch;
  for (const Mapping& ring : rings_) options.rings.push_back(ring.base());
  options.ring_bytes = cuda::kPlanRingBytes;
  options.exchange_ring_bytes = cuda::kExchangeRingBytes;
  std::byte* const words = rings_[0].base() + cuda::kPlanRingBytes + cuda::kExchangeRingBytes;
  if (reach_.host) {  // else no share of large calls goes there
    options.host_words = reinterpret_cast<cuda::HostWords*>(words);
    options.share_words = reinterpret_cast<cuda::AgreedNumber::Words*>(words + kSharesAt);
  }
  if (!env.has("PLAIT_DEVICE_MEMORY") && reach_.why_no_kernels.empty() && in_processes_)
    options.growth = reinterpret_cast<cuda::GrowthPage*>(words + kGrowthAt);
  options.room_patience_s = std::min(kRoomS, options_.arrive_s);
  options.wait_s = options_.arrive_s;
  options.beside_computing = options_.beside_computing;
  options.mixes_graphs = options_.graph_mixing;
  options.most_blocks = static_cast<unsigned>(options_.sm_budget);
  if (options_.sm_budget > 0)
    options.spread.most_blocks = std::min(120u, static_cast<unsigned>(options_.sm_budget));
  std::optional<AgreedError> agreed;
  const std::optional<Error> failure = attempt([&] {
    try {
      cuda::require_direct_access(cuda::direct_access(), options_.rank, uuids_,
                                  cuda::distance_between);
      cuda_ = std::make_unique<cuda::CudaRank>(options, [&](const std::string& mine) {
        std::vector<std::string> cards;
        for (Contribution& one : vote(*joined_.rendezvous, std::nullopt, mine, {}, patience))
          cards.push_back(std::move(one.bytes));
        return cards;
      });
      group_ = cuda_->whole_group();
      first_group_ = cuda_->first_group();
      const auto selector = [&](const cuda::Group& group) {
        return std::make_unique<const cuda::Selector>(
            group, tuning_, as_measured_,
            why_no_topology_.empty() ? predictor(topology_, group, devices_) : nullptr);
      };
      first_ = selector(first_group_);
      whole_ = selector(group_);
      make_chooser();
      for (const Peer& peer : joined_.peers) peers_.push_back(watched(peer));
      wake_ = Fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    } catch (const AgreedError& error) {
      agreed = error;
    }
  });
  if (agreed) throw AgreedError(*agreed);
  vote(*joined_.rendezvous, failure, "", {}, patience);
  if (options_.ranks == 1) return;
  watcher_ = std::make_unique<std::thread>(quiet_thread([this] { watch(); }));
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
    cuda_->fail();
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
    if (watching && cuda_->should_grow()) cuda_->begin_to_grow();
    if (watching) {
      const std::optional<Error> met = attempt([&] { cuda_->check(); });
      if (met) fail(*met), watching = false;
    }
    const std::int64_t fails_ns = fails_ns_.load();
    if (fails_ns != 0 && now_ns() > fails_ns) cuda_->fail();
  }
}

void GpuSide::check() {
  // A lost rank is an error of the calls that waited for it, and of those to come.
  const std::optional<Error> met = attempt([&] { cuda_->check(); });
  if (!met) return;
  const std::optional<Error> known = cause();
  if (!known) fail(*met);
  throw Error(known ? *known : *met);
}

void GpuSide::abort() noexcept { cuda_->abort(); }

void GpuSide::begin_closing() {
  if (closed_ns_ == 0) closed_ns_ = deadline_in(kGoodbyeS);
}

/// What this rank has on streams ends; or it goes on without it, by its own deadline.
void GpuSide::end_work() {
  begin_closing();
  if (has_ended_ || cuda_ == nullptr) return;
  bool ended = cuda_->has_ended();
  while (!ended && now_ns() < closed_ns_) {
    usleep(100);
    ended = cuda_->has_ended();
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
  std::unique_ptr<cuda::CudaRank> cuda;
  std::vector<std::unique_ptr<cuda::BoundPlan>> plans;
  std::vector<Mapping> rings;
  std::vector<Peer> peers;
  Controls controls;

  bool have_left(Left left, bool elsewhere) const {
    return std::all_of(peers.begin(), peers.end(), [&](const Peer& peer) {
      if (elsewhere && peer.pid == getpid()) return true;
      pollfd ended{peer.process.get(), POLLIN, 0};
      return controls.has_left_device(peer.rank, left) || poll(&ended, 1, 0) > 0;
    });
  }
  void free() noexcept {
    const cuda::BesideCaptures beside;
    const bool is_current = cuda::api().context_push(cuda->context()) == cuda::kSuccess;
    if (is_current) cuda::api().context_synchronize();  // else freeing keeps launches waiting
    plans.clear();
    cuda::Context popped = nullptr;
    if (is_current) cuda::api().context_pop(&popped);
    cuda.reset();
    rings.clear();
  }
};

void GpuSide::leave() {
  const auto left = std::make_shared<Remains>();
  left->cuda = std::move(cuda_);
  planned_calls_.for_each([&](Call& call) { left->plans.push_back(std::move(call.bound)); });
  left->rings = std::move(rings_);
  left->peers = std::move(peers_);
  left->controls = joined_.controls;
  Departure departure;
  departure.has_ended = [left] { return left->cuda->has_ended(); };
  departure.show = [left](Left how_far) { left->controls.leave_device(how_far); };
  departure.have_left = [left](Left how_far, bool elsewhere) {
    return left->have_left(how_far, elsewhere);
  };
  departure.unmap = [left] { left->cuda->unmap_peers(); };
  departure.free = [left] { left->free(); };
  depart(std::move(departure), {.for_own = 0.1, .for_others = kGoodbyeS});
  if (!left->have_left(Left::work_ended, true))
    log(LogLevel::warn, options_.rank,
        "device arena kept until all ranks have closed their communicator");
}

GpuSide::~GpuSide() {
  if (getpid() != owner_) {  // a forked child has neither the thread nor the GPU
    static_cast<void>(watcher_.release());
    static_cast<void>(cuda_.release());
    planned_calls_.for_each([](Call& call) { static_cast<void>(call.bound.release()); });
    return;
  }
  end_work();
  stop_watching();
  if (cuda_ != nullptr) leave();
}

}  // namespace plait
