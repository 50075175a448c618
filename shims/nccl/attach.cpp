// Attaching: 1. ranks exchange a first set-up record (identity, settings, refusal), and all draw
// the same conclusion; 2. the engine makes its own exchanges; 3. a last vote confirms that all
// ranks are ready.
#include "shims/nccl/attach.hpp"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

#include "base/error_reason.hpp"
#include "base/log.hpp"
#include "base/nccl_settings.hpp"
#include "base/text.hpp"
#include "base/threads.hpp"
#include "comm/bootstrap/socket.hpp"
#include "comm/bootstrap/vote.hpp"
#include "comm/choose/multinode_choice.hpp"
#include "comm/gpu/drop_in.hpp"
#include "comm/gpu/first_start.hpp"
#include "comm/node/setup.hpp"
#include "comm/transport/nccl/native.hpp"
#include "plait/error.hpp"
#include "shims/nccl/beside.hpp"
#include "shims/nccl/group.hpp"
#include "shims/nccl/log_once.hpp"
#include "shims/nccl/never_free.hpp"
#include "shims/nccl/nodes.hpp"
#include "shims/nccl/settings.hpp"
#include "shims/nccl/setup_exchange.hpp"
#include "shims/nccl/teardown.hpp"

namespace plait::nccl {
namespace {

constexpr double kForEver = 1e9;
constexpr double kUnseenSeconds = 2;  // a cancelled attach stops within milliseconds

std::atomic<bool> leaves_new{false};

/// Stagings that no exchange has used. A communicator takes a staging before NCCL makes the
/// communicator, and gives the staging back once its ranks have met otherwise: allocating and
/// freeing may wait for kernels.
class SpareStagings {
 public:
  std::unique_ptr<ExchangeStaging> take(int device, int ranks) {
    const std::lock_guard<std::mutex> hold(guard_);
    auto& kept = kept_[{device, ranks}];
    while (!kept.empty()) {
      std::unique_ptr<ExchangeStaging> one = std::move(kept.back());
      kept.pop_back();
      if (one->is_alive()) return one;
      static_cast<void>(one.release());  // a reset of the device has ended it
    }
    return nullptr;
  }
  void keep(int device, int ranks, std::unique_ptr<ExchangeStaging> one) {
    const std::lock_guard<std::mutex> hold(guard_);
    kept_[{device, ranks}].push_back(std::move(one));
  }

