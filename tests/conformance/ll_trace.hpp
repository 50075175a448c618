// Checks all loads and stores of an LL call against the plan. Unit by unit, each thread does what
// the plan's lane of the rank says, in that order, and nothing more.
#pragma once
#include <map>
#include <optional>

#include "base/text.hpp"
#include "conformance/ll_runs.hpp"

namespace plait_test {

class LlTraceCheck {
 public:
  LlTraceCheck(const LlRun& run, const LlTraces& traces, const Plan& plan)
      : run_(run),
        traces_(traces),
        plan_(plan),
        half_(packets_in_half(run.kind, run.half_bytes) * 16),
        part_bytes_(run.request.count * plait::bytes_of(run.request.type)) {}

  /// Returns the faults in sentences, a few at most.
  std::vector<std::string> faults() {
    const std::size_t pieces = traces_.accesses[0].size();
    for (rank_ = 0; rank_ < run_.request.ranks; ++rank_)
      for (piece_ = 0; piece_ < pieces; ++piece_) check_piece();
    return faults_;
  }

 private:
  /// Step of the plan for each unit of a region.
  struct PlannedStep {
    enum PlannedAction { push, take, put } kind;
    Region region;
    std::size_t op;
    std::optional<Region> src;  ///< source of data that is pushed or stays
    bool is_greeting = false;
  };
  /// Progress of a rank with a unit.
  struct UnitProgress {
    std::size_t thread = 0;
    std::size_t last_push = 0;
    std::map<std::size_t, unsigned> stored;  ///< by step: bytes
    std::map<std::size_t, std::array<std::optional<MemoryAccess>, 2>>
        taken;                                            ///< by step: the last looks
    std::map<std::size_t, bool> cleared, escape_cleared;  ///< by step
    std::optional<unsigned long long> escape_at;
  };
  struct PacketAddress {
    Space space;
    int rank;
    std::uint64_t offset;  ///< as the plan counts
    bool is_escape_flag = false;
    unsigned from = 0;  ///< bytes into the unit's packet
  };

  static std::size_t index(int i) { return static_cast<std::size_t>(i); }
  bool has_flags() const { return run_.kind == PacketFormat::flag; }
  /// True if packets are cleared: a later call has another flag, but a later step has not.
  bool is_cleared() const { return !has_flags() || run_.is_long_shot(); }
  /// Returns the number of the call. A piece counts as a call, but not steps that reuse packets.
  unsigned call() const {
    return run_.calls_before + 1 + (run_.is_long_shot() ? 0 : static_cast<unsigned>(piece_));
  }
  /// Returns the flag of packets; packets never written hold 0.
  unsigned flag_of_call() const { return call() != 0 ? call() : 1; }
  std::uint64_t piece_units() const {
    const auto cut = static_cast<std::uint64_t>(plan_.params.at("piece_bytes"));
    const std::uint64_t at = std::max(piece_ * cut, short_by()) - short_by();
    return (std::min(cut - (piece_ == 0 ? short_by() : 0), part_bytes_ - at) + 15) / 16;
  }
  /// Returns the units by which the first piece of a chain is shorter than later pieces.
  std::uint64_t short_by() const {
    const std::uint64_t cut = plan_.params.at("piece_bytes"), pieces = traces_.accesses[0].size();
    return is_chain() ? pieces * cut - (part_bytes_ + 15) / 16 * 16 : 0;
  }
  void say(const std::string& what, const MemoryAccess* access = nullptr) {
    if (faults_.size() >= 5) return;
    faults_.push_back(text("rank {}, piece {}: {}{}", rank_, piece_, what,
                           access == nullptr ? "" : text(" ({})", print(*access))));
  }
  std::string print(const MemoryAccess& access) const {
    const std::optional<PacketAddress> place = place_of(access);
    return text("{} of {} at {}", access.touch == Touch::load ? "load" : "store", access.bytes,
                place ? text("{}[{}]+{}{}", name_of(place->space), place->rank, place->offset,
                             place->is_escape_flag ? " (beside)" : "")
                      : std::string("an address of no rank"));
  }

