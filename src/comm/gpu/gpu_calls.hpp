// Calls of one rank on its GPU, for whoever made its communicator: which engine or plan serves a
// request, made ready once, then only launched. The decision follows from the request and from what
// all ranks agreed on alone. One thread at a time, but for what says otherwise.
#pragma once
#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "base/lru_cache.hpp"
#include "comm/call_book.hpp"
#include "comm/choice/choose.hpp"
#include "comm/gpu/gpu_group.hpp"
#include "comm/memory/memory.hpp"
#include "exec/cuda/cuda_rank.hpp"
#include "exec/cuda/select.hpp"
#include "plait/communicator.hpp"
#include "plait/timeline.hpp"

namespace plait {

/// By rank, of a premul_sum; none of other reductions. Error(invalid_argument) where there is not
/// one for each rank.
std::vector<double> scalars_of(const Request& request, const CallOptions& options);

void add(Counters& counters, const Counters& more);

/// A piece of rank 0's host memory that all ranks map: zeros at first.
struct GpuSharedPage {
  alignas(4096) std::byte host[cuda::kHostWordsBytes];  ///< where GPUs and cores meet: HostWords
  cuda::AgreedNumber::NumberPage shares;                ///< of large calls, as ranks agree on them
  cuda::LazyArenaPage lazy_arena;
  /// For a share of long messages, where there are any, of two ranks.
  alignas(4096) std::byte message_slots[cuda::kMessageHostBytes];
  static std::size_t bytes(bool with_slots) {
    return with_slots ? sizeof(GpuSharedPage) : offsetof(GpuSharedPage, message_slots);
  }
};

struct GpuCallsOptions {
  CallOptions forced;          ///< PLAIT_ALGO
  bool bitwise = false;        ///< plans that reduce in rank order alone
  bool beats_nccl = false;     ///< takes what is known to be no slower than NCCL, and no more
  bool has_lazy_arena = true;  ///< room for large calls comes with them
  bool knows_links = true;     ///< so there are plans, masks and a share through host memory
  bool finds_paths = false;    ///< what a call moves is found out when it is made ready
  Topology checks;             ///< with a device for each rank: enqueue() checks requests on it
  cuda::CudaRankOptions rank;  ///< the ranks' numbers, rings, words and growth are filled in
};

class GpuCalls {
 public:
  using ArenaTier = cuda::CudaRank::ArenaTier;
  /// All ranks of the group together.
  GpuCalls(GpuGroup group, GpuCallsOptions options, const cuda::Exchange& exchange);
  /// Frees at once, as ~CudaRank.
  ~GpuCalls();
  GpuCalls(const GpuCalls&) = delete;
  GpuCalls& operator=(const GpuCalls&) = delete;

  const GpuGroup& group() const { return group_; }
  int ordinal() const { return options_.rank.device; }
  cuda::CudaRank& rank() const { return *cuda_; }

  /// As Communicator::enqueue. A call that wants more room than the first counts as one that all
  /// ranks make.
  void enqueue(const Request& request, const void* input, void* output, cuda::Stream stream,
               const CallOptions& options);

  /// True where these calls serve the request: of the request alone, so the same on all ranks.
  bool takes(const Request& request);
  /// True of a request that is taken and wants more than the first room.
  bool wants_large_arena(const Request& request);
  /// enqueue() of what was taken, without options, in room that was asked for
  /// (CudaRank::reserve_large_arena) where it is wanted. Memory is not looked at. Returns the
  /// engine's place in cuda::engines(); -1 = a plan.
  int enqueue_taken(const Request& request, const void* input, void* output, cuda::Stream stream);

  bool on_device(const void* pointer) const;
  /// Error(invalid_argument) where this is not memory for the request's rank on this GPU.
  void check_memory(const Request& request, int rank, const void* input, const void* output) const;
  /// Any thread.
  void add_to(Counters& counters) const;
  std::string explain(const Request& request);
  /// Its first line: the choice, and by whose word.
  std::string choice_of(const Request& request);

