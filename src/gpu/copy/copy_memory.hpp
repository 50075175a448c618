// Flags, memory and kernels of calls by copy engines.
#pragma once
#include <string>

#include "gpu/abi/copy_args.hpp"
#include "gpu/engine/resources.hpp"

namespace plait::cuda {

inline constexpr ArenaFlags<EngineFlags> kEngineFlags{"copy engines"};
/// Lies behind the slots of tiles, which copies borrow. DeviceArenaSizes::divided(): kRingsAlone =
/// slots for rings only.
inline constexpr ArenaPart kCopyMemory{"copies", "slots of copy engines"};
inline constexpr std::uint64_t kRingsAlone = 1;
/// Chunks that have come up from the peer's ring, where all of a message goes through host memory.
inline constexpr ArenaPart kChunkStaging{
    .name = "staging", .what = "staging buffers of copy engines", .is_own = true};
std::uint64_t staging_bytes();
/// A longer inbox of two ranks for exchanges of at least kInboxesOfLong times the inbox. Eager
/// exchanges in this inbox have a share through host memory. The first long exchange makes the
/// inbox, beyond the budget.
inline constexpr ArenaPart kLongInbox{
    .name = "long", .what = "the inbox of long exchanges", .step = kLongStep};
inline constexpr std::uint64_t kLongInboxBytes = 128ull << 20;
/// The least exchange that uses the long inbox, counted in inboxes.
inline constexpr std::uint64_t kInboxesOfLong = 4;
extern const KernelFamily kCopyKernels, kCopyTreeKernels;
inline constexpr PlanFlagRange kCopyPlanFlags{0, 1 << 10};       ///< Rows of EngineFlags.
inline constexpr PlanFlagRange kHostPlanFlags{1 << 10, 3 << 9};  ///< Rows of HostFlags.
/// One per recorded event of a rank.
inline constexpr PlanFlagRange kEventPlanFlags{1 << 13, 1 << 15};
/// Parts of a call without counts: LL packets.
inline constexpr PlanFlagRange kPartPlanFlags{1 << 15, 1 << 30};
const Resources& copy_resources();

/// Kernel that reduces `sources` pieces brought by copy engines.
std::string piece_kernel(DataType type, ReduceOp op, int sources, SumOrder order);

/// With a single hardware queue, products enqueued behind an engine's wait would wait too.
bool has_copy_engines(const Group& group);
/// Returns "" if copy engines can serve calls of the group, whatever slots the group has.
std::string why_no_copy_engines(const Group& group);
unsigned blocks_alongside_copies(const Group& group, const Tuning& tuning);
/// Blocks of kernels that move pieces out of copy-engine slots; 0 = copy engines do that too.
unsigned blocks_that_move(const Group& group);
std::uint64_t inbox_bytes(const Group& group);  ///< All copy-engine slots of a rank; 0 = none.
/// Returns the bytes of the long inbox that exchanges of `part_bytes` ask for; 0 = none.
std::uint64_t long_inbox_bytes(const Group& group, std::uint64_t part_bytes);
std::uint64_t slot_bytes(const Group& group);      ///< A single slot; 0 = slots for rings only.
std::uint64_t borrowed_bytes(const Group& group);  ///< Tile slots that copy engines borrow.
std::uint64_t ring_bytes(const Group& group);      ///< Borrowed and own slots, as rings use them.

/// Returns the slots of a rank's inbox, by sender; an exchange of two ranks has as many for its
/// single sender.
std::uint64_t rotation_slots(int ranks);
/// Returns the bytes of a slot, unless the caller sets a size: few large pieces, as far as memory
/// allows.
std::uint64_t rotation_slot_bytes(int ranks);

}  // namespace plait::cuda