  // --- the plan, step by step -------------------------------------------------------------------

  std::size_t piece_of(const Region& user) const {
    if (run_.is_long_shot())
      return static_cast<std::size_t>(user.offset / 16 % run_.shard_units() / run_.step_units());
    const std::uint64_t cut = plan_.params.at("piece_bytes");
    return static_cast<std::size_t>((user.offset % part_bytes_ + short_by()) / cut);
  }
  void read_plan() {
    steps_.clear();
    inputs_.clear();
    for (const Lane& lane : plan_.lanes) {
      if (lane.rank != rank_) continue;
      for (std::size_t i = 0; i < lane.ops.size(); ++i) read_op(lane.ops, i);
    }
    for (PlannedStep& step : steps_)
      if (step.is_greeting) step.region = greeting(step.region);
  }
  void read_op(const std::vector<Op>& ops, std::size_t i) {
    const Op& op = ops[i];
    const auto is_user = [](const Region& region) {
      return region.space == Space::input || region.space == Space::output;
    };
    if (op.kind == OpKind::copy || op.kind == OpKind::reduce) {
      const Region& user = is_user(op.dst) ? op.dst : op.srcs.back();
      if (piece_of(user) != piece_) return;
      for (const Region& src : op.srcs) {
        if (src.space == Space::input) inputs_.push_back(src);
        if (src.space == Space::inbox) steps_.push_back({PlannedStep::take, src, i, {}});
      }
      steps_.push_back({is_user(op.dst) ? PlannedStep::put : PlannedStep::push, op.dst, i,
                        op.kind == OpKind::copy ? std::optional(op.srcs[0]) : std::nullopt});
      return;
    }
    // A signal without data is a greeting: in the last packet of the slot, or along a chain in the
    // packet behind all data. A chain of several pieces has flags instead (chain_flags.hpp).
    if (is_long()) return;
    if (!is_escaped(run_.kernel) || op.value != piece_ + 1) return;
    const int owner = op.flag.owner, from = op.flag.writer;
    if (sends_data(from, owner)) return;
    const Region packet{Space::inbox, owner,
                        static_cast<std::uint64_t>(place_among_others(owner, from)), 16};
    steps_.push_back(
        {op.kind == OpKind::signal ? PlannedStep::push : PlannedStep::take, packet, i, {}, true});
  }
  bool is_chain() const { return run_.kernel == LlKernel::ll_chain; }
  bool is_long() const { return is_chain() && traces_.accesses[0].size() > 1; }
  bool sends_data(int from, int to) const {
    const Request& request = run_.request;
    return is_chain() ? sends(chain_shape(request), request.ranks, from, to)
                      : sends(direct_shape(request, rank_), request.ranks, from, to);
  }
  /// Returns the offset of the greeting with that number.
  Region greeting(const Region& slot) const {
    const std::uint64_t units = piece_units();
    const std::uint64_t packet =
        is_chain() ? piece_units() + slot.offset : slot.offset * (units + 1) + units;
    return {Space::inbox, slot.rank, piece_ % 2 * half_ + packet * 16, 16};
  }

  // --- addresses --------------------------------------------------------------------------------

