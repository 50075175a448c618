// Maps regions to memories: a memory for each space and place. In NCCL's in-place layouts a rank's
// input lies inside the output, or the output inside the input.
#include "plan/blocks.hpp"
#include "verify/phases.hpp"

namespace plait {
namespace {

/// Offsets of input and output in the single buffer of an in-place call.
struct InPlace {
  std::uint64_t input = 0;
  std::uint64_t output = 0;
};

std::optional<InPlace> in_place_layout(const Request& request, int rank) {
  const InPlace own{received_block(request, rank, rank).offset,
                    sent_block(request, rank, rank).offset};
  switch (request.collective) {
    case Collective::all_reduce:
    case Collective::reduce:
    case Collective::broadcast:
    case Collective::all_gather:
    case Collective::reduce_scatter: return own;
    case Collective::gather:
    case Collective::scatter: return rank == request.root ? std::optional(own) : std::nullopt;
    case Collective::all_to_all:
    case Collective::send_recv:
    case Collective::copy: break;
  }
  return std::nullopt;
}

}  // namespace

bool has_in_place(Collective collective) {
  Request request;
  request.collective = collective;
  return in_place_layout(request, 0).has_value();
}

Memories::Memories(const Plan& plan, Placement placement)
    : plan_(plan),
      places_(static_cast<std::size_t>(plan.request.ranks) + plan.relay_devices.size()),
      placement_(placement) {}

MemoryAddress Memories::of(const Region& region) const {
  const auto place = static_cast<std::size_t>(region.rank);
  const MemoryAddress apart{static_cast<std::size_t>(region.space) * places_ + place,
                            region.offset};
  const bool is_user = region.space == Space::input || region.space == Space::output;
  if (placement_ == Placement::out_of_place || !is_user) return apart;
  const std::optional<InPlace> layout = in_place_layout(plan_.request, region.rank);
  if (!layout) return apart;
  return {place, region.offset + (region.space == Space::input ? layout->input : layout->output)};
}

}  // namespace plait
