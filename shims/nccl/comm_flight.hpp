// Flight recorder of a communicator under NCCL: all its calls, whichever library serves them, and
// the line that explains a hang. A communicator that stays on NCCL has no thread that looks, so no
// line.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "comm/liveness/flight_page.hpp"
#include "comm/trace/hang.hpp"

namespace plait::nccl {

class CommFlight {
 public:
  /// Makes this rank's page. Throws Error.
  CommFlight() = default;
  std::string shown() const { return mine_.shown(); }
  /// A rank of this host and the text of its shown(); empty = it has no page.
  struct Shown {
    int rank;
    std::string page;
  };
  /// Opens the peers' pages, lists the communicator for `plait status` and lets this rank explain
  /// hangs. info: without rings and ranks. Throws Error if a rank of this host has no page.
  void begin(FlightInfo info, const std::vector<Shown>& here);
  /// This rank's recorder of the calls that the program makes.
  FlightRing& ring() const { return mine_.ring(); }
  /// Null before begin(), as hang().
  const FlightInfo* info() const { return flight_ == nullptr ? nullptr : &flight_->info(); }
  HangWatch* hang() const { return hang_.get(); }

 private:
  const FlightPage mine_;
  std::vector<FlightPage> others_;
  std::unique_ptr<Flight> flight_;
  std::unique_ptr<HangWatch> hang_;
};

}  // namespace plait::nccl
