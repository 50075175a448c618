// Maps a request to the proved plan that all ranks run. Depends on the topology, request, options
// and agreed settings only, and on nothing local (pointers, alignment, in place).
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "base/lru_cache.hpp"
#include "cpu/cpu.hpp"
#include "plait/communicator.hpp"

namespace plait {

/// A proved plan, with the data needed to run it.
struct ProvedPlan {
  Plan plan;
  std::string label;
  std::string counted_as;  ///< "all_reduce/direct(pieces=2)"
  std::uint64_t hash = 0;
  std::uint32_t epochs = 0;
  bool uses_inbox = false;
  ArenaSizes sizes;
  std::map<std::string, std::uint64_t> bytes_of_path;
};

/// Parses "ring:chunks=4,pieces=2" into name and parameters. Error(invalid_argument) names `what`.
CallOptions parse_algo(const std::string& what, const std::string& algo);

/// Returns the strategy as written by the caller: "ring(chunks=4)"; "" = plait chooses.
std::string wanted_label(const CallOptions& options);

/// Returns a rank's scalar of a premul_sum. Throws Error(invalid_argument) unless every rank has a
/// scalar.
double scalar_of(const CallOptions& options, int rank, int ranks);

class Chooser {
 public:
  Chooser() = default;
  /// Returns why the ranks cannot run a plan; empty if all can. The same on all ranks.
  using WhyNot = std::function<std::string(const Plan&)>;
  /// multinode: a TransportComm carries messages between nodes. order: of sums, on demand if
  /// `bitwise`; a tree always.
  Chooser(const Topology& topology, CallOptions forced, bool bitwise, WhyNot why_not = {},
          bool multinode = false, SumOrder order = SumOrder::rank_order)
      : topology_(&topology),
        forced_(std::move(forced)),
        bitwise_(bitwise),
        why_not_(std::move(why_not)),
        is_multinode_(multinode),
        order_(order) {}

  /// Returns the plan of a caller's request. Throws Error(unsupported, invalid_argument) if no plan
  /// serves, with each candidate's reason.
  std::shared_ptr<const ProvedPlan> plan_for(const Request& request, const CallOptions& options);
  /// Proves a caller's own plan at first sight. Error(invalid_argument) names the first findings.
  std::shared_ptr<const ProvedPlan> proved(const Plan& plan);
  std::string explain(const Request& request);
  /// Returns the plan of plan_for(), unproved.
  Plan pick(const Request& request, const CallOptions& options) const;

 private:
  using Key =
      std::tuple<int, std::uint64_t, int, int, int, int, int, std::vector<int>,
                 std::vector<std::uint64_t>, std::string, std::map<std::string, std::int64_t>>;
  bool allowed(const Plan& plan) const;
  Plan ordered(Plan plan) const;
  std::vector<Plan> ordered(std::vector<Plan> plans) const;
  bool prefers(const Plan& plan) const;
  std::string refusal(const Plan& plan) const;
  std::string why_not_multinode(const Plan& plan) const;

  const Topology* topology_ = nullptr;
  CallOptions forced_;
  bool bitwise_ = false;
  WhyNot why_not_;
  bool is_multinode_ = false;
  SumOrder order_ = SumOrder::rank_order;
  std::mutex mutex_;
  static constexpr std::size_t kMostPlans = 512;  // per communicator
  LruCache<Key, std::shared_ptr<const ProvedPlan>> plan_of_{kMostPlans};
  std::vector<std::shared_ptr<const ProvedPlan>> own_plans_;
};

}  // namespace plait
