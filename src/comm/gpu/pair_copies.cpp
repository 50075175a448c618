// Chooses the plan of a copy. A new host share is planned after a call is enqueued, while the GPUs
// copy (0.2 to 0.6 ms on the host). Until then calls run with the next smaller share available.
#include "comm/gpu/pair_copies.hpp"

#include <algorithm>

#include "base/text.hpp"
#include "plait/error.hpp"
#include "plait/report.hpp"

namespace plait {
namespace {

constexpr std::size_t kMostPlans = 512;  // above that the cache is cleared
constexpr std::uint64_t kSlots = 4;      // slots of a host ring (striped.cpp)

std::uint64_t host_bytes(const Plan& plan) {
  std::uint64_t bytes = 0;
  for (const Stripe& stripe : plan.stripes)
    if (stripe.route == "host") bytes += stripe.bytes;
  return bytes;
}

}  // namespace

PairCopies::PairCopies(Topology topology, std::vector<int> devices, const cuda::Api& driver)
    : driver_(driver), topology_(std::move(topology)), devices_(std::move(devices)) {}

int PairCopies::device_of(int ordinal) const {
  const int device = ordinal >= 0 && ordinal < static_cast<int>(devices_.size())
                         ? devices_[static_cast<std::size_t>(ordinal)]
                         : -1;
  if (device < 0)
    throw Error(ErrorCode::no_device, text("wanted GPU {} in topology {}, which has {}", ordinal,
                                           topology_.name, rank_devices(topology_).size()));
  return device;
}

Plan PairCopies::make_plan(const OrdinalPair& pair, std::uint64_t bytes, Params params) const {
  if (const auto relay = params.find("relay"); relay != params.end())
    relay->second = device_of(static_cast<int>(relay->second));
  Request request;
  request.collective = pair.both_ways ? Collective::send_recv : Collective::copy;
  request.type = DataType::uint8;
  request.count = bytes;
  request.ranks = 2;
  request.peer = 1;
  request.devices = {device_of(pair.src), device_of(pair.dst)};
  Plan plan = propose_one(topology_, request, "striped", params);
  if (const Report report = verify(plan); !report.proved())
    throw Error(ErrorCode::internal, text("plan {} is not right: {}", label(plan), print(report)));
  return plan;
}

/// Returns the division of a plan's message. A host share can be dropped only if a direct link
/// carries the rest.
PairCopies::HostShareCut PairCopies::cut_of(const Plan& plan) const {
  HostShareCut cut;
  double direct_gb_per_s = 0.0;
  for (const Path& path : plan.paths) {
    if (path.kind == PathKind::host) continue;
    if (path.kind != PathKind::nvlink) return cut;
    const double gb_per_s = path_gb_per_s(topology_, path);
    direct_gb_per_s = direct_gb_per_s > 0.0 ? std::min(direct_gb_per_s, gb_per_s) : gb_per_s;
  }
  const std::uint64_t by_host = host_bytes(plan);
  if (direct_gb_per_s <= 0.0 || by_host == 0 || by_host == plan.request.count) return cut;
  if (plan.ring_bytes.at(0) < kSlots << 10) return cut;
  cut.bytes = plan.request.count;
  cut.size = {static_cast<double>(by_host) / static_cast<double>(cut.bytes),
              static_cast<double>(cut.bytes) / direct_gb_per_s};
  cut.chunk_bytes = plan.ring_bytes.at(0) / kSlots;
  return cut;
}

PairCopies::Params PairCopies::params_at(int level, const HostShareCut& cut) {
  if (level >= cuda::HostShare::kLevels) return {};
  if (level <= 0) return {{"host_permille", 0}};
  // Shares are rounded to quarters of a chunk.
  const double least = static_cast<double>(cut.chunk_bytes) / 4.0 / static_cast<double>(cut.bytes);
  return {{"host_permille", cuda::permille_at(level, cut.size, least)},
          {"chunk_kib", static_cast<std::int64_t>(cut.chunk_bytes >> 10)}};
}

cuda::OneProcess& PairCopies::node(const OrdinalPair& pair) {
  auto& node = nodes_[pair];
  if (node == nullptr) node = std::make_unique<cuda::OneProcess>(driver_);
  return *node;
}

cuda::OneProcess& PairCopies::node_of(const OrdinalPair& pair) {
  const std::lock_guard hold(guard_);
  return node(pair);
}

PairCopies::PreparedCopyRef PairCopies::make(const OrdinalPair& pair, std::uint64_t bytes,
                                             const Params& params) {
  const Plan plan = make_plan(pair, bytes, params);
  std::vector<int> ordinals{pair.src, pair.dst};
  for (const int relay_device : plan.relay_devices)
    ordinals.push_back(static_cast<int>(std::find(devices_.begin(), devices_.end(), relay_device) -
                                        devices_.begin()));
  auto made = std::make_shared<PreparedCopy>();
  made->bound = node(pair).bind(plan, ordinals);
  if (!made->bound.senders.empty()) made->cut = cut_of(plan);
  return made;
}

PairCopies::PreparedCopyRef PairCopies::ready(const OrdinalPair& pair, std::uint64_t bytes,
                                              const Params& params) {
  auto key = std::tuple(pair, bytes, params);
  if (const auto found = plans_.find(key); found != plans_.end()) return found->second;
  PreparedCopyRef made = make(pair, bytes, params);
  if (plans_.size() >= kMostPlans) plans_.clear();
  return plans_[std::move(key)] = made;
}

Plan PairCopies::plan_for(const OrdinalPair& pair, std::uint64_t bytes, const Params& params) {
  Plan plan = make_plan(pair, bytes, params);
  const HostShareCut cut = params.empty() ? cut_of(plan) : HostShareCut{};
  if (cut.size.host_share <= 0.0) return plan;
  const std::lock_guard hold(guard_);
  const int level = corrected_[pair].share.choose(cut.size, false);
  return level >= cuda::HostShare::kLevels ? plan : make_plan(pair, bytes, params_at(level, cut));
}

void PairCopies::run(const OrdinalPair& pair, std::uint64_t bytes, const Params& params,
                     const std::vector<cuda::CopyBuffers>& ranks) {
  cuda::OneProcess* on = nullptr;
  PreparedCopyRef call;
  {
    const std::lock_guard hold(guard_);
    on = &node(pair);
    // Checked before anything is made for a new size: making would break a capture.
    on->refuse_capture(pair.src, ranks[0].stream);
    on->refuse_capture(pair.dst, ranks[1].stream);
    call = ready(pair, bytes, params);
  }
  if (params.empty() && call->cut.size.host_share > 0.0) return run_corrected(pair, call, ranks);
  on->run(call->bound, ranks);
}

void PairCopies::learn(Corrected& pair, cuda::OneProcess& node) {
  if (!pair.sample.has_value()) return;
  std::optional<cuda::PathTimes> times;
  try {
    times = node.times();
  } catch (...) {
    pair.sample.reset();
    throw;
  }
  if (!times.has_value()) return;
  pair.sample->direct_ns = times->direct_ns;
  pair.sample->host_ns = times->host_ns;
  pair.share.learn(*pair.sample);
  pair.sample.reset();
}

void PairCopies::run_corrected(const OrdinalPair& pair, const PreparedCopyRef& whole,
                               const std::vector<cuda::CopyBuffers>& ranks) {
  cuda::OneProcess* on = nullptr;
  Corrected* state = nullptr;
  PreparedCopyRef call = whole;
  int wanted = 0, level = cuda::HostShare::kLevels;
  bool is_timed = false, is_complete = false;
  {
    const std::lock_guard hold(guard_);
    on = &node(pair);
    state = &corrected_[pair];
    learn(*state, *on);
    wanted = level = state->share.choose(whole->cut.size, !state->sample.has_value());
    if (level < cuda::HostShare::kLevels) {
      while (level > 0 && whole->lower[level] == nullptr) --level;
      if (whole->lower[level] == nullptr) prepare(pair, *whole, level);
      call = whole->lower[level];
    }
    is_complete = level == wanted && whole->lower[0] != nullptr;
    state->share.ran(level);
    if (level > 0 && state->sample.has_value()) ++state->sample->calls;
    // The first copy of a size touches new memory and is not measured.
    const bool is_first = whole->lower[0] == nullptr;
    is_timed = level > 0 && !is_first && !state->sample.has_value() && !call->bound.senders.empty();
    if (is_timed)
      state->sample =
          cuda::PathSample{whole->cut.size, level, call->cut.size.host_share, 0.0, 0.0, 1};
  }
  try {
    on->run(call->bound, ranks, is_timed);
  } catch (...) {
    const std::lock_guard hold(guard_);
    if (is_timed) state->sample.reset();
    throw;
  }
  if (is_complete) return;
  const std::lock_guard hold(guard_);
  try {
    for (const int soon : {0, wanted}) prepare(pair, *whole, soon);
  } catch (const Error&) {  // this call is enqueued; a call that needs the plan retries
  }
}

void PairCopies::prepare(const OrdinalPair& pair, PreparedCopy& whole, int level) {
  if (level >= cuda::HostShare::kLevels || whole.lower[level] != nullptr) return;
  whole.lower[level] = make(pair, whole.cut.bytes, params_at(level, whole.cut));
}

}  // namespace plait
