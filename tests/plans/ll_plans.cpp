// Plans of LL engines: a plan with a fault is not proved; correct plans are proved behind any other
// plans.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>

#include "base/text.hpp"
#include "gpu/ll/ll_plan.hpp"
#include "plait/report.hpp"
#include "plan/shots.hpp"
#include "plans/cases.hpp"
#include "unit/scale.hpp"

namespace {

using namespace plait;
using namespace plait::cuda;

struct EngineKind {
  LlKernel kernel;
  PacketFormat packet;
};
constexpr EngineKind kEngineKinds[] = {
    {LlKernel::one_shot, PacketFormat::nan_sentinel}, {LlKernel::one_shot, PacketFormat::flag},
    {LlKernel::two_shot, PacketFormat::nan_sentinel}, {LlKernel::two_shot, PacketFormat::flag},
    {LlKernel::direct_ll, PacketFormat::escaped},     {LlKernel::ll_chain, PacketFormat::escaped}};
const char* const kFaults[] = {
#define PLAIT_LINE_MUTANT(mistake) mistake,
#define PLAIT_TILE_MUTANT(...)
#define PLAIT_SCHEDULE_MUTANT(...)
#include "plans/plan_mutants.def"
#undef PLAIT_SCHEDULE_MUTANT
#undef PLAIT_LINE_MUTANT
#undef PLAIT_TILE_MUTANT
};

std::string first_finding(const Report& report) {
  return report.findings.empty()
             ? ""
             : text("{}: {}", report.findings[0].rule, report.findings[0].sentence);
}

bool is_copy(const Op& op) { return op.kind == OpKind::copy || op.kind == OpKind::reduce; }

/// Returns plans with a fault, made at every possible place.
std::vector<Plan> with_fault(const Plan& plan, const std::string& what) {
  std::vector<Plan> made;
  const std::uint64_t half = plan.inbox_bytes[0] / 2;
  for (std::size_t i = 0; i < plan.lanes.size(); ++i)
    for (std::size_t k = 0; k < plan.lanes[i].ops.size(); ++k) {
      Plan bad = plan;
      std::vector<Op>& ops = bad.lanes[i].ops;
      const auto at = static_cast<std::ptrdiff_t>(k);
      const bool pushes = ops[k].kind == OpKind::copy && ops[k].dst.space == Space::inbox;
      const bool takes = is_copy(ops[k]) && ops[k].dst.space == Space::output &&
                         ops[k].srcs.back().space == Space::inbox;
      if (what == "no wait" && ops[k].kind == OpKind::wait) {
        ops.erase(ops.begin() + at);
      } else if (what == "no signal" && ops[k].kind == OpKind::signal) {
        ops.erase(ops.begin() + at);
      } else if (what == "signal before push" && pushes) {
        std::swap(ops[k], ops[k + 1]);
      } else if (what == "the other half" && (pushes || takes)) {
        for (Region* region : {&ops[k].dst, &ops[k].srcs.back()})
          if (region->space == Space::inbox) region->offset = (region->offset + half) % (2 * half);
      } else if (what == "another's slot" && pushes && ops[k].dst.offset % half >= 16) {
        ops[k].dst.offset -= 16;
      } else if (what == "another's part" && pushes && ops[k].srcs[0].offset >= 16) {
        ops[k].srcs[0].offset -= 16;
      } else {
        continue;
      }
      made.push_back(bad);
    }
  return made;
}

}  // namespace

/// A sample takes the first place of a fault in a plan, and a share of the other places.
TEST_CASE("verify rejects an LL plan with a fault") {
  const Topology topology = cases::wide_machine();
  plait_test::Sample is_next_taken;
  std::map<std::string, std::pair<int, int>> found;
  for (const EngineKind& kind : kEngineKinds)
    for (const Collective collective : {Collective::all_reduce, Collective::all_gather,
                                        Collective::broadcast, Collective::reduce})
      for (const int ranks : {2, 3, 4}) {
        if (!serves(kind.kernel, collective)) continue;
        Request request;
        request.collective = collective;
        request.ranks = ranks;
        request.count = 300;
        request = checked(request, topology);
        // With 75 units, one_shot and reduces send all at once, two_shot reuses slots, other
        // engines send pieces.
        const bool is_two_shot = kind.kernel == LlKernel::two_shot;
        const bool is_whole =
            kind.kernel == LlKernel::one_shot || (is_two_shot && collective == Collective::reduce);
        const std::uint64_t half = (is_whole ? 80 : 25) * static_cast<std::uint64_t>(ranks - 1) *
                                   plait::cuda::bytes_of(kind.packet);
        const Plan plan = ll_plan(topology, request, kind.kernel, kind.packet, half);
        REQUIRE(verify(plan).proved());
        // In several pieces the waits of the next piece may replace a missing wait.
        const Plan one_piece = ll_plan(topology, request, kind.kernel, kind.packet, 100 * half);
        for (const std::string what : {"no wait", "no signal", "signal before push",
                                       "the other half", "another's slot", "another's part"}) {
          // A two_shot that reuses slots has flags that no data needs (plan/shots.hpp).
          const bool at_once = what == "no wait" || (what == "no signal" && is_two_shot);
          bool is_first = true;
          for (const Plan& bad : with_fault(at_once ? one_piece : plan, what)) {
            if (!is_next_taken() && !is_first) continue;
            is_first = false;
            auto& [all, rejected] = found[what];
            ++all;
            rejected += !verify(bad).proved();
          }
        }
      }
  for (const auto& [what, counts] : found) {
    MESSAGE(what, ": ", counts.second, " of ", counts.first, " are rejected");
    CHECK(counts.first > 10);
    CHECK(counts.second == counts.first);
  }
}

