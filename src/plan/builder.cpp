// Builder: numbers the flags, regions, lanes and paths of the plan that a strategy writes.
#include "plait/builder.hpp"

#include <algorithm>

#include "base/text.hpp"
#include "plait/error.hpp"
#include "topo/pair_paths.hpp"

namespace plait {

std::vector<Range> partition(Range whole, int parts, std::uint64_t granule) {
  const std::uint64_t granules = (whole.bytes + granule - 1) / granule;
  const std::uint64_t each = granules / static_cast<std::uint64_t>(parts);
  const std::uint64_t longer = granules % static_cast<std::uint64_t>(parts);
  std::vector<Range> ranges;
  ranges.reserve(static_cast<std::size_t>(parts));
  std::uint64_t at = 0;
  for (int part = 0; part < parts; ++part) {
    const std::uint64_t mine =
        (each + (static_cast<std::uint64_t>(part) < longer ? 1 : 0)) * granule;
    const std::uint64_t bytes = std::min(mine, whole.bytes - at);
    ranges.push_back({whole.offset + at, bytes});
    at += bytes;
  }
  return ranges;
}

Region slice(const Region& region, Range range) {
  if (range.offset > region.bytes || range.bytes > region.bytes - range.offset)
    throw Error(ErrorCode::invalid_argument,
                text("wanted a part of a region of {} bytes, found [{}, +{})", region.bytes,
                     range.offset, range.bytes));
  return {region.space, region.rank, region.offset + range.offset, range.bytes};
}

Builder::Builder(const Topology& topology, const Request& request, std::string strategy)
    : topology_(topology) {
  plan_.request = request;
  plan_.strategy = std::move(strategy);
  plan_.topology = topology.name;
  const auto ranks = static_cast<std::size_t>(request.ranks);
  plan_.scratch_bytes.assign(ranks, 0);
  plan_.inbox_bytes.assign(ranks, 0);
  plan_.ring_bytes.assign(ranks, 0);
}

int Builder::device(int place) const {
  const int ranks = plan_.request.ranks;
  return place < ranks ? plan_.request.devices.at(static_cast<std::size_t>(place))
                       : plan_.relay_devices.at(static_cast<std::size_t>(place - ranks));
}

int Builder::lane(int rank, LaneKind kind, const std::string& name) {
  const auto key = std::pair(rank, name);
  const auto found = lane_of_name_.find(key);
  if (found != lane_of_name_.end()) return found->second;
  const int index = static_cast<int>(plan_.lanes.size());
  plan_.lanes.push_back({rank, kind, name, {}});
  lane_of_name_[key] = index;
  return index;
}

int Builder::relay(int device) {
  const auto found = std::find(plan_.relay_devices.begin(), plan_.relay_devices.end(), device);
  const int index = static_cast<int>(found - plan_.relay_devices.begin());
  if (found == plan_.relay_devices.end()) {
    plan_.relay_devices.push_back(device);
    plan_.scratch_bytes.push_back(0);
  }
  return plan_.request.ranks + index;
}

Region Builder::input(int rank, Range range) const {
  return {Space::input, rank, range.offset, range.bytes};
}

Region Builder::output(int rank, Range range) const {
  return {Space::output, rank, range.offset, range.bytes};
}

Region Builder::alloc(Space space, int place, std::uint64_t bytes) {
  std::vector<std::uint64_t>* used = space == Space::scratch ? &plan_.scratch_bytes
                                     : space == Space::inbox ? &plan_.inbox_bytes
                                     : space == Space::ring  ? &plan_.ring_bytes
                                                             : nullptr;
  if (used == nullptr)
    throw Error(ErrorCode::invalid_argument,
                text("alloc: wanted scratch, inbox or ring, found {}, which is the caller's",
                     name_of(space)));
  std::uint64_t& top = used->at(static_cast<std::size_t>(place));
  const Region region{space, place, top, bytes};
  top += (bytes + 127) / 128 * 128;
  return region;
}

int Builder::path_index(const Path& path) {
  const auto [entry, is_new] =
      path_of_name_.try_emplace(path.name, static_cast<int>(plan_.paths.size()));
  if (is_new) plan_.paths.push_back(path);
  return entry->second;
}

Op& Builder::append(int lane, OpKind kind) {
  Op& op = plan_.lanes.at(static_cast<std::size_t>(lane)).ops.emplace_back();
  op.kind = kind;
  return op;
}

void Builder::copy(int lane, const Region& dst, const Region& src) {
  const int from = device(src.rank), to = device(dst.rank);
  if (from == to && src.space != Space::ring && dst.space != Space::ring) {
    if (dst.bytes == 0) return;
    Op& op = append(lane, OpKind::copy);
    op.dst = dst;
    op.srcs = {src};
    return;
  }
  Path& direct = direct_[{from, to}];
  if (direct.devices.empty()) direct = direct_path(topology_, from, to);
  copy(lane, dst, src, direct, 0);
}

void Builder::copy(int lane, const Region& dst, const Region& src, const Path& path, int hop) {
  if (dst.bytes == 0) return;
  Op& op = append(lane, OpKind::copy);
  op.dst = dst;
  op.srcs = {src};
  op.path = path_index(path);
  op.hop = hop;
}

void Builder::reserve(int lane, std::size_t ops) {
  plan_.lanes[static_cast<std::size_t>(lane)].ops.reserve(ops);
}

void Builder::take(int lane, Op op) {
  plan_.lanes[static_cast<std::size_t>(lane)].ops.push_back(std::move(op));
}

void Builder::reduce(int lane, const Region& dst, std::vector<Region> srcs, bool finish) {
  if (dst.bytes == 0) return;
  Op& op = append(lane, OpKind::reduce);
  op.dst = dst;
  op.srcs = std::move(srcs);
  op.finish = finish;
}

Event Builder::signal(int lane, int owner) {
  const int writer = plan_.lanes.at(static_cast<std::size_t>(lane)).rank;
  Event& last = last_event_[{lane, owner}];
  if (last.value == 0) last.flag = {owner, writer, flags_of_pair_[{owner, writer}]++};
  ++last.value;
  Op& op = append(lane, OpKind::signal);
  op.flag = last.flag;
  op.value = last.value;
  return last;
}

void Builder::wait(int lane, const Event& event) {
  if (plan_.lanes.at(static_cast<std::size_t>(lane)).rank != event.flag.owner)
    throw Error(ErrorCode::invalid_argument,
                text("wait: wanted an event that is signalled to rank {}, found one to rank {}",
                     plan_.lanes[static_cast<std::size_t>(lane)].rank, event.flag.owner));
  Op& op = append(lane, OpKind::wait);
  op.flag = event.flag;
  op.value = event.value;
}

void Builder::raise(int lane, const Flag& flag, std::uint32_t value) {
  Op& op = append(lane, OpKind::signal);
  op.flag = flag;
  op.value = value;
}

void Builder::await(int lane, const Flag& flag, std::uint32_t value, std::uint32_t before) {
  Op& op = append(lane, OpKind::wait);
  op.flag = flag;
  op.value = value;
  op.before = before;
}

int Builder::flags(int owner, int writer, int count) {
  int& used = flags_of_pair_[{owner, writer}];
  used += count;
  return used - count;
}

int Builder::call(LibraryCall call) {
  plan_.calls.push_back(std::move(call));
  return static_cast<int>(plan_.calls.size()) - 1;
}

void Builder::join(int lane, int call, const Region& dst, const Region& src, bool finish) {
  Op& op = append(lane, OpKind::join);
  op.call = call;
  op.dst = dst;
  if (src.bytes != 0) op.srcs = {src};
  op.finish = finish;
}

void Builder::stripe(const std::string& route, Range range) {
  if (range.bytes != 0) plan_.stripes.push_back({route, range.offset, range.bytes});
}

void Builder::adopt(Plan plan) {
  if (plan.request != plan_.request)
    throw Error(ErrorCode::invalid_argument,
                text("wanted a plan of the request {}, found one of {}", to_json(request()),
                     to_json(plan.request)));
  plan.strategy = plan_.strategy;
  plan.topology = plan_.topology;
  plan_ = std::move(plan);
}

Plan Builder::build() {
  std::erase_if(plan_.lanes, [](const Lane& lane) { return lane.ops.empty(); });
  return std::move(plan_);
}

}  // namespace plait
