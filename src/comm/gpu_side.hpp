// The GPU side of a communicator: ranks that have met -> device arenas and host rings that all of
// them map, and calls put on streams with no word between hosts. A thread of its own watches the
// other ranks meanwhile, since no call of ours waits for them.
#pragma once
#include <sys/types.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "base/recent.hpp"
#include "comm/choose.hpp"
#include "comm/reach.hpp"
#include "comm/setup.hpp"
#include "exec/cuda/cuda_rank.hpp"
#include "exec/cuda/select.hpp"

namespace plait {

void add(Counters& counters, const Counters& more);

class GpuSide {
 public:
  /// All ranks together; null on all where the options ask for no device, or leave it to the
  /// launcher and some rank has none, or none that works: `why_not` says so. Throws AgreedError on
  /// all ranks alike.
  static std::unique_ptr<GpuSide> create(const CommunicatorOptions& options, Joined& joined,
                                         const std::function<void()>& check, std::string& why_not);
  /// What the others may still write into is freed when they are through: now, where that takes no
  /// longer than a moment, or later by a thread (base/departures.hpp).
  ~GpuSide();
  /// Before several are destroyed: own work is awaited for a moment from now on, then all ranks are
  /// told that this one is through; so their waits do not add up.
  void begin_closing();
  void end_work();
  GpuSide(const GpuSide&) = delete;
  GpuSide& operator=(const GpuSide&) = delete;

  int ordinal() const { return ordinal_; }
  const Topology& topology() const { return topology_; }
  /// As Communicator::enqueue.
  void enqueue(const Request& request, const void* input, void* output, void* stream,
               const CallOptions& options);
  /// As Communicator::check.
  void check();
  /// Kernels that wait give up. Any thread.
  void abort() noexcept;
  bool on_device(const void* pointer) const;
  void add_to(Counters& counters) const;
  std::string explain(const Request& request);

 private:
  /// What counters say of a call.
  struct Counted {
    std::string as;
    Request request;
    cuda::Choice choice;  ///< its engine; null = a plan, or nothing to do
    cuda::CudaRank::Room room = cuda::CudaRank::Room::whole;
    std::shared_ptr<const ProvedPlan> plan;
    std::atomic<std::uint64_t> calls[2] = {};  ///< by Launch
    struct {
      std::once_flag once;
      std::map<std::string, std::uint64_t> bytes;
    } paths[2];  ///< of one call, by Launch; found out when first asked for
  };
  /// A request with its options, made ready.
  struct Call {
    std::shared_ptr<Counted> counted = std::make_shared<Counted>();
    std::unique_ptr<cuda::Ready> ready;      ///< by an engine
    std::unique_ptr<cuda::BoundPlan> bound;  ///< by a plan
    bool captured = false;
    bool wants_room = false;  ///< nothing but this: it is made ready by the room that there is
  };
  struct Remains;
  /// The room of a call: the only one that it ever has, or one of two.
  enum class In { one_room, first, whole };
  using Key = std::tuple<int, std::uint64_t, int, int, int, int, std::string,
                         std::map<std::string, std::int64_t>, In>;

  GpuSide(const CommunicatorOptions& options, Joined& joined, const Patience& patience);
  void pick_gpu(const Patience& patience);
  void learn_topology(const Env& env, const Patience& patience);
  void load_tuning(const Env& env, const Patience& patience);
  std::vector<int> devices_of_ranks() const;
  void make_chooser();
  void set_up_rank(const Env& env, const Patience& patience);
  bool wants_room(const Request& request, const CallOptions& options) const;
  Call* known(const Key& key);
  Call& keep(const Key& key, Call made);
  Call& by_room(Key& key, const Request& request, const CallOptions& options, cuda::Stream stream);
  Call& prepared(const Request& request, const CallOptions& options, cuda::Stream stream,
                 const void* input, void* output);
  void count(Counted& call, Counters& counters) const;
  std::map<std::string, std::uint64_t> bytes_of_path(const Counted& call, Launch launch) const;
  Call prepare(const Request& request, const CallOptions& options, cuda::Stream stream,
               cuda::CudaRank::Room room);
  std::optional<cuda::Choice> choose_engine(const Request& request, const CallOptions& wanted,
                                            cuda::CudaRank::Room room) const;
  void bind_plan(Call& call, const CallOptions& options, cuda::Stream stream);
  void check_memory(const Request& request, const void* input, const void* output) const;
  std::optional<Error> cause() const;
  void watch();
  void fail(const Error& error);
  bool look_at_peers(const std::vector<short>& events);
  void stop_watching();
  void leave();

  CommunicatorOptions options_;
  Joined& joined_;
  const pid_t owner_;
  int ordinal_ = kNoDevice;
  std::vector<int> ordinals_;  ///< by rank
  std::vector<std::string> uuids_;
  bool in_processes_ = false;  ///< each rank is in one of its own
  bool as_measured_ = false;   ///< the GPUs are of a kind that choices.def was measured on
  Topology topology_;          ///< of the GPUs; no devices where nothing is known of them
  std::string why_no_topology_;
  std::vector<int> devices_;  ///< by rank, in topology_; empty = the first ones
  Reach reach_;               ///< what masks leave to kernels
  cuda::TuningTable tuning_;
  Topology plannable_;  ///< topology_ as plans may use it
  std::unique_ptr<Chooser> chooser_;
  std::vector<Mapping> rings_;
  std::unique_ptr<cuda::CudaRank> cuda_;
  cuda::Group group_, first_group_;  ///< with all room, and with the first alone
  std::unique_ptr<const cuda::Selector> first_, whole_;  ///< by the room that a call goes in
  /// Of one communicator. Those by plans hold device memory, and are never dropped once captured:
  /// graphs go on pointing at them.
  static constexpr std::size_t kMostCalls = 4096, kMostPlans = 1024;
  using Calls = Recent<Key, Call>;
  Calls calls_{kMostCalls};  ///< by engines, and where there is nothing to do
  Calls planned_calls_{kMostPlans};
  Counters dropped_;          ///< what calls counted that were dropped since
  mutable std::mutex guard_;  ///< of the three above and cause_
  std::optional<Error> cause_;
  std::atomic<bool> failed_{false};
  std::atomic<bool> stopping_{false};
  std::atomic<std::int64_t> fails_ns_{0};  ///< another rank has aborted: what waits fails then
  std::int64_t closed_ns_ = 0;             ///< when closing: own work is awaited until then
  bool has_ended_ = false;                 ///< this rank's work, or it was waited for in vain
  std::vector<Peer> peers_;
  Fd wake_;
  std::unique_ptr<std::thread> watcher_;
};

}  // namespace plait
