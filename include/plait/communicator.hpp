// Ranks that run collectives together: the one place where topology, planner, verifier, simulator
// and executors meet. One Communicator a rank; every rank makes the same calls in the same order.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "plait/error.hpp"
#include "plait/plan.hpp"
#include "plait/timeline.hpp"

namespace plait {

/// A proposal and what the simulator says of it; an empty timeline where the budget ran out.
struct RankedPlan {
  Plan plan;
  Timeline timeline;
};

/// All proposals, fastest by simulation first; those beyond `budget_ops` simulated ops follow in
/// propose()'s own order. Deterministic: the same on every rank.
std::vector<RankedPlan> ranked(const Topology& topology, const Request& request,
                               std::uint64_t budget_ops = 200'000,
                               std::vector<Refusal>* refusals = nullptr);

/// How a communicator is made. Every field but `rank` must agree on all ranks.
struct CommunicatorOptions {
  int rank = 0;
  int ranks = 1;
  /// Where the ranks meet: "fd:N" = an inherited socket to the launcher (plait bench), "unix:PATH"
  /// = a socket in a folder of this user alone, "" = read off the launcher's environment (torchrun,
  /// mpirun, Slurm; plait's own PLAIT_RENDEZVOUS first). No TCP port is ever opened.
  std::string rendezvous;
  std::string topology;            ///< "" = PLAIT_TOPOLOGY, else discover(); see load_topology
  std::vector<std::string> masks;  ///< links left out, as without() takes them
  double arrive_s = 600.0;  ///< how long a rank waits for others to enter a call (or to join)
  double deadline_s = 5.0;  ///< how long it waits inside a call, once all have entered it
};

/// Options from RANK/WORLD_SIZE, OMPI_COMM_WORLD_*, PMI_*, SLURM_*, in this order; PLAIT_* on top.
CommunicatorOptions options_from_environment();

/// How one call is to be done. Must agree on all ranks.
struct CallOptions {
  std::string strategy;                        ///< "" = plait chooses
  std::map<std::string, std::int64_t> params;  ///< for `strategy`
  double scalar = 1.0;                         ///< premul_sum: this rank's factor
};

/// Calls so far, by collective and strategy, and the bytes they sent by path.
struct Counters {
  std::uint64_t calls = 0;
  std::map<std::string, std::uint64_t> calls_of;  ///< "all_reduce/direct(pieces=2,throttle=1)"
  std::map<std::string, std::uint64_t> bytes_of_path;
};

class Communicator {
 public:
  /// Meets the other ranks, agrees on topology and settings, maps arenas. Throws on every rank
  /// alike: Error(mismatch) where options differ, timeout or peer_lost where a rank does not come.
  static std::unique_ptr<Communicator> create(const CommunicatorOptions& options);
  ~Communicator();

  int rank() const;
  int ranks() const;
  const Topology& topology() const;

  /// Runs the collective; returns when this rank's output is complete. `input` and `output` are
  /// host memory of input_bytes / output_bytes(request, rank()), the same address for in place.
  /// Error(mismatch) on every rank where ranks ask for different things; peer_lost, timeout,
  /// aborted.
  void run(const Request& request, const void* input, void* output,
           const CallOptions& options = {});
  /// Runs a plan as it is (verified first). All ranks must pass equal plans.
  void run(const Plan& plan, const void* input, void* output, double scalar = 1.0);
  /// Joins the call that the other ranks make with an error instead of a request: every rank gets
  /// it. For callers who find their own arguments wrong before they can make a request of them.
  void refuse(ErrorCode code, const std::string& reason);
  /// Returns once every rank has called it.
  void barrier();
  /// Every rank's bytes, in rank order. For small things: set-up, checks, tests.
  std::vector<std::string> exchange(const std::string& mine);

  /// The plan that run(request) would use.
  Plan plan_for(const Request& request, const CallOptions& options = {}) const;
  /// Which plan, which shares, what else was considered and why it was refused.
  std::string explain(const Request& request) const;
  Counters counters() const;
  /// Ends every pending and later call of this rank with Error(aborted). Any thread; contacts
  /// nobody.
  void abort() noexcept;

  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

 private:
  struct State;
  explicit Communicator(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace plait