 private:
  /// The room of a call: the only one that it ever has, or one of two.
  enum class CallTier { only, small, full };
  /// What tells requests of these ranks apart.
  using RequestKey = std::tuple<int, std::uint64_t, int, int, int, int, std::vector<std::uint64_t>>;
  static RequestKey request_key(const Request& request);
  using CallKey =
      std::tuple<RequestKey, std::string, std::map<std::string, std::int64_t>, CallTier, Launch>;
  static CallKey key_of(const Request& request, const CallOptions& options);
  /// What counters say of a call.
  struct CallRecord {
    std::string as;
    Request request;
    cuda::EngineChoice choice;  ///< its engine; null = a plan, or nothing to do
    ArenaTier tier = ArenaTier::full;
    std::shared_ptr<const ProvedPlan> plan;
    std::atomic<std::uint64_t> calls[2] = {};  ///< by Launch
    struct {
      std::once_flag once;
      std::map<std::string, std::uint64_t> bytes;
    } paths[2];  ///< of one call, by Launch; found out when first asked for
  };
  /// A request with its options, made ready.
  struct GpuCall {
    std::shared_ptr<CallRecord> counted = std::make_shared<CallRecord>();
    std::unique_ptr<cuda::PreparedCall> ready;   ///< by an engine
    std::unique_ptr<cuda::BoundPlan> bound;      ///< by a plan
    std::unique_ptr<const CallKey> captured_as;  ///< by a plan, until it is captured
    int engine = -1;                             ///< its place in cuda::engines(); -1 = none
    bool differs_in_graphs = false;              ///< captured it is done another way
    bool wants_large_arena =
        false;  ///< nothing but this: it is made ready by the room that there is
  };
  /// Of a request without options.
  struct Offer {
    bool is_taken = false;
    bool wants_large_arena = false;
  };
  const Offer& offer(const Request& request);

  bool wants_rings() const;
  void make_rank(const cuda::Exchange& exchange);
  void make_chooser();
  bool needs_large_arena(const Request& request, const CallOptions& options) const;
  GpuCall* find_call(const CallKey& key);
  GpuCall& insert_call(const CallKey& key, GpuCall made);
  GpuCall& as_launched(CallKey& key, GpuCall& call, const Request& request,
                       const CallOptions& options, cuda::Stream stream);
  GpuCall& by_tier(CallKey& key, const Request& request, const CallOptions& options,
                   cuda::Stream stream);
  GpuCall& prepared(const Request& request, const CallOptions& options, cuda::Stream stream,
                    const void* input, void* output);
  void launch(GpuCall& call, const Request& request, const void* input, void* output,
              cuda::Stream stream, const std::vector<double>& scalars);
  /// Where a call goes that wants more than the first room, or does not.
  ArenaTier tier_of(bool wants_large_arena) const;
  const cuda::Selector& selector_of(ArenaTier tier) const;
  GpuCall prepare(const Request& request, const CallOptions& options, ArenaTier tier,
                  Launch launch);
  std::optional<cuda::EngineChoice> choose_engine(const Request& request, const CallOptions& wanted,
                                                  ArenaTier tier, Launch launch) const;
  std::optional<cuda::EngineChoice> chosen(const cuda::Selector& selector, const Request& request,
                                           const CallOptions& wanted, Launch launch) const;
  void bind_plan(GpuCall& call, const CallOptions& options);
  Request placed(const Request& request) const;
  double plan_us(const Request& request) const;
  const CallOptions& wanted_by(const CallOptions& options) const;
  void drop(const std::shared_ptr<CallRecord>& counted);
  void find_paths(CallRecord& call, Launch launch) const;
  void count(CallRecord& call, Counters& counters) const;
  std::map<std::string, std::uint64_t> bytes_of_path(const CallRecord& call, Launch launch) const;

  GpuGroup group_;
  GpuCallsOptions options_;
  Mapping shared_page_;         ///< of rank 0: where GPUs and cores meet, what ranks agree on
  std::vector<Mapping> rings_;  ///< by rank; made with the room for large calls
  std::unique_ptr<cuda::CudaRank> cuda_;
  std::unique_ptr<const cuda::Selector> first_, whole_;  ///< by the room that a call goes in
  Topology plannable_;                                   ///< the group's as plans may use it
  std::unique_ptr<Chooser> chooser_;
  /// Of one communicator. Those by plans hold device memory, and are never dropped once captured:
  /// graphs go on pointing at them.
  static constexpr std::size_t kMostCalls = 4096, kMostPlans = 1024;
  using Calls = LruCache<CallKey, GpuCall>;
  Calls calls_{kMostCalls};  ///< by engines, and where there is nothing to do
  Calls planned_calls_{kMostPlans};
  LruCache<RequestKey, Offer> offers_{kMostCalls};
  mutable std::mutex plan_us_guard_;
  mutable LruCache<RequestKey, double> plan_us_{kMostCalls};  ///< by plans, in us
  RequestKey last_key_;
  Offer* last_offer_ = nullptr;
  std::deque<std::shared_ptr<CallRecord>> dropped_;  ///< calls that were dropped since
  Counters long_dropped_;                            ///< of those dropped from there, too
  mutable std::mutex guard_;  ///< of calls_, planned_calls_ and what was dropped
  const CountedPaths paths_{[this] {
    Counters counters;
    add_to(counters);
    return counters.bytes_of_path;
  }};
};

}  // namespace plait
