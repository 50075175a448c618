// Lowers recorded sends, receives and releases to lanes (see courier.hpp).
#include "plait/courier.hpp"

#include <algorithm>

#include "base/text.hpp"
#include "plait/error.hpp"
#include "planner/transfer.hpp"
#include "topo/pair_paths.hpp"

namespace plait {
namespace {

constexpr std::uint64_t kMostPieceBytes = 1ULL << 20;  // small enough that the two hops overlap
constexpr double kLeastScratch = 4096;  // with less, plans of long messages have millions of ops
constexpr std::size_t kRingPieces = 3;  // one being written, one being read, one being freed

std::uint64_t bit(int rank) { return 1ULL << static_cast<unsigned>(rank); }

std::uint64_t total_bytes(const std::vector<Region>& regions) {
  std::uint64_t bytes = 0;
  for (const Region& region : regions) bytes += region.bytes;
  return bytes;
}

template <class Item>
Item& at(std::vector<Item>& items, int index) {
  return items.at(static_cast<std::size_t>(index));
}

}  // namespace

Path courier_path(const Topology& topology, int src_device, int dst_device, Route route) {
  const std::vector<Path> direct = direct_paths(topology, src_device, dst_device);
  if (!direct.empty() && route == Route::best) return direct.front();
  for (const Path& path : paths_between(topology, src_device, dst_device))
    if (path.kind == PathKind::host) return path;
  throw Error(ErrorCode::unsupported, text("wanted a direct link or a path through host memory "
                                           "from {} to {}, topology {} has neither",
                                           device_label(topology, src_device),
                                           device_label(topology, dst_device), topology.name));
}

Courier::Courier(Builder& builder, std::string name, int slots, int sharers)
    : builder_(builder), name_(std::move(name)), slots_(slots), sharers_(sharers) {}

int Courier::lane(int rank, const std::string& stage) {
  return builder_.lane(rank, LaneKind::kernel, stage.empty() ? name_ : name_ + "." + stage);
}

std::uint64_t& Courier::knowledge(int rank, const std::string& stage) {
  return knowledge_.try_emplace({rank, stage}, bit(rank)).first->second;
}

void Courier::on(const std::string& stage) { stage_ = stage; }

void Courier::follow(int rank, const std::string& later, const std::string& earlier) {
  knowledge(rank, later) |= knowledge(rank, earlier);
  steps_.push_back({StepKind::follow, later, rank, {}, {}, {}, false, earlier});
}

int Courier::channel_between(int from, int to, Route route) {
  const auto [entry, is_new] =
      channel_of_pair_.try_emplace({from, to, route}, static_cast<int>(channels_.size()));
  if (is_new) {
    Channel& channel = channels_.emplace_back();
    channel.from = from;
    channel.to = to;
    channel.route = route;
    channel.stage = stage_;
    channel.path =
        courier_path(builder_.topology(), builder_.device(from), builder_.device(to), route);
  }
  return entry->second;
}

// Sizes of equal cuts differ by up to two granules. A slot leaves room for these, and is made once.
Region Courier::slot_for(Channel& channel, std::uint64_t bytes) {
  const std::size_t index = channel.sent.size() % static_cast<std::size_t>(slots_);
  const std::uint64_t granule = builder_.granule();
  if (index == channel.slots.size()) channel.slots.emplace_back();
  Region& slot = channel.slots[index];
  if (slot.bytes < bytes)
    slot = builder_.alloc(
        Space::scratch, channel.to,
        (std::max(bytes, least_slot_bytes_) + granule - 1) / granule * granule + 2 * granule);
  return slice(slot, {0, bytes});
}

void Courier::send(int from, int to, const std::vector<Region>& srcs, Route route) {
  const std::uint64_t bytes = total_bytes(srcs);
  if (bytes == 0) return;
  const int index = channel_between(from, to, route);
  Channel& channel = at(channels_, index);
  if (channel.stage != stage_)
    throw Error(ErrorCode::invalid_argument, text("courier: wanted all messages from rank {} to "
                                                  "rank {} in stage '{}', found one in stage '{}'",
                                                  from, to, channel.stage, stage_));
  std::uint64_t& begun = knowledge(from, stage_);
  if (channel.sent.empty() && channel.direct() && (begun & bit(to)) == 0) {
    channel.needs_opening = true;
    begun |= bit(to);
  }
  const Message message{slot_for(channel, bytes), index, static_cast<int>(channel.sent.size())};
  channel.sent.push_back(message);
  channel.knowledge.push_back(begun);
  steps_.push_back({StepKind::send, stage_, from, message, {}, srcs, false, {}});
}

Message Courier::receive(int to, int from, std::uint64_t bytes, Route route) {
  if (bytes == 0) return {};
  Channel& channel = at(channels_, channel_between(from, to, route));
  if (static_cast<std::size_t>(channel.received) == channel.sent.size())
    throw Error(ErrorCode::invalid_argument,
                text("courier: wanted a message from rank {} to rank {} sent before it is "
                     "received, found {} sent and all received",
                     from, to, channel.sent.size()));
  const Message message = at(channel.sent, channel.received);
  knowledge(to, stage_) |= at(channel.knowledge, channel.received);
  ++channel.received;
  if (message.region.bytes != bytes)
    throw Error(ErrorCode::invalid_argument,
                text("courier: wanted {} bytes from rank {} to rank {}, found a message of {}",
                     bytes, from, to, message.region.bytes));
  steps_.push_back({StepKind::receive, stage_, to, message, {}, {}, false, {}});
  return message;
}

void Courier::release(const Message& message) {
  if (message.channel < 0) return;
  steps_.push_back(
      {StepKind::release, stage_, at(channels_, message.channel).to, message, {}, {}, false, {}});
}

void Courier::reduce(int rank, const Region& dst, const std::vector<Region>& srcs, bool finish) {
  steps_.push_back({StepKind::reduce, stage_, rank, {}, dst, srcs, finish, {}});
}

void Courier::copy(int rank, const Region& dst, const Region& src) {
  if (dst.bytes != 0) steps_.push_back({StepKind::copy, stage_, rank, {}, dst, {src}, false, {}});
}

void Courier::write() {
  open_channels();
  for (const RecordedStep& step : steps_) write_step(step);
  // A sender leaves the call after the receivers' last reads of the sender's ring.
  for (Channel& channel : channels_)
    if (!channel.stages.empty())
      builder_.wait(hop_lane(channel, 0), channel.stages[0].freed.back());
  steps_.clear();
  channels_.clear();
  channel_of_pair_.clear();
}

// The first host ring of a path belongs to the sender; further rings, beyond a socket bus, to the
// receiver.
void Courier::open_channels() {
  std::vector<std::uint64_t> rings(static_cast<std::size_t>(builder_.ranks()), 0);
  for (Channel& channel : channels_)
    for (std::size_t hop = 1; hop < channel.path.links.size(); ++hop) {
      channel.stages.push_back({hop == 1 ? channel.from : channel.to, {}, {}});
      ++at(rings, channel.stages.back().owner);
    }
  const std::uint64_t ring_bytes = ring_limit(builder_.topology());
  for (Channel& channel : channels_) {
    if (channel.needs_opening)
      channel.opened = builder_.signal(lane(channel.to, channel.stage), channel.from);
    channel.released.resize(channel.sent.size());
    channel.piece_bytes = kMostPieceBytes;
    for (const HostRing& stage : channel.stages) {
      if (ring_bytes == 0)
        throw Error(ErrorCode::unsupported,
                    "wanted memory for messages on their way in the host, found none");
      const std::uint64_t parts =
          at(rings, stage.owner) * kRingPieces * static_cast<std::uint64_t>(sharers_);
      const std::uint64_t share = ring_bytes / parts / builder_.granule() * builder_.granule();
      channel.piece_bytes = std::clamp(share, builder_.granule(), channel.piece_bytes);
    }
  }
}

void Courier::write_step(const RecordedStep& step) {
  switch (step.kind) {
    case StepKind::send: return write_send(step);
    case StepKind::receive:
      return builder_.wait(lane(step.rank, step.stage),
                           at(at(channels_, step.message.channel).arrived, step.message.index));
    case StepKind::release: {
      Channel& channel = at(channels_, step.message.channel);
      if (step.message.index + slots_ >= static_cast<int>(channel.sent.size())) return;
      // The next filler of the slot awaits this: the sender, or the receiver's lane that empties
      // the ring.
      const int filler = channel.direct() ? channel.from : channel.to;
      at(channel.released, step.message.index) =
          builder_.signal(lane(step.rank, step.stage), filler);
      return;
    }
    case StepKind::reduce:
      return builder_.reduce(lane(step.rank, step.stage), step.dst, step.srcs, step.finish);
    case StepKind::follow:
      return builder_.wait(lane(step.rank, step.stage),
                           builder_.signal(lane(step.rank, step.earlier), step.rank));
    case StepKind::copy:
      return builder_.copy(lane(step.rank, step.stage), step.dst, step.srcs.front());
  }
}

void Courier::write_send(const RecordedStep& step) {
  Channel& channel = at(channels_, step.message.channel);
  if (channel.direct()) return push(channel, step);
  send_through_ring(channel, step);
}

void Courier::await_slot(Channel& channel, int lane, int index) {
  if (index < slots_) return;
  const Event& released = at(channel.released, index - slots_);
  if (released.value == 0)
    throw Error(
        ErrorCode::invalid_argument,
        text("courier: wanted message {} from rank {} to rank {} released before message {} of the "
             "pair is sent, found it held; release() it, or take more than slots={}",
             index - slots_, channel.from, channel.to, index, slots_));
  builder_.wait(lane, released);
}

void Courier::push(Channel& channel, const RecordedStep& step) {
  const int from = lane(channel.from, channel.stage);
  if (step.message.index == 0 && channel.needs_opening) builder_.wait(from, channel.opened);
  await_slot(channel, from, step.message.index);
  std::uint64_t offset = 0;
  for (const Region& src : step.srcs) {
    builder_.copy(from, slice(step.message.region, {offset, src.bytes}), src, channel.path, 0);
    offset += src.bytes;
  }
  channel.arrived.push_back(builder_.signal(from, channel.to));
}

// The first hop is on the sender's lane; each further hop has a lane at the receiver.
int Courier::hop_lane(const Channel& channel, int hop) {
  if (hop == 0 && channel.route == Route::best) return lane(channel.from, channel.stage);
  if (hop == 0)
    return builder_.lane(channel.from, LaneKind::kernel,
                         name_ + ".to" + std::to_string(channel.to));
  return builder_.lane(channel.to, LaneKind::kernel,
                       name_ + (channel.route == Route::best ? ".from" : ".host_from") +
                           std::to_string(channel.from) + ".hop" + std::to_string(hop));
}

// The receiver empties the ring on separate lanes, so a sender with a message larger than the ring
// never waits for a receiver that is still sending.
void Courier::send_through_ring(Channel& channel, const RecordedStep& step) {
  const int last = hop_lane(channel, static_cast<int>(channel.stages.size()));
  await_slot(channel, last, step.message.index);
  const int first = hop_lane(channel, 0);
  if (first != lane(channel.from, channel.stage))
    builder_.wait(first, builder_.signal(lane(channel.from, channel.stage), channel.from));
  std::uint64_t offset = 0;
  for (const Region& src : step.srcs)
    for (std::uint64_t done = 0; done < src.bytes;) {
      const std::uint64_t bytes = std::min(channel.piece_bytes, src.bytes - done);
      send_piece(channel, slice(step.message.region, {offset, bytes}), slice(src, {done, bytes}));
      done += bytes;
      offset += bytes;
    }
  channel.arrived.push_back(builder_.signal(last, channel.to));
}

void Courier::send_piece(Channel& channel, const Region& dst, const Region& src) {
  Region here = src;
  const int hops = static_cast<int>(channel.stages.size()) + 1;
  for (int hop = 0; hop < hops; ++hop) {
    const int mover = hop_lane(channel, hop);
    Region there = dst;
    if (hop + 1 < hops) {
      HostRing& stage = at(channel.stages, hop);
      const std::size_t piece = stage.freed.size();
      if (stage.ring.size() < kRingPieces)
        stage.ring.push_back(builder_.alloc(Space::ring, stage.owner, channel.piece_bytes));
      if (piece >= kRingPieces) builder_.wait(mover, stage.freed[piece - kRingPieces]);
      there = slice(stage.ring[piece % kRingPieces], {0, dst.bytes});
    }
    builder_.copy(mover, there, here, channel.path, hop);
    const int filler = hop <= 1 ? channel.from : channel.to;
    if (hop > 0) at(channel.stages, hop - 1).freed.push_back(builder_.signal(mover, filler));
    if (hop + 1 < hops)
      builder_.wait(hop_lane(channel, hop + 1), builder_.signal(mover, channel.to));
    here = there;
  }
}

CourierCut cut_from(Builder& builder, const Params& params, const std::string& counted, int chunks,
                    int lanes) {
  constexpr int kMostChunks = 4096;
  constexpr int kMostLanes = 8;
  CourierCut cut;
  cut.chunks = param_in(params, counted, chunks, 1, kMostChunks);
  cut.lanes = param_in(params, "lanes", std::min(cut.chunks, lanes), 1, kMostLanes);
  builder.param(counted, cut.chunks);
  builder.param("lanes", cut.lanes);
  cut.lanes = std::min(cut.lanes, cut.chunks);
  return cut;
}

void in_lanes(Builder& builder, const CourierCut& cut,
              const std::function<void(Courier&, const std::vector<Range>&)>& body) {
  const Range whole = whole_range(builder.request());
  const auto arena = static_cast<double>(scratch_limit(builder.topology()));
  if (cut.scratch_per_byte > 0 && arena < kLeastScratch)
    throw Error(ErrorCode::unsupported,
                text("wanted {} bytes of scratch or more, found {} (parameter arena_scratch_bytes; "
                     "on GPUs raise PLAIT_DEVICE_MEMORY)",
                     kLeastScratch, arena));
  // A sixteenth of the scratch stays free for the spare granules of slots.
  const double fitting = arena * 15 / 16 / cut.lanes / std::max(cut.scratch_per_byte, 1e-3);
  const int needed =
      static_cast<int>(static_cast<double>(whole.bytes) / std::max(fitting, 128.0)) + 1;
  const std::vector<Range> chunks =
      partition(whole, std::max(cut.chunks, needed), builder.granule());
  const int lanes = std::min(cut.lanes, static_cast<int>(chunks.size()));
  for (int lane = 0; lane < lanes; ++lane) {
    std::vector<Range> mine;
    for (std::size_t chunk = static_cast<std::size_t>(lane); chunk < chunks.size();
         chunk += static_cast<std::size_t>(lanes))
      if (chunks[chunk].bytes != 0) mine.push_back(chunks[chunk]);
    Courier courier(builder, text("{}{}", cut.lane_name, lane), cut.slots, lanes);
    body(courier, mine);
    courier.write();
  }
}

void in_chunks(Builder& builder, const CourierCut& cut,
               const std::function<void(Courier&, Range)>& body) {
  in_lanes(builder, cut, [&](Courier& courier, const std::vector<Range>& chunks) {
    for (const Range& chunk : chunks) body(courier, chunk);
  });
}

}  // namespace plait
