// A rank's flight recorder in memory of its own, which peers open by process and file number: for
// ranks that share no control page.
#pragma once
#include <string>

#include "comm/shm/memory.hpp"
#include "comm/trace/flight_ring.hpp"

namespace plait {

class FlightPage {
 public:
  /// Makes this rank's page. Throws Error if the system gives no shared memory.
  FlightPage();
  /// Opens the page of another rank of this host, read-only. Throws Error.
  explicit FlightPage(const std::string& shown);
  /// Returns the text by which peers open the page.
  std::string shown() const;
  FlightRing& ring() const;
  int process() const { return process_; }

 private:
  int process_ = 0;
  Fd file_;  ///< open in the process that made the page
  Mapping memory_;
};

}  // namespace plait
