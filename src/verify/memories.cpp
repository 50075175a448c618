// Where the regions of a call lie: one memory a space and place, and NCCL's in-place layouts,
// where a rank's input lies inside its output or its output inside its input.
#include "verify/phases.hpp"

namespace plait {
namespace {

/// Where input and output start in the one buffer of an in-place call.
struct InPlace {
  std::uint64_t input = 0;
  std::uint64_t output = 0;
};

std::optional<InPlace> in_place_layout(const Request& request, int rank) {
  const std::uint64_t block =
      request.count * bytes_of(request.type) * static_cast<std::uint64_t>(rank);
  switch (request.collective) {
    case Collective::all_reduce:
    case Collective::reduce:
    case Collective::broadcast: return InPlace{};
    case Collective::all_gather: return InPlace{block, 0};
    case Collective::reduce_scatter: return InPlace{0, block};
    case Collective::gather:
      return rank == request.root ? std::optional(InPlace{block, 0}) : std::nullopt;
    case Collective::scatter:
      return rank == request.root ? std::optional(InPlace{0, block}) : std::nullopt;
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
      places_(static_cast<std::size_t>(plan.request.ranks) + plan.guests.size()),
      placement_(placement) {}

Memory Memories::of(const Region& region) const {
  const auto place = static_cast<std::size_t>(region.rank);
  const Memory apart{static_cast<std::size_t>(region.space) * places_ + place, region.offset};
  const bool is_user = region.space == Space::input || region.space == Space::output;
  if (placement_ == Placement::out_of_place || !is_user) return apart;
  const std::optional<InPlace> layout = in_place_layout(plan_.request, region.rank);
  if (!layout) return apart;
  return {place, region.offset + (region.space == Space::input ? layout->input : layout->output)};
}

}  // namespace plait
