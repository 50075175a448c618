// Host side of a communicator: the joined ranks of a node, the check that all ranks make the same
// call, and the run of plans on host memory. MultinodeHostSide extends each step over nodes.
#pragma once
#include <unistd.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/forks.hpp"
#include "comm/choose/choose.hpp"
#include "comm/node/setup.hpp"
#include "comm/trace/flight.hpp"
#include "cpu/cpu.hpp"

namespace plait {

class HostSide {
 public:
  /// devices: the ranks' devices in the topology; empty = those that requests name.
  HostSide(const CommunicatorOptions& options, Joined joined, std::vector<int> devices = {});
  /// Tells the peers that this rank leaves, unless the set-up has failed.
  virtual ~HostSide();
  HostSide(const HostSide&) = delete;
  HostSide& operator=(const HostSide&) = delete;
  /// Watches the liveness pages of ranks that take long to exit because of GPU memory.
  void watch(std::shared_ptr<const WatchedPeers> pages) { peers_.watch(std::move(pages)); }
  /// Called once the communicator is complete.
  void complete();

  /// Returns the ranks of this host, without rings: for the recorder of calls on GPU memory too.
  FlightInfo flight_info() const;

  const CommunicatorOptions& options() const { return options_; }
  int rank() const { return options_.rank; }
  int ranks() const { return options_.ranks; }
  int local_rank() const { return joined_.controls.rank(); }
  int local_ranks() const { return joined_.controls.ranks(); }
  const Joined& joined() const { return joined_; }
  Peers& peers() { return peers_; }
  const std::vector<int>& devices() const { return devices_; }
  /// Whether this process made the communicator: a forked child must not act for the parent.
  bool is_owner() const { return getpid() == owner_; }
  /// Whether this thread makes the calls.
  bool is_caller() const { return caller_.load() == std::this_thread::get_id(); }
  /// Returns the place of `rank` in this node; -1 = the rank is on another node.
  int place_of(int rank) const;
  /// Returns the check of waits in a step of all ranks: throws if a peer is lost.
  std::function<void()> peers_check(const char* step) {
    return [this, step] {
      peers_.check(step);
      peers_.meanwhile();
    };
  }

  /// Checks before every call: same process, a single thread at a time, no earlier failure.
  std::unique_lock<std::mutex> begin() { return begin(calling_, CallKind::collective); }
  /// The same before a call on GPU memory: another thread may call on host memory meanwhile. Until
  /// the lock's end, errors of other threads' calls on GPU memory name a suspend or a resume.
  virtual std::unique_lock<std::mutex> begin_on_device(CallKind kind) {
    return begin(device_calling_, kind);
  }
  using Body = std::function<void()>;
  /// Publishes the call, and runs `body` once all ranks make the same call.
  void in_call(const CallDescriptor& mine, const Body& body, const OwnCounts* counts = nullptr);
  /// Runs this rank's part of the plan. Only inside a call.
  void run(const ProvedPlan& plan, const void* input, void* output);
  /// Returns the counts that each rank has published with the call.
  std::vector<OwnCounts> own_counts() const;
  /// Returns every rank's bytes, in rank order. Only inside a call.
  virtual std::vector<std::string> exchange(const std::string& mine);
  /// Returns the error that ended this communicator, if any.
  std::optional<Error> failed();
  /// Sets the deadlines of later calls. Any thread.
  void set_deadlines(double arrive_s, double deadline_s) {
    arrive_s_.store(arrive_s);
    deadline_s_.store(deadline_s);
  }
  /// Reports abort() to the peers. Any thread.
  void abort() noexcept { peers_.abort(); }
  void raise_abort() const noexcept;

  /// Name of the library that carries messages between nodes; empty = all ranks are on one node.
  virtual std::string transport() const { return {}; }
  /// Parsed PLAIT_ALGO for calls inside a node.
  virtual CallOptions node_algo() const { return joined_.forced; }
  /// Whether requests may name these devices.
  virtual bool accepts(const std::vector<int>&) const { return true; }
  /// Throws Error(unsupported) if the ranks cannot exchange counts of blocks.
  virtual void require_own_counts(const Request&) const {}
  /// Describes the pair with the rank at `place` of this node.
  virtual PairOf pair_at(int place) const;
  /// Makes the host side of a pair with a rank of another node. pair: filled in.
  virtual std::unique_ptr<HostSide> far_pair(int peer, PairOf& pair) const;

 protected:
  /// Returns the error that all ranks throw for the call, if any.
  virtual std::optional<Error> agree(const CallDescriptor& mine, const OwnCounts* counts);
  /// Runs a step that fails on all ranks or on none.
  virtual void agree_on(const std::function<void()>& step, const Deadline&) { step(); }
  /// Returns the scalars of a premul_sum by rank.
  virtual std::vector<double> scalars();
  /// Gives up messages under way. Returns false if their buffers may still be used.
  virtual bool drop_messages() noexcept { return true; }
  /// Publishes a failure beyond the ranks of this node.
  virtual void publish_failure(const Error&) noexcept {}
  void fail(const Error& error);

  const CommunicatorOptions options_;
  std::atomic<double> arrive_s_, deadline_s_;  ///< of calls; at first those of `options_`
  Joined joined_;
  std::vector<int> rank_of_place_;  ///< the ranks of this node, by place
  std::vector<int> devices_;
  Peers peers_;
  NodeLibrary* library_ = nullptr;  ///< does the calls of a plan's join ops; null = none
  std::vector<Mapping> arena_memory_;
  bool is_complete_ = false;
  std::atomic<std::uint64_t> held_bytes_{0};  ///< arenas of this node's ranks
  std::unique_ptr<Flight> flight_;            ///< of calls on host memory; null until complete()
  std::uint32_t call_ = 0;                    ///< number of the current or last call

 private:
  /// Held by the thread that makes a call.
  struct CallLock {
    std::mutex guard;
    std::atomic<CallKind> kind{CallKind::collective};  ///< of the last holder's call
  };
  std::unique_lock<std::mutex> begin(CallLock& calling, CallKind kind);
  void ensure_arenas(const ArenaSizes& wanted);

  Arenas arenas_;
  std::uint32_t epoch_ = 0;  ///< value to which flags in these arenas have been raised
  int parity_ = 0;
  const pid_t owner_ = getpid();
  const std::uint32_t forks_ = forks_so_far();
  CallLock calling_, device_calling_;
  std::atomic<std::thread::id> caller_{std::this_thread::get_id()};  ///< thread of the last call
  std::mutex guard_;                                                 ///< guards failure_
  std::optional<Error> failure_;
  std::atomic<bool> has_failed_{false};  ///< failure_ is set
};

}  // namespace plait
