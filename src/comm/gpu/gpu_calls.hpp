// Calls of a rank on a GPU, for the drop-in under NCCL and for plait's communicators: chooses the
// engine or plan of a request, prepares it once, then only launches it. The choice depends on the
// request and on agreed settings alone. A single thread at a time, unless noted.
#pragma once
#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "base/lru_cache.hpp"
#include "comm/choose/gpu_plans.hpp"
#include "comm/gpu/gpu_group.hpp"
#include "comm/shm/memory.hpp"
#include "comm/trace/call_book.hpp"
#include "comm/trace/flight.hpp"
#include "gpu/consensus/suspend_vote.hpp"
#include "gpu/rank/cuda_rank.hpp"
#include "gpu/select/select.hpp"
#include "plait/communicator.hpp"
#include "plait/rms_norm.hpp"
#include "plait/timeline.hpp"

namespace plait {

/// Returns the scalars of a premul_sum by rank; none for other reductions. Throws
/// Error(invalid_argument) unless every rank has a scalar.
std::vector<double> scalars_of(const Request& request, const CallOptions& options);

void add(Counters& counters, const Counters& more);

/// Part of rank 0's host memory that all ranks map; zeroed.
struct GpuSharedPage {
  alignas(4096) std::byte host[cuda::kHostFlagsBytes];  ///< HostFlags: barriers of GPUs and cores
  cuda::AgreedNumber::NumberPage shares;                ///< agreed host shares of large calls
  cuda::LargeArenaPage lazy_arena;
  cuda::LazyArenaPage first_arena;
  cuda::PageExchange::ExchangePage resumes;  ///< exchanges of resume(), an attempt each
  cuda::SuspendVote::VotesPage suspends;
  /// Slots for the host share of long messages between two ranks, if any.
  alignas(4096) std::byte message_slots[cuda::kMessageHostBytes];
  static std::size_t bytes(bool with_slots) {
    return with_slots ? sizeof(GpuSharedPage) : offsetof(GpuSharedPage, message_slots);
  }
};

/// What the caller of a single call limits.
struct CallLimits {
  unsigned most_blocks = 0;   ///< most blocks of its kernels; 0 = as the communicator's calls
  bool engines_move = false;  ///< copy engines move its data, whatever the time
  auto operator<=>(const CallLimits&) const = default;
};

/// A request with the limits of its call; the same on all ranks.
struct LimitedRequest : Request {
  LimitedRequest() = default;
  LimitedRequest(const Request& request, const CallLimits& of_call = {})
      : Request(request), limits(of_call) {}
  CallLimits limits;
};

struct GpuCallsOptions {
  CallOptions forced;                         ///< parsed PLAIT_ALGO
  bool bitwise = false;                       ///< only plans that sum in `sum_order`
  SumOrder sum_order = SumOrder::rank_order;  ///< or a tree, which is a demand
  bool beats_nccl = false;                    ///< take only calls known to be as fast as NCCL's
  bool has_lazy_arena = true;  ///< the large arena is allocated at the first large call
  /// The small arena is allocated at the first call, if possible and no messages are served: calls
  /// need CudaRank::reserve_arena(). Needs has_lazy_arena.
  bool opens_at_first_call = false;
  bool knows_links = true;   ///< the links are known: plans, masks and host shares are possible
  bool finds_paths = false;  ///< compute a call's bytes by path during preparation
  /// Shares the arenas in host memory that are allocated with the communicator. Null = by
  /// show_memory(), which ranks of one PID namespace can do.
  std::function<std::vector<Mapping>(std::uint64_t bytes)> share_memory;
  Topology checks;             ///< a device for each rank: enqueue() checks requests on it
  cuda::CudaRankOptions rank;  ///< filled in: ranks' numbers, rings, shared page, lazy arena
};

/// This rank's ends of a collective by sends and receives: send_recv goes to the next rank and
/// comes from the one before, all_to_all to and from all ranks.
std::vector<cuda::MessageEnd> message_ends(const Request& request, int rank, const void* input,
                                           void* output);

class GpuCalls {
 public:
  using ArenaTier = cuda::CudaRank::ArenaTier;
  /// Called by all ranks of the group together.
  GpuCalls(GpuGroup group, GpuCallsOptions options, const cuda::Exchange& exchange);
  /// Frees at once, like ~CudaRank.
  ~GpuCalls();
  GpuCalls(const GpuCalls&) = delete;
  GpuCalls& operator=(const GpuCalls&) = delete;

  const GpuGroup& group() const { return group_; }
  int ordinal() const { return options_.rank.device; }
  cuda::CudaRank& rank() const { return *cuda_; }
  /// GPU memory that this rank holds, by part. Any thread.
  std::vector<FlightMemory> held() const;

  /// Like Communicator::enqueue. A call that needs the large arena counts as a call of all ranks.
  void enqueue(const Request& request, const void* input, void* output, cuda::Stream stream,
               const CallOptions& options);

  /// Like Communicator::enqueue_all_reduce_rms_norm, with checked arguments.
  void enqueue(const RmsNorm& norm, const RmsNormBuffers& buffers, cuda::Stream stream,
               const CallOptions& options);