 private:
  std::mutex guard_;
  std::map<std::pair<int, int>, std::vector<std::unique_ptr<ExchangeStaging>>> kept_;
};

/// A single object per process, never destroyed: the GPU may be gone at exit.
SpareStagings& spare_stagings() {
  static auto* const only = new SpareStagings;
  return *only;
}

/// Keeps a staging that no exchange has used.
void spare_staging(CommState& state) {
  if (state.staging != nullptr)
    spare_stagings().keep(state.device, state.staging_ranks, std::move(state.staging));
}

/// A rank's first set-up record.
struct RankRecord {
  std::string host, device, settings;
  std::string process;       ///< on this host
  std::string word;          ///< random, different in every set-up
  std::string liveness;      ///< handle of the liveness page
  unsigned most_blocks = 0;  ///< limit of blocks a call; 0 = none
  std::string nic_rate;      ///< speed of this host's NICs in MB/s
  std::string flight;        ///< the rank's flight page; empty = none
};

/// Returns host and GPU of this rank. Throws Error if the rank cannot take part.
RankLocation location_of(const CommState& state) {
  if (!settings().refusal.empty()) throw Error(ErrorCode::invalid_argument, settings().refusal);
  if (leaves_new.load())
    throw Error(ErrorCode::unsupported, "the program wants it so (plait_nccl_leave_new)");
  if (major_of(native().version) != 2)
    throw Error(ErrorCode::unsupported,
                text("NCCL {} is unknown to this plait: it knows version 2", native().version));
  return platform().location(state.device);
}

std::vector<RankRecord> exchange_records(CommState& state, const Allgather& carry) {
  RankLocation location;
  const std::optional<Error> failure = attempt([&] { location = location_of(state); });
  const std::string liveness = state.meeting != nullptr
                                   ? state.meeting->take_liveness(state.liveness_index)
                                   : publish_liveness(state.liveness_index);
  static_cast<void>(attempt([&] { state.flight = std::make_unique<CommFlight>(); }));
  std::vector<RankRecord> all;
  for (const std::string& record :
       vote(carry, failure,
            pack({location.host, location.device,
                  settings().shared + (state.configured.engines_move ? ", CTA policy ZERO" : ""),
                  text("{}", ::getpid()), unique_token(), liveness,
                  text("{}", most_blocks_of(settings().env, state.configured.most_ctas)),
                  nic_rate(), state.flight == nullptr ? std::string() : state.flight->shown()}))) {
    std::vector<std::string> parts = unpack(record);
    if (parts.size() != 9)
      throw AgreedError(ErrorCode::mismatch,
                        "set-up record of another rank is malformed: wanted 9 fields");
    all.push_back({parts[0], parts[1], parts[2], parts[0] + ' ' + parts[3], parts[4], parts[5],
                   static_cast<unsigned>(nccl_number(parts[6]).value_or(0)), parts[7], parts[8]});
  }
  return all;
}

/// Shows the communicator to `plait status`. Without pages of all ranks of this host the rank only
/// records its own calls.
void begin_flight(CommState& state, const std::vector<RankRecord>& all) {
  if (state.flight == nullptr) return;
  FlightInfo info;
  info.door = "nccl";
  info.id = all[0].word;
  info.name = text("{}", state.comm);
  info.memory = "GPU";
  info.held = [&state] {  // the engine is there from `attached` on, and goes after the recorder
    const AttachPhase phase = state.phase.load();
    return phase == AttachPhase::attached || phase == AttachPhase::aborted
               ? state.engine->held()
               : std::vector<FlightMemory>();
  };
  info.rank = state.rank;
  info.ranks = state.ranks;
  std::vector<CommFlight::Shown> here;
  for (int rank = 0; rank < state.ranks; ++rank) {
    const RankRecord& one = all[static_cast<std::size_t>(rank)];
    if (one.host == all[static_cast<std::size_t>(state.rank)].host)
      here.push_back({rank, one.flight});
  }
  const auto failure = attempt([&] { state.flight->begin(std::move(info), here); });
  if (failure) log(LogLevel::info, state.rank, text("hangs stay unexplained: {}", failure->what()));
}

/// Throws AgreedError if the ranks stay on NCCL. Depends on the records alone.
void require_alike(const std::vector<RankRecord>& all) {
  std::map<std::string, std::size_t> devices;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].settings != all[0].settings)
      throw AgreedError(ErrorCode::mismatch,
                        text("rank {} has other settings ({}) than rank 0 ({})", rank,
                             all[rank].settings, all[0].settings));
    if (const auto [first, is_new] = devices.insert({all[rank].device, rank}); !is_new)
      throw AgreedError(
          ErrorCode::unsupported,
          text("ranks {} and {} share a GPU, where plait's kernels would wait for each "
               "other",
               first->second, rank));
  }
}

bool are_processes(const std::vector<RankRecord>& all) {
  std::set<std::string> processes;
  for (const RankRecord& one : all) processes.insert(one.process);
  return processes.size() == all.size();
}

Nodes nodes_of(const CommState& state, const std::vector<RankRecord>& all) {
  std::vector<std::string> hosts, rates;
  for (const RankRecord& one : all) {
    hosts.push_back(one.host);
    rates.push_back(one.nic_rate);
  }
  Nodes nodes = plait::nodes_of(hosts, settings().env.node_size, state.rank);
  if (settings().env.node_size == 0)  // pretended nodes use no NICs
    nodes.network_gb_per_s = network_gb_per_s_of(rates);
  return nodes;
}

/// Returns why ranks of the nodes stay on NCCL; empty = plait serves. A thread that drives several
/// ranks could not call NCCL between nodes for each in turn.
std::string why_not(const Nodes& nodes, const std::vector<RankRecord>& all) {
  if (nodes.count() == 1) return {};
  if (const std::string why = nodes.why_unlike(); !why.empty()) return why;
  if (nodes.size() == 1) return text("each of the {} nodes has one rank only", nodes.count());
  if (!are_processes(all)) return text("{} nodes, and several ranks in one process", nodes.count());
  return native().split == nullptr ? "several nodes, and no ncclCommSplit" : std::string();
}

