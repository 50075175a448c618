// Opens the flight pages of a communicator's ranks on this host.
#include "shims/nccl/comm_flight.hpp"

#include <utility>

#include "base/text.hpp"
#include "plait/error.hpp"

namespace plait::nccl {

void CommFlight::begin(FlightInfo info, const std::vector<Shown>& here) {
  others_.reserve(here.size());
  info.mine = &mine_.ring();
  for (const Shown& one : here) {
    if (one.page.empty())
      throw Error(ErrorCode::unsupported, text("rank {} has no flight page", one.rank));
    const FlightPage& page =
        one.rank == info.rank ? mine_ : others_.emplace_back(FlightPage(one.page));
    info.here.push_back({one.rank, page.process(), &page.ring()});
  }
  flight_ = std::make_unique<Flight>(std::move(info));
  hang_ = std::make_unique<HangWatch>(flight_->info());
}

}  // namespace plait::nccl