  std::optional<PacketAddress> place_of(const MemoryAccess& access) const {
    for (std::size_t rank = 0; rank < traces_.inputs.size(); ++rank) {
      const auto inside = [&](const LlTraces::Buffer& buffer) -> std::optional<std::uint64_t> {
        const auto* begin = reinterpret_cast<const char*>(buffer.data());
        if (access.at < begin || access.at + access.bytes > begin + buffer.size() * 16)
          return std::nullopt;
        return static_cast<std::uint64_t>(access.at - begin);
      };
      const int owner = static_cast<int>(rank);
      if (const auto at = inside(traces_.inputs[rank]))
        return PacketAddress{Space::input, owner, *at};
      if (const auto at = inside(traces_.outputs[rank]))
        return PacketAddress{Space::output, owner, *at};
      if (const auto at = inside(traces_.inboxes[rank])) return in_inbox(owner, *at);
    }
    return std::nullopt;
  }
  std::optional<PacketAddress> in_inbox(int owner, std::uint64_t at) const {
    if (at >= 2 * run_.half_bytes) return std::nullopt;
    const std::uint64_t parity = at / run_.half_bytes, in_half = at % run_.half_bytes;
    const std::uint64_t half = parity ^ ((run_.calls_before + 1) & 1);  // as the plan counts
    PacketAddress place{Space::inbox, owner, half * half_};
    if (has_flags()) {
      place.offset += in_half / kFlagPacketBytes * 16;
      place.from = in_half % kFlagPacketBytes;
      return place;
    }
    const auto others = static_cast<std::uint64_t>(run_.request.ranks - 1);
    const std::uint64_t packets = is_long()    ? plan_.params.at("piece_bytes") / 16
                                  : is_chain() ? piece_units() + others
                                               : (piece_units() + 1) * others;
    if (run_.kind == PacketFormat::escaped && in_half >= packets * 16) {
      place.offset += (in_half - packets * 16) / kEscapeFlagBytes * 16;
      place.is_escape_flag = true;
      return place;
    }
    place.offset += in_half / 16 * 16;
    place.from = in_half % 16;
    return place;
  }

  // --- accesses ---------------------------------------------------------------------------------

  void check_piece() {
    read_plan();
    units_.clear();
    const auto& threads = traces_.accesses[index(rank_)][piece_];
    for (thread_ = 0; thread_ < threads.size(); ++thread_)
      for (const MemoryAccess& access : threads[thread_]) check(access);
    check_complete();
  }

  void check(const MemoryAccess& access) {
    const std::optional<PacketAddress> place = place_of(access);
    if (!place) return say("wanted accesses to buffers and inboxes alone", &access);
    const bool is_load = access.touch == Touch::load;
    if (place->space == Space::input) {
      if (!is_load) return say("wanted inputs to be read only", &access);
      for (const Region& region : inputs_)
        if (place->rank == rank_ && place->offset >= region.offset &&
            place->offset + access.bytes <= region.offset + region.bytes)
          return;
      return say("wanted what the plan reads of the input", &access);
    }
    if (place->space == Space::output)
      return is_load ? say("wanted outputs to be written only", &access) : put(access, *place);
    if (place->rank == rank_) return is_load ? take(access, *place) : clear(access, *place);
    return is_load ? say("wanted only its owner to read an inbox", &access) : push(access, *place);
  }

  /// Returns the step of the plan that an access belongs to, and the unit.
  std::pair<std::size_t, UnitProgress*> step_of(PlannedStep::PlannedAction kind,
                                                const PacketAddress& place) {
    for (std::size_t i = 0; i < steps_.size(); ++i) {
      const Region& region = steps_[i].region;
      if (steps_[i].kind != kind || region.rank != place.rank || region.space != place.space ||
          place.offset < region.offset || place.offset >= region.offset + region.bytes)
        continue;
      const std::uint64_t number =
          steps_[i].is_greeting ? (1ull << 40) + i : (place.offset - region.offset) / 16;
      const auto [unit, is_new] = units_.try_emplace(number);
      if (is_new) unit->second.thread = thread_;
      if (unit->second.thread != thread_) say(text("wanted one thread for unit {}", number));
      return {i, &unit->second};
    }
    return {0, nullptr};
  }
  bool is_whole(const PacketAddress& place, const MemoryAccess& access) const {
    return place.is_escape_flag ? access.bytes == 8
                                : access.bytes == 16 && (place.from == 0 || place.from == 16);
  }

