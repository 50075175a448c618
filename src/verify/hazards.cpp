// Checks that two accesses to the same bytes, at least one a write, are ordered. Ops are taken in
// the order of a run. Each byte range keeps the last write and the latest read of each lane since.
// An access ordered after the last write is ordered after all earlier accesses, or these were
// reported. Source: vector-clock race detection (FastTrack, PLDI 2009).
#include <algorithm>

#include "base/text.hpp"
#include "plan/library_call.hpp"
#include "verify/intervals.hpp"
#include "verify/phases.hpp"

namespace plait {
namespace {

struct Accesses {
  Site write;  // lane -1: none
  std::vector<Site> reads;
  Accesses later(std::uint64_t) const { return *this; }
};

class HazardCheck {
 public:
  HazardCheck(const Plan& plan, const OpOrder& order, Placement placement, Findings& findings)
      : plan_(plan),
        order_(order),
        memories_(plan, placement),
        bytes_(memories_.count()),
        suffix_(placement == Placement::in_place ? " (in place)" : ""),
        findings_(findings) {}

  void take(Site here) {
    const Op& op = order_.op(here);
    if (op.kind == OpKind::signal || op.kind == OpKind::wait) return;
    if (is_onto_itself(op)) return;
    for (const Region& src : op.srcs) {
      const MemoryAddress at = memories_.of(src);
      bytes_[at.index].visit(at.offset, at.offset + src.bytes,
                             [&](std::uint64_t, std::uint64_t, Accesses& range) {
                               check(range.write, here, src, "writes", "reads");
                               add_read(range.reads, here);
                             });
    }
    if (op.dst.bytes == 0) return;  // a join without output
    const MemoryAddress at = memories_.of(op.dst);
    bytes_[at.index].visit(at.offset, at.offset + op.dst.bytes,
                           [&](std::uint64_t, std::uint64_t, Accesses& range) {
                             check(range.write, here, op.dst, "writes", "writes");
                             for (const Site& read : range.reads)
                               check(read, here, op.dst, "reads", "writes");
                           });
    bytes_[at.index].write(at.offset, at.offset + op.dst.bytes, {here, {}});
    check_overlap(here, op);
  }

 private:
  // An engine's in-place copy of a region onto itself: EngineCall::copy skips the copy.
  bool is_onto_itself(const Op& op) const {
    if (plan_.counts.empty() || op.kind != OpKind::copy) return false;
    const MemoryAddress to = memories_.of(op.dst), from = memories_.of(op.srcs.front());
    return to.index == from.index && to.offset == from.offset;
  }

  static void add_read(std::vector<Site>& reads, Site here) {
    for (Site& read : reads)
      if (read.lane == here.lane) {
        read = here;
        return;
      }
    reads.push_back(here);
  }

  void check(Site earlier, Site here, const Region& region, const char* did, const char* does) {
    if (earlier.lane < 0 || (earlier.lane == here.lane && earlier.op == here.op) ||
        order_.before(earlier, here))
      return;
    const bool is_known = last_earlier_.lane == earlier.lane && last_earlier_.op == earlier.op &&
                          last_here_.lane == here.lane && last_here_.op == here.op;
    if (is_known) return;  // more bytes of the same pair of ops
    last_earlier_ = earlier;
    last_here_ = here;
    findings_.of_op(
        Rule::hazard, here.lane, here.op,
        text("wanted an order between {}, which {} some of {}, and {}, which {} it, found none{}",
             site(plan_, earlier.lane, earlier.op), did, print(region),
             site(plan_, here.lane, here.op), does, suffix_));
  }

  // An op may write exactly over the source; with a partial overlap results are undefined.
  void check_overlap(Site here, const Op& op) {
    const MemoryAddress to = memories_.of(op.dst);
    for (const Region& src : op.srcs) {
      const MemoryAddress from = memories_.of(src);
      const bool overlap = from.index == to.index && from.offset < to.offset + op.dst.bytes &&
                           to.offset < from.offset + src.bytes;
      const bool is_sound = op.kind == OpKind::join
                                ? is_in_place(plan_, op, order_.rank(here), to.offset, from.offset)
                                : from.offset == to.offset;
      if (overlap && !is_sound)
        findings_.of_op(
            Rule::hazard, here.lane, here.op,
            text("wanted {} and its source {} apart or the same, found that they overlap{}",
                 print(op.dst), print(src), suffix_));
    }
  }

  const Plan& plan_;
  const OpOrder& order_;
  Memories memories_;
  std::vector<Intervals<Accesses>> bytes_;
  const char* suffix_;
  Findings& findings_;
  Site last_earlier_, last_here_;
};

}  // namespace

void check_hazards(const Plan& plan, const OpOrder& order, Placement placement,
                   Findings& findings) {
  HazardCheck check(plan, order, placement, findings);
  for (const Site& here : order.sequence()) check.take(here);
}

}  // namespace plait
