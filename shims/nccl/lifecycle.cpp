// Entry points that make, query and end communicators. NCCL makes a communicator before plait
// attaches; plait tears down its state before NCCL destroys the communicator.
#include <dlfcn.h>

#include <chrono>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "base/log.hpp"
#include "base/text.hpp"
#include "comm/transport/nccl/native.hpp"
#include "shims/nccl/attach.hpp"
#include "shims/nccl/call_config.hpp"
#include "shims/nccl/exports.hpp"
#include "shims/nccl/serve.hpp"
#include "shims/nccl/teardown.hpp"

namespace plait::nccl {
namespace {

constexpr double kPinSeconds =
    2;  // a call holds a pin for microseconds, since enqueuing never waits
constexpr double kHelperSeconds =
    2;  // a cancelled helper stops within this, unless blocked in NCCL
constexpr double kAbortSeconds = 10;  // NCCL's abort of communicators between nodes

/// Facts of a communicator that is to be made.
struct NewCommInfo {
  int ranks = 0;    // upper bound; 0 if unknown to plait
  int device = -1;  // -1 = the current device
  CommConfig configured;
  MeetingName name;
};

CommSetup prepare(NewCommInfo info) {
  return nccl::prepare(info.ranks, info.device, info.configured, std::move(info.name));
}

/// Attaches now, or when the group ends.
Result attach(NewComm made, Result result) noexcept {
  try {
    if (result != ncclSuccess && result != ncclInProgress) return result;
    if (call_context.depth > 0) {
      open_group().new_comms.push_back(std::move(made));
      return result;
    }
    std::vector<NewComm> one;
    one.push_back(std::move(made));
    return attach_new(one, result);
  } catch (const std::exception& error) {
    return result_of(error);
  }
}

/// Makes a communicator whose handle NCCL stores before the function returns.
template <class Function, class... Arguments>
Result make(NewCommInfo info, Comm* made, Function function, Arguments... arguments) {
  if (function == nullptr || made == nullptr)
    return made == nullptr ? ncclInvalidArgument : ncclInvalidUsage;
  if (call_context.in_native != 0) return function(arguments...);
  NewComm one{made, prepare(std::move(info)), nullptr, {}};
  return attach(std::move(one), forward(function, arguments...));
}

void log_unknown_parent(Comm parent) {
  int ranks = 0;
  if (log_enabled(LogLevel::info) && native().count(parent, &ranks) == ncclSuccess && ranks > 1)
    log(LogLevel::info, -1,
        text("a child of communicator {}, which plait does not know, stays on NCCL", parent));
}

/// Notes NCCL's answer to a call that makes a child. Other errors come after the peers have
/// counted the child.
void note_answer(CommState* parent, Result result) {
  if (parent == nullptr) return;
  parent->children.answered(result == ncclInvalidArgument || result == ncclInvalidUsage);
}

/// Makes a child. NCCL may store the handle later: `call` passes NCCL the address.
template <class NcclCall>
Result make_child(Comm comm, NewCommInfo info, Comm* child, const NcclCall& call) {
  if (child == nullptr) return ncclInvalidArgument;
  if (call_context.in_native != 0) return call(child);
  NewComm one{child, {}, nullptr, {}};
  if (const CommTable::Pin pin = comms().pin(comm)) {
    if (pin->is_being_queried()) return ncclInvalidArgument;  // as NCCL does while in progress
    one.parent = pin.shared();
  }
  if (one.parent == nullptr) {
    const InNative inside;
    log_unknown_parent(comm);
    return call(child);
  }
  one.prepared = prepare(std::move(info));
  __atomic_store_n(child, nullptr, __ATOMIC_RELAXED);
  Result result = ncclSuccess;
  {
    const InNative inside;
    result = call(one.handle.place());
  }
  if (result != ncclSuccess && result != ncclInProgress) one.handle.stored();
  note_answer(one.parent.get(), result);
  return attach(std::move(one), result);
}

CommConfig parse_config(const void* config) {
  ConfigHead head{};
  CommConfig found;
  if (config == nullptr) return found;
  std::memcpy(&head.size, config, sizeof head.size);
  if (head.size < sizeof head) return found;
  std::memcpy(&head, config, sizeof head);
  if (head.magic != kConfigMagic) return found;
  if (head.max_ctas >= 1) found.most_ctas = static_cast<unsigned>(head.max_ctas);
  const auto field = [&](std::size_t at) {
    int value = kConfigUndefined;
    if (head.size >= at + sizeof value)
      std::memcpy(&value, static_cast<const char*>(config) + at, sizeof value);
    return value;
  };
  const int usage = field(kConfigGraphUsage), order = field(kConfigLaunchOrder);
  found.mixes_graphs = usage == kConfigUndefined || usage == kGraphsMixed;
  found.launches_in_order = order != kConfigUndefined && order != 0;
  found.engines_move = wants_engines(field(kConfigCtaPolicy));
  return found;
}

/// Returns the facts of a child: the child's configuration, else the parent's. name_of(parent)
/// returns the child's name.
template <class NameOf>
NewCommInfo info_of_child(Comm comm, const void* config, const NameOf& name_of) {
  if (call_context.in_native != 0) return {};
  const CommTable::Pin pin = comms().pin(comm);
  if (!pin || pin->is_being_queried()) return {};
  return {pin->ranks,
          pin->device,
          config == nullptr ? pin->configured : parse_config(config),
          {name_of(*pin), pin->rank}};
}

/// Aborts plait's calls and stops its threads, so that NCCL's abort finds no waiting work of plait
/// and no thread that polls NCCL.
void stop(Comm comm) {
  CommTable::Pin pin = comms().pin(comm);
  if (!pin) return;
  pin->cancelled.store(true);
  await_children(*pin, kHelperSeconds);
  await_attached(*pin, kHelperSeconds);
  if (pin->phase.load() == AttachPhase::attached) {
    const bool hangs = pin->is_known_to_hang();
    pin->phase.store(AttachPhase::aborted);
    pin->engine->abort();
    if (hangs) pin->warn_of_abort();
  }
}

/// Stops plait's calls of a communicator that continues and may have children.
void interrupt(Comm comm) {
  stop(comm);
  if (const CommTable::Pin pin = comms().pin(comm);
      pin && pin->phase.load() != AttachPhase::attaching)
    pin->cancelled.store(false);
}

/// Returns false if NCCL refuses to revoke: the communicator's calls go on then. NCCL knows a
/// single value of the flags, and revokes no communicator that is being finalized.
bool nccl_would_revoke(Comm comm, int flags) {
  if (flags != kRevokeDefault) return false;
  const CommTable::Pin pin = comms().pin(comm);
  return pin && !pin->finalizing.load();
}

/// Removes the communicator from the table. Recorded calls of the communicator in a group end with
/// an error; the last reference tears the state down.
std::shared_ptr<CommState> remove_from_table(Comm comm) {
  std::shared_ptr<CommState> state = comms().remove(comm, kPinSeconds);
  if (state == nullptr) return nullptr;
  if (state->making.load() != 0) state->cancelled.store(true);
  await_children(*state, kHelperSeconds);
  AttachPhase attached = AttachPhase::attached;
  if (state.use_count() > 1) state->phase.compare_exchange_strong(attached, AttachPhase::aborted);
  return state;
}

/// Waits until the work that stop() aborted has ended, or the time is over.
void await_stopped(Comm comm) {
  const CommTable::Pin pin = comms().pin(comm);
  if (pin && pin->phase.load() == AttachPhase::aborted) pin->engine->await_abort(kAbortSeconds);
}

/// Ends the wait for ranks that suspend or resume.
void require_peers(const CommState& state) {
  if (state.cancelled.load() || state.phase.load() != AttachPhase::attached)
    throw Error(ErrorCode::aborted, "the communicator was ended meanwhile");
  if (state.has_lost.load()) throw Error(ErrorCode::peer_lost, "a rank was lost meanwhile");
}

/// NCCL waits for the GPU and then for all ranks, so no call of any rank runs when plait's memory
/// goes. In a group, and on a non-blocking communicator, NCCL does so later: plait's memory stays
/// on all ranks.
void suspend(CommState& state, Result of_nccl) {
  const bool can = of_nccl == ncclSuccess && call_context.depth == 0;
  try {
    if (state.engine->agree_on_suspend(can, [&] { require_peers(state); })) {
      state.suspended.store(true);
      state.engine->suspend();
    } else {
      log(LogLevel::info, state.rank,
          text("communicator {}: plait's memory stays, since NCCL suspends later on a rank",
               state.comm));
    }
  } catch (const std::exception& error) {
    log(LogLevel::warn, state.rank,
        text("suspending communicator {} failed: {}", state.comm, error.what()));
  }
}

Result resume(CommState& state) {
  try {
    state.engine->resume([&] { require_peers(state); });
  } catch (const std::exception& error) {
    log(LogLevel::warn, state.rank,
        text("resuming communicator {} failed: {}", state.comm, error.what()));
    return state.has_lost.load() ? ncclRemoteError : result_of(error);
  }
  state.suspended.store(false);
  return ncclSuccess;
}

/// Ranks may name communicators of a group in unlike orders, and resume() waits for all ranks.
Result refuse_in_group(const CommState& state) {
  log(LogLevel::warn, state.rank,
      text("communicator {}: wanted ncclCommResume outside groups, found one in a group; end the "
           "group first",
           state.comm));
  return ncclInvalidUsage;
}

/// Returns a reference instead of a pin, since an abort would wait for a pin; null if unknown.
std::shared_ptr<CommState> state_of(Comm comm) {
  const CommTable::Pin pin = comms().pin(comm);
  return pin ? pin.shared() : nullptr;
}

/// Returns whether plait's calls have ended, or the communicator serves no more. Graph replays
/// without a later event count as ended: only a wait for the whole GPU would show the end, and
/// another program's kernel could block that for ever.
bool has_ended(CommState& state) {
  if (state.phase.load() != AttachPhase::attached || state.has_lost.load()) return true;
  return state.calls_ended() != CallsEnded::no;
}

/// Returns plait's asynchronous result of a communicator that NCCL reports as healthy. Throws
/// Error.
Result plait_async_error(CommState& state) {
  state.late.done();
  const AttachPhase phase = state.phase.load();
  if (phase == AttachPhase::failed) return state.error;
  if (phase != AttachPhase::attached) return ncclSuccess;
  if (state.killed.load()) return ncclRemoteError;
  state.engine->check();
  if (state.finalizing.load() && !has_ended(state)) return ncclInProgress;
  return ncclSuccess;
}

/// Forwards a query, unless the communicator is still in progress: NCCL also refuses then.
template <class Function>
Result query(Comm comm, Function function, int* answer) {
  if (function == nullptr) return ncclInvalidUsage;
  if (call_context.in_native != 0) return function(comm, answer);
  if (const CommTable::Pin pin = comms().pin(comm); pin && pin->is_being_queried())
    return ncclInvalidArgument;
  return forward(function, comm, answer);
}

}  // namespace
}  // namespace plait::nccl

