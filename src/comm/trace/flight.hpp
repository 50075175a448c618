// The process's flight recorders: each communicator registers its own ring and those of its peers
// on this host. A warning of a long wait and `plait status` are written from them (hang.hpp).
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/process_state.hpp"
#include "comm/trace/flight_ring.hpp"
#include "plait/plan.hpp"

namespace plait {

/// Returns the record of a collective.
FlightCall flight_call(const Request& request);

/// A rank of this host.
struct FlightRank {
  int rank = 0;
  int pid = 0;
  const FlightRing* ring = nullptr;
};

struct FlightMemory {
  std::string part;  ///< "arena of small calls", ...
  std::uint64_t bytes = 0;
};

/// A communicator's calls of one order: those on host memory, or those on GPU memory.
struct FlightInfo {
  std::string door;    ///< entry point: "native", "nccl", "mpi"
  std::string id;      ///< of the communicator, the same on all ranks
  std::string name;    ///< by which this rank's log lines call the communicator; may be empty
  std::string memory;  ///< "host", "GPU" or "host and GPU"
  int rank = 0;
  int ranks = 0;
  FlightRing* mine = nullptr;
  std::vector<FlightRank> here;  ///< ranks on this host, this one included
  /// Memory that the communicator holds, by part. Any thread; waits for nothing.
  std::function<std::vector<FlightMemory>()> held;
  /// Words of FlightCall::reason; null = this library serves all calls, or gives no reasons.
  std::string (*why)(std::uint8_t reason) = nullptr;
  std::shared_ptr<const void> keeps;  ///< what the rings lie in
};

/// A rank's recorder at a moment.
struct RankFlight {
  int rank = 0;
  int pid = 0;
  ProcessState state = ProcessState::runs;
  std::uint64_t ended = 0;     ///< index of the last record known to have ended
  std::uint64_t numbered = 0;  ///< number of the last call entered
  std::uint64_t named = 0;     ///< number of the last call that the rank claimed to warn of
  std::vector<FlightCall> calls;
};

/// Returns the number of this process's PID namespace; 0 = unknown.
std::uint64_t pid_namespace();
/// Returns the state of the rank's process; `runs` if its PID means another process here.
ProcessState state_of(const FlightRank& rank);
/// Reads the recorders of all ranks of this host, and the states of their processes.
std::vector<RankFlight> flights_of(const FlightInfo& info);

/// A registered communicator, listed from construction to destruction.
class Flight {
 public:
  explicit Flight(FlightInfo info);
  ~Flight();
  Flight(const Flight&) = delete;
  Flight& operator=(const Flight&) = delete;
  const FlightInfo& info() const { return info_; }

 private:
  const FlightInfo info_;
  const std::uint32_t forks_;  ///< at construction
};

/// Calls `look` for each registered communicator of this process, in the order of registration.
void for_each_flight(const std::function<void(const FlightInfo& info)>& look);

}  // namespace plait
