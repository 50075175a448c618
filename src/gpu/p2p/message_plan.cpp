// Writes the plan of a message call with the tiles and slots that the kernel computes.
#include "gpu/p2p/message_plan.hpp"

#include <algorithm>
#include <map>
#include <utility>

#include "base/text.hpp"
#include "gpu/ll/ll_cut.hpp"
#include "gpu/p2p/message_memory.hpp"
#include "plait/builder.hpp"
#include "plait/error.hpp"
#include "plan/direct_shape.hpp"
#include "topo/pair_paths.hpp"

namespace plait::cuda {
namespace {

/// Row of a channel's flag in Flag::index: of tiles, or of LL messages.
enum FlagRow : int { kArrived, kTaken, kPacketsArrived, kPacketsTaken };
int flag_index(FlagRow row, std::uint32_t channel) {
  return kMessagePlanFlags.first + row * kMessageRows + static_cast<int>(channel);
}

bool through_host(std::uint32_t channel) { return channel >= kMessageChannels; }

class MessagePlan {
 public:
  MessagePlan(const Topology& topology, const Request& request, const MessageLaunchConfig& config,
              std::uint32_t calls_before, std::uint32_t host_tiles)
      : b_(topology, request, "messages"),
        topology_(topology),
        devices_(request.devices),
        config_(config),
        calls_before_(calls_before),
        bytes_(request.count * bytes_of(request.type)),
        cut_(cut_message(bytes_, config)),
        slot_bytes_(cut_.by_packets ? kMessagePacketUnits * 16 : kMessageSlotBytes) {
    share_out(host_tiles);
    const auto others = static_cast<std::uint64_t>(request.ranks - 1);
    for (int rank = 0; rank < request.ranks; ++rank) {
      shapes_.push_back(direct_shape(request, rank));
      slots_.push_back(
          b_.alloc(Space::scratch, rank, others * config.channels * depth(0) * slot_bytes_));
      if (cut_.shared)
        host_slots_.push_back(b_.alloc(
            Space::ring, rank, config.host_channels * depth(kMessageChannels) * slot_bytes_));
    }
  }

  Plan write() {
    const int ranks = b_.ranks();
    for (int from = 0; from < ranks; ++from) {
      const DirectShape& shape = shapes_[static_cast<std::size_t>(from)];
      if (shape.own_bytes != 0)
        b_.copy(b_.lane(from, LaneKind::kernel, "keep"),
                b_.output(from, {shape.own_to, shape.own_bytes}),
                b_.input(from, {shape.own_from, shape.own_bytes}));
      for (int to = 0; to < ranks; ++to)
        for (const auto& [channel, tiles] : tiles_of_)
          if (sends(shape, ranks, from, to)) write_channel(from, to, channel, tiles);
    }
    b_.kernel("messages");
    if (!tiles_of_.empty()) b_.param("blocks", static_cast<std::int64_t>(tiles_of_.size()));
    if (cut_.by_packets) b_.param("line_bytes", kFlagPacketBytes);
    Plan plan = b_.build();
    look_back(plan);
    number(plan);
    return plan;
  }

 private:
  std::uint64_t tile_bytes() const { return std::uint64_t{cut_.tile_units} * 16; }
  /// Assigns tiles to channels, in order. Each channel has separate tiles; host channels take the
  /// last tile of each channel in turn, up to `host_tiles`.
  void share_out(std::uint32_t host_tiles) {
    const auto all = static_cast<std::uint32_t>((bytes_ + tile_bytes() - 1) / tile_bytes());
    for (std::uint32_t channel = 0; channel < cut_.channels; ++channel)
      for (std::uint32_t number = channel; number < all; number += cut_.channels)
        tiles_of_[channel].push_back(number);
    if (!cut_.shared) return;
    for (std::uint32_t host = 0; host < config_.host_channels; ++host)
      tiles_of_[kMessageChannels + host];  // The channel carries the end marker even without tiles.
    for (std::uint32_t i = 0; i < std::min(host_tiles, all); ++i) {
      std::vector<std::uint32_t>& own = tiles_of_[i % cut_.channels];
      tiles_of_[kMessageChannels + i % config_.host_channels].push_back(own.back());
      own.pop_back();
    }
  }
  std::uint32_t depth(std::uint32_t channel) const {
    return cut_.by_packets         ? kMessagePacketDepth
           : through_host(channel) ? kMessageHostSlots
                                   : kMessageSlots;
  }
  /// Slots a call uses on a channel: a shared message's end marker takes a slot too.
  std::uint32_t taken_by(const std::vector<std::uint32_t>& tiles) const {
    return static_cast<std::uint32_t>(tiles.size()) + (cut_.shared ? 1 : 0);
  }
  Region slot(int from, int to, std::uint32_t channel, std::uint32_t tile,
              std::uint64_t bytes) const {
    const std::uint32_t turn =
        (calls_before_ * taken_by(tiles_of_.at(channel)) + tile) % depth(channel);
    const auto owner = static_cast<std::size_t>(to);
    if (through_host(channel))
      return slice(host_slots_[owner],
                   {((channel - kMessageChannels) * depth(channel) + turn) * slot_bytes_, bytes});
    const auto place = static_cast<std::uint32_t>(place_among_others(to, from));
    const std::uint64_t index = (place * config_.channels + channel) * depth(channel) + turn;
    return slice(slots_[owner], {index * slot_bytes_, bytes});
  }

