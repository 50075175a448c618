// Attaches communicators and runs served collectives. A communicator is attached in the first
// blocking call that is large enough: the ranks find each other with the native MPI's help and
// vote. A failure on any rank leaves the communicator native on all.
#include "shims/mpi/collective/serve.hpp"

#include <sched.h>

#include <algorithm>
#include <array>
#include <bit>
#include <utility>
#include <vector>

#include "base/error_reason.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "base/threads.hpp"
#include "shims/mpi/args/counting.hpp"
#include "shims/mpi/args/in_call.hpp"
#include "shims/mpi/args/native_flight.hpp"
#include "shims/mpi/collective/attach.hpp"
#include "shims/mpi/collective/collective_request.hpp"
#include "shims/mpi/collective/explain.hpp"
#include "shims/mpi/collective/fast_path.hpp"
#include "shims/mpi/collective/served_comms.hpp"
#include "shims/mpi/p2p/pull.hpp"
#include "shims/mpi/p2p/rendezvous_slots.hpp"
#include "shims/mpi/requests/freed_comm.hpp"

namespace plait::mpi {

constinit std::atomic<std::uint64_t> comm_generation{1};
constinit Thresholds thresholds;
constinit thread_local LookupCache lookup_cache;

namespace {

int keyval = 0;
char forward_mark;  ///< the address marks a communicator that is always native

int copy_nothing(Handle, int, void*, void*, void*, int* flag) {
  *flag = 0;
  return 0;
}

/// Delete callback of the attribute. Must not wait: any MPI call that completes the communicator's
/// last operation may run the callback.
int communicator_freed(Handle, int, void* value, void*) {
  comm_generation.fetch_add(1, std::memory_order_release);
  if (value == &forward_mark) return 0;
  const std::unique_ptr<CommEntry> entry(static_cast<CommEntry*>(value));
  if (entry->state != nullptr) release_state(entry->state);
  return 0;
}

/// Returns the communicator's entry, and creates a missing one. Null = the communicator is always
/// native; no value = the MPI rejects the handle.
std::optional<CommEntry*> find_or_add(Handle comm) {
  void* value = nullptr;
  int flag = 0;
  if (native().Comm_get_attr(comm, keyval, static_cast<void*>(&value), &flag) != 0) return {};
  if (flag != 0) return value == &forward_mark ? nullptr : static_cast<CommEntry*>(value);
  auto entry = std::make_unique<CommEntry>();
  if (!can_attach(comm, entry->position)) {
    native().Comm_set_attr(comm, keyval, &forward_mark);
    note_native(comm);
    return nullptr;
  }
  native().Comm_set_attr(comm, keyval, entry.get());
  if (is_thin(entry->position)) note_native(comm);
  return entry.release();
}

/// Returns the communicator's entry from a cache of one: most calls use the communicator of the
/// call before, and MPIs take a lock to read an attribute.
CommEntry* entry_of(Handle comm) {
  const std::uint64_t now = comm_generation.load(std::memory_order_acquire);
  if (lookup_cache.comm_generation != now ||
      native().abi.key(lookup_cache.comm) != native().abi.key(comm)) {
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
  const MpiType* const predefined = native().abi.type(args.in_type);
  if (predefined == nullptr || size_of(args.in_type) != bytes_of(predefined->type)) return;
  lookup_cache.type = args.in_type;
  lookup_cache.element = bytes_of(predefined->type);
}

void set_thresholds() {
  for (std::size_t at = 0; at < thresholds.any.size(); ++at) {
    const auto collective = static_cast<Collective>(at);
    const std::uint64_t host = min_bytes_on_host(collective);
    const std::uint64_t gpus = job_uses_gpus() ? min_bytes_on_gpus(collective) : kNever;
    thresholds.any[at] = std::min({host, min_bytes_multinode(collective), gpus});
    thresholds.gpu_only[at] = host == kNever ? gpus : kNever;
  }
}

/// Makes all later calls on the communicator native. Deletes the communicator's entry.
void forward(Handle comm) { native().Comm_set_attr(comm, keyval, &forward_mark); }

bool ranks_use_gpus(Handle comm, CommEntry& entry) {
  if (entry.uses_gpus) return true;
  if (is_vote_call(++entry.calls)) entry.uses_gpus = any_uses_gpus(comm);
  return entry.uses_gpus;
}

/// Returns another value than none if plait would serve the call only in GPU memory, and no rank
/// uses GPUs. The check must be cheap, because it also runs in programs that never use a GPU.
Fallback why_unserved(const CollectiveArgs& args, CommEntry& entry) {
  if (args.own_counts || args.counts || !may_be_unserved(args.collective, entry))
    return Fallback::none;
  const std::uint64_t least = thresholds.gpu_only[static_cast<std::size_t>(args.collective)];
  if (even_bytes(args, entry.position) < least) return Fallback::bytes;
  return ranks_use_gpus(args.comm, entry) ? Fallback::none : Fallback::no_gpu_in_use;
}

/// Why negotiate() returns nothing.
Fallback why_not_negotiated(const ServedCall& call) {
  return call.shape.has_own_counts() ? Fallback::bytes : Fallback::host_memory;
}

ServedCall forwarded(Fallback why) {
  ServedCall call;
  call.why = why;
  return call;
}

/// Why a call of this shape is served at no buffer location.
Fallback why_at_no_location(const CallShape& shape, const RankPosition& position) {
  const bool even = !shape.has_own_counts() && shape.request.counts.empty();
  if (position.nodes > 1) {
    if (is_thin(position)) return Fallback::thin_nodes;
    return even ? Fallback::bytes : Fallback::uneven_nodes;
  }
  return shape.has_own_counts() ? Fallback::own_counts : Fallback::bytes;
}

/// Returns whether the native call would fail too; any other error means that plait lacks a
/// resource.
bool is_program_error(const Error& error) {
  return error.code() == ErrorCode::mismatch || error.code() == ErrorCode::invalid_argument;
}

/// Attaches a communicator. Returns null on all ranks if any rank cannot attach or is at the limit.
ServedComm* attach_state(Handle comm, const RankPosition& position, std::size_t most) {
  std::shared_ptr<ServedComm> state;
  bool can = false;
  const std::optional<Error> missed = attempt([&] {
    state = std::make_shared<ServedComm>(comm, position);
    can = add_state(state, most) && (position.nodes > 1 || state->begin_thread());
  });
  if (missed) log(LogLevel::warn, position.rank, missed->what());
  std::unique_ptr<ServedComm, void (*)(ServedComm*)> added(state.get(), release_state);
  std::unique_ptr<Communicator> made = attach(comm, position, can);
  if (made == nullptr) return nullptr;
  state->serve(std::move(made));
  note_attached(position);
  return added.release();
}

/// Attaches the communicator of a call. If that fails, all later calls on the communicator are
/// native. Deletes the communicator's entry then.
ServedComm* attach_or_forward(Handle comm, const RankPosition& position) {
  try {
    ServedComm* const made = attach_state(comm, position, kMaxAttached);
    if (made == nullptr) {
      forward(comm);
      note_native(comm);
    }
    return made;
  } catch (const NativeFailure&) {
    forward(comm);
    throw;
  }
}

}  // namespace

void begin_serving() {
  const bool serves = agreed_to_serve();
  note_job(serves);
  begin_native_flight();
  begin_call_slots();
  intercepting.store(serves || is_recording());
  if (!serves) return;
  native().Comm_create_keyval(copy_nothing, communicator_freed, &keyval, nullptr);
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
  std::vector<std::shared_ptr<ServedComm>> all;
  {
    const std::lock_guard lock(served_comms().mutex);
    all.swap(served_comms().all);
  }
  for (const auto& state : all) state->close();
  for (int round = 0; served_comms().threads.load() != 0; ++round) {
    complete_ended();
    let_mpi_progress();
    backoff_sleep(round);
  }
  end_requests();
  end_rendezvous();  // a receive may get an RTS header until here
  close_opened();
  // In the same order on all ranks: a state over several nodes frees its native communicators.
  for (std::shared_ptr<ServedComm>& state : all) state.reset();
  free_unused_handlers();
  end_progress();
}

void ServedComm::wait_until_idle() {
  std::unique_lock lock(mutex_);
  while (first_ != nullptr || working_) {
    lock.unlock();
    let_mpi_progress();
    lock.lock();
    changed_.wait_for(lock, std::chrono::microseconds(50));
  }
}

/// Returns an all_gather of `bytes` from each rank.
Request ServedComm::one_of_each(std::uint64_t bytes) const {
  Request request;
  request.collective = Collective::all_gather;
  request.type = DataType::uint8;
  request.ranks = position_.ranks;
  request.count = bytes;
  return request;
}

ServedComm::AgreedLocations ServedComm::agree_locations(BufferLocation mine) {
  std::array<BufferLocation, kMostRanks> all{};
  comm_->run(one_of_each(sizeof mine), &mine, all.data());
  const auto end = all.begin() + position_.ranks;
  return {
      std::any_of(all.begin(), end, [](BufferLocation one) { return one != BufferLocation::host; }),
      std::all_of(all.begin(), end, [](BufferLocation one) { return one == BufferLocation::gpu; })};
}

bool ServedComm::is_large(const CallShape& shape) {
  const std::uint64_t least = min_bytes_on_host(shape.request.collective);
  if (least == 0) return true;
  std::array<std::uint64_t, kMostRanks> all{};
  const std::uint64_t mine = std::max(sum_of(shape.own.sends), sum_of(shape.own.gets));
  comm_->run(one_of_each(sizeof mine), &mine, all.data());
  return *std::max_element(all.begin(), all.end()) >= least;
}

/// A rank without a stream refuses, since its peers have started to adopt their GPUs.
void ServedComm::adopt_gpu(int gpu) {
  if (std::exchange(has_tried_gpu_, true)) return;
  std::unique_ptr<GpuStream> stream;
  const std::optional<Error> missed = attempt([&] { stream = std::make_unique<GpuStream>(gpu); });
  try {
    if (missed) refuse(*missed);
    comm_->adopt_device(gpu);
  } catch (const AgreedError& refused) {
    log(LogLevel::warn, position_.rank,
        text("device memory of a communicator is staged: {}", refused.what()));
    return;
  }
  stream_ = std::move(stream);
}

/// The communicator has a single GPU of this rank; buffers on another GPU are staged.
ServedComm::BufferLocation ServedComm::location_on(int gpu) const {
  return !has_gpus() || on_gpus().comm_->device() == gpu ? BufferLocation::gpu
                                                         : BufferLocation::gpu_staged;
}

void ServedComm::await_stream() {
  for (int round = 0;; ++round) {
    const cuda::Result result = cuda::api().stream_query(stream_->stream());
    if (result == cuda::kSuccess) break;
    if (result != cuda::kNotReady) {
      comm_->check();
      cuda::require(result, "stream_query");
    }
    let_mpi_progress();
    if (round > 1000) ::sched_yield();
  }
  comm_->check();
}

void ServedComm::run_on_gpus(const PackedCall& packed) {
  const cuda::Current current(context_of(packed.gpu()));
  comm_->enqueue(packed.request(), packed.input(), packed.output(), stream_->stream());
  await_stream();
}

/// Rank 0 admits one call at a time, and only calls that all ranks have entered: negotiate() and
/// work() exchange locations first. agree_locations() is a barrier here: all ranks have entered
/// the call before its start, and have ended it before the next starts.
void ServedComm::run_serialized(const PackedCall& packed) {
  std::unique_lock order(on_gpus().gpu_order_, std::defer_lock);
  while (position_.rank == 0 && !order.try_lock()) {
    let_mpi_progress();
    ::sched_yield();
  }
  agree_locations(BufferLocation::gpu);
  const std::optional<Error> failure = attempt([&] { on_gpus().run_on_gpus(packed); });
  agree_locations(BufferLocation::gpu);
  if (failure) throw *failure;
}

void ServedComm::refuse(const Error& why) {
  if (const std::optional<Error> agreed = comm_->refuse(why.code(), reason_of(why)))
    throw AgreedError(agreed->code(), reason_of(*agreed));
  throw Error(why);
}

void ServedComm::run_or_refuse(Participation& participation, bool all_on_gpu) {
  if (participation.refusal) refuse(*participation.refusal);
  execute(*participation.packed, all_on_gpu);
}

void ServedComm::execute(PackedCall& packed, bool all_on_gpu) {
  if (all_on_gpu && has_gpus())
    return on_gpus().is_shared_ ? run_serialized(packed) : run_on_gpus(packed);
  if (packed.is_on_gpu())
    if (const auto missed = attempt([&] { packed.bring_to_host(position_.rank); })) refuse(*missed);
  const CountedCall counted(packed.request().collective, packed.bytes(), kByPlait);
  if (packed.own() != nullptr)
    comm_->run(packed.request(), *packed.own(), packed.input(), packed.output());
  else
    comm_->run(packed.request(), packed.input(), packed.output());
}

std::optional<ServedComm::AgreedLocations> ServedComm::negotiate(const CollectiveArgs& args,
                                                                 const ServedCall& call,
                                                                 Participation& participation) {
  wait_until_idle();
  AgreedLocations locations;
  if (call.shape.has_own_counts()) {
    if (!is_large(call.shape)) return std::nullopt;
  } else if (call.agrees) {
    int gpu = -1;
    BufferLocation location = BufferLocation::host;
    participation.refusal = attempt([&] {
      const char* why = "the communicator has another GPU of this rank";
      gpu = gpu_of_call(args, call.shape, position_, why);
      if (gpu >= 0)
        location = location_on(gpu);
      else if (touches_gpu_memory(args, position_))
        location = BufferLocation::gpu_staged;
      if (location == BufferLocation::gpu_staged && is_explaining()) explain_staging(args, why);
    });
    if (!participation.refusal && gpu >= 0) participation.make(args, call.shape, position_, gpu);
    locations = agree_locations(participation.refusal ? BufferLocation::gpu_staged : location);
    locations.gpu = gpu;
  }
  if (!locations.any_on_gpu && !call.on_host) return std::nullopt;
  return locations;
}

ServedComm* ServedComm::make_persistent_state(const CollectiveArgs& args, const ServedCall& call,
                                              Fallback& why) {
  const std::size_t calls_before = persistent_calls_++;
  Participation participation;
  const std::optional<AgreedLocations> locations = negotiate(args, call, participation);
  why = locations ? Fallback::attach : why_not_negotiated(call);
  const bool is_on_gpus = locations && locations->all_on_gpu;
  if (is_on_gpus) {  // before the attach, which may fail on a single rank: all share alike
    adopt_gpu(locations->gpu);
    if (has_gpus() && !is_shared_) is_shared_ = true;
  }
  if (!locations) return nullptr;
  ServedComm* const own = spare_or_new_state(args.comm, calls_before);
  if (own == nullptr) return nullptr;
  if (counted_bytes(call.shape) > kMostSpareBytes) disown(*own);
  if (is_on_gpus && has_gpus()) own->whole_ = shared_from_this();
  return own;
}

/// The slot depends on the number of calls alone: a slot then names the same state on all ranks
/// that have one, also after a set-up has failed on a single rank.
ServedComm* ServedComm::spare_or_new_state(Handle comm, std::size_t calls_before) {
  if (calls_before > 0) {
    SpareOffer offer(*this);
    const SpareChoice choice = choose_spare(comm, position_, offer.slots());
    if (choice.slot) return offer.take(*choice.slot);
    if (!choice.may_attach) return nullptr;
  }
  const std::size_t slot = calls_before % kSpareSlots;
  clear_slot(*this, slot);
  ServedComm* const made = attach_state(comm, position_, kMaxPersistent);
  if (made != nullptr) own(*this, *made, slot);
  return made;
}

Fallback ServedComm::run(const CollectiveArgs& args, const ServedCall& call) {
  Participation participation;
  const std::optional<AgreedLocations> locations = negotiate(args, call, participation);
  if (!locations) return why_not_negotiated(call);
  if (locations->all_on_gpu) adopt_gpu(locations->gpu);
  if (!participation.packed && !participation.refusal)
    participation.make(args, call.shape, position_, -1);
  try {
    run_or_refuse(participation, locations->all_on_gpu);
  } catch (const AgreedError& refused) {
    // All ranks throw this error before any data has moved.
    if (locations->any_on_gpu || is_program_error(refused)) {
      if (participation.native_code == 0) throw;
      throw NativeError(refused.code(), participation.native_code, reason_of(refused));
    }
    log(LogLevel::warn, position_.rank,
        text("a call is forwarded to the native MPI: {}", refused.what()));
    return Fallback::resource;
  }
  participation.packed->end();
  return Fallback::none;
}

bool ServedComm::begin_thread() {
  served_comms().threads.fetch_add(1);
  const std::optional<Error> missed = attempt([&] {
    quiet_thread([self = shared_from_this()]() mutable {
      self->work();
      self.reset();
      served_comms().threads.fetch_sub(1);
    }).detach();
  });
  if (!missed) return true;
  served_comms().threads.fetch_sub(1);
  log(LogLevel::warn, position_.rank,
      text("a communicator stays with the MPI: no thread for non-blocking calls ({}); raise the "
           "limit of "
           "processes or memory (ulimit -u, -v)",
           reason_of(*missed)));
  return false;
}

void ServedComm::begin(CollectiveRequest& operation) {
  calls_served.fetch_add(1, std::memory_order_relaxed);
  {
    const std::lock_guard lock(mutex_);
    (last_ == nullptr ? first_ : last_->next) = &operation;
    last_ = &operation;
  }
  changed_.notify_all();
}

void ServedComm::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return first_ != nullptr || closed_; });
    if (first_ == nullptr) return;
    CollectiveRequest& operation = *first_;
    first_ = operation.next;
    if (first_ == nullptr) last_ = nullptr;
    working_ = true;
    lock.unlock();
    Participation& participation = operation.participation;
    operation.error = attempt([&] {
      AgreedLocations locations;
      const bool is_on_gpu = !participation.refusal && participation.packed->is_on_gpu();
      std::optional<cuda::RelaxedCaptureMode> relaxed;  // for captures of the program's threads
      if (is_on_gpu) relaxed.emplace();
      if (operation.agrees)
        locations = agree_locations(is_on_gpu ? location_on(participation.packed->gpu())
                                              : BufferLocation::host);
      run_or_refuse(participation, locations.all_on_gpu);
    });
    if (operation.error) has_failed_.store(true);
    const std::shared_ptr<ServedComm> owned =
        std::move(operation.state);  // `operation` may be deleted after the end
    on_collective_ended(operation);
    lock.lock();
    working_ = false;
    changed_.notify_all();
  }
}

