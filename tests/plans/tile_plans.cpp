// Plans of tiled calls: a plan with a fault is not proved; correct plans are proved behind calls of
// different sizes and collectives; the plan of one block is representative of all blocks.
#include <doctest/doctest.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <set>

#include "base/text.hpp"
#include "gpu/abi/tile_cut.hpp"
#include "gpu/tile/tile_plan.hpp"
#include "plait/report.hpp"
#include "plans/cases.hpp"

namespace {

using namespace plait;
using namespace plait::cuda;

std::string first_finding(const Report& report) {
  return report.findings.empty()
             ? ""
             : text("{}: {}", report.findings[0].rule, report.findings[0].sentence);
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

constexpr unsigned kBlocks = 148;  // an SM each of a B200, more than an H200 has

/// Returns a wish for tiles of `units`; window 2 if all blocks run and ranks stay in step.
TileWish wish_of(int ranks, unsigned blocks, std::uint32_t units) {
  TileWish wish;
  wish.most_blocks = blocks;
  wish.tile_units = units;
  wish.slot_blocks = kBlocks;
  wish.slot_memory_bytes = tile_slots(ranks, kBlocks) * 2 * 1024;
  return wish;
}

}  // namespace

TEST_CASE("a tiled plan's params describe its schedule for the price") {
  const Topology topology = cases::wide_machine();
  const auto params = [&](const TileWish& wish) {
    const Request request =
        request_of(topology, Collective::all_reduce, 4, 0, 1 << 20, DataType::fp32);
    return tile_plan(topology, request, wish).params;
  };
  TileWish wish = wish_of(4, 8, 64);
  for (const char* key : {"shift", "in_flight_bytes", "send_gb_per_s"})
    CHECK(!params(wish).contains(key));
  wish.turns = true;
  CHECK(params(wish).at("shift") == 1);
  wish.piece_bytes = 4096;
  CHECK(params(wish).at("in_flight_bytes") == 8 * kPushStages * 4096);
  wish.send_gb_per_s = 350;
  CHECK(params(wish).at("send_gb_per_s") == 350);
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
    for (const std::uint32_t window : {1, 3}) {  // two at least
      TileWish wish = wish_of(ranks, 1, 64);
      wish.window = window;
      wish.order = kQuadratic;
      wish.turns = true;
      for (const Collective collective : {Collective::all_reduce, Collective::reduce_scatter})
        calls.push_back(tile_plan(
            topology, request_of(topology, collective, ranks, 0, 3000, DataType::int32), wish));
    }
    for (const Plan& first : calls)
      for (const Plan& second : calls)
        for (const Plan& third : calls)
          CHECK(first_finding(verify_in_a_row({&first, &second, &third})) == "");
  }
}

namespace {

/// A fault of a kernel's code: the fault occurs in every block's plan, wherever that code runs.
struct TileFault {
  const char* what;
  std::string role;
  int word = -1;
};
const std::vector<TileFault> kFaults{
#define PLAIT_LINE_MUTANT(...)
#define PLAIT_TILE_MUTANT(mistake, role, word) {mistake, #role, word},
#define PLAIT_SCHEDULE_MUTANT(...)
#include "plans/plan_mutants.def"
#undef PLAIT_SCHEDULE_MUTANT
#undef PLAIT_LINE_MUTANT
#undef PLAIT_TILE_MUTANT
};

void spoil(const TiledArgs& shape, const TileFault& fault, std::vector<Op>& ops) {
  const std::uint64_t slot = shape.slot_bytes, ring = shape.window * slot;
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

/// Whether verify() rejects any of many calls with the fault, alone or behind other calls.
bool is_found(const TileFault& fault) {
  const Topology topology = cases::wide_machine();
  for (const int ranks : {2, 3, 4}) {
    std::vector<Plan> calls;
    const auto add = [&](Collective collective, const TileWish& wish) {
      const Request request = request_of(topology, collective, ranks, 0, 3000, DataType::fp32);
      Plan plan = tile_plan(topology, request, wish);
      TiledArgs shape = tiled_shape(request, 0);
      spread_tiles(shape, wish);
      for (Lane& lane : plan.lanes)
        if (lane.name == fault.role) spoil(shape, fault, lane.ops);
      calls.push_back(std::move(plan));
      return verify(calls.back()).proved();
    };
    for (const Collective collective :
         {Collective::all_reduce, Collective::reduce, Collective::reduce_scatter,
          Collective::broadcast, Collective::all_gather, Collective::copy})
      if (!add(collective, wish_of(ranks, 1, 64))) return true;
    for (const Plan& first : calls)
      for (const Plan& second : calls)
        if (!verify_in_a_row({&first, &second}).proved()) return true;
  }
  return false;
}

}  // namespace

TEST_CASE("verify finds faults in the roles of a tiled call") {
  std::map<std::string, int> found;
  for (const TileFault& fault : kFaults) {
    CAPTURE(text("{}, {}, word {}", fault.what, fault.role, fault.word));
    CHECK(is_found(fault));
    ++found[fault.what];
  }
  for (const auto& [what, count] : found) MESSAGE(what, ": ", count);
  CHECK(!is_found({"nothing", "push", kTileFree}));
}

/// Justifies proving the plan of a single block for all blocks.
TEST_CASE("blocks of a tiled call share no unit and no slot, and leave none out") {
  const Topology topology = cases::wide_machine();
  for (const int ranks : {2, 3, 8})
    for (const unsigned most : {1u, 3u, 100u, kBlocks})
      for (const std::uint64_t count : {1ull, 1009ull, 300007ull, 3000017ull}) {
        const Request request =
            request_of(topology, Collective::all_reduce, ranks, 0, count, DataType::fp32);
        TiledArgs shape = tiled_shape(request, 0);
        TileWish wish;
        wish.most_blocks = most;
        wish.slot_blocks = kBlocks;
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
        for (int at = 0; at < ranks; ++at) {
          std::set<unsigned long long> slots;
          for (unsigned block = 0; block < shape.blocks; ++block)
            for (const int stage : {0, 1})
              for (int from = 0; from < ranks; ++from)
                for (unsigned turn = 0; turn < shape.window; ++turn)
                  if ((in_slots(shape, at, stage) >> from & 1) != 0)
                    CHECK(slots.insert(slot_offset(shape, block, at, stage, from, turn)).second);
          CHECK(*slots.rbegin() + shape.slot_bytes <= wish.slot_memory_bytes);
          for (auto one = std::next(slots.begin()); one != slots.end(); ++one)
            CHECK(*one - *std::prev(one) >= shape.slot_bytes);
        }
      }
}
