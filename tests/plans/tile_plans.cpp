// The plans of tiled calls: every collective, number of ranks and root, sizes that cut tiles and
// units short, windows full and not, by themselves and behind calls of other sizes and collectives.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/text.hpp"
#include "exec/cuda/tiles/tile_plan.hpp"
#include "exec/cuda/traffic/tile_cut.hpp"
#include "plait/report.hpp"
#include "plans/cases.hpp"

namespace {

using namespace plait;
using namespace plait::cuda;

std::string first_finding(const Report& report) {
  return report.findings.empty() ? ""
                                 : text(report.findings[0].rule, ": ", report.findings[0].sentence);
}

Request request_of(const Topology& topology, Collective collective, int ranks, int root,
                   std::uint64_t count, DataType type) {
  Request request;
  request.collective = collective;
  request.ranks = ranks;
  request.root = root;
  request.peer = (root + 1) % ranks;
  request.count = count;
  request.type = type;
  return checked(request, topology);
}

/// Tiles of so many units; window 2 where all blocks run and ranks keep in step.
TileWish wish_of(int ranks, unsigned blocks, std::uint32_t units) {
  TileWish wish;
  wish.most_blocks = blocks;
  wish.tile_units = units;
  wish.slot_memory_bytes = tile_slots(ranks) * 1024;
  return wish;
}

}  // namespace

TEST_CASE("every plan of a tiled call is proved") {
  const Topology topology = cases::wide_machine();
  int plans = 0;
  for (int c = 0; c <= static_cast<int>(Collective::copy); ++c)
    for (const int ranks : {2, 3, 4, 5, 6, 7, 8, 16})
      for (const int root : cases::roots(static_cast<Collective>(c), ranks))
        for (const std::uint64_t count : {1, 5, 127, 1009, 20011}) {
          if (ranks == 16 && count > 1009) continue;
          const DataType type = plans % 2 == 0 ? DataType::fp32 : DataType::bf16;
          const Request request =
              request_of(topology, static_cast<Collective>(c), ranks, root, count, type);
          const unsigned blocks = std::vector{1u, 2u, 132u}[static_cast<unsigned>(plans % 3)];
          const Plan plan = tile_plan(topology, request, wish_of(ranks, blocks, 64));
          CAPTURE(text(label(plan), " ", name_of(request.collective), " of ", count, ", ", ranks,
                       " ranks, root ", root));
          CHECK(first_finding(verify(plan)) == "");
          CHECK(plan_from_json(to_json(plan)) == plan);
          ++plans;
        }
  MESSAGE(plans, " plans proved");
}

TEST_CASE("tiled calls follow each other in any order, in the same slots") {
  const Topology topology = cases::wide_machine();
  for (const int ranks : {2, 3, 4}) {
    std::vector<Plan> calls;
    for (const Collective collective :
         {Collective::all_reduce, Collective::copy, Collective::broadcast, Collective::all_gather})
      for (const std::uint64_t count : {300, 3000})
        calls.push_back(tile_plan(
            topology, request_of(topology, collective, ranks, ranks - 1, count, DataType::fp32),
            wish_of(ranks, 1, count == 300 ? 16 : 64)));
    for (const Plan& first : calls)
      for (const Plan& second : calls)
        for (const Plan& third : calls)
          CHECK(first_finding(verify_in_a_row({&first, &second, &third})) == "");
  }
}