  void push(const MemoryAccess& access, const PacketAddress& place) {
    const auto [at, unit] = step_of(PlannedStep::push, place);
    if (unit == nullptr || !is_whole(place, access))
      return say("wanted what the plan pushes", &access);
    if (place.is_escape_flag) {
      unit->escape_at = access.value[0];
      return;
    }
    const PlannedStep& step = steps_[at];
    if (unit->stored[at] != place.from) say("wanted each packet stored once", &access);
    unit->stored[at] += 16;
    if (unit->last_push > at) say("wanted peers in the plan's order", &access);
    unit->last_push = at;
    for (std::size_t i = 0; i < steps_.size(); ++i) {
      if (steps_[i].kind != PlannedStep::take || steps_[i].is_greeting) continue;
      if (i < at && !is_here(*unit, i))
        say("wanted nothing sent before what it is made of is there", &access);
      if (i > at && unit->taken.contains(i))
        say("wanted nothing looked for before what the plan pushes first", &access);
    }
    if (step.src) check_value(access, place, step, unit->escape_at);
    unit->escape_at.reset();
  }

  /// Checks the value against the plan.
  void check_value(const MemoryAccess& access, const PacketAddress& place, const PlannedStep& step,
                   std::optional<unsigned long long> escape_at) {
    const Region& src = *step.src;
    const bool is_result = src.space == Space::output;
    const auto& buffers = is_result ? traces_.outputs : traces_.inputs;
    const std::uint64_t at = place.offset - step.region.offset;
    const std::uint64_t bytes = std::min<std::uint64_t>(16, step.region.bytes - at);
    unsigned long long wanted[2] = {0, 0};
    std::memcpy(wanted,
                reinterpret_cast<const char*>(buffers[index(src.rank)].data()) + src.offset + at,
                bytes);
    unsigned long long found[2] = {access.value[0], access.value[1]};
    if (has_flags()) {
      const unsigned half = place.from / 16;
      const unsigned long long flag = static_cast<unsigned long long>(flag_of_call()) << 32;
      wanted[0] = (half == 0 ? wanted[0] : wanted[1]);
      wanted[1] = wanted[0] >> 32 | flag;
      wanted[0] = (wanted[0] & 0xffffffffull) | flag;
      // Bytes past the end of a result may have any bits, since nothing keeps them.
      if (is_result && bytes < 16) return;
    } else if (run_.kind == PacketFormat::escaped) {
      for (unsigned i = 0; i < 2; ++i)
        if (found[i] == EscapedPacket::kStandIn)
          found[i] = !escape_at                   ? 0
                     : (*escape_at >> i & 1) != 0 ? EscapedPacket::kMissing
                                                  : EscapedPacket::kStandIn;
      const plait::cuda::Unit unit =
          EscapedPacket::mixed({found[0], found[1]}, static_cast<unsigned>(at / 16));
      found[0] = unit.lo;
      found[1] = unit.hi;
    } else if (is_result && bytes < 16) {
      return;
    }
    if (found[0] != wanted[0] || found[1] != wanted[1])
      say(text("wanted unit {} of {}, found other data", at / 16, plait::print(src)), &access);
  }

  /// Both halves of a flag packet.
  bool is_here(const UnitProgress& unit, std::size_t step) const {
    const auto found = unit.taken.find(step);
    if (found == unit.taken.end()) return false;
    const auto& [first, second] = found->second;
    return first && is_here(*first) && (!has_flags() || (second && is_here(*second)));
  }
  bool has_stand_in(const UnitProgress& unit, std::size_t step) const {
    const MemoryAccess& access = *unit.taken.at(step)[0];
    return run_.kind == PacketFormat::escaped &&
           EscapedPacket::has_stand_in({access.value[0], access.value[1]});
  }
  bool is_here(const MemoryAccess& access) const {
    if (has_flags())
      return access.value[0] >> 32 == flag_of_call() && access.value[1] >> 32 == flag_of_call();
    if (run_.kind == PacketFormat::escaped)
      return access.value[0] != ~0ull && access.value[1] != ~0ull;
    for (const unsigned long long word : access.value)
      if (static_cast<unsigned>(word) == ~0u || word >> 32 == ~0u) return false;
    return true;
  }