using namespace plait::nccl;

Result ncclCommInitRank(Comm* comm, int ranks, UniqueId id, int rank) {
  return make({ranks, -1, {}, name_by_ids(&id, 1, rank, ranks)}, comm, native().init_rank, comm,
              ranks, id, rank);
}

Result ncclCommInitRankConfig(Comm* comm, int ranks, UniqueId id, int rank, void* config) {
  return make({ranks, -1, parse_config(config), name_by_ids(&id, 1, rank, ranks)}, comm,
              native().init_rank_config, comm, ranks, id, rank, config);
}

Result ncclCommInitRankScalable(Comm* comm, int ranks, int rank, int id_count, UniqueId* ids,
                                void* config) {
  return make({ranks, -1, parse_config(config), name_by_ids(ids, id_count, rank, ranks)}, comm,
              native().init_rank_scalable, comm, ranks, rank, id_count, ids, config);
}

Result ncclCommInitAll(Comm* comms, int count, const int* devices) {
  if (native().init_all == nullptr) return ncclInvalidUsage;
  if (call_context.in_native != 0) return native().init_all(comms, count, devices);
  try {
    std::vector<NewComm> made;
    const std::string name = name_in_process();
    for (int i = 0; i < count; ++i)
      made.push_back({comms + i,
                      prepare({count, devices == nullptr ? i : devices[i], {}, {name, i}}),
                      nullptr,
                      {}});
    const Result result = forward(native().init_all, comms, count, devices);
    if (result != ncclSuccess && result != ncclInProgress) return result;
    if (call_context.depth == 0) return attach_new(made, result);
    for (NewComm& one : made) open_group().new_comms.push_back(std::move(one));
    return result;
  } catch (const std::exception& error) {
    return result_of(error);
  }
}

