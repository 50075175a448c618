// Request -> the proved plan that all ranks run. Depends on nothing local (not the pointers, not
// alignment, not in place): topology, request, options and the agreed settings alone.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "base/lru_cache.hpp"
#include "exec/cpu/cpu.hpp"
#include "plait/communicator.hpp"

namespace plait {

/// A plan that has been proved, with what running it needs.
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

/// "ring:chunks=4,pieces=2" -> name and parameters; Error(invalid_argument) naming `what`.
CallOptions parse_algo(const std::string& what, const std::string& algo);

/// The strategy as the caller wrote it: "ring(chunks=4)"; "" = plait chooses.
std::string wanted_label(const CallOptions& options);

/// A rank's factor of a premul_sum. Error(invalid_argument) where there is not one for each rank.
double scalar_of(const CallOptions& options, int rank, int ranks);

class Chooser {
 public:
  Chooser() = default;
  /// Why a plan cannot run where these run; empty where it can. The same on all ranks.
  using WhyNot = std::function<std::string(const Plan&)>;
  /// over_nodes: a TransportComm carries what goes between nodes.
  Chooser(const Topology& topology, CallOptions forced, bool bitwise, WhyNot why_not = {},
          bool multinode = false)
      : topology_(&topology),
        forced_(std::move(forced)),
        bitwise_(bitwise),
        why_not_(std::move(why_not)),
        is_multinode_(multinode) {}

  /// The plan of a request as a caller wrote it. Error(unsupported, invalid_argument) where there
  /// is none, with what each lacks.
  std::shared_ptr<const ProvedPlan> plan_for(const Request& request, const CallOptions& options);
  /// A caller's own plan, proved at first sight; Error(invalid_argument) with the first findings.
  std::shared_ptr<const ProvedPlan> proved(const Plan& plan);
  std::string explain(const Request& request);
  /// The plan of plan_for(), not proved.
  Plan pick(const Request& request, const CallOptions& options) const;

 private:
  using Key =
      std::tuple<int, std::uint64_t, int, int, int, int, int, std::vector<int>,
                 std::vector<std::uint64_t>, std::string, std::map<std::string, std::int64_t>>;
  bool allowed(const Plan& plan) const;
  std::string refusal(const Plan& plan) const;
  std::string why_not_multinode(const Plan& plan) const;

  const Topology* topology_ = nullptr;
  CallOptions forced_;
  bool bitwise_ = false;
  WhyNot why_not_;
  bool is_multinode_ = false;
  std::mutex mutex_;
  static constexpr std::size_t kMostPlans = 512;  // of one communicator
  LruCache<Key, std::shared_ptr<const ProvedPlan>> plan_of_{kMostPlans};
  std::vector<std::shared_ptr<const ProvedPlan>> own_plans_;
};

}  // namespace plait
