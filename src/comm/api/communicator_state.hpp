// State and internal functions of Communicator, shared by the source files.
#pragma once
#include <array>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/error_reason.hpp"
#include "comm/api/plan_counters.hpp"
#include "comm/choose/choose.hpp"
#include "comm/gpu/device_side.hpp"
#include "comm/node/host_side.hpp"
#include "comm/p2p/pairs.hpp"
#include "comm/shm/buffers.hpp"
#include "plait/communicator.hpp"

namespace plait {

/// A call as written by the caller, with plan and descriptor; cached for equal calls.
struct CachedCall {
  Request request;
  std::string strategy;
  std::map<std::string, std::int64_t> params;
  std::shared_ptr<const ProvedPlan> plan;
  CallDescriptor shown;
  bool is_of(const Request& request_given, const CallOptions& how) const {
    return request == request_given && strategy == how.strategy && params == how.params;
  }
};

/// Makes the device side of a communicator that is no pair. Called by all ranks together; throws
/// alike on all.
using MakeDevice = std::function<std::unique_ptr<DeviceSide>(const CommunicatorOptions& options)>;

struct Communicator::State {
  const std::unique_ptr<HostSide> host;
  const MakeDevice make_device;  ///< null for a pair
  ReplaceableDevice device;
  const std::string about;         ///< for a pair: prefix of errors
  const std::string device_about;  ///< prefix of errors of earlier calls on GPUs
  Chooser chooser;
  WritablePages writable;
  PlanCounters counters;
  std::mutex guard;  ///< guards cached_calls and far_pairs
  std::array<std::shared_ptr<const CachedCall>, 16> cached_calls;
  std::unique_ptr<PairCommunicators> pairs;                ///< with ranks of my node
  std::map<int, std::unique_ptr<Communicator>> far_pairs;  ///< with ranks of other nodes, by rank

  State(std::unique_ptr<HostSide> host, MakeDevice make_device);
  /// For a pair.
  State(std::unique_ptr<HostSide> host, std::unique_ptr<DeviceSide> device, std::string about,
        std::string device_about = {});
  ~State();
  int rank() const { return host->rank(); }
  int ranks() const { return host->ranks(); }
  Request completed(const Request& given, const OwnCounts& mine);
  void run_call(const Request& given, const void* input, void* output, const CallOptions& options,
                const RmsNorm* norm = nullptr);
  void run(const std::shared_ptr<const ProvedPlan>& plan, const void* input, void* output);
  std::shared_ptr<const CachedCall> call_of(const Request& given, const CallOptions& how);
  Request placed(const Request& request) const;
  std::shared_ptr<const ProvedPlan> plan_for(const Request& request, const CallOptions& how);
  void start();
  void adopt_device(int ordinal);
  void check_adoption(int ordinal) const;
  void without_device_calls(CallKind kind, const std::function<void()>& before,
                            const std::function<void()>& body);
  void end_device_work();
  void lend_device(PairOf& pair, Rendezvous& both) const;
  std::unique_ptr<Communicator> make_pair(int place);
  Communicator& far_pair(int peer);
  std::vector<Communicator*> all_pairs();
};

/// Runs `work`; errors get the prefix `about`.
template <class Work>
void with_prefix(const std::string& about, const Work& work) {
  try {
    work();
  } catch (const Error& error) {
    if (about.empty()) throw;
    throw Error(error.code(), about + reason_of(error));
  }
}

}  // namespace plait