Result ncclCommSplit(Comm comm, int color, int key, Comm* child, void* config) {
  if (native().split == nullptr) return ncclInvalidUsage;
  if (child == nullptr) return ncclInvalidArgument;  // before the child counts
  NewCommInfo info =
      info_of_child(comm, config, [&](CommState& parent) { return parent.children.split(color); });
  if (color == kSplitNoColor) info.ranks = 0;  // no child
  return make_child(comm, std::move(info), child,
                    [&](Comm* place) { return native().split(comm, color, key, place, config); });
}

Result ncclCommShrink(Comm comm, int* excluded, int count, Comm* child, void* config, int flags) {
  if (native().shrink == nullptr) return ncclInvalidUsage;
  if (child == nullptr) return ncclInvalidArgument;
  if ((flags & kShrinkAbort) != 0) interrupt(comm);
  NewCommInfo info = info_of_child(comm, config, [&](CommState& parent) {
    return parent.children.shrink(excluded, count, parent.ranks);
  });
  return make_child(comm, std::move(info), child, [&](Comm* place) {
    return native().shrink(comm, excluded, count, place, config, flags);
  });
}

Result ncclCommGrow(Comm comm, int ranks, const UniqueId* id, int rank, Comm* child, void* config) {
  NewCommInfo grown =
      info_of_child(comm, config, [](CommState& parent) { return parent.children.grow(); });
  grown.ranks = ranks, grown.device = -1;
  if (comm == nullptr) {  // a new rank
    grown.configured = parse_config(config);
    if (id != nullptr && call_context.in_native == 0) grown.name = name_of_joining(*id, rank);
  }
  const Result result =
      make(std::move(grown), child, native().grow, comm, ranks, id, rank, child, config);
  if (call_context.in_native == 0)
    if (const CommTable::Pin pin = comms().pin(comm)) note_answer(&*pin, result);
  return result;
}

