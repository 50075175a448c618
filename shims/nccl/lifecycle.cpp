// Communicators as they are made, watched and ended. The real call always comes first when making,
// and plait lets go first when ending.
#include <dlfcn.h>

#include <cstring>
#include <utility>
#include <vector>

#include "base/log.hpp"
#include "base/text.hpp"
#include "comm/nccl/real.hpp"
#include "shims/nccl/attach.hpp"
#include "shims/nccl/exports.hpp"
#include "shims/nccl/leave.hpp"
#include "shims/nccl/serve.hpp"

namespace plait::nccl {
namespace {

constexpr double kPinSeconds = 2;  // enqueuing never waits: a call holds its pin for microseconds
constexpr double kAttachSeconds = 130;  // attaching has a deadline of its own, below this
constexpr double kAbortSeconds = 10;    // NCCL's abort of what lies between nodes

/// After the real call has made, or begun to make, *made.
Result made_one(Comm* made, Result result, Prepared prepared) noexcept {
  try {
    if (result != ncclSuccess && result != ncclInProgress) return result;
    if (here.depth > 0) {
      noted_group().made.push_back({made, std::move(prepared)});
      return result;
    }
    State* state = enter(*made, result == ncclSuccess, std::move(prepared));
    if (state == nullptr) return result;
    if (result == ncclSuccess) return attach_now({state});
    attach_later(state);
    return result;
  } catch (const std::exception& error) {
    return result_of(error);
  }
}

/// What is known of a communicator that is to be made.
struct Family {
  int ranks = 0;    // at most; none where plait does not know it
  int device = -1;  // -1 = the current one
  Configured configured;
};

template <class Function, class... Arguments>
Result make(const Family& family, Comm* made, Function function, Arguments... arguments) {
  if (function == nullptr || made == nullptr)
    return made == nullptr ? ncclInvalidArgument : ncclInvalidUsage;
  if (here.in_real != 0) return function(arguments...);
  Prepared prepared = prepare(family.ranks, family.device, family.configured);
  const Result result = pass_on(function, arguments...);
  return made_one(made, result, std::move(prepared));
}

Configured configured_by(const void* config) {
  ConfigHead head{};
  Configured found;
  if (config == nullptr) return found;
  std::memcpy(&head.size, config, sizeof head.size);
  if (head.size < sizeof head) return found;
  std::memcpy(&head, config, sizeof head);
  if (head.magic != kConfigMagic) return found;
  if (head.max_ctas >= 1) found.most_ctas = static_cast<unsigned>(head.max_ctas);
  int usage = kConfigUndefined;
  if (head.size >= kConfigGraphUsage + sizeof usage)
    std::memcpy(&usage, static_cast<const char*>(config) + kConfigGraphUsage, sizeof usage);
  found.mixes_graphs = usage == kConfigUndefined || usage == kGraphsMixed;
  return found;
}

/// Of a child: without a configuration of its own it has its parent's.
Family child_of(Comm comm, const void* config) {
  const CommTable::Pin pin = comms().pin(comm);
  if (!pin) return {};
  return {pin->ranks, pin->device, config == nullptr ? pin->configured : configured_by(config)};
}

/// Stops what plait has in flight, so that NCCL's abort finds nothing of plait's waiting.
void stop(Comm comm) {
  CommTable::Pin pin = comms().pin(comm);
  if (!pin) return;
  pin->cancelled.store(true);
  if (pin->phase.load() == Phase::attached) {
    pin->phase.store(Phase::aborted);
    pin->engine->abort();
  }
}

/// What plait has beside the communicator goes, before NCCL's own.
void leave(Comm comm) noexcept {
  try {
    std::unique_ptr<State> state = comms().remove(comm, kPinSeconds);
    if (state != nullptr) let_go(std::move(state), kAttachSeconds);
  } catch (const std::exception& error) {
    log(LogLevel::warn, -1, text("letting go of communicator ", comm, ": ", error.what()));
  }
}

/// Returns when what stop() has begun is over, or too late.
void await_stopped(Comm comm) {
  const CommTable::Pin pin = comms().pin(comm);
  if (pin && pin->phase.load() == Phase::aborted) pin->engine->await_abort(kAbortSeconds);
}

}  // namespace
}  // namespace plait::nccl

using namespace plait::nccl;