bool ServedComm::is_idle() {
  const std::lock_guard lock(mutex_);
  return first_ == nullptr && !working_;
}

void ServedComm::abort_own() {
  has_failed_.store(true);
  comm_->abort();
}

void ServedComm::abort() {
  has_failed_.store(true);
  comm_->abort();
  if (whole_ != nullptr) whole_->comm_->abort();
}

void ServedComm::close() {
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

ServedCall served_call(const CollectiveArgs& args, bool may_attach) {
  const Abi& abi = native().abi;
  if (abi.key(args.comm) == abi.no_comm || FreedCommScope::has(args.comm))
    return forwarded(Fallback::communicator);
  CommEntry* const entry = entry_of(args.comm);
  if (entry == nullptr) return forwarded(Fallback::communicator);
  const RankPosition position = entry->position;
  if (!may_attach && entry->state == nullptr)
    return forwarded(position.nodes > 1 ? Fallback::many_nodes : Fallback::not_attached);
  Fallback why = why_unserved(args, *entry);
  if (why != Fallback::none) return forwarded(why);
  const std::optional<CallShape> shape = shape_of(args, position, why);
  if (!shape) return forwarded(why);
  if (position.nodes > 1 && !may_attach)  // the state's thread would have to call MPI
    return forwarded(Fallback::many_nodes);
  const ServedLocations locations = served_locations_of(*shape, position);
  // Ranks vote on GPU use and exchange locations in blocking calls alone.
  bool on_gpus = locations.on_gpus;
  if (on_gpus && may_attach) on_gpus = ranks_use_gpus(args.comm, *entry);
  if (on_gpus && !may_attach) on_gpus = entry->state->has_gpus();
  if (!locations.on_host && !on_gpus) {
    if (!locations.on_gpus) return forwarded(why_at_no_location(*shape, position));
    return forwarded(may_attach ? Fallback::no_gpu_in_use : Fallback::not_on_gpus);
  }
  const bool agrees = entry->uses_gpus && position.nodes == 1;
  if (entry->state == nullptr) {
    ServedComm* const made = attach_or_forward(args.comm, position);
    if (made == nullptr) return forwarded(Fallback::attach);
    entry->state = made;
  }
  return {entry->state, *shape, locations.on_host, agrees};
}

ServedCall persistent_served_call(const CollectiveArgs& args) {
  ServedCall call = served_call(args, true);
  if (call.state == nullptr) return call;
  if (call.state->position().nodes > 1) return forwarded(Fallback::many_nodes);
  const RevocationScope revocable(args.comm, call.state);
  throw_if_revoked(args.comm);
  call.state = call.state->make_persistent_state(args, call, call.why);
  return call;
}

std::optional<int> run_served(const ServedCall& call, const CollectiveArgs& args, Fallback& why) {
  const ProgramThreadScope here;
  const RevocationScope revocable(args.comm, call.state);
  try {
    throw_if_revoked(args.comm);
    why = call.state->run(args, call);
    if (why != Fallback::none) return std::nullopt;
    calls_served.fetch_add(1, std::memory_order_relaxed);
    return 0;
  } catch (const std::exception& caught) {
    return report(args.comm, caught);
  }
}

}  // namespace plait::mpi
