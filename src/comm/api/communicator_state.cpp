// Makes and ends communicators: of the ranks of one node or of several, and of pairs of ranks.
#include "comm/api/communicator_state.hpp"

#include <algorithm>

#include "base/log.hpp"
#include "base/text.hpp"
#include "comm/gpu/gpu_side.hpp"
#include "comm/multinode/multinode_device.hpp"

namespace plait {
namespace {

/// Makes the device side of the ranks of one node. pair: null = no pair. why_not: reason against
/// GPUs known so far.
std::unique_ptr<DeviceSide> node_device(const CommunicatorOptions& options, HostSide& host,
                                        const PairOf* pair, std::string why_not) {
  std::unique_ptr<GpuSide> made = GpuSide::create(options, host, pair, why_not);
  if (made == nullptr) return std::make_unique<NoDevice>(std::move(why_not));
  host.watch(made->peers());
  return made;
}

std::string prefix_of(const PairOf& pair) {
  return text("ranks {} and {}, here 0 and 1: ", pair.ranks[0], pair.ranks[1]);
}

void log_pair(const HostSide& host) {
  log(LogLevel::info, host.rank(),
      text("plait {}: {} ranks on {}", PLAIT_VERSION, host.ranks(), host.joined().topology.name));
}

}  // namespace

Communicator::State::State(std::unique_ptr<HostSide> host_side, MakeDevice make)
    : host(std::move(host_side)),
      make_device(std::move(make)),
      device(make_device(host->options())),
      chooser(host->joined().topology, host->joined().forced, host->joined().bitwise, {},
              !host->transport().empty(), host->joined().sum_order) {
  start();
}

Communicator::State::State(std::unique_ptr<HostSide> host_side,
                           std::unique_ptr<DeviceSide> device_side, std::string prefix,
                           std::string device_prefix)
    : host(std::move(host_side)),
      device(std::move(device_side)),
      about(std::move(prefix)),
      device_about(std::move(device_prefix)),
      chooser(host->joined().topology, host->joined().forced, host->joined().bitwise, {},
              !host->transport().empty(), host->joined().sum_order) {
  start();
}

void Communicator::State::start() {
  pairs = std::make_unique<PairCommunicators>(
      host->joined().controls, [this](int place) { return make_pair(place); },
      host->options().interrupt);
  host->complete();
}

Communicator::State::~State() {
  host->abort();  // ends the set-up of pairs
  if (host->is_owner()) {
    end_device_work();
  } else {  // a forked child lacks the pairs' threads
    static_cast<void>(pairs.release());
    for (auto& [peer, one] : far_pairs) static_cast<void>(one.release());
  }
  far_pairs.clear();
  pairs.reset();
  device.reset();  // while the peers can still see this rank
}

void Communicator::State::check_adoption(int ordinal) const {
  if (make_device == nullptr)
    throw Error(ErrorCode::unsupported,
                "adopt_device: this is a pair of ranks; call it on the communicator that the pair "
                "is of, before the first message of the two ranks");
  if (device->ordinal() != kNoDevice)
    throw Error(ErrorCode::invalid_argument,
                text("adopt_device: this communicator has GPU {} already; make another "
                     "communicator for another GPU",
                     device->ordinal()));
  if (ordinal < kDeviceByLauncher || ordinal == kNoDevice)
    throw Error(ErrorCode::invalid_argument,
                text("adopt_device: wanted a CUDA ordinal from 0 on, found {}", ordinal));
}

/// The device side takes part in calls only once all ranks have made theirs.
void Communicator::State::adopt_device(int ordinal) {
  CallDescriptor mine = describe(CallKind::adopt_device, {}, "");
  if (const auto wrong = attempt([&] { check_adoption(ordinal); })) set_error(mine, *wrong);
  CommunicatorOptions options = host->options();
  options.device = ordinal;
  host->in_call(mine, [&] {
    std::unique_ptr<DeviceSide> made = make_device(options);
    if (const auto none = attempt([&] { made->require(); }))
      throw AgreedError(none->code(), reason_of(*none));
    device.replace(std::move(made));
  });
  if (host->peers().aborted()) device->abort();  // abort() came before the side was there
}

/// Runs `before` on this rank, then `body` on all ranks together, while no thread of the ranks
/// makes a call on GPU memory.
void Communicator::State::without_device_calls(CallKind kind, const std::function<void()>& before,
                                               const std::function<void()>& body) {
  CallDescriptor mine = describe(kind, {}, "");
  std::unique_lock<std::mutex> lock;
  const std::optional<Error> wrong = attempt([&] {
    device->require_suspendable();
    lock = host->begin_on_device(kind);
    before();
  });
  if (wrong) set_error(mine, *wrong);
  host->in_call(mine, body);
}

/// Ends device work of this communicator and all pairs together, so that the waits do not add up.
void Communicator::State::end_device_work() {
  std::vector<DeviceSide*> all;
  for (const Communicator* pair : pairs->made()) all.push_back(pair->state_->device.get());
  all.push_back(device.get());
  for (DeviceSide* one : all) one->begin_closing();
  for (DeviceSide* one : all) one->end_work();
}

/// Gives the pair its GPUs if both ranks have one. One rank may adopt its GPU while the other waits
/// for the pair.
void Communicator::State::lend_device(PairOf& pair, Rendezvous& both) const {
  device->lend_to(pair);
  const Deadline deadline{deadline_in(host->options().arrive_s), pair.check};
  const std::string mine = pair.device == kNoDevice ? "none" : "gpu";
  bool all_alike = true;
  for (const Contribution& one : vote(both, std::nullopt, mine, {}, deadline))
    all_alike = all_alike && one.bytes == mine;
  if (all_alike) return;
  pair.device = kNoDevice;
  pair.why_no_gpu = "one of the two ranks had no GPU when they met; call adopt_device() before";
}

/// Makes a pair with a rank of my node, in a separate thread.
std::unique_ptr<Communicator> Communicator::State::make_pair(int place) {
  PairOf pair = host->pair_at(place);
  const std::string waiting = text("rank {} waits for it to send or receive", rank());
  pair.check = [this, place, waiting] { host->peers().check_one(place, waiting); };
  return make([&] {
    Joined joined = join(pair_options(host->options(), pair), &pair);
    lend_device(pair, *joined.rendezvous);
    const CommunicatorOptions options = pair_options(host->options(), pair);
    auto two = std::make_unique<HostSide>(options, std::move(joined), pair.devices);
    std::unique_ptr<DeviceSide> gpus = node_device(options, *two, &pair, pair.why_no_gpu);
    log_pair(*two);
    return std::make_unique<State>(std::move(two), std::move(gpus), prefix_of(pair),
                                   prefix_of(pair));
  });
}

/// Returns the pair with a rank of another node.
Communicator& Communicator::State::far_pair(int peer) {
  const std::lock_guard lock(guard);
  std::unique_ptr<Communicator>& made = far_pairs[peer];
  if (made != nullptr) return *made;
  made = make([&] {
    PairOf pair;
    std::unique_ptr<HostSide> two = host->far_pair(peer, pair);
    std::unique_ptr<DeviceSide> gpus = device->far_pair(peer, *two);
    log_pair(*two);
    return std::make_unique<State>(std::move(two), std::move(gpus), prefix_of(pair));
  });
  return *made;
}

std::vector<Communicator*> Communicator::State::all_pairs() {
  std::vector<Communicator*> all = pairs->made();
  const std::lock_guard lock(guard);
  for (const auto& [peer, one] : far_pairs)
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
    Multinode nodes = join_multinode(options, read_env());
    if (nodes.transport_comm == nullptr) {
      auto host = std::make_unique<HostSide>(options, join(options, nullptr));
      const auto make_device = [&side = *host](const CommunicatorOptions& how) {
        return node_device(how, side, nullptr, "");
      };
      return std::make_unique<State>(std::move(host), make_device);
    }
    auto host = std::make_unique<MultinodeHostSide>(options, std::move(nodes));
    const auto make_device = [&side = *host](const CommunicatorOptions& how) {
      return MultinodeDevice::create(how, side);
    };
    return std::make_unique<State>(std::move(host), make_device);
  });
}

}  // namespace plait
