// Cases of calls by copy engines, with and without parts through host memory.
#include "exec/cuda/engine_cases.hpp"

#include <algorithm>

#include "base/text.hpp"
#include "exec/cuda/copies/copy_plans.hpp"
#include "exec/cuda/copies/engine_ring.hpp"
#include "exec/cuda/copies/rotation.hpp"
#include "exec/cuda/device/arena_layout.hpp"
#include "exec/cuda/tiles/tile_args.hpp"

namespace plait::cuda {
namespace {

constexpr std::uint64_t kMib = 1 << 20;

const int kRanks[] = {2, 3, 4, 5, 6, 7, 8, 16};

struct Room {
  std::string name;
  CopyRoom room;
  std::vector<std::uint64_t> elements;  // of the message
};

CopyRoom room_of(int ranks, std::uint64_t budget_bytes) {
  ArenaUse use;
  use.ranks = ranks;
  use.tiled_blocks = kTileBlocks;
  use.exchanges = true;
  const DeviceArenaSizes sizes = lay_out(use, budget_bytes).first;
  CopyRoom room;
  room.tile_bytes = sizes.tile_bytes;
  room.inbox_bytes = sizes.rotation_bytes;
  room.slot_bytes = room.inbox_bytes / rotation_slots(ranks) / 4096 * 4096;
  room.lent_bytes = ranks == 2 ? room.tile_bytes : 0;
  room.ring_bytes = 16 * kMib;
  return room;
}

/// Slots of two pages: small messages take many pieces, and each slot is used again.
CopyRoom tiny_room(int ranks) {
  CopyRoom room;
  room.tile_bytes = 64 << 10;
  room.slot_bytes = 8192;
  room.inbox_bytes = rotation_slots(ranks) * room.slot_bytes;
  room.lent_bytes = ranks == 2 ? room.tile_bytes : 0;
  room.ring_bytes = 4 * room.slot_bytes;
  return room;
}

std::vector<Room> rooms_of(int ranks) {
  return {{"tiny", tiny_room(ranks), {1, 1009, 40009}},
          {"64 MB", room_of(ranks, 64'000'000), {127, 1048573, 67108859}},
          {"usual", room_of(ranks, kUsualMemoryBytes), {7, 65537, 16777259, 268435399}}};
}

/// "copy_rotation", or what goes beside it.
std::string engine_of(const Request& request, const CopyTuning& tuning) {
  if (tuning.host_cpu_permille != 0) return "host_reduction";
  if (tuning.gather_permille != 0) return "host_gather";
  return request.ranks == 2        ? "copy_exchange"
         : is_engine_ring(request) ? "copy_ring"
                                   : "copy_rotation";
}

/// The corners of what may be tuned of a request in a room.
std::vector<CopyTuning> corners(const Request& request, bool is_tiny) {
  std::vector<CopyTuning> all(1);
  const auto add = [&](auto CopyTuning::* what, auto value) {
    CopyTuning& made = all.emplace_back();
    made.*what = value;
  };
  const std::uint64_t bytes = request.count * bytes_of(request.type);
  if (is_tiny)
    add(&CopyTuning::piece_bytes, std::uint64_t{4096});
  else if (bytes <= 8 * kMib)
    add(&CopyTuning::piece_bytes, std::uint64_t{64 << 10});
  if (request.ranks == 2)
    for (const int cuts : {0, 3}) add(&CopyTuning::cuts, cuts);
  for (const std::uint32_t permille : {90u, 1000u}) {
    if (request.ranks == 2) add(&CopyTuning::host_permille, permille);
    if (request.collective != Collective::all_reduce) continue;
    if (request.ranks > 2) add(&CopyTuning::gather_permille, permille);
    add(&CopyTuning::host_cpu_permille, permille);
  }
  for (CopyTuning& one : all)
    if (is_tiny) one.least_chunk_bytes = 4096;
  return all;
}

std::string label_of(const Request& request, const std::string& room, const CopyTuning& tuning) {
  return text(name_of(request.collective), " of ", request.count, " ", name_of(request.type),
              " on ", request.ranks, " ranks, root ", request.root, ", ", room, " arena, pieces ",
              tuning.piece_bytes, ", cuts ", tuning.cuts, ", host ",
              tuning.host_permille + tuning.gather_permille, ", cores ", tuning.host_cpu_permille);
}

/// Counts of a part are a rank's share, so that all collectives move as much.
Request request_of(Collective collective, int ranks, std::uint64_t elements) {
  constexpr DataType kTypes[] = {DataType::fp32, DataType::bf16, DataType::uint8};
  Request request;
  request.collective = collective;
  request.ranks = ranks;
  request.type = kTypes[elements % 3];
  const bool counts_parts = collective == Collective::all_gather ||
                            collective == Collective::reduce_scatter ||
                            collective == Collective::all_to_all ||
                            collective == Collective::gather || collective == Collective::scatter;
  request.count = counts_parts ? elements / static_cast<unsigned>(ranks) | 1 : elements;
  request.root = static_cast<int>(elements % static_cast<unsigned>(ranks));
  request.peer = (request.root + 1) % ranks;
  return checked(request, linked_machine(ranks));
}

constexpr Collective kCollectives[] = {
#define PLAIT_COLLECTIVE(name, input, output, busbw) Collective::name,
#include "plait/collectives.def"
#undef PLAIT_COLLECTIVE
};

EngineCase case_of(const Request& request, const Room& room, const CopyTuning& tuning) {
  EngineCase made;
  made.engine = engine_of(request, tuning);
  made.label = label_of(request, room.name, tuning);
  made.in_graphs = tuning.host_permille + tuning.gather_permille + tuning.host_cpu_permille == 0;
  made.calls.emplace_back([request, room = room.room, tuning] {
    return plan_beside_host(linked_machine(request.ranks), request, room, tuning);
  });
  return made;
}

void add_in_a_row(const std::vector<EngineCase>& calls, std::vector<EngineCase>& cases) {
  for (const EngineCase& first : calls)
    for (const EngineCase& second : calls)
      cases.push_back(
          {"in a row",
           text(first.engine, ": ", first.label, "; then ", second.engine, ": ", second.label),
           {first.calls.front(), second.calls.front()},
           first.in_graphs && second.in_graphs});
}

}  // namespace

std::vector<EngineCase> engine_cases() {
  std::vector<EngineCase> cases;
  for (const int ranks : kRanks)
    for (const Room& room : rooms_of(ranks)) {
      std::vector<EngineCase> row;  // what shares the tiny arena
      for (const Collective collective : kCollectives)
        for (const std::uint64_t elements : room.elements) {
          const bool is_tiny = room.name == "tiny";
          const Request request = request_of(collective, ranks, elements);
          for (const CopyTuning& tuning : corners(request, is_tiny)) {
            cases.push_back(case_of(request, room, tuning));
            const bool is_usual = tuning.piece_bytes == 0 && tuning.cuts < 0 &&
                                  tuning.gather_permille != 1000 && tuning.host_permille != 90 &&
                                  tuning.host_cpu_permille != 90;
            if (is_tiny && elements == 40009 && is_usual) row.push_back(cases.back());
          }
        }
      add_in_a_row(row, cases);
    }
  return cases;
}

Topology linked_machine(int gpus) {
  Topology machine;
  machine.name = text("linked-", gpus);
  const auto both_ways = [&](LinkKind kind, int a, int b, double gb_per_s) {
    machine.links.push_back({kind, a, b, 1, gb_per_s, 1000.0, {}});
    machine.links.push_back({kind, b, a, 1, gb_per_s, 1000.0, {}});
  };
  for (int i = 0; i <= gpus; ++i) {
    plait::Device device;
    device.kind = i < gpus ? DeviceKind::gpu : DeviceKind::host;
    device.index = i < gpus ? i : 0;
    machine.devices.push_back(device);
  }
  for (int i = 0; i < gpus; ++i) {
    both_ways(LinkKind::pcie, i, gpus, 50.0);
    for (int j = 0; j < i; ++j) both_ways(LinkKind::nvlink, i, j, 400.0);
  }
  return machine;
}

}  // namespace plait::cuda