namespace {

/// A fault that a kernel's text might have: wherever it says so, in every block's plan.
struct TileFault {
  const char* what;
  std::string role;
  int word = -1;
};
const std::vector<TileFault> kFaults{
    {"no wait", "room", kTilePartsTaken},
    {"no wait", "push", kTileFree},
    {"no wait", "tell_arrived", kTileArrived},
    {"no wait", "tell_handled", kTileHandled},
    {"no wait", "handle", kTileSent},
    {"no wait", "handle", kTileResultsTaken},
    {"no wait", "handle", kTileParts},
    {"no wait", "collect", kTileResults},
    {"one tile too few", "room", kTilePartsTaken},
    {"one tile too few", "push", kTileFree},
    {"one tile too few", "tell_arrived", kTileArrived},
    {"one tile too few", "tell_handled", kTileHandled},
    {"one tile too few", "handle", kTileSent},
    {"one tile too few", "handle", kTileResultsTaken},
    {"one tile too few", "handle", kTileParts},
    {"one tile too few", "collect", kTileResults},
    {"no signal", "room", kTileFree},
    {"no signal", "push", kTileSent},
    {"no signal", "push", kTileArrived},
    {"no signal", "tell_arrived", kTileParts},
    {"no signal", "tell_handled", kTilePartsTaken},
    {"no signal", "tell_handled", kTileResults},
    {"no signal", "handle", kTileHandled},
    {"no signal", "collect", kTileResultsTaken},
    // Of parts and results nobody looks back at earlier calls, so that they are told in a call that
    // has none only keeps these words from falling far behind.
    {"no signal", "tell_others", kTilePartsTaken},
    {"no signal", "tell_others", kTileResultsTaken},
    {"too early", "push", kTileSent},
    {"too early", "push", kTileArrived},
    {"too early", "tell_arrived", kTileParts},
    {"too early", "tell_handled", kTilePartsTaken},
    {"too early", "tell_handled", kTileResults},
    {"too early", "handle", kTileHandled},
    {"too early", "collect", kTileResultsTaken},
    {"another's slot", "push"},
    {"another's slot", "handle"},
    {"always the first slot", "push"},
    {"always the first slot", "handle"},
    {"another part", "push"},
};

void spoil(const Plan& plan, const TileFault& fault, std::vector<Op>& ops) {
  const std::uint64_t slot = plan.slot_rings[0].slot_bytes, ring = kTileSlots * slot;
  const std::string what = fault.what;
  for (std::size_t k = 0; k < ops.size(); ++k) {
    Op& op = ops[k];
    const bool is_word = op.kind == OpKind::signal || op.kind == OpKind::wait;
    if (is_word != (fault.word >= 0) || (is_word && op.flag.index != fault.word)) continue;
    const bool pushes = op.kind == OpKind::copy && op.dst.space == Space::scratch;
    if (op.kind == OpKind::wait && what == "one tile too few") {
      op.value == 0 ? void(++op.before) : void(--op.value);

    } else if (what == (op.kind == OpKind::wait ? "no wait" : "no signal") && is_word) {
      ops.erase(ops.begin() + static_cast<std::ptrdiff_t>(k--));
    } else if (what == "too early" && op.kind == OpKind::signal) {
      std::size_t before = k;
      while (before > 0 && ops[before - 1].kind == OpKind::signal) --before;
      if (before > 0)
        std::rotate(ops.begin() + static_cast<std::ptrdiff_t>(before) - 1,
                    ops.begin() + static_cast<std::ptrdiff_t>(k),
                    ops.begin() + static_cast<std::ptrdiff_t>(k) + 1);
    } else if (what == "another's slot" && pushes) {
      op.dst.offset = op.dst.offset >= ring ? op.dst.offset - ring : op.dst.offset + ring;
    } else if (what == "always the first slot" && pushes) {
      op.dst.offset = op.dst.offset / ring * ring;
    } else if (what == "another part" && pushes && op.srcs[0].offset >= slot) {
      op.srcs[0].offset -= slot;
    }
  }
}

/// Whether any of many calls, alone or behind others, is no longer proved.
bool is_found(const TileFault& fault) {
  const Topology topology = cases::wide_machine();
  for (const int ranks : {2, 3}) {
    std::vector<Plan> calls;
    for (const Collective collective :
         {Collective::all_reduce, Collective::copy, Collective::broadcast, Collective::reduce,
          Collective::all_gather}) {
      Plan plan =
          tile_plan(topology, request_of(topology, collective, ranks, 0, 3000, DataType::fp32),
                    wish_of(ranks, 1, 64));
      for (Lane& lane : plan.lanes)
        if (lane.name == fault.role) spoil(plan, fault, lane.ops);
      if (!verify(plan).proved()) return true;
      calls.push_back(std::move(plan));
    }
    for (const Plan& first : calls)
      for (const Plan& second : calls)
        if (!verify_in_a_row({&first, &second}).proved()) return true;
  }
  return false;
}

}  // namespace

TEST_CASE("faults in the roles of a tiled call are found by its proof") {
  std::map<std::string, int> found;
  for (const TileFault& fault : kFaults) {
    CAPTURE(text(fault.what, ", ", fault.role, ", word ", fault.word));
    CHECK(is_found(fault));
    ++found[fault.what];
  }
  for (const auto& [what, count] : found) MESSAGE(what, ": ", count);
  CHECK(kFaults.size() == 38);
  CHECK(!is_found({"nothing", "push", kTileFree}));
}

/// What the plan of one block says of all of them.
TEST_CASE("blocks of a tiled call share no unit and no slot, and leave none out") {
  const Topology topology = cases::wide_machine();
  for (const int ranks : {2, 3, 8})
    for (const unsigned most : {1u, 3u, 100u, 132u})
      for (const std::uint64_t count : {1ull, 1009ull, 300007ull, 3000017ull}) {
        const Request request =
            request_of(topology, Collective::all_reduce, ranks, 0, count, DataType::fp32);
        TiledArgs shape = tiled_shape(request, 0);
        TileWish wish;
        wish.most_blocks = most;
        wish.slot_memory_bytes = 96ull << 20;
        spread_tiles(shape, wish);
        const std::uint32_t tile = tile_units(shape);
        const std::uint64_t units = (shape.part_bytes + 15) / 16;
        REQUIRE(std::uint64_t{tile} * 16 <= shape.slot_bytes);
        std::vector<std::uint8_t> taken(units, 0);
        for (unsigned block = 0; block < shape.blocks; ++block)
          for (unsigned t = 0; first_unit(shape, tile, block, t) < units; ++t)
            for (std::uint64_t i = first_unit(shape, tile, block, t);
                 i < std::min<std::uint64_t>(first_unit(shape, tile, block, t) + tile, units); ++i)
              ++taken[i];
        CHECK(std::all_of(taken.begin(), taken.end(), [](int times) { return times == 1; }));
        std::set<unsigned long long> slots;
        for (unsigned block = 0; block < shape.blocks; ++block)
          for (const int stage : {0, 1})
            for (int from = 0; from < ranks; ++from)
              for (unsigned turn = 0; turn < kTileSlots; ++turn)
                CHECK(slots.insert(slot_index(ranks, block, stage, from, turn)).second);
        CHECK(*slots.rbegin() < tile_slots(ranks));
      }
}
