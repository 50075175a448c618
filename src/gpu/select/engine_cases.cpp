// Builds the cases of engine_cases.hpp from the lists of engines, collectives and parameters.
#include "gpu/select/engine_cases.hpp"

#include <algorithm>
#include <set>

#include "base/text.hpp"
#include "gpu/chunk/chunk_memory.hpp"
#include "gpu/copy/copy_memory.hpp"
#include "gpu/copy/exchange_cut.hpp"
#include "gpu/ll/ll_memory.hpp"
#include "gpu/select/engines.hpp"
#include "gpu/tile/tile_memory.hpp"
#include "gpu/tile/tiled_shape.hpp"
#include "plait/error.hpp"

namespace plait::cuda {
namespace {

const int kRanks[] = {2, 3, 4, 5, 6, 7, 8, 16};
const int kRanksInARow[] = {2, 3, 4, 8};

struct CaseSetting {
  std::string name;
  Group group;
  std::vector<std::uint64_t> elements;  // Elements of the message.
};

std::vector<CaseSetting> settings(int ranks) {
  std::vector<CaseSetting> all{{"tiny", tiny_group(ranks), {1, 1009, 40009}},
                               {"usual", usual_group(ranks), {7, 65537, 16777259, 268435399}},
                               {"16 SMs", budget_group(ranks), {127, 1048573, 67108859}}};
  if (ranks == 4 || ranks == 8) {
    Group tree = tiny_group(ranks);
    tree.sum_order = SumOrder::tree;
    all.push_back({"tree", tree, {1009}});
  }
  // Other calls of more than two ranks are those of the tiny arena.
  if (ranks == 2 || ranks == 3 || ranks == 4)
    all.push_back({"through host", host_group(ranks), {1009, 2000003}});
  return all;
}

/// Request that moves about `elements` elements in every collective: parts have an n-th of them.
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

/// The request with even blocks. If the engine takes uneven counts, two more: counts rising from
/// zero, and a large block among tiny blocks. In an all_to_all rank 1 sends nothing then.
std::vector<Request> requests_of(const Engine& engine, Collective collective, int ranks,
                                 std::uint64_t elements) {
  std::vector<Request> all{request_of(collective, ranks, elements)};
  const bool has_rows = collective == Collective::all_to_all;
  if (!engine.takes_counts() || (!has_rows && collective != Collective::all_gather)) return all;
  const auto n = static_cast<std::uint64_t>(ranks), blocks = has_rows ? n * n : n;
  for (const bool is_one_heavy : {false, true}) {
    Request uneven = all.front();
    for (std::uint64_t block = 0; block < blocks; ++block)
      uneven.counts.push_back(has_rows && block / n == 1 ? 0
                              : !is_one_heavy ? elements * block / blocks / blocks * 2 + block % 2
                              : block == blocks / 2 ? elements
                                                    : block % 3);
    uneven = checked(uneven, linked_machine(ranks));
    if (!uneven.counts.empty()) all.push_back(uneven);
  }
  return all;
}

std::string label_of(const Request& request, const std::string& setting, const Tuning& tuning) {
  std::string tuned;
  for (const auto& [name, value] : params_of(tuning)) tuned += text(", {} {}", name, value);
  return text("{} of {} {} on {} ranks, root {}, {} arena{}", name_of(request), amount_of(request),
              name_of(request.type), request.ranks, request.root, setting, tuned);
}

Plan plan_or_refuse(const Engine& engine, const Request& request, const Tuning& tuning,
                    const Group& group) {
  const std::string why = why_not(engine, request, tuning, group);
  if (!why.empty()) throw Error(ErrorCode::unsupported, why);
  return plan_of(engine, linked_machine(request.ranks), request, tuning, group);
}

EngineCase case_of(const Engine& engine, const Request& request, const CaseSetting& setting,
                   const Tuning& tuning) {
  const bool has_host_part = tuning.host_permille > 0 || tuning.host_cpu_permille > 0;
  EngineCase made;
  made.engine = engine.info().name;
  made.label = label_of(request, setting.name, tuning);
  made.in_graphs = !has_host_part;
  made.calls.emplace_back([&engine, request, tuning, group = setting.group] {
    return plan_or_refuse(engine, request, tuning, group);
  });
  return made;
}

bool has_tiny_pieces(const Engine& engine) {
  return &engine == &tiled_engine() || &engine == &ll_chain_engine();
}

/// Adds pairs of calls that share the slots of a tiny arena. Engines with tiny pieces have short
/// calls. Tiled calls have a single block, because further blocks repeat the same steps in separate
/// slots.
void add_in_a_row(CaseSetting setting, std::vector<EngineCase>& cases) {
  setting.group.most_whole_sm_blocks = 1;
  std::vector<EngineCase> calls;
  for (const Engine* engine : engines())
    for (const Collective collective : engine->info().collectives) {
      const bool is_tiled = engine == &tiled_engine();
      for (const Request& request :
           requests_of(*engine, collective, setting.group.ranks,
                       has_tiny_pieces(*engine) ? setting.elements[1] : setting.elements.back()))
        for (const Tuning& tuning : is_tiled ? std::vector<Tuning>(1) : corners(*engine, request))
          if (why_not(*engine, request, tuning, setting.group).empty() && tuning.cuts < 0)
            calls.push_back(case_of(*engine, request, setting, tuning));
    }
  for (const EngineCase& first : calls)
    for (const EngineCase& second : calls)
      cases.push_back(
          {"in a row",
           text("{}: {}; then {}: {}", first.engine, first.label, second.engine, second.label),
           {first.calls.front(), second.calls.front()},
           first.in_graphs && second.in_graphs});
}

}  // namespace

std::vector<EngineCase> engine_cases() {
  std::vector<EngineCase> cases;
  for (const int ranks : kRanks)
    for (const CaseSetting& setting : settings(ranks))
      for (const Engine* engine : engines())
        for (const Collective collective : engine->info().collectives)
          for (const std::uint64_t elements : setting.elements)
            for (const Request& request : requests_of(*engine, collective, ranks, elements))
              for (const Tuning& tuning : corners(*engine, request))
                cases.push_back(case_of(*engine, request, setting, tuning));
  for (const int ranks : kRanksInARow) add_in_a_row(settings(ranks).front(), cases);
  return cases;
}

Group tiny_group(int ranks) {
  constexpr std::uint64_t kSlot = 8192;
  Group group;
  group.ranks = ranks;
  group.has_host_reducer = true;
  group.host_bytes = 4 * kSlot;
  group.sizes[kFlagPackets] = group.sizes[kSentinelPackets] = (1 << 20) + 4096;
  group.sizes[kTileMemory] = tile_slots(ranks, kUsualMultiprocessors) * 2 * kSlotGrainBytes;
  group.sizes.divide(kTileMemory, kUsualMultiprocessors);
  group.sizes[kCopyMemory] = rotation_slots(ranks) * kSlot;
  return group;
}

Group host_group(int ranks) {
  Group group = tiny_group(ranks);
  group.through_host = true;
  group.has_host_reducer = cores_take_calls(ranks);
  group.sizes[kChunkMemory] = static_cast<std::uint64_t>(ranks - 1) << 18;
  if (ranks != 2) return group;
  constexpr std::uint64_t kChunk = 64 << 10;
  group.sizes[kCopyMemory] = 0;
  group.sizes[kChunkStaging] = group.host_bytes = kChunkSlots * kChunk;
  return group;
}

std::vector<Tuning> corners(const Engine& engine, const Request& request) {
  std::vector<Tuning> all(1);
  const auto is_spread = [](const std::string& name) {
    return name == "blocks" || name == "threads" || name == "ahead";
  };
  const std::string& name = engine.info().name;
  for (const Param& param : params()) {
    const std::vector<std::string> of = engines_of(param);
    const bool takes = std::find(of.begin(), of.end(), name) != of.end();
    // With the smallest pieces, a large message has very many, which show no more than the few of a
    // small message. The smallest piece of tiles and chains is 16 bytes.
    const std::uint64_t kManyPieces = has_tiny_pieces(engine) ? 64 << 10 : 8 << 20;
    const bool is_long =
        param.name == "tile_units" && request.count * bytes_of(request.type) > kManyPieces;
    if (!takes || is_spread(param.name) || is_long) continue;
    for (const int value : std::set<int>{param.unset + param.grain, param.most})
      all.push_back(tuning_from(name, {{param.name, value}}));
  }
  return all;
}

Group budget_group(int ranks) {
  Group group;
  group.ranks = ranks;
  group.most_blocks = 16;
  group.has_host_reducer = true;
  group.host_bytes = kPlanRingBytes + kExchangeRingBytes;
  lay_out_arena(group);
  return group;
}

Topology linked_machine(int gpus) {
  Topology machine;
  machine.name = text("linked-{}", gpus);
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