Result ncclCommInitRank(Comm* comm, int ranks, UniqueId id, int rank) {
  return make({ranks, -1, {}}, comm, real().init_rank, comm, ranks, id, rank);
}

Result ncclCommInitRankConfig(Comm* comm, int ranks, UniqueId id, int rank, void* config) {
  return make({ranks, -1, configured_by(config)}, comm, real().init_rank_config, comm, ranks, id,
              rank, config);
}

Result ncclCommInitRankScalable(Comm* comm, int ranks, int rank, int id_count, UniqueId* ids,
                                void* config) {
  return make({ranks, -1, configured_by(config)}, comm, real().init_rank_scalable, comm, ranks,
              rank, id_count, ids, config);
}

Result ncclCommInitAll(Comm* comms, int count, const int* devices) {
  if (real().init_all == nullptr) return ncclInvalidUsage;
  std::vector<Prepared> prepared;
  for (int i = 0; i < count; ++i)
    prepared.push_back(prepare(count, devices == nullptr ? i : devices[i], {}));
  const Result result = pass_on(real().init_all, comms, count, devices);
  if (result != ncclSuccess) return result;
  try {
    std::vector<State*> states;
    for (int i = 0; i < count; ++i) {
      State* state = enter(comms[i], true, std::move(prepared[static_cast<std::size_t>(i)]));
      if (state != nullptr) states.push_back(state);
    }
    return attach_now(states);
  } catch (const std::exception& error) {
    return result_of(error);
  }
}

Result ncclCommSplit(Comm comm, int color, int key, Comm* child, void* config) {
  return make(child_of(comm, config), child, real().split, comm, color, key, child, config);
}

Result ncclCommShrink(Comm comm, int* excluded, int count, Comm* child, void* config, int flags) {
  if ((flags & kShrinkAbort) != 0) stop(comm);
  return make(child_of(comm, config), child, real().shrink, comm, excluded, count, child, config,
              flags);
}

Result ncclCommGrow(Comm comm, int ranks, const UniqueId* id, int rank, Comm* child, void* config) {
  Family grown = child_of(comm, config);
  grown.ranks = ranks, grown.device = -1;
  if (comm == nullptr) grown.configured = configured_by(config);  // a rank that joins
  return make(grown, child, real().grow, comm, ranks, id, rank, child, config);
}

Result ncclCommDestroy(Comm comm) {
  if (real().destroy == nullptr) return ncclInvalidUsage;
  if (here.in_real != 0) return real().destroy(comm);
  leave(comm);
  return pass_on(real().destroy, comm);
}

Result ncclCommAbort(Comm comm) {
  if (real().abort == nullptr) return ncclInvalidUsage;
  if (here.in_real != 0) return real().abort(comm);
  stop(comm);
  await_stopped(comm);
  leave(comm);
  return pass_on(real().abort, comm);
}

Result ncclCommRevoke(Comm comm, int flags) {
  if (real().revoke == nullptr) return ncclInvalidUsage;
  stop(comm);
  return pass_on(real().revoke, comm, flags);
}

Result ncclCommGetAsyncError(Comm comm, Result* error) {
  if (real().async_error == nullptr) return ncclInvalidUsage;
  // NCCL asks itself by this name, before each call: it must hear its own answer.
  if (here.in_real != 0 || real().is_caller(__builtin_return_address(0)))
    return real().async_error(comm, error);
  const Result result = pass_on(real().async_error, comm, error);
  if (result != ncclSuccess || error == nullptr || *error != ncclSuccess) return result;
  const CommTable::Pin pin = comms().pin(comm);
  if (!pin) return result;
  const Phase phase = pin->phase.load();
  if (phase == Phase::attaching && pin->background.load()) *error = ncclInProgress;
  if (phase == Phase::failed) *error = pin->error;
  if (phase == Phase::attached && pin->killed.load()) *error = ncclRemoteError;
  if (phase == Phase::attached && !pin->killed.load()) {
    try {
      pin->engine->check();
    } catch (const std::exception& fault) {
      *error = pin->has_lost.load() ? ncclRemoteError : result_of(fault);
    }
  }
  return result;
}

/// For plait's forwarding libnccl.so.2: the real library's own definition, or null.
extern "C" [[gnu::visibility("default")]] void* plait_nccl_real_symbol(const char* name) {
  void* handle = real().handle;
  return handle == nullptr ? nullptr : ::dlsym(handle, name);
}