/// Makes state.across, NCCL's communicator of the ranks with the same index within a node, for
/// several nodes. Called before the engine is made: a rank with a failed engine could not join the
/// communicator later.
void make_across(CommState& state, const Nodes& nodes) {
  if (nodes.count() == 1) return;
  const Result result =
      native().split(state.comm, nodes.place, nodes.mine, state.across.place(), nullptr);
  if (result != ncclSuccess && result != ncclInProgress) {
    state.across.stored();
    throw Error(ErrorCode::unsupported,
                text("ncclCommSplit returned {}", static_cast<int>(result)));
  }
  wait_ready(state);
  int ranks = 0;
  if (Comm across = state.across.stored();
      across == nullptr || native().count(across, &ranks) != ncclSuccess || ranks != nodes.count())
    throw Error(ErrorCode::unsupported,
                text("ncclCommSplit made a communicator of {} ranks: wanted one of {} nodes", ranks,
                     nodes.count()));
}

/// Options of an engine, agreed from all ranks' first records.
struct AgreedOptions {
  std::vector<std::string> devices;  // by rank
  unsigned most_blocks = 0;          // of a call; 0 = the fastest number
  bool in_processes = false;         // a rank per process
};

AgreedOptions agreed_on(const std::vector<RankRecord>& all) {
  AgreedOptions agreed;
  agreed.in_processes = are_processes(all);
  for (const RankRecord& one : all) {
    agreed.devices.push_back(one.device);
    if (one.most_blocks != 0 && (agreed.most_blocks == 0 || one.most_blocks < agreed.most_blocks))
      agreed.most_blocks = one.most_blocks;
  }
  return agreed;
}

GpuCallsOptions engine_options(const CommState& state, const Nodes& nodes,
                               const AgreedOptions& agreed) {
  GpuCallsOptions made = drop_in_options(settings().env, {.one_node = nodes.count() == 1,
                                                          .in_processes = agreed.in_processes,
                                                          .most_blocks = agreed.most_blocks});
  made.rank.device = state.device;
  made.rank.rank = nodes.place;
  made.rank.ranks = nodes.size();
  return made;
}

/// Makes an engine of all ranks of the communicator.
std::unique_ptr<CommEngine> make_engine(CommState& state, const Nodes& nodes,
                                        const AgreedOptions& agreed, const Exchange& in_node) {
  if (nodes.size() * nodes.count() != state.ranks)
    throw Error(ErrorCode::internal, text("an engine of {} nodes of {} for {} ranks", nodes.count(),
                                          nodes.size(), state.ranks));
  const BenchSource source{[&state] { return nccl_beside(state); },
                           [&state] { require_not_cancelled(state); }};
  std::unique_ptr<CommEngine> inside =
      platform().engine(engine_options(state, nodes, agreed), in_node, source);
  if (nodes.count() == 1) return inside;
  return node_engine(nodes, state.device, std::move(inside), state.comm, state.across.stored());
}

/// Makes state.engine on all ranks. Throws AgreedError on all if any rank fails; all nodes vote on
/// an agreement of a single node.
void build(CommState& state, const Nodes& nodes, const AgreedOptions& agreed,
           const Allgather& carry) {
  std::optional<AgreedError> refused;  // by a vote of all ranks
  const Exchange in_node = [&](const std::string& mine) {
    std::vector<std::string> all, found;
    try {
      all = vote(carry, std::nullopt, mine);
    } catch (const AgreedError& error) {
      refused = error;
      throw;
    }
    for (const int peer : nodes.peers()) found.push_back(all[static_cast<std::size_t>(peer)]);
    return found;
  };
  const std::optional<Error> failure = attempt([&] {
    state.marker = platform().marker(state.device);
    state.joint = platform().marker(state.device);
    state.engine = make_engine(state, nodes, agreed, in_node);
  });
  if (refused) throw AgreedError(*refused);
  vote(carry, failure, "");
}

/// Destroys NCCL communicators that a failed build() has left.
void end_across(CommState& state) noexcept {
  if (state.engine != nullptr)
    state.engine->end_nccl();
  else if (Comm across = state.across.stored(); across != nullptr)
    native().destroy(across);
}