  /// Copies into a slot or out of a slot; on a host channel down to host memory or up from host
  /// memory.
  void put(int lane, const Region& dst, const Region& src, int from, int to) {
    const bool down = dst.space == Space::ring, up = src.space == Space::ring;
    if (!down && !up) return b_.copy(lane, dst, src);
    const auto device = [&](int rank) { return devices_[static_cast<std::size_t>(rank)]; };
    b_.copy(lane, dst, src, host_path(topology_, device(from), device(to)), down ? 0 : 1);
  }

  void write_channel(int from, int to, std::uint32_t channel,
                     const std::vector<std::uint32_t>& tiles) {
    const int out = b_.lane(from, LaneKind::kernel, text("send {}/{}", to, channel));
    const int in = b_.lane(to, LaneKind::kernel, text("receive {}/{}", from, channel));
    const DirectShape& shape = shapes_[static_cast<std::size_t>(from)];
    const std::uint64_t part = static_cast<std::uint64_t>(to) * shape.part_stride;
    const std::uint64_t place = static_cast<std::uint64_t>(from) * shape.place_stride;
    std::vector<plait::Event> taken;
    for (std::uint32_t tile = 0; tile < taken_by(tiles); ++tile) {
      const bool is_end = tile == tiles.size();
      const std::uint64_t at = is_end ? 0 : tiles[tile] * tile_bytes();
      const std::uint64_t bytes = std::min(tile_bytes(), bytes_ - at);
      const Region held = slot(from, to, channel, tile, bytes);
      if (tile >= depth(channel)) b_.wait(out, taken[tile - depth(channel)]);
      if (!is_end) put(out, held, b_.input(from, {part + at, bytes}), from, to);
      const plait::Event arrived = b_.signal(out, to);
      b_.wait(in, arrived);
      if (!is_end) put(in, b_.output(to, {place + at, bytes}), held, from, to);
      taken.push_back(b_.signal(in, from));
      flag_indices_[arrived.flag] =
          flag_index(cut_.by_packets ? kPacketsArrived : kArrived, channel);
      flag_indices_[taken.back().flag] =
          flag_index(cut_.by_packets ? kPacketsTaken : kTaken, channel);
      taken_of_[{from, arrived.flag}] = {taken.back().flag, depth(channel)};
    }
  }

  /// The first tiles of a call wait until earlier calls have freed slots.
  void look_back(Plan& plan) const {
    for (Lane& lane : plan.lanes) {
      std::vector<Op> ops;
      std::uint32_t tile = 0;
      for (const Op& op : lane.ops) {
        ops.push_back(op);
        const auto found =
            op.kind == OpKind::signal ? taken_of_.find({lane.rank, op.flag}) : taken_of_.end();
        if (found == taken_of_.end() || tile++ >= found->second.depth) continue;
        Op wait{};
        wait.kind = OpKind::wait;
        wait.flag = found->second.flag;
        wait.before = found->second.depth - tile;
        const bool copied = ops.size() > 1 && ops[ops.size() - 2].kind == OpKind::copy;
        ops.insert(ops.end() - (copied ? 2 : 1), wait);
      }
      lane.ops = std::move(ops);
    }
  }

  /// Numbers a channel's flags alike between any two ranks, as in MessageFlags.
  void number(Plan& plan) const {
    for (Lane& lane : plan.lanes)
      for (Op& op : lane.ops)
        if (op.kind == OpKind::signal || op.kind == OpKind::wait)
          op.flag.index = flag_indices_.at(op.flag);
    for (const auto& [channel, tiles] : tiles_of_)
      for (const FlagRow row :
           {cut_.by_packets ? kPacketsArrived : kArrived, cut_.by_packets ? kPacketsTaken : kTaken})
        plan.counts[flag_index(row, channel)] = taken_by(tiles);
  }

  Builder b_;
  const Topology& topology_;
  const std::vector<int> devices_;
  const MessageLaunchConfig& config_;
  std::uint32_t calls_before_;
  std::uint64_t bytes_;  ///< Size of a message.
  MessageCut cut_;
  std::uint64_t slot_bytes_;
  std::map<std::uint32_t, std::vector<std::uint32_t>> tiles_of_;  // By channel: tile numbers.
  std::vector<DirectShape> shapes_;
  std::vector<Region> slots_, host_slots_;  // By rank.
  std::map<Flag, int> flag_indices_;        // Flag, as numbered by the builder -> index.
  struct Answer {
    Flag flag;
    std::uint32_t depth;  // Tiles in flight.
  };
  // Sender and raised flag -> the peer's flag.
  std::map<std::pair<int, Flag>, Answer> taken_of_;
};

}  // namespace

Plan message_plan(const Topology& topology, const Request& request,
                  const MessageLaunchConfig& config, std::uint32_t calls_before,
                  std::uint32_t host_tiles) {
  if (reduces(request.collective))
    throw Error(ErrorCode::unsupported,
                text("message plans serve collectives that do not reduce, found {}",
                     name_of(request.collective)));
  return MessagePlan(topology, request, config, calls_before, host_tiles).write();
}

}  // namespace plait::cuda
