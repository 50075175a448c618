// A communicator is served from the first blocking call on that is large enough: its ranks then
// meet, by the MPI's help, and vote. Whatever fails on one rank leaves the communicator to the MPI
// on all.
#include "shims/mpi/serve.hpp"

#include <sched.h>

#include <algorithm>
#include <array>
#include <bit>
#include <utility>
#include <vector>

#include "base/log.hpp"
#include "base/text.hpp"
#include "base/threads.hpp"
#include "comm/choice/descriptor.hpp"
#include "shims/mpi/attach.hpp"
#include "shims/mpi/counting.hpp"
#include "shims/mpi/fast_path.hpp"
#include "shims/mpi/pull.hpp"
#include "shims/mpi/rendezvous_slots.hpp"
#include "shims/mpi/requests.hpp"

namespace plait::mpi {

constinit std::atomic<bool> serving{false};
constinit std::atomic<bool> intercepting{false};
constinit std::atomic<std::uint64_t> calls_served{0};
constinit std::atomic<std::uint64_t> comm_generation{1};
constinit Thresholds thresholds;
constinit thread_local LookupCache lookup_cache;

namespace {

/// All states of the process, in the order of their making; an attribute holds the bare pointer.
struct States {
  std::mutex mutex;
  std::vector<std::shared_ptr<State>> all;
  std::atomic<int> threads{0};  ///< that still run what was begun
};

States& states() {
  static auto* const one = new States;
  return *one;
}

int keyval = 0;
char forward_mark;  ///< its address marks a communicator that is the MPI's for good

int copy_nothing(Handle, int, void*, void*, void*, int* flag) {
  *flag = 0;
  return 0;
}

/// May run inside any call that ends the communicator's last operation: it waits for nothing.
int communicator_freed(Handle, int, void* value, void*) {
  comm_generation.fetch_add(1, std::memory_order_release);
  if (value == &forward_mark) return 0;
  const std::unique_ptr<CommEntry> entry(static_cast<CommEntry*>(value));
  if (entry->state != nullptr) give_up(entry->state);
  return 0;
}

/// What is known of it, and made known where nothing was; null where it is the MPI's for good.
/// Nothing of what the MPI does not take for a communicator.
std::optional<CommEntry*> find_or_add(Handle comm) {
  void* value = nullptr;
  int flag = 0;
  if (real().Comm_get_attr(comm, keyval, static_cast<void*>(&value), &flag) != 0) return {};
  if (flag != 0) return value == &forward_mark ? nullptr : static_cast<CommEntry*>(value);
  auto entry = std::make_unique<CommEntry>();
  if (!can_attach(comm, entry->place)) {
    real().Comm_set_attr(comm, keyval, &forward_mark);
    return nullptr;
  }
  real().Comm_set_attr(comm, keyval, entry.get());
  return entry.release();
}

/// Most calls are on the communicator of the call before: MPIs take a lock to look an attribute up.
CommEntry* entry_of(Handle comm) {
  const std::uint64_t now = comm_generation.load(std::memory_order_acquire);
  if (lookup_cache.comm_generation != now ||
      real().abi.key(lookup_cache.comm) != real().abi.key(comm)) {
    const std::optional<CommEntry*> found = find_or_add(comm);
    if (!found) return nullptr;
    lookup_cache.entry = *found;
    lookup_cache.comm_generation = now;
  }
  lookup_cache.comm = comm;
  return lookup_cache.entry;
}

void cache_type(const CollectiveArgs& args) {
  if (args.in_type != args.out_type || args.in_type == lookup_cache.type) return;
  const MpiType* const predefined = real().abi.type(args.in_type);
  if (predefined == nullptr || size_of(args.in_type) != bytes_of(predefined->type)) return;
  lookup_cache.type = args.in_type;
  lookup_cache.element = bytes_of(predefined->type);
}

void set_thresholds() {
  for (std::size_t at = 0; at < thresholds.any.size(); ++at) {
    const auto collective = static_cast<Collective>(at);
    const std::uint64_t host = least_on_host(collective);
    const std::uint64_t gpus = job_uses_gpus() ? least_on_gpus(collective) : kNever;
    thresholds.any[at] = std::min({host, least_over_nodes(collective), gpus});
    thresholds.gpu_only[at] = host == kNever ? gpus : kNever;
  }
}

bool ranks_use_gpus(Handle comm, CommEntry& entry) {
  if (entry.uses_gpus) return true;
  if (is_vote_call(++entry.calls)) entry.uses_gpus = any_uses_gpus(comm);
  return entry.uses_gpus;
}

/// Whether the call would be plait's for GPUs' memory alone, and none of the ranks uses any: known
/// at little cost, since then it is made by a program that has nothing to do with GPUs.
bool is_unserved(const CollectiveArgs& args, CommEntry& entry) {
  if (args.own_counts || args.counts || !may_be_unserved(args.collective, entry)) return false;
  const std::uint64_t least = thresholds.gpu_only[static_cast<std::size_t>(args.collective)];
  return even_bytes(args, entry.place) < least || !ranks_use_gpus(args.comm, entry);
}

/// An error that the MPI's own call would have too; of others a rank lacks what plait needs.
bool is_of_the_program(const Error& error) {
  return error.code() == ErrorCode::mismatch || error.code() == ErrorCode::invalid_argument;
}

/// False where there are as many as there may be.
bool add(const std::shared_ptr<State>& state, std::size_t most) {
  const std::lock_guard lock(states().mutex);
  if (states().all.size() >= most) return false;
  states().all.push_back(state);
  return true;
}

/// Null on all ranks where one of them cannot, or holds as many as it may.
State* attached(Handle comm, const Place& place, std::size_t most) {
  std::shared_ptr<State> state;
  bool can = false;
  const std::optional<Error> missed = attempt([&] {
    state = std::make_shared<State>(comm, place);
    can = add(state, most) && (place.nodes > 1 || state->begin_thread());
  });
  if (missed) log(LogLevel::warn, place.rank, missed->what());
  if (std::unique_ptr<Communicator> made = attach(comm, place, can, kNoDevice)) {
    state->serve(std::move(made));
    return state.get();
  }
  if (state != nullptr) give_up(state.get());
  return nullptr;
}

}  // namespace

void give_up(State* state) {
  std::shared_ptr<State> owned;
  {
    const std::lock_guard lock(states().mutex);
    auto& all = states().all;
    const auto at =
        std::find_if(all.begin(), all.end(), [&](const auto& one) { return one.get() == state; });
    if (at == all.end()) return;
    owned = std::move(*at);
    all.erase(at);
  }
  owned->close();
}

void begin_serving() {
  const bool serves = agreed_to_serve();
  intercepting.store(serves || is_counting());
  if (!serves) return;
  real().Comm_create_keyval(copy_nothing, communicator_freed, &keyval, nullptr);
  begin_retained_comms();
  set_thresholds();
  begin_progress();
  begin_rendezvous(has_hook());
  serving.store(true);
  if (uses_rendezvous()) begin_hook();
}

void end_serving() {
  if (!serving.exchange(false)) return;
  const ProgramThreadScope here;
  std::vector<std::shared_ptr<State>> all;
  {
    const std::lock_guard lock(states().mutex);
    all.swap(states().all);
  }
  for (const auto& state : all) state->close();
  for (int round = 0; states().threads.load() != 0; ++round) {
    complete_ended();
    let_mpi_progress();
    backoff_sleep(round);
  }
  end_requests();
  end_rendezvous();  // until here a receive may still get a header
  close_opened();
  // Those over nodes free communicators of the MPI's: in one order on all ranks.
  for (std::shared_ptr<State>& state : all) state.reset();
  end_progress();
}

void State::await_idle() {
  std::unique_lock lock(mutex_);
  while (first_ != nullptr || working_) {
    lock.unlock();
    let_mpi_progress();
    lock.lock();
    changed_.wait_for(lock, std::chrono::microseconds(50));
  }
}

/// What lets each rank hear a word of all others.
Request State::one_of_each(std::uint64_t bytes) const {
  Request request;
  request.collective = Collective::all_gather;
  request.type = DataType::uint8;
  request.ranks = place_.ranks;
  request.count = bytes;
  return request;
}

State::AgreedLocations State::agree_locations(BufferLocation mine) {
  std::array<BufferLocation, kMostRanks> all{};
  comm_->run(one_of_each(sizeof mine), &mine, all.data());
  const auto end = all.begin() + place_.ranks;
  return {
      std::any_of(all.begin(), end, [](BufferLocation one) { return one != BufferLocation::host; }),
      std::all_of(all.begin(), end, [](BufferLocation one) { return one == BufferLocation::gpu; })};
}

bool State::is_large(const Shape& shape) {
  const std::uint64_t least = least_on_host(shape.request.collective);
  if (least == 0) return true;
  std::array<std::uint64_t, kMostRanks> all{};
  const std::uint64_t mine = std::max(sum_of(shape.own.sends), sum_of(shape.own.gets));
  comm_->run(one_of_each(sizeof mine), &mine, all.data());
  return *std::max_element(all.begin(), all.end()) >= least;
}

/// Collective over the communicator, as attach() is.
void State::use_gpus(Handle comm, int gpu) {
  if (std::exchange(gpus_->tried, true)) return;
  std::unique_ptr<OwnStream>& stream = gpus_->stream;
  try {
    stream = std::make_unique<OwnStream>(gpu);
  } catch (const std::exception& caught) {
    log(LogLevel::warn, place_.rank,
        text("device memory of a communicator is staged: ", as_error(caught).what()));
  }
  gpus_->comm = attach(comm, place_, stream != nullptr, gpu);
  if (!has_gpus()) stream.reset();
}

/// The communicator on GPUs has one of this rank's; what lies on another goes by the host.
State::BufferLocation State::location_on(int gpu) const {
  return !has_gpus() || gpus_->comm->device() == gpu ? BufferLocation::gpu
                                                     : BufferLocation::gpu_staged;
}

void State::await_stream() {
  Communicator& comm = *gpus_->comm;
  for (int round = 0;; ++round) {
    const cuda::Result result = cuda::api().stream_query(gpus_->stream->stream());
    if (result == cuda::kSuccess) break;
    if (result != cuda::kNotReady) {
      comm.check();
      cuda::require(result, "stream_query");
    }
    let_mpi_progress();
    if (round > 1000) ::sched_yield();
  }
  comm.check();
}

void State::run_on_gpus(const Job& job) {
  const cuda::Current current(context_of(job.gpu()));
  gpus_->comm->enqueue(job.request(), job.input(), job.output(), gpus_->stream->stream());
  await_stream();
}

/// All ranks are in the call: rank 0 lets it go on, and the next once it has ended on all.
void State::run_in_turn(const Job& job) {
  std::unique_lock turn(gpus_->turn, std::defer_lock);
  if (place_.rank == 0) turn.lock();
  agree_locations(BufferLocation::gpu);
  const std::optional<Error> failure = attempt([&] { run_on_gpus(job); });
  agree_locations(BufferLocation::gpu);
  if (failure) throw *failure;
}

void State::refuse(const Error& why) {
  if (const std::optional<Error> agreed = comm_->refuse(why.code(), reason_of(why)))
    throw AgreedError(agreed->code(), reason_of(*agreed));
  throw Error(why);
}

void State::take(Turn& turn, bool all_on_gpu) {
  if (turn.refusal) refuse(*turn.refusal);
  carry_out(*turn.job, all_on_gpu);
}

void State::carry_out(Job& job, bool all_on_gpu) {
  if (all_on_gpu && has_gpus()) return gpus_->is_shared ? run_in_turn(job) : run_on_gpus(job);
  if (job.is_on_gpu())
    if (const auto missed = attempt([&] { job.bring_to_host(place_.rank); })) refuse(*missed);
  const CountedCall counted(job.request().collective, job.bytes(), kByPlait);
  if (job.own() != nullptr)
    comm_->run(job.request(), *job.own(), job.input(), job.output());
  else
    comm_->run(job.request(), job.input(), job.output());
}

std::optional<State::AgreedLocations> State::negotiate(const CollectiveArgs& args,
                                                       const Served& call, Turn& turn) {
  await_idle();
  AgreedLocations locations;
  if (call.shape.has_own_counts()) {
    if (!is_large(call.shape)) return std::nullopt;
  } else if (call.agrees) {
    int gpu = -1;
    BufferLocation location = BufferLocation::host;
    turn.refusal = attempt([&] {
      gpu = gpu_of_call(args, call.shape, place_);
      if (gpu >= 0)
        location = location_on(gpu);
      else if (touches_gpu_memory(args, place_))
        location = BufferLocation::gpu_staged;
    });
    if (!turn.refusal && gpu >= 0) turn.make(args, call.shape, place_, gpu);
    locations = agree_locations(turn.refusal ? BufferLocation::gpu_staged : location);
    locations.gpu = gpu;
  }
  if (!locations.any_on_gpu && !call.on_host) return std::nullopt;
  return locations;
}

State* State::own_for(const CollectiveArgs& args, const Served& call) {
  Turn untaken;
  const std::optional<AgreedLocations> locations = negotiate(args, call, untaken);
  State* const own = locations ? attached(args.comm, place_, kMostPersistent) : nullptr;
  if (own == nullptr || !locations->all_on_gpu) return own;
  if (persistent_gpus_ == nullptr) persistent_gpus_ = std::make_shared<OnGpus>();
  persistent_gpus_->is_shared = true;
  own->gpus_ = persistent_gpus_;
  own->use_gpus(args.comm, locations->gpu);
  return own;
}

bool State::run(const CollectiveArgs& args, const Served& call) {
  Turn turn;
  const std::optional<AgreedLocations> locations = negotiate(args, call, turn);
  if (!locations) return false;
  if (locations->all_on_gpu) use_gpus(args.comm, locations->gpu);
  if (!turn.job && !turn.refusal) turn.make(args, call.shape, place_, -1);
  try {
    take(turn, locations->all_on_gpu);
  } catch (const AgreedError& refused) {
    // All ranks throw it, and no data has moved yet.
    if (locations->any_on_gpu || is_of_the_program(refused)) throw;
    log(LogLevel::warn, place_.rank, text("a call is the MPI's: ", refused.what()));
    return false;
  }
  turn.job->end();
  return true;
}

bool State::begin_thread() {
  states().threads.fetch_add(1);
  const std::optional<Error> missed = attempt([&] {
    quiet_thread([self = shared_from_this()]() mutable {
      self->work();
      self.reset();
      states().threads.fetch_sub(1);
    }).detach();
  });
  if (!missed) return true;
  states().threads.fetch_sub(1);
  log(LogLevel::warn, place_.rank,
      text("a communicator stays with the MPI: wanted a thread for non-blocking calls, found that "
           "none can be had (",
           reason_of(*missed), "); raise the limit of processes or memory (ulimit -u, -v)"));
  return false;
}

void State::begin(CollectiveRequest& operation) {
  calls_served.fetch_add(1, std::memory_order_relaxed);
  {
    const std::lock_guard lock(mutex_);
    (last_ == nullptr ? first_ : last_->next) = &operation;
    last_ = &operation;
  }
  changed_.notify_all();
}

void State::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return first_ != nullptr || closed_; });
    if (first_ == nullptr) return;
    CollectiveRequest& operation = *first_;
    first_ = operation.next;
    if (first_ == nullptr) last_ = nullptr;
    working_ = true;
    lock.unlock();
    Turn& turn = operation.turn;
    operation.error = attempt([&] {
      AgreedLocations locations;
      const bool is_on_gpu = !turn.refusal && turn.job->is_on_gpu();
      if (operation.agrees)
        locations =
            agree_locations(is_on_gpu ? location_on(turn.job->gpu()) : BufferLocation::host);
      take(turn, locations.all_on_gpu);
    });
    const std::shared_ptr<State> owned = std::move(operation.state);  // its end may come at once
    on_collective_ended(operation);
    lock.lock();
    working_ = false;
    changed_.notify_all();
  }
}