/// Fills state.engine on all ranks, or throws AgreedError on all.
void agree(CommState& state) {
  SetupExchange setup(state);
  state.children.set_parent(setup.word_of_all());  // also if the ranks stay on NCCL
  const Allgather carry = [&](const std::string& mine) { return setup.allgather(mine); };
  const std::vector<RankRecord> all = exchange_records(state, carry);
  const RankRecord& mine = all[static_cast<std::size_t>(state.rank)];
  if (!setup.word_of_all().empty()) spare_staging(state);
  if (setup.word_of_all().empty()) state.children.set_parent(all[0].host + ' ' + all[0].word);
  setup.synchronize_process(
      all[0].word, static_cast<int>(std::count_if(all.begin(), all.end(), [&](const auto& one) {
        return one.process == mine.process;
      })));
  begin_flight(state, all);
  require_alike(all);
  const Nodes nodes = nodes_of(state, all);
  if (const std::string why = why_not(nodes, all); !why.empty())
    throw AgreedError(ErrorCode::unsupported, why);
  std::vector<std::optional<std::string>> liveness;
  for (const RankRecord& one : all)
    liveness.push_back(one.host == mine.host ? std::optional(one.liveness) : std::nullopt);
  std::shared_ptr<WatchedPeers> peers = open_peer_pages(liveness, state.rank);
  setup.watch_for(peers);
  const AgreedOptions agreed = agreed_on(all);
  state.most_blocks = agreed.most_blocks;
  try {
    if (nodes.count() > 1) vote(carry, attempt([&] { make_across(state, nodes); }), "");
    build(state, nodes, agreed, carry);
  } catch (const AgreedError&) {
    end_across(state);
    state.engine.reset();
    throw;
  }
  state.peers = peers;
  watch(std::move(peers), state, ObserverCalls::look);
}

/// Asks NCCL for rank, ranks and device. Returns false for a communicator of a single rank.
bool identify(CommState& state) {
  if (native().count(state.comm, &state.ranks) != ncclSuccess || state.ranks < 2) return false;
  return native().user_rank(state.comm, &state.rank) == ncclSuccess &&
         native().device(state.comm, &state.device) == ncclSuccess;
}

void attach(CommState* state, bool ready) noexcept {
  const InNative inside;  // this thread's NCCL calls bypass the drop-in
  const auto began = std::chrono::steady_clock::now();
  try {
    if (!ready) {
      wait_ready(*state);
      if (!identify(*state)) {
        state->meeting.reset();
        spare_staging(*state);
        return state->phase.store(AttachPhase::on_nccl);
      }
    }
    platform().enter_thread(state->device);
    try {
      agree(*state);
    } catch (const AgreedError& error) {
      // A rank that died leaves no agreement: peers may have met the death before any vote.
      if (error.code() == ErrorCode::peer_lost) throw;
      state->reason = reason_of(error);
    }
    state->served = settings().served;
    state->min_bytes = settings().env.min_bytes;
    const bool attached = state->reason.empty();
    if (attached)
      log(LogLevel::info, state->rank,
          text("attached to communicator {} of {} ranks in {} ms; {}pid {}, NCCL {} from {}",
               state->comm, state->ranks,
               std::chrono::duration_cast<std::chrono::milliseconds>(
                   std::chrono::steady_clock::now() - began)
                   .count(),
               state->most_blocks == 0 ? "" : text("at most {} blocks; ", state->most_blocks),
               ::getpid(), native().version, native().path));
    else if (state->rank == 0)
      log(first_time(state->reason) ? LogLevel::warn : LogLevel::info, 0,
          text("communicator {} of {} ranks stays on NCCL: {}", state->comm, state->ranks,
               state->reason));
    state->meeting.reset();
    state->launches = launch_order(state->device, state->configured.launches_in_order);
    state->phase.store(attached ? AttachPhase::attached : AttachPhase::on_nccl);
  } catch (const std::exception& error) {
    // A kernel may use the staging for ever, and freeing it would wait for that kernel.
    if (state->staging != nullptr) never_free(std::move(state->staging));
    state->meeting.reset();
    state->reason = error.what();
    state->error = ncclRemoteError;
    log(LogLevel::warn, state->rank, text("attaching failed: {}", state->reason));
    state->phase.store(AttachPhase::failed);
  }
}

/// Attaches in a detached thread. The thread uses the state while the phase is `attaching`; code
/// that removes the state waits for the end of this phase.
void start_attaching(CommState* state, bool ready) {
  try {
    quiet_thread([state, ready] { attach(state, ready); }).detach();
  } catch (const std::system_error& error) {
    state->meeting.reset();
    state->reason = text("no thread to attach in: {}", error.what());
    state->error = ncclSystemError;
    log(LogLevel::warn, state->rank, state->reason);
    state->phase.store(AttachPhase::failed);
  }
}

}  // namespace

