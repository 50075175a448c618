// Writes messages as copies over hops (see transfer.hpp).
#include "planner/transfer.hpp"

#include <algorithm>

#include "base/text.hpp"
#include "plait/error.hpp"
#include "topo/parameters.hpp"

namespace plait {
namespace {

// A slot being filled, one being emptied, two with signals in flight: no hop waits for the other.
constexpr std::uint64_t kSlots = 4;
// A smaller chunk costs more for signals (6.6 us across processes, H200) than for bytes.
constexpr std::uint64_t kLeastChunkBytes = 512 << 10;

std::uint64_t bytes_parameter(const Topology& topology, const char* key, double otherwise) {
  return static_cast<std::uint64_t>(parameter(topology, key, otherwise));
}

}  // namespace

std::uint64_t scratch_limit(const Topology& topology) {
  return static_cast<std::uint64_t>(parameter(topology, "arena_scratch_bytes"));
}
std::uint64_t ring_limit(const Topology& topology) {
  return bytes_parameter(topology, "arena_ring_bytes", parameter(topology, "ring_bytes"));
}
std::uint64_t inbox_limit(const Topology& topology) {
  return bytes_parameter(topology, "arena_inbox_bytes", parameter(topology, "inbox_bytes"));
}

Mover::Mover(Builder& builder, MoverOptions options)
    : builder_(builder), options_(std::move(options)) {}

const Path& Mover::path(int from, int to) {
  const auto found = path_of_.find({from, to});
  if (found != path_of_.end()) return found->second;
  Path path = options_.path(from, to);
  // Three hops: the receiver reads the ring beyond a bus between sockets.
  const std::size_t most = path.kind == PathKind::host ? 3 : 2;
  if (path.links.empty() || path.links.size() > most)
    throw Error(ErrorCode::unsupported,
                text("wanted a path of one or two hops from rank {} to rank {}, found {}", from, to,
                     path.name));
  return path_of_[{from, to}] = std::move(path);
}

int Mover::reader(int from, int to) {
  return path(from, to).links.size() == 1 && options_.pull ? to : from;
}

int Mover::filler(int from, int to) {
  return path(from, to).links.size() == 1 && !options_.pull ? from : to;
}

int Mover::lane(int rank, const char* part, int step) {
  const int index = options_.lanes > 1 ? step % options_.lanes : 0;
  std::string name = options_.name + part;  // hot path: no string stream
  if (index != 0) name += std::to_string(index);
  return builder_.lane(rank, LaneKind::copy_engine, name);
}

int Mover::source_lane(int from, int to, int step) {
  return path(from, to).links.size() == 1 ? lane(from, "push", step) : lane(from, "out", 0);
}

int Mover::place_between(const Path& path, int from) {
  if (path.kind == PathKind::host) return -1;
  const int middle = path.devices.at(1);
  for (int rank = 0; rank < builder_.ranks(); ++rank)
    if (builder_.device(rank) == middle && rank != from) return rank;
  return builder_.relay(middle);
}

// A relay GPU has no begin and end of its own. In every plan its use lies between rank 0's begin
// and end.
int Mover::owner_of(int place) const { return place < builder_.ranks() ? place : 0; }

void Mover::open(int from, int to, const std::function<int(int)>& home) {
  const Path& route = path(from, to);
  int target = to;  // place that `from` writes to
  if (route.links.size() > 1)
    target = place_between(route, from);
  else if (options_.pull)
    return;
  const int owner = target < 0 ? from : owner_of(target);
  if (owner == from) return;
  Event& opened = opened_[{from, target}];
  if (opened.value == 0) opened = builder_.signal(home(owner), from);
}

void Mover::await_open(int lane, int from, int target) {
  const auto opened = opened_.find({from, target});
  if (opened != opened_.end() && awaited_.insert({lane, target}).second)
    builder_.wait(lane, opened->second);
}

Carried Mover::carry(int from, int to, const Region& dst, const Region& src,
                     const std::vector<Event>& after, int step, bool signal_receiver) {
  if (path(from, to).links.size() == 1)
    return carry_direct(from, to, dst, src, after, step, signal_receiver);
  return carry_hops(from, to, dst, src, after, signal_receiver);
}

Carried Mover::carry_direct(int from, int to, const Region& dst, const Region& src,
                            const std::vector<Event>& after, int step, bool signal_receiver) {
  Carried carried;
  const int mine = options_.pull ? lane(to, "pull", step) : lane(from, "push", step);
  if (!options_.pull) await_open(mine, from, to);
  for (const Event& event : after) builder_.wait(mine, event);
  builder_.copy(mine, dst, src, path(from, to), 0);
  if (options_.pull) carried.emptied = builder_.signal(mine, from);
  if (signal_receiver) carried.arrived = builder_.signal(mine, to);
  return carried;
}

Mover::RingSlots& Mover::slots_of(const Path& path, int from) {
  const int place = place_between(path, from);
  RingSlots& slots = slots_of_[{from, place}];
  if (!slots.regions.empty()) return slots;
  const std::uint64_t granule = builder_.granule();
  const std::uint64_t limit = (place < 0 ? options_.ring_bytes : options_.relay_bytes) / kSlots;
  if (limit == 0)
    throw Error(ErrorCode::unsupported,
                text("wanted memory for messages on their way {}, found none",
                     place < 0 ? "in the host" : "on a relay GPU"));
  // Two chunks for each message, so that the hops overlap; one if two would be too small.
  const bool is_cut = options_.most_bytes >= 2 * kLeastChunkBytes;
  const std::uint64_t half = is_cut ? options_.most_bytes / 2 : options_.most_bytes;
  std::uint64_t chunk = std::min({half, std::max(options_.most_bytes, granule), limit});
  chunk = std::max((chunk + granule - 1) / granule * granule, granule);
  for (std::uint64_t slot = 0; slot < kSlots; ++slot)
    slots.regions.push_back(place < 0 ? builder_.alloc(Space::ring, from, chunk)
                                      : builder_.alloc(Space::scratch, place, chunk));
  slots.emptied.resize(slots.regions.size());
  return slots;
}

Carried Mover::carry_hops(int from, int to, const Region& dst, const Region& src,
                          const std::vector<Event>& after, bool signal_receiver) {
  const Path& route = path(from, to);
  RingSlots& slots = slots_of(route, from);
  const int place = place_between(route, from);
  const int out = lane(from, "out", 0), in = lane(to, "in", 0);
  const int last = static_cast<int>(route.links.size()) - 1;
  await_open(out, from, place);
  for (const Event& event : after) builder_.wait(event.flag.owner == from ? out : in, event);
  Carried carried;
  for (std::uint64_t done = 0; done < src.bytes;) {
    const std::size_t slot = slots.next++ % slots.regions.size();
    const std::uint64_t bytes = std::min(slots.regions[slot].bytes, src.bytes - done);
    const Region between = slice(slots.regions[slot], {0, bytes});
    if (slots.emptied[slot].value != 0) builder_.wait(out, slots.emptied[slot]);
    builder_.copy(out, between, slice(src, {done, bytes}), route, 0);
    builder_.wait(in, builder_.signal(out, to));
    builder_.copy(in, slice(dst, {done, bytes}), between, route, last);
    carried.emptied = slots.emptied[slot] = builder_.signal(in, from);
    done += bytes;
  }
  if (place >= 0 && owner_of(place) != to) last_reader_lanes_[owner_of(place)][in] = to;
  if (signal_receiver) carried.arrived = builder_.signal(in, to);
  return carried;
}

void Mover::close(const std::function<int(int)>& home) {
  for (auto& [key, slots] : slots_of_)
    for (const Event& event : slots.emptied)
      if (event.value != 0) builder_.wait(lane(key.first, "out", 0), event);
  for (const auto& [relay, readers] : last_reader_lanes_)
    for (const auto& [reader_lane, reader] : readers)
      builder_.wait(home(relay), builder_.signal(reader_lane, relay));
}

}  // namespace plait
