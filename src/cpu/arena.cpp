// Computes the layout of an arena, and addresses of plan regions.
#include "cpu/arena.hpp"

#include <algorithm>

#include "base/text.hpp"
#include "plait/error.hpp"

namespace plait {
namespace {

constexpr std::uint64_t kPageBytes = 4096;

std::uint64_t rounded_up(std::uint64_t bytes, std::uint64_t to) {
  return (bytes + to - 1) / to * to;
}

std::uint64_t largest(const std::vector<std::uint64_t>& sizes, std::size_t count) {
  std::uint64_t most = 0;
  for (std::size_t i = 0; i < std::min(count, sizes.size()); ++i) most = std::max(most, sizes[i]);
  return most;
}

// Offset of a relay GPU's scratch; relay GPUs' scratch is contiguous.
std::uint64_t relay_offset(const Plan& plan, std::size_t place) {
  std::uint64_t offset = 0;
  for (auto at = static_cast<std::size_t>(plan.request.ranks); at < place; ++at)
    offset += rounded_up(plan.scratch_bytes.at(at), 128);
  return offset;
}

}  // namespace

ArenaSizes sizes_for(const Plan& plan) {
  const auto ranks = static_cast<std::size_t>(plan.request.ranks);
  ArenaSizes sizes;
  sizes.ranks = plan.request.ranks;
  sizes.flags_per_pair = flags_per_pair(plan);
  sizes.scratch_bytes = largest(plan.scratch_bytes, ranks);
  sizes.inbox_bytes = largest(plan.inbox_bytes, ranks);
  sizes.ring_bytes = largest(plan.ring_bytes, ranks);
  sizes.relay_bytes = relay_offset(plan, plan.scratch_bytes.size());
  return sizes;
}

bool fits(const Plan& plan, const ArenaSizes& sizes) {
  const ArenaSizes least = sizes_for(plan);
  return least.ranks == sizes.ranks && least.flags_per_pair <= sizes.flags_per_pair &&
         least.scratch_bytes <= sizes.scratch_bytes && least.inbox_bytes <= sizes.inbox_bytes &&
         least.ring_bytes <= sizes.ring_bytes && least.relay_bytes <= sizes.relay_bytes;
}

std::uint64_t arena_bytes(const ArenaSizes& sizes) {
  const Arenas nowhere{sizes, {}};
  return ArenaView(nowhere).bytes();
}

void ArenaView::refuse(int rank) {
  throw Error(ErrorCode::invalid_argument,
              text("the plan reaches into memory of rank {}, which is on another node", rank));
}

ArenaView::ArenaView(const Arenas& arenas) : arenas_(arenas) {
  const ArenaSizes& sizes = arenas.sizes;
  row_bytes_ = rounded_up(static_cast<std::uint64_t>(sizes.flags_per_pair) * 4, 64);
  half_bytes_ = rounded_up(sizes.inbox_bytes, 128);
  scratch_ = rounded_up(sizeof(Doorbell) + row_bytes_ * static_cast<std::uint64_t>(sizes.ranks),
                        kPageBytes);
  inbox_ = rounded_up(scratch_ + sizes.scratch_bytes, kPageBytes);
  ring_ = rounded_up(inbox_ + 2 * half_bytes_, kPageBytes);
  relays_ = rounded_up(ring_ + sizes.ring_bytes, kPageBytes);
  end_ = rounded_up(relays_ + sizes.relay_bytes, kPageBytes);
}

std::atomic_ref<std::uint32_t> ArenaView::flag_value(const Flag& flag) const {
  const ArenaSizes& sizes = arenas_.sizes;
  if (flag.owner < 0 || flag.owner >= sizes.ranks || flag.writer < 0 ||
      flag.writer >= sizes.ranks || flag.index < 0 || flag.index >= sizes.flags_per_pair)
    throw Error(
        ErrorCode::invalid_argument,
        text("flag (owner {}, writer {}, index {}) is not among the arena's {} x {} x {}",
             flag.owner, flag.writer, flag.index, sizes.ranks, sizes.ranks, sizes.flags_per_pair));
  std::byte* row =
      base(flag.owner) + sizeof(Doorbell) + row_bytes_ * static_cast<std::uint64_t>(flag.writer);
  return std::atomic_ref<std::uint32_t>(reinterpret_cast<std::uint32_t*>(row)[flag.index]);
}

std::byte* ArenaView::at(const Region& region, const Plan& plan, int parity) const {
  const ArenaSizes& sizes = arenas_.sizes;
  const bool is_relay = region.rank >= sizes.ranks;
  std::uint64_t start = 0, size = 0, skip = 0;
  if (region.space == Space::scratch) {
    start = is_relay ? relays_ : scratch_;
    size = is_relay ? sizes.relay_bytes : sizes.scratch_bytes;
    skip = is_relay ? relay_offset(plan, static_cast<std::size_t>(region.rank)) : 0;
  } else if (region.space == Space::inbox) {
    start = inbox_ + static_cast<std::uint64_t>(parity & 1) * half_bytes_;
    size = sizes.inbox_bytes;
  } else {
    start = ring_;
    size = sizes.ring_bytes;
  }
  const std::uint64_t offset = skip + region.offset;
  if (region.rank < 0 || (is_relay && region.space != Space::scratch) || offset > size ||
      region.bytes > size - offset)
    throw Error(ErrorCode::invalid_argument,
                text("region {} leaves its part of the arena, {} bytes", print(region), size));
  return base(is_relay ? 0 : region.rank) + start + offset;
}

}  // namespace plait