void make_with_arenas(const GpuGroup& group, const GpuCallsOptions& options,
                      const Exchange& exchange, const std::function<void(GpuGroup)>& make) {
  const auto distance = [](const std::string& one, const std::string& other) {
    return platform().distance(one, other);
  };
  const auto addresses = [](const std::string& one, const std::string& other) {
    return platform().addresses(one, other);
  };
  const Env& env = settings().env;
  const std::string why = why_no_direct_access(group, env, distance, addresses);
  if (options.knows_links)
    return plait::make_with_arenas(group, exchange, env, why,
                                   direct_peers(group, env, distance, addresses), make);
  if (!why.empty())
    throw Error(ErrorCode::unsupported, text("{}, which plait needs on several nodes", why));
  make(group);
}

void learn_what_beats_nccl(GpuGroup& group, const GpuCallsOptions& options,
                           const Exchange& exchange, const EngineProbes& probes) {
  const std::string why_no_table = why_no_tuning_table(options);
  const int now = native().version;
  FirstStart first;
  first.nccl = text("{}.{}.{}", now / 10000, now / 100 % 100, now % 100);
  first.why_not = options.bitwise             ? "PLAIT_BITWISE is 1"
                  : group.has_broken_paths    ? "NCCL may hang on a broken path"
                  : !group.in_processes       ? "several ranks in one process"
                  : native().split == nullptr ? "NCCL has no ncclCommSplit"
                                              : group.reach.why_no_kernels;
  first.budget_s = probes.budget_s;
  first.arrive_s = settings().env.arrive_s;
  first.bench = probes.bench;
  if (why_no_table.empty()) learn_tuning(group, exchange, settings().env, first);
  if (options.bitwise || group.has_broken_paths) return;
  try {
    require_measured(group, why_no_table);
  } catch (const Error&) {
    const bool is_direct = group.through_host.empty() && group.reach.why_no_kernels.empty();
    if (options.knows_links && is_direct) probes.prove_paths();
    throw;
  }
}

CommSetup::~CommSetup() {
  if (staging == nullptr) return;
  static_cast<void>(
      attempt([&] { spare_stagings().keep(staging_device, staging_ranks, std::move(staging)); }));
}

CommSetup prepare(int ranks, int device, const CommConfig& configured, MeetingName name) noexcept {
  CommSetup prepared;
  prepared.configured = configured;
  prepared.staging_ranks = ranks;
  if (ranks < 2 || native().handle == nullptr) return prepared;
  try {
    const int node_size = settings().env.node_size;  // pretended nodes meet as real ones
    if (!name.name.empty() && node_size > 0) name.name += text(" node {}", name.seat / node_size);
    if (!name.name.empty()) prepared.meeting = std::make_unique<Meeting>(name);
    if (prepared.meeting != nullptr && !prepared.meeting->why_hidden().empty())
      log(LogLevel::info, -1,
          text("set-up records go over NCCL: {}", prepared.meeting->why_hidden()));
  } catch (const std::exception& error) {
    log(LogLevel::info, -1, text("set-up records go over NCCL: {}", error.what()));
  }
  try {
    if (device < 0) device = platform().current_device();
    prepared.staging_device = device;
    if (device >= 0) prepared.staging = spare_stagings().take(device, ranks);
    if (device >= 0 && prepared.staging == nullptr)
      prepared.staging = platform().staging(device, ranks, kSetupBytes);
  } catch (const std::exception&) {  // attaching will fail too, and report it
  }
  return prepared;
}

