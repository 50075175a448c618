// Communicator: publishes a call to all ranks, agrees, plans, proves and runs the call. An error
// before the agreement leaves all ranks in step; a later error ends the communicator.
#include "plait/communicator.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <functional>

#include "base/error_reason.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "comm/api/communicator_state.hpp"
#include "comm/bootstrap/interrupt.hpp"
#include "comm/bootstrap/links.hpp"
#include "comm/choose/choose.hpp"
#include "comm/choose/multinode_choice.hpp"
#include "comm/gpu/gpu_side.hpp"
#include "comm/multinode/gpu_multinode.hpp"
#include "comm/multinode/multinode.hpp"
#include "comm/node/setup.hpp"
#include "comm/p2p/pairs.hpp"
#include "comm/shm/buffers.hpp"

namespace plait {

namespace {

constexpr const char* kFarPair =
    "between GPUs of two nodes NCCL sends and receives alone: wanted send, recv or exchange_with "
    "and no strategy";

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

}  // namespace

Communicator::State::State(const CommunicatorOptions& given, const PairOf* pair, Multinode nodes)
    : options(given),
      multinode(std::move(nodes)),
      joined(multinode.transport_comm == nullptr
                 ? join(given, pair)
                 : publish_errors(*multinode.transport_comm, [&] { return join_nodes(pair); })),
      device(multinode.transport_comm != nullptr
                 ? publish_errors(*multinode.transport_comm, [&] { return multinode_device(pair); })
                 : GpuSide::create(given, joined, pair, why_no_gpu)),
      peers(std::move(joined.peers)),
      chooser(joined.topology, joined.forced, joined.bitwise, {},
              multinode.transport_comm != nullptr) {
  peers.use(&joined.controls, device == nullptr ? nullptr : device->peers());
  peers.set_meanwhile(given.meanwhile);
  peers.set_interrupt(given.interrupt);
  pairs = std::make_unique<PairCommunicators>(
      joined.controls, [this](int peer) { return make_pair(peer); }, given.interrupt);
  if (multinode.transport_comm != nullptr) name_peers();
  if (multinode.transport_comm != nullptr && device != nullptr) join_rails();
  if (pair == nullptr) return;
  about = text("ranks ", pair->ranks[0], " and ", pair->ranks[1], ", here 0 and 1: ");
  devices = pair->devices;
  if (!pair->why_no_gpu.empty()) why_no_gpu = pair->why_no_gpu;
  log(LogLevel::info, rank(),
      text("plait ", PLAIT_VERSION, ": ", ranks(), " ranks on ", joined.topology.name));
}

Deadline Communicator::State::deadline_after(double seconds) {
  return {deadline_in(seconds), [this] {
            peers.check("a call between nodes");
            peers.meanwhile();
          }};
}

CommunicatorOptions Communicator::State::in_node() const {
  CommunicatorOptions here = options;
  here.rank = multinode.nodes.place;
  here.ranks = multinode.nodes.size();
  here.rendezvous.clear();
  here.unique_id.clear();
  here.topology.clear();
  return here;
}

/// Makes the GPU side in each node. All ranks of all nodes have a GPU, or none. Pairs have none.
std::unique_ptr<GpuSide> Communicator::State::multinode_device(const PairOf* pair) {
  if (pair != nullptr) return nullptr;
  std::unique_ptr<GpuSide> made;
  const CallOptions forced = joined.forced;
  // A multi-node strategy names no engine inside a node, so calls in the node choose freely.
  if (!multinode_algo(forced.strategy).strategy.empty()) joined.forced = {};
  const std::optional<Error> error =
      attempt([&] { made = GpuSide::create(in_node(), joined, nullptr, why_no_gpu); });
  joined.forced = forced;
  const Deadline arrival_deadline{deadline_in(options.arrive_s), now_and_then(options.interrupt)};
  plait::agree(*multinode.transport_comm, error, arrival_deadline);
  const std::string word = made != nullptr      ? ""
                           : why_no_gpu.empty() ? "it was asked for none"
                                                : why_no_gpu;
  int rank = 0;
  for (const std::string& why : multinode.transport_comm->exchange(word, arrival_deadline)) {
    if (!why.empty()) why_no_gpu = text("rank ", rank, " has none: ", why);
    if (!why.empty()) return nullptr;
    ++rank;
  }
  return made;
}

/// Returns this rank's connection between the node and GpuMultinode.
NodeSide Communicator::State::node_side() {
  NodeSide side;
  side.calls = &device->calls();
  side.failure = [this] { return device->cause(); };
  side.fail = [this](const Error& error) { device->fail(error); };
  side.poll_failures = [this] {
    if (const auto remote_failure = attempt([&] { multinode.transport_comm->check(); }))
      device->fail(*remote_failure);
  };
  side.publish_failure = [this](const Error& cause) {
    multinode.transport_comm->publish_failure(cause);
  };
  side.name = [this](int rank) { return multinode.transport_comm->name_of_rank(rank); };
  return side;
}

/// Sets up NCCL between nodes. If only the launcher chose GPUs, a failure leaves the communicator
/// without GPUs.
void Communicator::State::join_rails() {
  constexpr double kAnswerS =
      2.0;  // after NCCL's timeout, ranks still exchange the missing ranks' names
  const Deadline arrival_deadline = deadline_after(options.arrive_s),
                 answers = deadline_after(options.arrive_s + kAnswerS);
  const cuda::Exchange exchange = [&](const std::string& mine) {
    return multinode.transport_comm->exchange(mine, answers);
  };
  try {
    rails = std::make_unique<GpuMultinode>(
        multinode.nodes, node_side(),
        GpuMultinodeOptions{joined.forced, joined.bitwise, options.graph_mixing, options.arrive_s},
        exchange, arrival_deadline);
  } catch (const AgreedError& error) {
    if (options.device != kDeviceByLauncher) throw;
    why_no_gpu = reason_of(error);
    log(LogLevel::warn, rank(), text("no GPUs: ", why_no_gpu));
    device.reset();
  }
}

/// Joins the ranks of my node, then checks that all nodes have joined. pair: two ranks of different
/// nodes, connected already.
Joined Communicator::State::join_nodes(const PairOf* pair) {
  CommunicatorOptions here = in_node();
  here.device = kNoDevice;
  Joined made;
  const Deadline arrival_deadline{deadline_in(options.arrive_s), now_and_then(options.interrupt)};
  SocketLinks links;
  if (pair == nullptr) {
    links = link_ranks(here.rank, here.ranks, [&](const auto& wrong, const std::string& word) {
      std::vector<std::string> words;
      plait::agree(*multinode.transport_comm, wrong, arrival_deadline, word, &words);
      return words[static_cast<std::size_t>(multinode.nodes.peers()[0])];
    });
    here.rendezvous = links.rendezvous();
  }
  const std::optional<Error> error = attempt([&] { made = join(here, nullptr); });
  links = {};  // closed before ranks wait for each other, so that ranks still in join() see the end
  if (pair != nullptr && error) throw Error(*error);
  if (pair == nullptr) plait::agree(*multinode.transport_comm, error, arrival_deadline);
  made.topology = pair == nullptr ? topology_of(multinode, arrival_deadline) : pair->topology;
  for (const int rank : multinode.nodes.peers())
    made.names.push_back(multinode.transport_comm->name_of_rank(rank));
  return made;
}

/// Names my node's ranks as all nodes do, and sets the check for failures of other nodes.
void Communicator::State::name_peers() {
  if (devices.empty()) devices = devices_of(joined.topology, multinode.nodes);
  peers.set_names(joined.names);
  peers.set_remote_check([this] { multinode.transport_comm->check(); });
}

Communicator::State::~State() {
  peers.abort();                                 // ends the set-up of pairs
  if (getpid() != owner) (void)pairs.release();  // a forked child lacks the pairs' threads
  if (pairs != nullptr) end_device_work();
  if (getpid() != owner)
    for (auto& [peer, one] : remote_pairs) static_cast<void>(one.release());
  remote_pairs.clear();
  pairs.reset();
  if (getpid() != owner) static_cast<void>(rails.release());
  rails.reset();
  device.reset();  // while the peers can still see this rank
  if (multinode.transport_comm != nullptr &&
      (getpid() != owner || !multinode.transport_comm->drop_all())) {
    // A forked child must not call the parent's MPI, and messages under way may still write.
    static_cast<void>(multinode.transport_comm.release());
    static_cast<void>(new std::vector<Mapping>(std::move(arena_memory)));
  }
  if (getpid() == owner) joined.controls.leave();
}

/// Places the request on this communicator's devices if the caller names none.
Request Communicator::State::placed(const Request& request) const {
  Request there = normal(request);
  if (there.devices.empty()) there.devices = devices;
  return there;
}

std::shared_ptr<const ProvedPlan> Communicator::State::plan_for(const Request& request,
                                                                const CallOptions& how) {
  if (request.count > 1 << 20) check_size(checked(request, joined.topology));
  return chooser.plan_for(request, how);
}

/// Stores the first failure and reports to peers at once.
void Communicator::State::fail(const Error& error) {
  const std::lock_guard lock(guard);
  if (!failure) failure = error;
  joined.controls.raise_failure(error.code(), reason_of(error));
  if (multinode.transport_comm != nullptr) {
    static_cast<void>(multinode.transport_comm
                          ->drop_all());  // first, since a published failure lets messages go on
    if (about.empty())
      multinode.transport_comm->publish_failure(
          error);  // a pair's failure concerns the two ranks alone
  }
  log(LogLevel::warn, rank(), text("communicator failed: ", error.what()));
}

std::optional<Error> Communicator::State::failed() {
  const std::lock_guard lock(guard);
  if (failure)
    return Error(ErrorCode::aborted, text("this communicator ended earlier: ", failure->what()));
  if (peers.aborted()) return Error(ErrorCode::aborted, "abort() was called on this communicator");
  return std::nullopt;
}

/// Returns the error that all ranks of my node throw for the call, if any.
std::optional<Error> Communicator::State::agree(const CallDescriptor& mine,
                                                const OwnCounts* counts) {
  const Controls& controls = joined.controls;
  ++call;
  peers.begin_call(call);
  controls.enter(call, mine, counts);
  controls.await_entered(call, options.arrive_s, peers);
  if (controls.all_same_call(call)) return std::nullopt;
  std::vector<CallDescriptor> all;
  for (int peer = 0; peer < local_ranks(); ++peer) all.push_back(controls.of(peer).calls[call % 2]);
  return call_error(
      all, multinode.transport_comm == nullptr ? std::vector<int>{} : multinode.nodes.peers());
}

/// Checks before every call: same process, a single thread at a time, no earlier failure.
std::unique_lock<std::mutex> Communicator::State::begin() {
  if (forks_so_far() != forks)
    throw Error(ErrorCode::invalid_argument,
                "this communicator belongs to the process that forked; make one in the child");
  std::unique_lock lock(calling, std::try_to_lock);
  if (!lock.owns_lock())
    throw Error(ErrorCode::invalid_argument,
                "two threads call one communicator at once; use one for each");
  if (const auto earlier = failed()) throw Error(*earlier);
  caller.store(std::this_thread::get_id());
  return lock;
}

GpuSide& Communicator::State::gpu() const {
  if (device != nullptr) return *device;
  throw Error(ErrorCode::no_device,
              why_no_gpu.empty()
                  ? "this communicator has no GPU: make it with a device (PLAIT_DEVICE)"
                  : text("this communicator has no GPU: ", why_no_gpu));
}

void Communicator::State::in_call(const CallDescriptor& mine, const Body& body,
                                  const OwnCounts* counts) {
  const std::unique_lock<std::mutex> lock = begin();
  std::optional<Error> refused;
  const auto steps = [&] {
    refused = agree(mine, counts);
    if (multinode.transport_comm != nullptr)
      refused = multinode_call_error(*multinode.transport_comm, mine, refused,
                                     deadline_after(options.arrive_s));
    if (refused) return;
    try {
      body();
    } catch (const AgreedError& error) {
      refused = error;
    }
  };
  const std::optional<Error> broken = attempt(std::cref(steps));
  if (broken) {
    const Error cause = peers.cause_of(*broken);
    fail(cause);
    throw cause;
  }
  joined.controls.finish(call);
  if (refused) throw AgreedError(refused->code(), reason_of(*refused));
}

/// Grows the arenas. All ranks hold equal sizes and see the same plan, so all grow or none.
void Communicator::State::ensure_arenas(const ArenaSizes& wanted) {
  ArenaSizes sizes = arenas.sizes;
  sizes.ranks = ranks();
  if (arena_memory.empty()) sizes.flags_per_pair = 0;
  sizes.flags_per_pair = std::max({sizes.flags_per_pair, wanted.flags_per_pair, 64});
  sizes.scratch_bytes = rounded(wanted.scratch_bytes, sizes.scratch_bytes);
  sizes.inbox_bytes = rounded(wanted.inbox_bytes, sizes.inbox_bytes);
  sizes.ring_bytes = rounded(wanted.ring_bytes, sizes.ring_bytes);
  sizes.relay_bytes = rounded(wanted.relay_bytes, sizes.relay_bytes);
  if (!arena_memory.empty() && sizes == arenas.sizes) return;
  // Memory is committed here, at 100 MB/s or faster on any machine under load.
  const double allowed_s =
      options.deadline_s + static_cast<double>(arena_bytes(sizes)) * ranks() / 1e8;
  const Deadline deadline{deadline_in(allowed_s), [this] {
                            peers.check(text("rank ", rank(), " waits for the others' arenas"));
                            peers.meanwhile();
                          }};
  std::vector<Mapping> fresh;
  const auto share = [&] {
    fresh =
        share_memory(*joined.rendezvous, local_rank(), local_ranks(), arena_bytes(sizes), deadline);
  };
  if (multinode.transport_comm == nullptr)
    share();
  else
    plait::agree(*multinode.transport_comm, attempt(share), deadline);
  arena_memory = std::move(fresh);
  arenas.sizes = sizes;
  arenas.base.assign(static_cast<std::size_t>(ranks()), nullptr);
  for (std::size_t place = 0; place < arena_memory.size(); ++place) {
    const std::size_t rank = multinode.transport_comm == nullptr
                                 ? place
                                 : static_cast<std::size_t>(multinode.nodes.peers()[place]);
    arenas.base[rank] = arena_memory[place].base();
  }
  epoch = 0;  // new flags start at 0
  log(LogLevel::info, rank(), text("arenas of ", arena_bytes(sizes), " bytes"));
}

/// Returns the scalars by rank; exchanges scalars between nodes if the plan needs all.
std::vector<double> Communicator::State::scalars_of(const ProvedPlan& plan) {
  if (plan.plan.request.op != ReduceOp::premul_sum) return {};
  std::vector<double> scalars;
  if (multinode.transport_comm == nullptr) {
    for (int rank = 0; rank < ranks(); ++rank)
      scalars.push_back(joined.controls.scalar_of(rank, call));
    return scalars;
  }
  const double mine = joined.controls.scalar_of(local_rank(), call);
  for (const std::string& record : multinode.transport_comm->exchange(
           std::string(reinterpret_cast<const char*>(&mine), sizeof mine),
           deadline_after(options.arrive_s)))
    std::memcpy(&scalars.emplace_back(), record.data(), sizeof mine);
  return scalars;
}

void Communicator::State::run(const std::shared_ptr<const ProvedPlan>& proved, const void* input,
                              void* output) {
  const ProvedPlan& plan = *proved;
  ensure_arenas(plan.sizes);
  std::vector<std::byte> stage;
  CpuCall now;
  now.input = usable_input(plan.plan.request, rank(), input, output, stage);
  now.output = output;
  now.scalars = scalars_of(plan);
  now.library = multinode.transport_comm.get();
  now.epoch = epoch;
  now.parity = parity;
  now.deadline_ns = deadline_in(options.deadline_s + allowance_s(plan.plan.request));
  try {
    run_cpu(plan.plan, rank(), arenas, now, peers);
  } catch (...) {  // messages under way may still read the buffer
    if (multinode.transport_comm != nullptr && !multinode.transport_comm->drop_all())
      static_cast<void>(new std::vector<std::byte>(std::move(stage)));
    throw;
  }
  epoch += plan.epochs;
  if (plan.uses_inbox) parity ^= 1;
  count(proved);
}

/// Consecutive calls of a plan share a table look-up.
void Communicator::State::count(const std::shared_ptr<const ProvedPlan>& plan) {
  const std::lock_guard lock(guard);
  if (counted != plan) {
    counters = counted_so_far();
    counted = plan;
    counted_calls = 0;
  }
  ++counted_calls;
}

/// Called with the guard held.
Counters Communicator::State::counted_so_far() {
  Counters all = counters;
  if (counted == nullptr) return all;
  all.calls += counted_calls;
  all.calls_of[counted->counted_as] += counted_calls;
  for (const auto& [path, bytes] : counted->bytes_of_path)
    all.bytes_of_path[path] += bytes * counted_calls;
  return all;
}

/// Ends device work of this communicator and all pairs together, so that the waits do not add up.
void Communicator::State::end_device_work() {
  std::vector<GpuSide*> all;
  for (const Communicator* pair : pairs->made()) all.push_back(pair->state_->device.get());
  all.push_back(device.get());
  std::erase(all, nullptr);
  for (GpuSide* one : all) one->begin_closing();
  for (GpuSide* one : all) one->end_work();
}

CommunicatorOptions Communicator::State::pair_options(const PairOf& pair) const {
  CommunicatorOptions made = options;
  made.rank = rank() == pair.ranks[0] ? 0 : 1;
  made.ranks = 2;
  made.rendezvous = pair.rendezvous;
  made.unique_id.clear();
  made.device = pair.device_bytes == 0 ? kNoDevice : device->ordinal();
  made.sm_budget = cuda::pair_blocks(std::max(local_ranks(), 2), options.sm_budget);
  return made;
}

/// Makes a pair in a separate thread. A capture elsewhere in the process must not be disturbed.
std::unique_ptr<Communicator> Communicator::State::make_pair(int peer) {
  int mode = cuda::kCaptureRelaxed;
  if (device != nullptr) cuda::api().exchange_capture_mode(&mode);
  PairOf pair = pair_of(joined, local_rank(), peer);
  if (multinode.transport_comm != nullptr) rename(pair);
  if (device != nullptr) {
    const cuda::ArenaTiers& tiers = device->calls().rank().full_group().tiers;
    pair.device_bytes = tiers.pair_bytes;
    if (tiers.pair_bytes == 0)
      pair.why_no_gpu =
          text("it wants ", cuda::kArenaGrainBytes >> 20, " MiB of device memory; ", tiers.budget,
               " leaves none for ", local_ranks() - 1, " pairs of ranks");
  }
  const std::string waiting = text("rank ", rank(), " waits for it to send or receive");
  pair.check = [this, peer, waiting] { peers.check_one(peer, waiting); };
  return make([&] { return std::make_unique<State>(pair_options(pair), &pair, Multinode{}); });
}

/// Maps a pair's ranks from numbers in my node to numbers among all nodes.
void Communicator::State::rename(PairOf& pair) const {
  pair.devices.clear();
  for (int& one : pair.ranks) {
    one = multinode.nodes.peers()[static_cast<std::size_t>(one)];
    pair.devices.push_back(devices[static_cast<std::size_t>(one)]);
  }
}

/// Returns the pair with a rank of another node. This rank makes the pair alone, since the
/// transport joins the two already. Each call begins with a message from the peer.
Communicator& Communicator::State::remote_pair(int peer) {
  const std::lock_guard lock(guard);
  std::unique_ptr<Communicator>& made = remote_pairs[peer];
  if (made != nullptr) return *made;
  PairOf pair;
  pair.ranks = {std::min(rank(), peer), std::max(rank(), peer)};
  pair.topology = joined.topology;
  for (const int one : pair.ranks) pair.devices.push_back(devices[static_cast<std::size_t>(one)]);
  const CommunicatorOptions two = pair_options(pair);
  made = make([&] {
    return std::make_unique<State>(
        two, &pair,
        Multinode{multinode.transport_comm->between(peer), {{{0}, {1}}, two.rank, 0}, ""});
  });
  if (rails != nullptr) made->state_->remote_link = {this, peer};
  return *made;
}

/// Sends within a pair across nodes on the larger communicator's GPUs.
void Communicator::State::send_remote(const Request& request, const void* input, void* output,
                                      void* stream, const CallOptions& how) const {
  const bool is_message = request.collective == Collective::copy && request.root != request.peer;
  if ((!is_message && request.collective != Collective::send_recv) || request.ranks != 2 ||
      !how.strategy.empty())
    throw Error(ErrorCode::unsupported, kFarPair);
  remote_link.whole->rails->message(remote_link.peer, request, rank(), input, output, stream,
                                    remote_link.whole->is_caller());
}

Communicator& Communicator::State::pair_with(int peer) {
  if (multinode.transport_comm == nullptr) return pairs->get(peer);
  const std::vector<int>& here = multinode.nodes.peers();
  const auto at = std::find(here.begin(), here.end(), peer);
  return at == here.end() ? remote_pair(peer) : pairs->get(static_cast<int>(at - here.begin()));
}

std::vector<Communicator*> Communicator::State::all_pairs() {
  std::vector<Communicator*> all = pairs->made();
  const std::lock_guard lock(guard);
  for (const auto& [peer, one] : remote_pairs)
    if (one != nullptr) all.push_back(one.get());
  return all;
}

Communicator::Communicator(std::unique_ptr<State> state) : state_(std::move(state)) {}
Communicator::~Communicator() = default;

std::unique_ptr<Communicator> Communicator::make(
    const std::function<std::unique_ptr<State>()>& make_state) {
  try {
    return std::unique_ptr<Communicator>(new Communicator(make_state()));
  } catch (const AgreedError& error) {
    throw Error(error);
  }
}

std::unique_ptr<Communicator> Communicator::create(const CommunicatorOptions& options) {
  return make([&] {
    return std::make_unique<State>(options, nullptr, join_multinode(options, read_env()));
  });
}

int Communicator::rank() const { return state_->rank(); }
int Communicator::ranks() const { return state_->ranks(); }
std::string Communicator::transport() const {
  return state_->multinode.transport_comm == nullptr
             ? ""
             : state_->multinode.transport_comm->transport().name();
}
const Topology& Communicator::topology() const { return state_->joined.topology; }

void Communicator::enqueue(const Request& given, const void* input, void* output, void* stream,
                           const CallOptions& options) {
  const std::optional<Request> blocks =
      given.counts.empty() ? std::nullopt : std::optional(normal(given));
  const Request& request = blocks ? *blocks : given;
  state_->with_context([&] {
    const std::unique_lock<std::mutex> lock = state_->begin();
    if (state_->rails != nullptr)
      state_->rails->enqueue(request, input, output, stream, options);
    else if (state_->remote_link.whole != nullptr)
      state_->send_remote(request, input, output, stream, options);
    else
      state_->gpu().enqueue(request, input, output, stream, options);
  });
}

void Communicator::check() {
  if (const State* const whole = state_->remote_link.whole)
    return whole->rails->check(whole->is_caller());
  if (state_->rails != nullptr)
    state_->rails->check(state_->is_caller());
  else
    state_->with_context([&] { state_->gpu().check(); });
  for (Communicator* pair : state_->all_pairs())  // pairs across nodes use the rails
    if (pair->device() != kNoDevice && pair->state_->remote_link.whole == nullptr) pair->check();
}

int Communicator::device() const {
  const GpuSide* const side = state_->gpu_side();
  return side == nullptr ? kNoDevice : side->ordinal();
}

const Topology& Communicator::device_topology() const {
  const GpuSide* const side = state_->gpu_side();
  return side == nullptr ? topology() : side->topology();
}

bool Communicator::on_device(const void* pointer) const {
  const GpuSide* const side = state_->gpu_side();
  return side != nullptr && side->calls().on_device(pointer);
}

void Communicator::run(const Plan& given, const void* input, void* output, double scalar) {
  State& state = *state_;
  std::shared_ptr<const ProvedPlan> plan;
  CallDescriptor mine = describe(CallKind::plan, given.request, "");
  mine.scalar = scalar;
  const std::optional<Error> failure = attempt([&] {
    if (given.request.ranks != ranks())
      throw Error(ErrorCode::invalid_argument,
                  text("plan for ", given.request.ranks, " ranks, communicator of ", ranks()));
    if (state.multinode.transport_comm != nullptr && given.request.devices != state.devices)
      throw Error(
          ErrorCode::invalid_argument,
          "plan: wanted one for this communicator's devices (plan_for), since its ranks are "
          "on several nodes");
    plan = state.chooser.proved(given);
    check_buffers(plan->plan.request, rank(), input, output, state.writable);
    mine.plan_hash = plan->hash;
  });
  if (failure) set_error(mine, *failure);
  state.in_call(mine, [&] { state.run(plan, input, output); });
}

void Communicator::barrier() {
  state_->in_call(describe(CallKind::barrier, {}, ""), [] {});
}

std::vector<std::string> Communicator::exchange(const std::string& mine) {
  State& state = *state_;
  constexpr std::size_t kMost = 1 << 20;
  CallDescriptor descriptor = describe(CallKind::exchange, {}, "");
  if (mine.size() > kMost)
    set_error(descriptor,
              Error(ErrorCode::invalid_argument,
                    text("exchange: wanted at most ", kMost, " bytes, found ", mine.size())));
  std::vector<std::string> all;
  state.in_call(descriptor, [&] {
    const Deadline deadline{deadline_in(state.options.deadline_s), [&] {
                              state.peers.check(text("rank ", rank(), " waits in exchange"));
                            }};
    if (state.multinode.transport_comm != nullptr) {
      all = state.multinode.transport_comm->exchange(mine, deadline);
      return;
    }
    for (Contribution& one : state.joined.rendezvous->allgather(mine, {}, deadline))
      all.push_back(std::move(one.bytes));
  });
  return all;
}

std::optional<Error> Communicator::refuse(ErrorCode code, const std::string& reason) {
  CallDescriptor mine = describe(CallKind::collective, {}, "");
  set_error(mine, Error(code == ErrorCode::ok ? ErrorCode::internal : code, reason));
  try {
    state_->in_call(mine, [] {});
  } catch (const AgreedError& agreed) {
    return agreed;
  } catch (const Error&) {  // the caller has another error to report
  }
  return std::nullopt;
}

Communicator& Communicator::pair(int peer) {
  State& state = *state_;
  if (peer < 0 || peer >= ranks() || peer == rank())
    throw Error(ErrorCode::invalid_argument,
                text("wanted another rank of ", ranks(), " to send to or receive from, found ",
                     peer, " at rank ", rank()));
  if (getpid() != state.owner)
    throw Error(ErrorCode::invalid_argument,
                "this communicator belongs to the process that forked; make one in the child");
  if (const auto earlier = state.failed()) throw Error(*earlier);
  if (!state.about.empty()) return *this;  // this communicator is the pair
  Communicator& made = state.pair_with(peer);
  if (state.peers.aborted()) made.abort();  // abort() came before the pair was made
  return made;
}

Plan Communicator::plan_for(const Request& request, const CallOptions& options) const {
  return state_->plan_for(state_->placed(request), options)->plan;
}

std::string Communicator::explain(const Request& request) const {
  std::string lines = state_->chooser.explain(state_->placed(request));
  if (state_->rails != nullptr)
    lines += state_->rails->explain(request);
  else if (state_->device != nullptr)
    lines += state_->device->calls().explain(request);
  return lines;
}

Counters Communicator::counters() const {
  Counters counters;
  {
    const std::lock_guard lock(state_->guard);
    counters = state_->counted_so_far();
  }
  if (state_->rails != nullptr)
    state_->rails->add_to(counters);
  else if (state_->device != nullptr)
    state_->device->calls().add_to(counters);
  for (const Communicator* pair : state_->all_pairs()) add(counters, pair->counters());
  return counters;
}

void Communicator::abort() noexcept {
  if (getpid() != state_->owner) return;
  state_->peers.abort();
  state_->pairs->abort();
  {
    const std::lock_guard lock(state_->guard);
    for (const auto& [peer, one] : state_->remote_pairs)
      if (one != nullptr) one->abort();
  }
  if (state_->device != nullptr) state_->device->abort();
  if (state_->rails != nullptr) state_->rails->abort();
  state_->joined.controls.raise_failure(ErrorCode::aborted, "abort() was called");
}

}  // namespace plait