  /// Waits with no send between them may end in any order, since no peer can tell.
  bool pushes_between(std::size_t first, std::size_t last) const {
    for (std::size_t i = first; i < last; ++i)
      if (steps_[i].kind == PlannedStep::push) return true;
    return false;
  }
  void take(const MemoryAccess& access, const PacketAddress& place) {
    const auto [at, unit] = step_of(PlannedStep::take, place);
    if (unit == nullptr || !is_whole(place, access))
      return say("wanted what the plan takes", &access);
    if (place.is_escape_flag) return;
    if (unit->cleared[at]) say("wanted no look at what was cleared", &access);
    for (std::size_t i = 0; i < at; ++i) {
      const bool is_earlier = steps_[i].kind == PlannedStep::take &&
                              steps_[i].op != steps_[at].op && unit->taken.contains(i);
      if (is_earlier && !is_here(*unit, i) && pushes_between(i, at))
        say("wanted one wait to end before the next", &access);
    }
    unit->taken[at][place.from / 16] = access;
  }

  void clear(const MemoryAccess& access, const PacketAddress& place) {
    const auto [at, unit] = step_of(PlannedStep::take, place);
    const unsigned long long none = has_flags() ? 0 : ~0ull;
    if (unit == nullptr || !is_cleared() || access.value[0] != none ||
        (!place.is_escape_flag && access.value[1] != none))
      return say("wanted no store to the own inbox but to clear packets", &access);
    if (!is_here(*unit, at)) say("wanted a packet cleared after it was taken", &access);
    if (place.is_escape_flag) {
      unit->escape_cleared[at] = true;
      return;
    }
    if (unit->cleared[at]) say("wanted each packet cleared once", &access);
    unit->cleared[at] = !has_flags() || place.from != 0;  // both halves, in order
  }

  void put(const MemoryAccess& access, const PacketAddress& place) {
    const auto [at, unit] = step_of(PlannedStep::put, place);
    if (unit == nullptr ||
        place.offset + access.bytes > steps_[at].region.offset + steps_[at].region.bytes)
      return say("wanted what the plan writes of the output", &access);
    unit->stored[at] += access.bytes;
    for (std::size_t i = 0; i < at; ++i) {
      if (steps_[i].kind != PlannedStep::take || steps_[i].op != steps_[at].op) continue;
      if (!is_here(*unit, i)) say("wanted nothing put before all of it is there", &access);
    }
  }

  /// Checks that all data of the plan has been moved.
  void check_complete() {
    for (std::size_t i = 0; i < steps_.size(); ++i) {
      const PlannedStep& step = steps_[i];
      for (std::uint64_t at = 0; at < step.region.bytes; at += 16) {
        const auto found = units_.find(step.is_greeting ? (1ull << 40) + i : at / 16);
        const auto bytes =
            static_cast<unsigned>(std::min<std::uint64_t>(16, step.region.bytes - at));
        const unsigned wanted = step.kind == PlannedStep::push ? (has_flags() ? 32 : 16) : bytes;
        bool is_done = found != units_.end();
        if (is_done && step.kind == PlannedStep::take) {
          is_done = is_here(found->second, i) && (!is_cleared() || found->second.cleared[i]) &&
                    (!has_stand_in(found->second, i) || found->second.escape_cleared[i]);
        } else if (is_done) {
          is_done = found->second.stored[i] == wanted;
        }
        if (!is_done)
          return say(text("wanted unit {} of {}{}, found that it was not, or not once", at / 16,
                          plait::print(step.region),
                          step.kind == PlannedStep::take   ? " taken and cleared"
                          : step.kind == PlannedStep::push ? " pushed"
                                                           : " put"));
      }
    }
  }

  const LlRun& run_;
  const LlTraces& traces_;
  const Plan& plan_;
  const std::uint64_t half_, part_bytes_;
  int rank_ = 0;
  std::size_t piece_ = 0, thread_ = 0;
  std::vector<PlannedStep> steps_;
  std::vector<Region> inputs_;
  std::map<std::uint64_t, UnitProgress> units_;
  std::vector<std::string> faults_;
};

}  // namespace plait_test
