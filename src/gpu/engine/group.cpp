// SM and memory shares of calls, derived from the values in Group.
#include "gpu/engine/group.hpp"

#include <algorithm>

#include "base/text.hpp"
#include "gpu/copy/engine_ring.hpp"
#include "gpu/copy/rotation.hpp"
#include "gpu/engine/gpu_models.hpp"
#include "gpu/p2p/messages.hpp"
#include "gpu/tile/tiled_shape.hpp"
#include "plait/error.hpp"

namespace plait::cuda {
namespace {

/// Few enough to leave memory bandwidth to copy engines, enough to reduce a piece while the next
/// piece arrives.
constexpr unsigned kBlocksAlongsideCopies = 48;

}  // namespace

std::string Group::why_no_part(ArenaPart part) const {
  if (sizes.of(part) != 0) return "";
  const std::string why = tiers.why_not(part, "it");
  if (!why.empty()) return why;
  const char* const what = arena_parts()[static_cast<std::size_t>(part)].what;
  return has_small_arena_alone && tiers.large.of(part) != 0
             ? text("it wants ", what, ", which come with the first large call outside a capture")
             : text("there are no ", what);
}

bool Group::has_copy_engines() const {
  constexpr unsigned kEnoughQueues = 8;
  return hardware_queues >= kEnoughQueues && runs(KernelFamily::engines);
}

unsigned Group::blocks(const Tuning& tuning) const {
  if (tuning.blocks != 0) return std::min(static_cast<unsigned>(tuning.blocks), multiprocessors);
  return most_blocks != 0 ? std::min(most_blocks, multiprocessors) : multiprocessors;
}

unsigned Group::blocks_of_tiles() const {
  const unsigned most = most_blocks != 0 ? most_blocks : multiprocessors;
  return std::min({most, most_tiled_blocks, static_cast<unsigned>(kTileBlocks)});
}

unsigned Group::blocks_leaving_sms() const {
  constexpr unsigned kReservedSms = 16;
  return multiprocessors > kReservedSms ? multiprocessors - kReservedSms : 1;
}

unsigned Group::blocks_alongside_copies(const Tuning& tuning) const {
  return std::min(
      blocks(), tuning.blocks != 0 ? static_cast<unsigned>(tuning.blocks) : kBlocksAlongsideCopies);
}

unsigned Group::blocks_that_move() const { return leaves_sms() ? 0 : kBlocksAlongsideCopies; }

unsigned Group::most_threads(bool is_lean) const {
  const bool half_the_gpu = most_blocks != 0 && 2 * most_blocks <= multiprocessors;
  return is_lean || half_the_gpu ? 512 : 256;
}

std::uint64_t Group::inbox_bytes() const { return has_copy_engines() ? sizes.copy_slots_bytes : 0; }

std::uint64_t Group::slot_bytes() const {
  return has_rings_alone ? 0 : inbox_bytes() / rotation_slots(ranks) / 4096 * 4096;
}

std::uint64_t Group::borrowed_bytes() const {
  return inbox_bytes() != 0 && (ranks > 2 || slot_bytes() != 0) ? sizes.tile_bytes : 0;
}

std::uint64_t Group::ring_bytes() const {
  return ranks > 2 ? borrowed_bytes() / 4096 * 4096 + inbox_bytes() : 0;
}

namespace {

/// Reserves slots for copy engines only if shipped tables would use the slots: with more than two
/// ranks for rotations under an SM budget, otherwise for rings of up to eight ranks.
ArenaUse use_of(const Group& group, const ArenaOptions& wish) {
  const bool copies = group.ranks > 1 && group.runs(KernelFamily::engines);
  ArenaUse use;
  use.ranks = group.ranks;
  use.two_tiers = wish.two_tiers;
  use.floats_only = wish.floats_only;
  use.moves_only = wish.moves_only;
  use.pairs = wish.pairs ? group.ranks - 1 : 0;
  use.plans = wish.plans;
  use.plan_scratch = wish.plan_scratch;
  use.tiled_blocks = group.runs(KernelFamily::tiled) ? group.blocks_of_tiles() : 0;
  use.exchanges = copies && (group.ranks == 2 || group.most_blocks != 0);
  use.rings = copies && group.ranks <= 8;
  if (group.most_message_blocks != 0 && group.ranks > 1) {
    const std::uint32_t channels = message_channels(group.ranks, group.most_message_blocks);
    use.message_slot_bytes = message_slot_bytes(group.ranks, channels);
    use.message_packet_bytes = message_packet_bytes(group.ranks, channels);
  }
  return use;
}

}  // namespace

void lay_out_arena(Group& group, const ArenaOptions& wish) {
  const DeviceArenaSizes requested = group.sizes;
  const ArenaUse use = use_of(group, wish);
  group.tiers =
      lay_out(use, wish.budget_bytes != 0 ? wish.budget_bytes : usual_memory_bytes(group.ranks));
  // A user who sets the slots' size may use them for any engine.
  group.has_rings_alone = use.rings && !use.exchanges && requested.copy_slots_bytes == 0;
  group.sizes.tile_blocks = use.tiled_blocks;
  for (const ArenaPartInfo& info : arena_parts()) {
    const std::uint64_t first = group.tiers.small.of(info.part),
                        later = group.tiers.large.of(info.part), said = requested.of(info.part);
    group.sizes.of(info.part) = said != 0 ? said : later != 0 ? later : first;
  }
  if (!wish.two_tiers) group.tiers.small = group.sizes;
}

Group small_arena_group_of(const Group& group) {
  Group first = group;
  first.sizes = group.tiers.small;
  first.has_small_arena_alone = group.sizes != group.tiers.small;
  if (first.has_small_arena_alone) {  // Host memory comes with the large arena.
    first.host_bytes = 0;
    first.has_host_reducer = false;
  }
  return first;
}

Group usual_group(int ranks, bool overlap_compute, std::uint64_t memory_bytes, unsigned most_blocks,
                  const std::vector<std::string>& models) {
  Group group;
  describe(group, models);
  group.ranks = ranks;
  group.most_blocks = most_blocks;
  group.overlap_compute = overlap_compute;
  if (overlap_compute) group.most_tiled_blocks = kTiledBlocksOverlapCompute;
  group.host_bytes = kPlanRingBytes + kExchangeRingBytes;
  group.has_host_reducer = true;
  lay_out_arena(group, {.budget_bytes = memory_bytes,
                        .two_tiers = true,
                        .floats_only = overlap_compute,
                        .pairs = !overlap_compute,
                        .plans = !overlap_compute});
  return group;
}

ArenaOptions pair_arena_options(std::uint64_t bytes) {
  const bool is_large = bytes > kSmallPairBytes;
  return {.budget_bytes = bytes, .two_tiers = is_large, .moves_only = true, .plans = is_large};
}

int pair_blocks(int ranks, int sm_budget) {
  const int most = std::max(1, 96 / (ranks - 1));
  return sm_budget == 0 ? most : std::min(sm_budget, most);
}

Group usual_pair(int ranks, std::uint64_t memory_bytes, const std::vector<std::string>& models) {
  const std::uint64_t bytes = usual_group(ranks, false, memory_bytes, 0, models).tiers.pair_bytes;
  if (bytes == 0)
    throw Error(ErrorCode::invalid_argument,
                text("PLAIT_DEVICE_MEMORY leaves nothing for two of ", ranks, " ranks; raise it"));
  Group group = usual_group(2, false, 0, 0, models);
  group.most_blocks = static_cast<unsigned>(pair_blocks(ranks));
  group.sizes = {};
  lay_out_arena(group, pair_arena_options(bytes));
  return group;
}

}  // namespace plait::cuda
