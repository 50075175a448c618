// Lowers a sequence of collectives to the lanes of a single plan. A plan inside a node begins at a
// rank when the rank's stream reaches it, and the stream continues when all of the rank's lanes
// have ended, as for a separate call. The plan is therefore embedded unchanged, any number of times
// on the same scratch.
#include "planner/node_calls.hpp"

#include <algorithm>
#include <optional>

#include "base/text.hpp"
#include "plait/error.hpp"
#include "topo/pair_paths.hpp"

namespace plait {
namespace {

std::size_t at(int index) { return static_cast<std::size_t>(index); }

bool are_alike(const Link& one, const Link& other) {
  return one.kind == other.kind && one.width == other.width && one.gb_per_s == other.gb_per_s &&
         one.latency_ns == other.latency_ns;
}

/// Key of plans inside a node that are equal but for their devices.
std::vector<std::uint64_t> key_of(const NodeStep& step) {
  return {static_cast<std::uint64_t>(step.collective), step.count,
          static_cast<std::uint64_t>(step.root), static_cast<std::uint64_t>(step.peer)};
}

bool is_on_flag(const Op& op) { return op.kind == OpKind::signal || op.kind == OpKind::wait; }

Plan plan_in_node(const Topology& topology, const Request& request) {
  try {
    return propose_one(topology, request, "direct", {{"pieces", 1}, {"host_permille", 0}});
  } catch (const Error& error) {
    if (error.code() != ErrorCode::unsupported) throw;
    return propose_one(topology, request, "rerouted");
  }
}

}  // namespace

NodeCalls::NodeCalls(Builder& builder, const Params& params)
    : builder_(builder), inside_(builder.topology()) {
  const auto node = [&](int device) { return inside_.devices[at(device)].node; };
  while (!inside_.links.empty() && node(inside_.links.back().src) != node(inside_.links.back().dst))
    inside_.links.pop_back();
  const Device& device = builder.topology().devices[at(builder.device(0))];
  const int otherwise = device.kind == DeviceKind::gpu ? 0 : 1;
  if (param_in(params, "mpi", otherwise, 0, 1) == 1) library_ = Library::mpi;
  builder.param("mpi", library_ == Library::mpi ? 1 : 0);
}

void NodeCalls::copy(const Region& dst, const Region& src) {
  steps_.push_back({Step::Action::copy, {}, 0, 0, 0, false, {}, -1, dst, {src}});
}

void NodeCalls::sum(const Region& dst, std::vector<Region> srcs, bool finish) {
  steps_.push_back({Step::Action::sum, {}, 0, 0, 0, finish, {}, -1, dst, std::move(srcs)});
}

std::vector<std::vector<int>> ranks_of_nodes(const Builder& builder) {
  std::map<int, std::size_t> number_of_node;
  std::vector<std::vector<int>> nodes;
  for (int rank = 0; rank < builder.ranks(); ++rank) {
    const int node = builder.topology().devices[at(builder.device(rank))].node;
    const auto [entry, is_new] = number_of_node.try_emplace(node, nodes.size());
    if (is_new) nodes.emplace_back();
    nodes[entry->second].push_back(rank);
  }
  if (nodes.size() < 2)
    throw Error(ErrorCode::unsupported,
                text("wanted ranks on two nodes or more, found all {} on one", builder.ranks()));
  return nodes;
}

void NodeCalls::inside(Collective collective, std::uint64_t count, int root,
                       std::vector<Part> parts, bool finish, int peer) {
  if (count == 0) return;
  steps_.push_back(
      {Step::Action::inside, collective, count, root, peer, finish, std::move(parts), -1});
}

int NodeCalls::across(Collective collective, std::uint64_t count, int root, std::vector<Part> parts,
                      bool finish, int peer) {
  if (count == 0) return -1;
  steps_.push_back(
      {Step::Action::across, collective, count, root, peer, finish, std::move(parts), calls_});
  return calls_++;
}

void NodeCalls::await(int across) {
  Step step;
  step.kind = Step::Action::await;
  step.across = across;
  if (across >= 0) steps_.push_back(std::move(step));
}

int NodeCalls::first_stream(int rank) { return builder_.lane(rank, LaneKind::kernel, "node"); }
int NodeCalls::second_stream(int rank) { return builder_.lane(rank, LaneKind::kernel, "across"); }

NodeCalls::Inner& NodeCalls::inner_for(const Step& step) {
  std::vector<std::uint64_t> key = key_of(step);
  for (const Part& part : step.parts) key.push_back(static_cast<std::uint64_t>(part.rank));
  const auto [entry, is_new] = inner_.try_emplace(std::move(key));
  if (!is_new) return entry->second;
  std::vector<Path> paths;
  const PlanShape& shape = shape_for(step, paths);
  return entry->second = numbered(shape, paths, step.parts);
}

/// Returns the plan's paths, of a single link each, between other devices; none if a link is
/// missing.
std::optional<std::vector<Path>> NodeCalls::paths_alike(const Plan& plan,
                                                        const std::vector<int>& devices) {
  const std::vector<int>& before = plan.request.devices;
  const auto moved = [&](int device) {
    const auto place = std::find(before.begin(), before.end(), device) - before.begin();
    return devices[static_cast<std::size_t>(place)];
  };
  const auto link = [&](const Path& path) -> const Link& {
    return inside_.links[at(path.links.front())];
  };
  std::vector<Path> paths;
  for (const Path& path : plan.paths) {
    if (path.links.size() != 1) return std::nullopt;
    const std::pair pair(moved(path.devices[0]), moved(path.devices[1]));
    const auto [found, is_new] = direct_.try_emplace(pair);
    if (is_new) found->second = direct_paths(inside_, pair.first, pair.second);
    if (found->second.empty() || !are_alike(link(path), link(found->second.front())))
      return std::nullopt;
    paths.push_back(found->second.front());
  }
  return paths;
}

/// Reuses a plan of an equal node with this node's paths, since planning takes far longer.
const NodeCalls::PlanShape& NodeCalls::shape_for(const Step& step, std::vector<Path>& paths) {
  std::vector<std::uint64_t> key = key_of(step);
  key.push_back(step.parts.size());
  std::vector<int> devices;
  for (const Part& part : step.parts) devices.push_back(builder_.device(part.rank));
  std::deque<PlanShape>& same_key = shapes_[std::move(key)];
  for (const PlanShape& shape : same_key)
    if (std::optional<std::vector<Path>> alike = paths_alike(shape.plan, devices)) {
      paths = std::move(*alike);
      return shape;
    }
  Request request = builder_.request();
  request.collective = step.collective;
  request.count = step.count;
  request.ranks = static_cast<int>(step.parts.size());
  request.root = step.root;
  request.peer = step.peer;
  request.devices = std::move(devices);
  Plan plan = plan_in_node(inside_, request);
  if (!plan.relay_devices.empty() || std::any_of(plan.inbox_bytes.begin(), plan.inbox_bytes.end(),
                                                 [](std::uint64_t bytes) { return bytes != 0; }))
    throw Error(ErrorCode::unsupported,
                text("wanted a plan in a node by its own ranks and without inboxes, found {}",
                     label(plan)));
  paths = plan.paths;
  return same_key.emplace_back(std::move(plan));
}

NodeCalls::PlanShape::PlanShape(Plan made)
    : plan(std::move(made)), flag_count(flags_per_pair(plan)) {
  const std::size_t ranks = at(plan.request.ranks);
  numbers.assign(ranks * ranks * at(flag_count), -1);
  for (const Lane& lane : plan.lanes)
    for (const Op& op : lane.ops) {
      if (!is_on_flag(op)) continue;
      int& number = numbers[place_of(op.flag)];
      if (number < 0) {
        number = static_cast<int>(flags.size());
        flags.push_back(op.flag);
        tops.push_back(0);
      }
      if (op.kind == OpKind::signal) tops[at(number)] = std::max(tops[at(number)], op.value);
    }
}

std::size_t NodeCalls::PlanShape::place_of(const Flag& flag) const {
  const int pair = flag.owner * plan.request.ranks + flag.writer;
  return at(pair) * at(flag_count) + at(flag.index);
}

NodeCalls::Inner NodeCalls::numbered(const PlanShape& shape, const std::vector<Path>& paths,
                                     const std::vector<Part>& parts) {
  Inner inner{&shape, {}, {}, {}, 0};
  for (const Path& path : paths) inner.paths.push_back(builder_.path_index(path));
  for (const Lane& lane : shape.plan.lanes)
    inner.lanes.push_back(
        builder_.lane(parts[at(lane.rank)].rank, LaneKind::kernel, "node." + lane.name));
  for (const Flag& flag : shape.flags) {
    const int owner = parts[at(flag.owner)].rank, writer = parts[at(flag.writer)].rank;
    inner.flags.push_back({owner, writer, builder_.flags(owner, writer, 1)});
  }
  return inner;
}

void NodeCalls::reserve() {
  std::vector<std::uint64_t> scratch(at(builder_.ranks()), 0), ring(scratch);
  std::map<int, std::size_t> ops_of_lane;
  for (const Step& step : steps_) {
    if (step.kind != Step::Action::inside) continue;
    const Inner& inner = inner_for(step);
    const Plan& plan = inner.shape->plan;
    for (std::size_t i = 0; i < inner.lanes.size(); ++i)
      ops_of_lane[inner.lanes[i]] += plan.lanes[i].ops.size() + 2;  // plus begin and end
    for (std::size_t i = 0; i < step.parts.size(); ++i) {
      const std::size_t rank = at(step.parts[i].rank);
      scratch[rank] = std::max(scratch[rank], plan.scratch_bytes[i]);
      ring[rank] = std::max(ring[rank], plan.ring_bytes[i]);
    }
  }
  for (const auto& [lane, ops] : ops_of_lane) builder_.reserve(lane, ops);
  for (int rank = 0; rank < builder_.ranks(); ++rank) {
    scratch_.push_back(builder_.alloc(Space::scratch, rank, scratch[at(rank)]));
    ring_.push_back(builder_.alloc(Space::ring, rank, ring[at(rank)]));
  }
}

void NodeCalls::write() {
  if (builder_.writes_lanes()) write_lanes();
  if (builder_.collected_steps() != nullptr) *builder_.collected_steps() = std::move(steps_);
}

void NodeCalls::write_lanes() {
  reserve();
  for (Step& step : steps_) {
    if (step.kind == Step::Action::inside) write_inside(step);
    if (step.kind == Step::Action::across) write_across(step);
    if (step.kind == Step::Action::copy)
      builder_.copy(first_stream(step.dst.rank), step.dst, step.srcs.front());
    if (step.kind == Step::Action::sum)
      builder_.reduce(first_stream(step.dst.rank), step.dst, step.srcs, step.finish);
    if (step.kind == Step::Action::await)
      for (const auto& [rank, done] : joined_[at(step.across)])
        builder_.wait(first_stream(rank), done);
  }
}

Region NodeCalls::mapped(const Region& region, const Step& step) const {
  const Part& part = step.parts[at(region.rank)];
  const bool is_src = region.space == Space::input, is_dst = region.space == Space::output;
  const Region& base = is_src                        ? part.src
                       : is_dst                      ? part.dst
                       : region.space == Space::ring ? ring_[at(part.rank)]
                                                     : scratch_[at(part.rank)];
  const std::uint64_t stride = is_src ? part.src_stride : is_dst ? part.dst_stride : 0;
  std::uint64_t offset = region.offset;
  if (stride != 0) {
    const std::uint64_t block = step.count * bytes_of(builder_.request().type);
    if (offset % block + region.bytes > block)
      throw Error(ErrorCode::internal, "a plan in a node moves several blocks as one");
    offset = offset / block * stride + offset % block;
  }
  return {base.space, part.rank, base.offset + offset, region.bytes};
}

void NodeCalls::write_inside(Step& step) {
  Inner& inner = inner_for(step);
  std::map<int, Event> begin_of_rank;
  for (std::size_t i = 0; i < inner.lanes.size(); ++i) {
    const Lane& lane = inner.shape->plan.lanes[i];
    const int rank = step.parts[at(lane.rank)].rank;
    if (!begin_of_rank.contains(rank))
      begin_of_rank[rank] = builder_.signal(first_stream(rank), rank);
    const int first = builder_.ops_of(inner.lanes[i]);
    builder_.wait(inner.lanes[i], begin_of_rank[rank]);
    for (const Op& op : lane.ops) builder_.take(inner.lanes[i], laid(op, inner, step));
    step.ops.push_back({inner.lanes[i], first, builder_.ops_of(inner.lanes[i]) - first});
  }
  for (std::size_t i = 0; i < inner.lanes.size(); ++i) {
    const int rank = step.parts[at(inner.shape->plan.lanes[i].rank)].rank;
    builder_.wait(first_stream(rank), builder_.signal(inner.lanes[i], rank));
  }
  ++inner.uses;
}

// Returns an op of a plan inside a node as an op of this plan: regions mapped, flags continued.
Op NodeCalls::laid(const Op& op, const Inner& inner, const Step& step) const {
  Op made = op;
  if (is_on_flag(op)) {
    const std::size_t flag = at(inner.shape->numbers[inner.shape->place_of(op.flag)]);
    made.flag = inner.flags[flag];
    made.value += inner.uses * inner.shape->tops[flag];
    return made;
  }
  if (op.path != kLocalPath) made.path = inner.paths[at(op.path)];
  for (Region& src : made.srcs) src = mapped(src, step);
  made.dst = mapped(op.dst, step);
  made.finish = op.finish && step.finish;
  const Region& before = step.parts[at(op.dst.rank)].before;
  if (op.kind != OpKind::reduce || before.bytes == 0) return made;
  if (op.dst.space != Space::output)
    throw Error(ErrorCode::unsupported, "wanted sums made in the output of a plan in a node");
  made.srcs.insert(made.srcs.begin(), slice(before, {op.dst.offset, op.dst.bytes}));
  return made;
}

void NodeCalls::write_across(const Step& step) {
  LibraryCall call{library_, step.collective, step.count, {}, step.root, step.peer};
  for (const Part& part : step.parts) call.ranks.push_back(part.rank);
  const int index = builder_.call(std::move(call));
  joined_.resize(at(step.across) + 1);
  for (const Part& part : step.parts) {
    const int lane = second_stream(part.rank);
    builder_.wait(lane, builder_.signal(first_stream(part.rank), part.rank));
    builder_.join(lane, index, part.dst, part.src, step.finish);
    joined_[at(step.across)].emplace_back(part.rank, builder_.signal(lane, part.rank));
  }
}

}  // namespace plait