namespace {

/// Inserts `comm` in the table and returns the state, not yet attached. Returns null for a single
/// rank, a full table or no handle. ready = false: NCCL still makes the communicator in the
/// background.
std::shared_ptr<CommState> enter_table(Comm comm, bool ready, CommSetup prepared) {
  if (comm == nullptr) return nullptr;
  auto state = std::make_unique<CommState>();
  state->comm = comm;
  state->meeting = std::move(prepared.meeting);
  state->staging = std::move(prepared.staging);
  state->staging_ranks = prepared.staging_ranks;
  state->device = prepared.staging_device;  // until identify()
  state->configured = prepared.configured;
  state->order.mix_graphs(mixes_graphs(prepared.configured.mixes_graphs));
  if (ready && !identify(*state)) {
    spare_staging(*state);
    return nullptr;
  }
  // A state is left over if plait did not see the call by which the program destroyed the
  // communicator.
  if (const std::shared_ptr<CommState> left_over = comms().remove(comm, 0)) {
    left_over->cancelled.store(true);
    left_over->attach_s = kUnseenSeconds;
  }
  return comms().insert(std::move(state));
}

/// Attaches all states, each in a helper thread (a program's thread may drive several GPUs), and
/// waits for the threads. Returns ncclSuccess unless an exchange failed.
Result attach_now(const std::vector<std::shared_ptr<CommState>>& states) {
  for (const auto& state : states) start_attaching(state.get(), true);
  for (const auto& state : states) await_attached(*state, kForEver);
  for (const auto& state : states)
    if (state->phase.load() == AttachPhase::failed) return state->error;
  return ncclSuccess;
}

/// Starts attaching and returns; ncclCommGetAsyncError returns ncclInProgress until the end.
void attach_later(CommState& state, bool ready) {
  state.background.store(true);
  start_attaching(&state, ready);
}

Result state_of(Comm comm) {
  const InNative inside;
  Result state = ncclSuccess;
  const Result queried = native().async_error(comm, &state);
  return queried == ncclSuccess ? state : queried;
}

/// Inserts a child in the table, then gives the handle to the program.
std::shared_ptr<CommState> publish_child(NewComm& made) {
  Comm child = made.handle.stored();
  std::shared_ptr<CommState> state = enter_table(child, true, std::move(made.prepared));
  if (state != nullptr) state->background.store(true);
  __atomic_store_n(made.handle_out, child, __ATOMIC_RELEASE);
  return state;
}

/// Runs in a thread of plait: attaches children of parents that are not ready yet, one at a time,
/// since they may have the same parent. A failed parent reports its error itself.
void await_children(std::vector<NewComm>& children) noexcept {
  const InNative inside;
  for (NewComm& child : children) {
    std::shared_ptr<CommState> state;
    try {
      wait_ready(*child.parent);
      state = publish_child(child);
    } catch (const std::exception& error) {
      if (!child.parent->cancelled.load())
        __atomic_store_n(child.handle_out, child.handle.stored(), __ATOMIC_RELEASE);
      log(LogLevel::info, child.parent->rank,
          text("a child of communicator {} stays on NCCL: {}", child.parent->comm, error.what()));
    }
    child.parent->making.fetch_sub(1);
    if (state != nullptr) attach_later(*state, true);
  }
}

void publish_children_later(std::vector<NewComm> children) {
  if (children.empty()) return;
  for (const NewComm& child : children) child.parent->making.fetch_add(1);
  const auto shared = std::make_shared<std::vector<NewComm>>(std::move(children));
  try {
    quiet_thread([shared] { await_children(*shared); }).detach();
  } catch (const std::system_error&) {  // attach in this thread instead
    await_children(*shared);
  }
}

}  // namespace

Result attach_new(std::vector<NewComm>& made, Result result) {
  std::vector<std::shared_ptr<CommState>> now;
  std::vector<NewComm> later;
  for (NewComm& one : made) {
    const bool is_child = one.parent != nullptr;
    Comm queried_comm = is_child ? one.parent->comm : *one.handle_out;
    if (queried_comm == nullptr) continue;
    const Result found = state_of(queried_comm);
    if (found == ncclInProgress && is_child) {
      later.push_back(std::move(one));
    } else if (found == ncclInProgress) {
      if (const auto state = enter_table(queried_comm, false, std::move(one.prepared)))
        attach_later(*state, false);
    } else if (const auto state = is_child
                                      ? publish_child(one)
                                      : enter_table(queried_comm, true, std::move(one.prepared))) {
      state->background.store(false);
      now.push_back(state);
    }
  }
  publish_children_later(std::move(later));
  const Result attached = attach_now(now);
  return attached != ncclSuccess ? attached : result;
}

namespace {

template <class Ready>
bool wait_for(double wait_s, const Ready& is_ready) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(wait_s);
  while (!is_ready()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  return true;
}

}  // namespace

bool await_attached(const CommState& state, double wait_s) {
  return wait_for(wait_s, [&] { return state.phase.load() != AttachPhase::attaching; });
}

bool await_children(const CommState& state, double wait_s) {
  return wait_for(wait_s, [&] { return state.making.load() == 0; });
}

}  // namespace plait::nccl

void plait_nccl_leave_new(int leave) { plait::nccl::leaves_new.store(leave != 0); }

int plait_nccl_has_kernels() { return plait::nccl::platform().has_kernels() ? 1 : 0; }