TEST_CASE("LL calls of one piece follow each other in any order in the same inboxes") {
  const Topology topology = cases::wide_machine();
  for (const int ranks : {2, 3, 5, 8}) {
    std::vector<Plan> calls;
    for (const LlKernel kernel :
         {LlKernel::one_shot, LlKernel::two_shot, LlKernel::direct_ll, LlKernel::ll_chain})
      for (const Collective collective :
           {Collective::all_reduce, Collective::copy, Collective::broadcast, Collective::reduce}) {
        if (!serves(kernel, collective)) continue;
        if (kernel == LlKernel::direct_ll && collective == Collective::broadcast) continue;
        Request request;
        request.collective = collective;
        request.ranks = ranks;
        request.root = ranks - 1;
        request.count = 300 + calls.size() * 50;
        request = checked(request, topology);
        const PacketFormat kind =
            is_escaped(kernel) ? PacketFormat::escaped : PacketFormat::nan_sentinel;
        calls.push_back(ll_plan(topology, request, kernel, kind, 1 << 20));
      }
    for (const Plan& first : calls)
      for (const Plan& second : calls)
        for (const Plan& third : calls) {
          CHECK(first_finding(verify_in_a_row({&first, &second, &third})) == "");
          // Without the second call's signals, the third would write too early into the first's
          // half.
          Plan silent = second;
          for (Lane& lane : silent.lanes)
            std::erase_if(lane.ops, [](const Op& op) { return op.kind == OpKind::wait; });
          CHECK(first_finding(verify_in_a_row({&first, &silent, &third})) != "");
        }
  }
}

namespace {

/// A chain in pieces of 256 bytes, the last piece shorter, followed by a store that the next call
/// may do at once: `writer` stores into the half of `owner`'s inbox that the last piece does not
/// use.
Plan chain_and_next(const Topology& topology, const Request& request, std::uint64_t pieces,
                    int writer, int owner) {
  constexpr std::uint64_t kPiece = 256, kHalf = 1024;
  Builder builder(topology, request, "ll_chain");
  builder.kernel("ll_chain");
  for (int rank = 0; rank < request.ranks; ++rank) builder.alloc(Space::inbox, rank, 2 * kHalf);
  std::vector<std::pair<Shot, Range>> parts;
  for (std::uint64_t at = 0; at < pieces; ++at)
    parts.push_back({{"ll_chain", at % 2 * kHalf, kPiece},
                     {at * kPiece, std::min(kPiece, request.count * 4 - at * kPiece)}});
  write_chain(builder, parts);
  builder.copy(builder.lane(writer, LaneKind::kernel, "ll_chain"),
               {Space::inbox, owner, pieces % 2 * kHalf, 16},
               reduces(request.collective) ? builder.input(writer, {0, 16})
                                           : builder.output(writer, {0, 16}));
  return builder.build();
}

/// Flags of a chain: each rank waits last for every other rank's `nearly_done`.
enum class LeftOutFlags { room, nearly_done };
Plan without_flags(const Plan& plan, LeftOutFlags left_out) {
  const ChainShape shape = chain_shape(plan.request);
  Plan deaf = plan;
  for (Lane& lane : deaf.lanes) {
    auto waits = std::count_if(lane.ops.begin(), lane.ops.end(),
                               [](const Op& op) { return op.kind == OpKind::wait; });
    std::erase_if(lane.ops, [&](const Op& op) {
      if (op.kind != OpKind::wait) return false;
      const bool is_last = --waits < plan.request.ranks - 1;
      const bool is_data = sends(shape, plan.request.ranks, op.flag.writer, op.flag.owner);
      return left_out == LeftOutFlags::nearly_done ? is_last : !is_last && !is_data;
    });
  }
  return deaf;
}

}  // namespace

TEST_CASE("after a chain in pieces the next call may use the inboxes") {
  const Topology topology = cases::wide_machine();
  int plans = 0, without = 0;
  for (const Collective collective : {Collective::reduce, Collective::broadcast})
    for (const int ranks : {2, 3, 4, 5})
      for (const std::uint64_t pieces : {2, 3, 4, 5, 6})
        for (const int root : {0, ranks - 1}) {
          Request request;
          request.collective = collective;
          request.ranks = ranks;
          request.root = root;
          request.count = pieces * 64 - 8;
          request = checked(request, topology);
          int found_room = 0, found_left = 0;
          for (int writer = 0; writer < ranks; ++writer)
            for (int owner = 0; owner < ranks; ++owner) {
              if (writer == owner) continue;
              const Plan plan = chain_and_next(topology, request, pieces, writer, owner);
              CAPTURE(text("{}, {} ranks, {} pieces, root {}, writer {}, owner {}",
                           name_of(collective), ranks, pieces, root, writer, owner));
              CHECK(first_finding(verify(plan)) == "");
              ++plans;
              found_room += !verify(without_flags(plan, LeftOutFlags::room)).proved();
              found_left += !verify(without_flags(plan, LeftOutFlags::nearly_done)).proved();
            }
          CAPTURE(
              text("{}, {} ranks, {} pieces, root {}", name_of(collective), ranks, pieces, root));
          // The first free slot only matters for earlier calls. If sums return, the root takes the
          // sums a piece late, and therefore knows that all ranks have finished that piece.
          if (!returns(chain_shape(request))) CHECK((found_room > 0) == (pieces > 2));
          CHECK(found_left > 0);
          without += found_room + found_left;
        }
  MESSAGE(plans, " chains are proved; without one kind of words ", without, " are rejected");
}
