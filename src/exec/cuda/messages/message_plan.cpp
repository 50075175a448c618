// Tiles and slots as the kernel computes them.
#include "exec/cuda/messages/message_plan.hpp"

#include <algorithm>
#include <map>
#include <utility>

#include "base/text.hpp"
#include "exec/cuda/lines/line_cut.hpp"
#include "exec/cuda/traffic/plan_words.hpp"
#include "plait/builder.hpp"
#include "plait/error.hpp"
#include "plan/hop_shape.hpp"

namespace plait::cuda {
namespace {

/// Flag::index of a channel's words: of tiles, or of messages by lines.
enum WordRow : int { kArrived, kTaken, kLinesArrived, kLinesTaken };
int word_index(WordRow row, std::uint32_t channel) {
  return kMessageWords + row * kMessageChannels + static_cast<int>(channel);
}

class MessagePlan {
 public:
  MessagePlan(const Topology& topology, const Request& request, const MessageSpread& spread,
              std::uint32_t calls_before)
      : b_(topology, request, "messages"),
        spread_(spread),
        calls_before_(calls_before),
        bytes_(request.count * bytes_of(request.type)),
        cut_(cut_message(bytes_, spread)),
        depth_(cut_.by_lines ? kMessageLineDepth : kMessageSlots),
        slot_bytes_(cut_.by_lines ? kMessageLineUnits * 16 : kMessageSlotBytes) {
    const auto others = static_cast<std::uint64_t>(request.ranks - 1);
    for (int rank = 0; rank < request.ranks; ++rank) {
      shapes_.push_back(hop_shape(request, rank));
      slots_.push_back(
          b_.alloc(Space::scratch, rank, others * spread.channels * depth_ * slot_bytes_));
    }
  }

  Plan write() {
    const int ranks = b_.ranks();
    for (int from = 0; from < ranks; ++from) {
      const HopShape& shape = shapes_[static_cast<std::size_t>(from)];
      if (shape.own_bytes != 0)
        b_.copy(b_.lane(from, LaneKind::kernel, "keep"),
                b_.output(from, {shape.own_to, shape.own_bytes}),
                b_.input(from, {shape.own_from, shape.own_bytes}));
      for (int to = 0; to < ranks; ++to)
        for (std::uint32_t channel = 0; channel < cut_.channels && sends(shape, ranks, from, to);
             ++channel)
          write_channel(from, to, channel);
    }
    b_.kernel("messages");
    if (cut_.channels != 0) b_.param("blocks", cut_.channels);
    if (cut_.by_lines) b_.param("line_bytes", kFlaggedLineBytes);
    Plan plan = b_.build();
    look_back(plan);
    number(plan);
    return plan;
  }

 private:
  std::uint64_t tile_bytes() const { return std::uint64_t{cut_.tile_units} * 16; }
  std::uint32_t tiles_through(std::uint32_t channel) const {
    const auto all = static_cast<std::uint32_t>((bytes_ + tile_bytes() - 1) / tile_bytes());
    return all > channel ? (all - channel - 1) / cut_.channels + 1 : 0;
  }
  Region slot(int from, int to, std::uint32_t channel, std::uint32_t tile,
              std::uint64_t bytes) const {
    const auto place = static_cast<std::uint32_t>(place_among_others(to, from));
    const std::uint32_t turn = (calls_before_ * tiles_through(channel) + tile) % depth_;
    const std::uint64_t index = (place * spread_.channels + channel) * depth_ + turn;
    return slice(slots_[static_cast<std::size_t>(to)], {index * slot_bytes_, bytes});
  }

  void write_channel(int from, int to, std::uint32_t channel) {
    const int out = b_.lane(from, LaneKind::kernel, text("send ", to, "/", channel));
    const int in = b_.lane(to, LaneKind::kernel, text("receive ", from, "/", channel));
    const HopShape& shape = shapes_[static_cast<std::size_t>(from)];
    const std::uint64_t part = static_cast<std::uint64_t>(to) * shape.part_stride;
    const std::uint64_t place = static_cast<std::uint64_t>(from) * shape.place_stride;
    std::vector<Event> taken;
    for (std::uint32_t tile = 0; tile < tiles_through(channel); ++tile) {
      const std::uint64_t at = (channel + std::uint64_t{tile} * cut_.channels) * tile_bytes();
      const std::uint64_t bytes = std::min(tile_bytes(), bytes_ - at);
      const Region held = slot(from, to, channel, tile, bytes);
      if (tile >= depth_) b_.wait(out, taken[tile - depth_]);
      b_.copy(out, held, b_.input(from, {part + at, bytes}));
      const Event arrived = b_.signal(out, to);
      b_.wait(in, arrived);
      b_.copy(in, b_.output(to, {place + at, bytes}), held);
      taken.push_back(b_.signal(in, from));
      words_[arrived.flag] = word_index(cut_.by_lines ? kLinesArrived : kArrived, channel);
      words_[taken.back().flag] = word_index(cut_.by_lines ? kLinesTaken : kTaken, channel);
      taken_of_[{from, arrived.flag}] = taken.back().flag;
    }
  }

  /// A call's first tiles wait until their slots have been given back by earlier calls.
  void look_back(Plan& plan) const {
    for (Lane& lane : plan.lanes) {
      std::vector<Op> ops;
      std::uint32_t tile = 0;
      for (std::size_t i = 0; i < lane.ops.size(); ++i) {
        const bool tells = i + 1 < lane.ops.size() && lane.ops[i + 1].kind == OpKind::signal;
        const auto found =
            tells ? taken_of_.find({lane.rank, lane.ops[i + 1].flag}) : taken_of_.end();
        if (found != taken_of_.end() && lane.ops[i].kind == OpKind::copy && tile++ < depth_) {
          Op& wait = ops.emplace_back();
          wait.kind = OpKind::wait;
          wait.flag = found->second;
          wait.before = depth_ - tile;
        }
        ops.push_back(lane.ops[i]);
      }
      lane.ops = std::move(ops);
    }
  }

  /// The same words of a channel between any two ranks, as in MessageFlags.
  void number(Plan& plan) const {
    for (Lane& lane : plan.lanes)
      for (Op& op : lane.ops)
        if (op.kind == OpKind::signal || op.kind == OpKind::wait)
          op.flag.index = words_.at(op.flag);
    for (std::uint32_t channel = 0; channel < cut_.channels; ++channel)
      for (const WordRow row :
           {cut_.by_lines ? kLinesArrived : kArrived, cut_.by_lines ? kLinesTaken : kTaken})
        plan.counts[word_index(row, channel)] = tiles_through(channel);
  }

  Builder b_;
  const MessageSpread& spread_;
  std::uint32_t calls_before_;
  std::uint64_t bytes_;  ///< of a message
  MessageCut cut_;
  std::uint32_t depth_;
  std::uint64_t slot_bytes_;
  std::vector<HopShape> shapes_;
  std::vector<Region> slots_;                      // by rank
  std::map<Flag, int> words_;                      // as the builder numbers them -> index
  std::map<std::pair<int, Flag>, Flag> taken_of_;  // sender, word it raises -> its peer's answer
};

}  // namespace

Plan message_plan(const Topology& topology, const Request& request, const MessageSpread& spread,
                  std::uint32_t calls_before) {
  if (reduces(request.collective))
    throw Error(ErrorCode::unsupported,
                text("wanted a collective that only moves, found ", name_of(request.collective)));
  return MessagePlan(topology, request, spread, calls_before).write();
}

}  // namespace plait::cuda