Result ncclCommGetUniqueId(Comm comm, UniqueId* id) {
  const Result result = forward(native().comm_unique_id, comm, id);
  if (result != ncclSuccess || id == nullptr || call_context.in_native != 0) return result;
  if (const CommTable::Pin pin = comms().pin(comm)) pin->children.show_grow(*id);
  return result;
}

Result ncclCommSuspend(Comm comm, int flags) {
  const Result result = forward(native().suspend, comm, flags);
  if (call_context.in_native != 0 || (flags & kSuspendMemory) == 0) return result;
  if (result == ncclInvalidUsage || result == ncclInvalidArgument) return result;  // no suspend
  const std::shared_ptr<CommState> state = state_of(comm);
  if (state != nullptr && state->phase.load() == AttachPhase::attached) suspend(*state, result);
  return result;
}

Result ncclCommResume(Comm comm) {
  if (call_context.in_native != 0) return forward(native().resume, comm);
  const std::shared_ptr<CommState> state = state_of(comm);
  const bool is_suspended = state != nullptr && state->suspended.load();
  // Memory that has gone comes back on all ranks together. The memory of several nodes, and of
  // ranks that are threads of a process, stays.
  const bool waits = is_suspended && state->engine->is_suspended();
  if (waits && call_context.depth != 0) return refuse_in_group(*state);
  Result result = forward(native().resume, comm);
  if (waits && result == ncclInProgress) {
    await_launched(*state);
    Result queried = ncclSuccess;
    result = forward(native().async_error, comm, &queried);
    if (result == ncclSuccess) result = queried;
  }
  if (waits && result == ncclSuccess) return resume(*state);
  if (is_suspended && !waits && (result == ncclSuccess || result == ncclInProgress))
    state->suspended.store(false);
  return result;
}