void State::abort() {
  comm_->abort();
  if (has_gpus()) gpus_->comm->abort();
}

void State::close() {
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
  }
  changed_.notify_all();
}

bool may_serve(const CollectiveArgs& args) {
  const std::uint64_t least = thresholds.any[static_cast<std::size_t>(args.collective)];
  if (least == kNever) return false;
  cache_type(args);
  return most_bytes(args) >= least;
}

Served served(const CollectiveArgs& args, bool may_attach) {
  const Abi& abi = real().abi;
  if (abi.key(args.comm) == abi.no_comm) return {};
  CommEntry* const entry = entry_of(args.comm);
  if (entry == nullptr || (!may_attach && entry->state == nullptr)) return {};
  const Place place = entry->place;
  if (is_unserved(args, *entry)) return {};
  const std::optional<Shape> shape = shape_of(args, place);
  if (!shape) return {};
  if (place.nodes > 1 && !may_attach) return {};  // its thread would have to call the MPI
  const Wanted wanted = wanted_of(*shape, place);
  // Whose GPUs, and where buffers lie, ranks ask each other in blocking calls alone.
  bool on_gpus = wanted.on_gpus;
  if (on_gpus && may_attach) on_gpus = ranks_use_gpus(args.comm, *entry);
  if (on_gpus && !may_attach) on_gpus = entry->state->has_gpus();
  if (!wanted.on_host && !on_gpus) return {};
  const bool agrees = entry->uses_gpus && place.nodes == 1;
  if (entry->state == nullptr) {
    State* const made = attached(args.comm, place, kMostAttached);
    if (made == nullptr) {
      real().Comm_set_attr(args.comm, keyval, &forward_mark);  // ends what is known of it
      return {};
    }
    entry->state = made;
  }
  return {entry->state, *shape, wanted.on_host, agrees};
}

Served served_for_good(const CollectiveArgs& args) {
  Served call = served(args, true);
  if (call.state == nullptr || call.state->place().nodes > 1) return {};  // as non-blocking ones
  const RevocationScope revocable(args.comm, call.state);
  throw_if_revoked(args.comm);
  call.state = call.state->own_for(args, call);
  return call;
}

std::optional<int> run_served(const Served& call, const CollectiveArgs& args) {
  const ProgramThreadScope here;
  const RevocationScope revocable(args.comm, call.state);
  try {
    throw_if_revoked(args.comm);
    if (!call.state->run(args, call)) return std::nullopt;
    calls_served.fetch_add(1, std::memory_order_relaxed);
    return 0;
  } catch (const std::exception& caught) {
    return report(args.comm, caught);
  }
}

}  // namespace plait::mpi