  /// True if GpuCalls serves the request within its limits. The same on all ranks, since the result
  /// depends on the request alone.
  bool takes(const LimitedRequest& request);
  /// Returns the steps of the large arena (cuda::LargeStep) that a served request needs; 0 = none.
  unsigned large_steps(const LimitedRequest& request);
  /// True if the request is served and needs the large arena.
  bool wants_large_arena(const LimitedRequest& request) { return large_steps(request) != 0; }
  /// enqueue() for a served request without options. If the call needs the large arena, the caller
  /// has reserved large_steps() (CudaRank::reserve_large_arena). Does not check the memory. Returns
  /// the engine's index in cuda::engines(); -1 = a plan.
  int enqueue_taken(const LimitedRequest& request, const void* input, void* output,
                    cuda::Stream stream);

  /// takes() and enqueue_taken() of a pre-multiplied sum: each rank's input is multiplied by the
  /// rank's own factor, rounded to the type, and the products are summed as `sum`, a request of
  /// ReduceOp::sum. Arenas are those of `sum`.
  bool takes_scaled(const LimitedRequest& sum) { return why_not_scaled(sum) == nullptr; }
  /// Returns the reason, for logs; null = served.
  const char* why_not_scaled(const LimitedRequest& sum);
  int enqueue_scaled(const LimitedRequest& sum, const cuda::ScaleFactor& factor, const void* input,
                     void* output, cuda::Stream stream);

  /// Most limits of blocks whose selectors are kept. A program has few.
  static constexpr std::size_t kMostLimits = 8;
  std::size_t kept_limits() const { return limited_.size(); }

  /// CudaRank::suspend() and resume(). give_up: called while this rank waits for peers; throws if
  /// waiting is pointless. After an error of resume() no call is possible any more.
  void suspend() noexcept {
    if (has_arena_to_suspend_) cuda_->suspend();
  }
  /// Returns whether all ranks can suspend now. All ranks call this once before each suspend.
  bool agree_on_suspend(bool can, const std::function<void()>& give_up);
  void resume(const std::function<void()>& give_up);

  bool on_device(const void* pointer) const;
  /// Throws Error(invalid_argument) unless this is memory of this GPU for the request's rank.
  void check_memory(const Request& request, int rank, const void* input, const void* output) const;
  /// Any thread.
  void add_to(Counters& counters) const;
  std::string explain(const Request& request);
  /// Returns the first line of explain(): the choice and the source.
  std::string choice_of(const LimitedRequest& request);
  /// Predicted time of the plan that serves the request if no engine does, in us. Any thread.
  double plan_us(const Request& request) const;

 private:
  /// Arena tier of a call: the only arena, or either of two.
  enum class CallTier { only, small, full };
  /// Identifies a request of the ranks.
  using RequestKey = std::tuple<int, std::uint64_t, int, int, int, int, std::vector<std::uint64_t>>;
  static RequestKey request_key(const Request& request);
  void enqueue_messages(const Request& request, const void* input, void* output,
                        cuda::Stream stream);
  /// Limits of a call, as numbers.
  using LimitsKey = std::tuple<unsigned, int>;
  static LimitsKey limits_key(const CallLimits& limits) {
    return {limits.most_blocks, limits.engines_move ? 1 : 0};
  }
  using CallKey = std::tuple<RequestKey, std::string, std::map<std::string, std::int64_t>, CallTier,
                             Launch, LimitsKey>;
  static CallKey key_of(const Request& request, const CallOptions& options);
  /// A call's record in the counters.
  struct CallRecord {
    std::string as;
    Request request;
    cuda::EngineChoice choice;  ///< null engine = a plan, or nothing to do
    ArenaTier tier = ArenaTier::full;
    std::shared_ptr<const ProvedPlan> plan;
    std::atomic<std::uint64_t> calls[2] = {};  ///< by Launch
    struct {
      std::once_flag once;
      std::map<std::string, std::uint64_t> bytes;
    } paths[2];  ///< bytes by path of a call, by Launch; computed at first use
  };
  /// A prepared request with options.
  struct GpuCall {
    std::shared_ptr<CallRecord> counted = std::make_shared<CallRecord>();
    std::unique_ptr<cuda::PreparedCall> ready;   ///< for an engine
    std::unique_ptr<cuda::BoundPlan> bound;      ///< for a plan
    std::unique_ptr<const CallKey> captured_as;  ///< for a plan, until captured
    int engine = -1;                             ///< index in cuda::engines(); -1 = none
    bool differs_in_graphs = false;              ///< a captured call is prepared otherwise
    unsigned large_steps = 0;  ///< of the large arena, that launches need; 0 = none
    bool is_by_tier = false;   ///< not prepared: depends on the arena
  };
  /// Whether a request without options is served.
  struct Offer {
    bool is_taken = false;
    unsigned large_steps = 0;
  };
  const Offer& offer(const LimitedRequest& request);
  Offer limited_offer(const LimitedRequest& request);
  /// How calls under a limit of blocks are chosen.
  struct LimitedSelectors {
    std::unique_ptr<const cuda::Selector> first, whole;
  };
  std::unique_ptr<const cuda::Selector> selector(cuda::Group group,
                                                 cuda::PredictPlan predict_plan) const;
  /// Valid until the next call of this function.
  const LimitedSelectors& selectors_under(unsigned most_blocks);
  std::optional<cuda::EngineChoice> limited_choice(const LimitedRequest& request, ArenaTier tier);
  GpuCall prepare_limited(const LimitedRequest& request, ArenaTier tier);
  void prepare_choice(GpuCall& call, const cuda::EngineChoice& choice, ArenaTier tier);
  /// Calls of all_reduce_rms_norm: the key, and the prepared call.
  using NormKey = std::tuple<std::uint64_t, std::uint64_t, int, int, std::uint32_t, std::string,
                             std::map<std::string, std::int64_t>, CallTier, bool>;
  void check_memory(const RmsNorm& norm, const RmsNormBuffers& buffers) const;
  void enqueue_fused(const RmsNorm& norm, const cuda::NormTuning& tuning, NormKey key,
                     const RmsNormBuffers& buffers, cuda::Stream stream);
  cuda::NormCall& prepared(const RmsNorm& norm, const cuda::NormTuning& tuning, const NormKey& key,
                           ArenaTier tier);