/// Adds plait's memory.
Result ncclCommMemStats(Comm comm, int stat, std::uint64_t* value) {
  const Result result = forward(native().memory_stats, comm, stat, value);
  if (result != ncclSuccess || value == nullptr || call_context.in_native != 0) return result;
  const CommTable::Pin pin = comms().pin(comm);
  if (!pin || pin->phase.load() != AttachPhase::attached) return result;
  const plait::GpuMemory memory = pin->engine->gpu_memory();
  if (stat == kStatSuspendable || stat == kStatTotal) *value += memory.suspendable;
  if (stat == kStatPersistent || stat == kStatTotal) *value += memory.staying;
  return result;
}

/// NCCL's calls have ended when this returns, or when a non-blocking communicator is ready again;
/// plait's calls have too.
Result ncclCommFinalize(Comm comm) {
  if (native().finalize == nullptr) return ncclInvalidUsage;
  if (call_context.in_native != 0) return native().finalize(comm);
  std::shared_ptr<CommState> state;  // no pin, since an abort would wait for a pin
  if (const CommTable::Pin pin = comms().pin(comm)) {
    if (pin->is_being_queried()) return ncclInvalidArgument;
    state = pin.shared();
  }
  const Result result = forward(native().finalize, comm);
  if (state == nullptr || (result != ncclSuccess && result != ncclInProgress)) return result;
  if (result == ncclInProgress)
    state->finalizing.store(true);
  else
    while (!has_ended(*state)) std::this_thread::sleep_for(std::chrono::microseconds(100));
  return result;
}

Result ncclCommDestroy(Comm comm) {
  if (native().destroy == nullptr) return ncclInvalidUsage;
  if (call_context.in_native != 0) return native().destroy(comm);
  remove_from_table(comm);  // plait's state goes before NCCL's communicator
  return forward(native().destroy, comm);
}

Result ncclCommAbort(Comm comm) {
  if (native().abort == nullptr) return ncclInvalidUsage;
  if (call_context.in_native != 0) return native().abort(comm);
  stop(comm);
  await_stopped(comm);
  std::shared_ptr<CommState> state = remove_from_table(comm);
  // A helper thread blocked inside NCCL, by ranks that do not come, ends by NCCL's abort alone.
  if (state != nullptr && state->phase.load() != AttachPhase::attaching) state.reset();
  return forward(native().abort, comm);
}

Result ncclCommRevoke(Comm comm, int flags) {
  if (native().revoke == nullptr) return ncclInvalidUsage;
  if (call_context.in_native == 0 && nccl_would_revoke(comm, flags)) interrupt(comm);
  return forward(native().revoke, comm, flags);
}

Result ncclCommGetAsyncError(Comm comm, Result* error) {
  if (native().async_error == nullptr) return ncclInvalidUsage;
  // NCCL calls this function itself before each call, and must get its own answer.
  if (call_context.in_native != 0 || native().is_caller(__builtin_return_address(0)))
    return native().async_error(comm, error);
  const CommTable::Pin pin = comms().pin(comm);
  if (pin && pin->is_being_queried() && error != nullptr) {
    *error = ncclInProgress;
    return ncclSuccess;
  }
  const Result result = forward(native().async_error, comm, error);
  if (result != ncclSuccess || error == nullptr || *error != ncclSuccess || !pin) return result;
  try {
    *error = plait_async_error(*pin);
  } catch (const std::exception& fault) {
    *error = pin->has_lost.load() ? ncclRemoteError : result_of(fault);
  }
  return result;
}

Result ncclCommCount(Comm comm, int* count) { return query(comm, native().count, count); }

Result ncclCommUserRank(Comm comm, int* rank) { return query(comm, native().user_rank, rank); }

Result ncclCommCuDevice(Comm comm, int* device) { return query(comm, native().device, device); }

/// For the forwarding libnccl.so.2: returns the native library's definition, or null.
extern "C" [[gnu::visibility("default")]] void* plait_nccl_real_symbol(const char* name) {
  void* handle = native().handle;
  return handle == nullptr ? nullptr : ::dlsym(handle, name);
}
