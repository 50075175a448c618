// Runs calls on host memory. An error before the agreement leaves all ranks in step; a later error
// ends the communicator.
#include "comm/node/host_side.hpp"

#include <algorithm>
#include <numeric>

#include "base/error_reason.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "comm/shm/buffers.hpp"
#include "comm/trace/status.hpp"

namespace plait {
namespace {

/// Extra time for large calls beyond deadline_s: 100 MB/s per rank is slower than any healthy run.
double allowance_s(const Request& request) {
  return static_cast<double>(message_bytes(request)) * request.ranks / 1e8;
}

std::uint64_t rounded(std::uint64_t bytes, std::uint64_t before) {
  if (bytes <= before) return before;
  std::uint64_t size = 1 << 16;
  while (size < bytes && size < (1ull << 62)) size *= 2;
  return size;
}

/// Returns the error of a call while another thread makes a call of this kind.
const char* why_busy(CallKind other) {
  if (other == CallKind::suspend)
    return "another thread suspends this communicator: call resume() before the next call on GPU "
           "memory";
  if (other == CallKind::resume)
    return "another thread resumes this communicator: make the next call on GPU memory once "
           "resume() has returned";
  return "two threads call one communicator at once; use one for each";
}

}  // namespace

HostSide::HostSide(const CommunicatorOptions& options, Joined joined, std::vector<int> devices)
    : options_(options),
      arrive_s_(options.arrive_s),
      deadline_s_(options.deadline_s),
      joined_(std::move(joined)),
      rank_of_place_(static_cast<std::size_t>(joined_.controls.ranks())),
      devices_(std::move(devices)),
      peers_(std::move(joined_.peers)) {
  std::iota(rank_of_place_.begin(), rank_of_place_.end(), 0);
  peers_.use(&joined_.controls, nullptr);
  peers_.set_meanwhile(options.meanwhile);
  peers_.set_interrupt(options.interrupt);
}

HostSide::~HostSide() {
  if (is_complete_ && is_owner()) joined_.controls.leave();
}

FlightInfo HostSide::flight_info() const {
  FlightInfo info;
  info.door = "native";
  info.id = joined_.name;
  info.rank = rank();
  info.ranks = ranks();
  info.keeps = std::make_shared<const Controls>(joined_.controls);
  for (int place = 0; place < local_ranks(); ++place)
    info.here.push_back(
        {rank_of_place_[static_cast<std::size_t>(place)], peers_.pid_of(place), nullptr});
  return info;
}

void HostSide::complete() {
  FlightInfo info = flight_info();
  info.memory = "host";
  info.mine = &joined_.controls.mine().host_flight;
  for (int place = 0; place < local_ranks(); ++place)
    info.here[static_cast<std::size_t>(place)].ring = &joined_.controls.of(place).host_flight;
  info.held = [this] {
    return std::vector<FlightMemory>{
        {"control pages", kControlBytes * static_cast<std::uint64_t>(local_ranks())},
        {"arenas", held_bytes_.load(std::memory_order_relaxed)}};
  };
  flight_ = std::make_unique<Flight>(std::move(info));
  peers_.explain_by(flight_->info());
  if (ranks() > 1 && read_env().has("PLAIT_WARN_S")) answer_always();
  is_complete_ = true;
}

int HostSide::place_of(int rank) const {
  const auto at = std::find(rank_of_place_.begin(), rank_of_place_.end(), rank);
  return at == rank_of_place_.end() ? -1 : static_cast<int>(at - rank_of_place_.begin());
}

PairOf HostSide::pair_at(int place) const { return pair_of(joined_, local_rank(), place); }

std::unique_ptr<HostSide> HostSide::far_pair(int peer, PairOf&) const {
  throw Error(ErrorCode::internal, text("rank {} is in no node of this communicator", peer));
}

/// Stores the first failure and reports to peers at once.
void HostSide::fail(const Error& error) {
  {
    const std::lock_guard lock(guard_);
    if (!failure_) failure_ = error;
    has_failed_.store(true);
    joined_.controls.raise_failure(error.code(), reason_of(error));
    publish_failure(error);
  }
  if (log_enabled(LogLevel::warn))
    log(LogLevel::warn, rank(),
        text("communicator failed: {}{}", error.what(), write_last_calls()));
}

std::optional<Error> HostSide::failed() {
  if (has_failed_.load()) {
    const std::lock_guard lock(guard_);
    return Error(ErrorCode::aborted, text("this communicator ended earlier: {}", failure_->what()));
  }
  if (peers_.aborted()) return Error(ErrorCode::aborted, "abort() was called on this communicator");
  return std::nullopt;
}

void HostSide::raise_abort() const noexcept {
  joined_.controls.raise_failure(ErrorCode::aborted, "abort() was called");
}

std::unique_lock<std::mutex> HostSide::begin(CallLock& calling, CallKind kind) {
  if (forks_so_far() != forks_)
    throw Error(ErrorCode::invalid_argument,
                "this communicator belongs to the process that forked; make one in the child");
  std::unique_lock lock(calling.guard, std::try_to_lock);
  if (!lock.owns_lock()) throw Error(ErrorCode::invalid_argument, why_busy(calling.kind.load()));
  if (const auto earlier = failed()) throw Error(*earlier);
  calling.kind.store(kind);
  caller_.store(std::this_thread::get_id());
  return lock;
}

std::optional<Error> HostSide::agree(const CallDescriptor& mine, const OwnCounts* counts) {
  const Controls& controls = joined_.controls;
  ++call_;
  peers_.begin_call(call_);
  controls.enter(call_, mine, counts);
  controls.await_entered(call_, arrive_s_, peers_);
  if (controls.all_same_call(call_)) return std::nullopt;
  std::vector<CallDescriptor> all;
  for (int peer = 0; peer < local_ranks(); ++peer)
    all.push_back(controls.of(peer).calls[call_ % 2]);
  return call_error(all, rank_of_place_);
}

void HostSide::in_call(const CallDescriptor& mine, const Body& body, const OwnCounts* counts) {
  const std::unique_lock<std::mutex> lock = begin();
  std::optional<Error> refused;
  const auto steps = [&] {
    refused = agree(mine, counts);
    if (refused) return;
    try {
      body();
    } catch (const AgreedError& error) {
      refused = error;
    }
  };
  std::optional<Error> broken;
  try {
    broken = attempt(std::cref(steps));
  } catch (...) {  // the program's functions may throw any type
    fail(Error(ErrorCode::aborted, "an exception of the program ended a call of this rank"));
    throw;
  }
  if (broken) {
    const Error cause = peers_.cause_of(*broken);
    fail(cause);
    throw cause;
  }
  joined_.controls.finish(call_);
  if (refused) throw AgreedError(refused->code(), reason_of(*refused));
}

/// Grows the arenas. All ranks hold equal sizes and see the same plan, so all grow or none.
void HostSide::ensure_arenas(const ArenaSizes& wanted) {
  ArenaSizes sizes = arenas_.sizes;
  sizes.ranks = ranks();
  if (arena_memory_.empty()) sizes.flags_per_pair = 0;
  sizes.flags_per_pair = std::max({sizes.flags_per_pair, wanted.flags_per_pair, 64});
  sizes.scratch_bytes = rounded(wanted.scratch_bytes, sizes.scratch_bytes);
  sizes.inbox_bytes = rounded(wanted.inbox_bytes, sizes.inbox_bytes);
  sizes.ring_bytes = rounded(wanted.ring_bytes, sizes.ring_bytes);
  sizes.relay_bytes = rounded(wanted.relay_bytes, sizes.relay_bytes);
  if (!arena_memory_.empty() && sizes == arenas_.sizes) return;
  // Memory is committed here, at 100 MB/s or faster on any machine under load.
  const double allowed_s = deadline_s_ + static_cast<double>(arena_bytes(sizes)) * ranks() / 1e8;
  const Deadline deadline{deadline_in(allowed_s), [this] {
                            peers_.check(text("rank {} waits for the others' arenas", rank()));
                            peers_.meanwhile();
                          }};
  std::vector<Mapping> fresh;
  agree_on(
      [&] {
        fresh = share_memory(*joined_.rendezvous, local_rank(), local_ranks(), arena_bytes(sizes),
                             deadline);
      },
      deadline);
  arena_memory_ = std::move(fresh);
  arenas_.sizes = sizes;
  held_bytes_.store(arena_bytes(sizes) * arena_memory_.size(), std::memory_order_relaxed);
  arenas_.base.assign(static_cast<std::size_t>(ranks()), nullptr);
  for (std::size_t place = 0; place < arena_memory_.size(); ++place)
    arenas_.base[static_cast<std::size_t>(rank_of_place_[place])] = arena_memory_[place].base();
  epoch_ = 0;  // new flags start at 0
  log(LogLevel::info, rank(), text("arenas of {} bytes", arena_bytes(sizes)));
}

std::vector<double> HostSide::scalars() {
  std::vector<double> by_rank;
  for (int rank = 0; rank < ranks(); ++rank)
    by_rank.push_back(joined_.controls.scalar_of(rank, call_));
  return by_rank;
}

void HostSide::run(const ProvedPlan& plan, const void* input, void* output) {
  const Request& request = plan.plan.request;
  ensure_arenas(plan.sizes);
  std::vector<std::byte> stage;
  CpuCall now;
  now.input = usable_input(request, rank(), input, output, stage);
  now.output = output;
  if (request.op == ReduceOp::premul_sum) now.scalars = scalars();
  now.library = library_;
  now.epoch = epoch_;
  now.parity = parity_;
  now.deadline_ns = deadline_in(deadline_s_ + allowance_s(request));
  try {
    run_cpu(plan.plan, rank(), arenas_, now, peers_);
  } catch (...) {  // messages under way may still read the buffer
    if (!drop_messages()) static_cast<void>(new std::vector<std::byte>(std::move(stage)));
    throw;
  }
  epoch_ += plan.epochs;
  if (plan.uses_inbox) parity_ ^= 1;
}

std::vector<OwnCounts> HostSide::own_counts() const {
  std::vector<OwnCounts> all;
  for (int peer = 0; peer < ranks(); ++peer) all.push_back(joined_.controls.counts_of(peer, call_));
  return all;
}

std::vector<std::string> HostSide::exchange(const std::string& mine) {
  const Deadline deadline{deadline_in(deadline_s_),
                          [this] { peers_.check(text("rank {} waits in exchange", rank())); }};
  std::vector<std::string> all;
  for (Contribution& one : joined_.rendezvous->allgather(mine, {}, deadline))
    all.push_back(std::move(one.bytes));
  return all;
}

}  // namespace plait