  bool wants_rings() const;
  bool predicts() const;
  /// Shares a tier's arenas in host memory, and returns them by rank.
  std::vector<std::byte*> make_host_arenas(const cuda::Exchange& exchange, std::uint64_t bytes);
  void make_rank(const cuda::Exchange& exchange);
  unsigned steps_needed(const Request& request, const CallOptions& options) const;
  GpuCall* find_call(const CallKey& key);
  GpuCall& insert_call(const CallKey& key, GpuCall made);
  GpuCall& as_launched(CallKey& key, GpuCall& call, const Request& request,
                       const CallOptions& options, cuda::Stream stream);
  GpuCall& by_tier(CallKey& key, unsigned steps, const Request& request, const CallOptions& options,
                   cuda::Stream stream);
  GpuCall& prepared(const Request& request, const CallOptions& options, cuda::Stream stream,
                    const void* input, void* output);
  void launch(GpuCall& call, const Request& request, const void* input, void* output,
              cuda::Stream stream, const std::vector<double>& scalars);
  /// Returns the arena tier for a call that needs the large arena, or does not.
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
  const CallOptions& wanted_by(const CallOptions& options) const;
  void drop(const std::shared_ptr<CallRecord>& counted);
  void find_paths(CallRecord& call, Launch launch) const;
  void count(CallRecord& call, Counters& counters) const;
  std::map<std::string, std::uint64_t> bytes_of_path(const CallRecord& call, Launch launch) const;

  GpuGroup group_;
  GpuCallsOptions options_;
  Mapping shared_page_;               ///< rank 0's page: barriers of GPUs and cores, agreed values
  std::vector<Mapping> rings_;        ///< by rank; made with the large arena
  std::vector<Mapping> host_arenas_;  ///< arenas in host memory, by tier and rank
  std::unique_ptr<cuda::CudaRank> cuda_;
  std::unique_ptr<const cuda::Selector> first_, whole_;  ///< by arena tier
  std::unique_ptr<GpuPlans> plans_;
  /// Per communicator. Calls by plans hold device memory and are never dropped once captured, since
  /// graphs refer to them.
  static constexpr std::size_t kMostCalls = 4096, kMostPlans = 1024;
  using Calls = LruCache<CallKey, GpuCall>;
  Calls calls_{kMostCalls};  ///< calls by engines, and empty calls
  Calls planned_calls_{kMostPlans};
  using OfferKey = std::tuple<RequestKey, LimitsKey>;
  LruCache<OfferKey, Offer> offers_{kMostCalls};
  LruCache<std::tuple<unsigned>, LimitedSelectors> limited_{kMostLimits};  ///< by most blocks
  LruCache<NormKey, std::unique_ptr<cuda::NormCall>> norms_{kMostCalls};
  std::atomic<std::uint64_t> fused_norms_{0};  ///< calls of all_reduce_rms_norm by one kernel
  mutable std::mutex plan_us_guard_;
  mutable LruCache<RequestKey, double> plan_us_{kMostCalls};  ///< predicted time by plans, in us
  std::uint32_t resumes_ = 0;
  cuda::SuspendVote suspends_;
  /// Whether some rank has an arena, as the last vote before a suspend found.
  bool has_arena_to_suspend_ = true;
  OfferKey last_key_;
  Offer* last_offer_ = nullptr;
  /// Calls dropped lately, not yet counted by path.
  std::deque<std::shared_ptr<CallRecord>> dropped_;
  Counters long_dropped_;     ///< sums of calls dropped from dropped_
  mutable std::mutex guard_;  ///< guards calls_, planned_calls_ and dropped calls
  const CountedPaths paths_{[this] {
    Counters counters;
    add_to(counters);
    return counters.bytes_of_path;
  }};
};

}  // namespace plait
