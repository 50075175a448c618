// Enqueues copies between pairs of GPUs. A plan per size is made and proved once; large sizes have
// several plans with different host shares, chosen by earlier calls' times (host_share.hpp).
#pragma once
#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "gpu/consensus/host_share.hpp"
#include "gpu/copy_pair/one_process.hpp"
#include "plait/plan.hpp"

namespace plait {

class PairCopies {
 public:
  using Params = std::map<std::string, std::int64_t>;
  /// CUDA ordinals. Each pair and direction has separate streams and borrowed memory, hence
  /// opposite copies share only links.
  struct OrdinalPair {
    int dst = 0;
    int src = 0;
    bool both_ways = false;
    auto operator<=>(const OrdinalPair&) const = default;
  };

  /// devices: the topology's device by ordinal; -1 = not in the topology. driver: must outlive this
  /// object.
  PairCopies(Topology topology, std::vector<int> devices, const cuda::Api& driver = cuda::api());

  const Topology& topology() const { return topology_; }
  /// Returns the plan that the next equal call runs.
  Plan plan_for(const OrdinalPair& pair, std::uint64_t bytes, const Params& params);
  /// Copies from rank 0 (src) to rank 1 (dst). Parameters set by the caller are used unchanged.
  void run(const OrdinalPair& pair, std::uint64_t bytes, const Params& params,
           const std::vector<cuda::CopyBuffers>& ranks);
  cuda::OneProcess& node_of(const OrdinalPair& pair);

 private:
  /// How a plan divides the message between a direct link and host memory.
  struct HostShareCut {
    cuda::SharedSize size;  // host_share 0: not divided
    std::uint64_t bytes = 0;
    std::uint64_t chunk_bytes = 0;
  };
  struct PreparedCopy;
  using PreparedCopyRef = std::shared_ptr<PreparedCopy>;
  struct PreparedCopy {
    cuda::BoundCopies bound;
    HostShareCut cut;
    // With smaller host shares, as far as made.
    std::array<PreparedCopyRef, cuda::HostShare::kLevels> lower;
  };
  struct Corrected {
    cuda::HostShare share;
    std::optional<cuda::PathSample> sample;  // under way
  };

  int device_of(int ordinal) const;
  Plan make_plan(const OrdinalPair& pair, std::uint64_t bytes, Params params) const;
  HostShareCut cut_of(const Plan& plan) const;
  static Params params_at(int level, const HostShareCut& cut);
  cuda::OneProcess& node(const OrdinalPair& pair);
  PreparedCopyRef make(const OrdinalPair& pair, std::uint64_t bytes, const Params& params);
  PreparedCopyRef ready(const OrdinalPair& pair, std::uint64_t bytes, const Params& params);
  void run_corrected(const OrdinalPair& pair, const PreparedCopyRef& whole,
                     const std::vector<cuda::CopyBuffers>& ranks);
  void learn(Corrected& pair, cuda::OneProcess& node);
  void prepare(const OrdinalPair& pair, PreparedCopy& whole, int level);

  const cuda::Api& driver_;
  const Topology topology_;
  const std::vector<int> devices_;
  std::mutex guard_;
  std::map<OrdinalPair, std::unique_ptr<cuda::OneProcess>> nodes_;
  std::map<OrdinalPair, Corrected> corrected_;
  std::map<std::tuple<OrdinalPair, std::uint64_t, Params>, PreparedCopyRef> plans_;
};

}  // namespace plait
