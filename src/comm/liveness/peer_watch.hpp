// Watches the processes of peer ranks on this machine and reports a dead process at once, since
// peers' kernels may wait for it. Each process publishes detached communicators on a liveness page
// (liveness_page.hpp), and peers know when to free memory that the process might store into. A
// single thread per process watches for all communicators; a second thread runs queries of
// libraries that may block.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/liveness/liveness_page.hpp"
#include "comm/trace/open_calls.hpp"

namespace plait {

/// Takes a slot on this process's liveness page for a rank of a communicator. Returns the text by
/// which peers open the slot; "" if the system gives no page.
std::string publish_liveness(int& slot);
/// Descriptor of the liveness page, to send to peers; -1 = none.
int liveness_page_fd();
/// Publishes the detach stage of the rank that holds the slot. `unmapped` gives the slot back.
void publish_detach(int slot, DetachStage stage) noexcept;
/// Publishes that the rank has failed though the process lives: the peers lose the rank now.
void publish_failed(int slot) noexcept;

/// The peers of a communicator on this machine.
class WatchedPeers {
 public:
  /// Adds a rank's slot and process; an invalid Fd = this process. Not allowed once watched.
  void add(int rank, std::optional<PeerLiveness> liveness, Fd process) {
    add(rank, std::move(liveness), std::make_shared<const Fd>(std::move(process)));
  }
  /// The same with a descriptor that other communicators may watch too.
  void add(int rank, std::optional<PeerLiveness> liveness, std::shared_ptr<const Fd> process);
  /// False if the page of a rank could not be opened: its process has ended, say.
  bool has_all_pages() const { return !has_unopened_page_; }
  /// True once every peer has reached the stage, or has exited with all its GPU memory. elsewhere:
  /// only peers in other processes count.
  bool peers_reached(DetachStage stage, bool elsewhere) const;
  /// True once the rank's process has died, before the kernel tears down the process's resources.
  bool has_died(int rank) const;
  /// True once the rank's process has died or exited.
  bool has_ended(int rank) const;
  /// Returns a rank with an ended process; -1 = none.
  int first_dead_rank() const;

 private:
  friend class PeerWatch;
  struct WatchedPeer {
    int rank = 0;
    PeerLiveness liveness;
    std::shared_ptr<const Fd> process;  ///< invalid = this process
    double ended_s = 0;                 ///< when the end was first seen
    bool handled = false;               ///< the end has been reported
    bool has_ended() const;
    bool is_open() const { return process->valid() && !handled; }
  };
  std::vector<WatchedPeer> list_;
  bool has_unopened_page_ = false;  ///< a rank's page could not be opened
};

/// Opens the peers' pages. published: by rank the text of publish_liveness(), none for ranks on
/// other machines. mine: this rank. Called while all ranks still wait for each other, so that a
/// rank that dies later is not missed.
std::shared_ptr<WatchedPeers> open_peer_pages(
    const std::vector<std::optional<std::string>>& published, int mine);

/// How a peer was lost.
enum class Loss {
  killed,  ///< its process died
  ended,   ///< the process exited by itself
  failed   ///< the process lives, but the rank has failed (publish_failed)
};

/// Receives reports about peers. The watch thread calls a single observer at a time. Callbacks must
/// not wait, nor call a library that may block, except query().
class PeerObserver {
 public:
  /// grace_s: extra time for a peer that exited by itself without detaching, since the peer's last
  /// data may still be on the way.
  explicit PeerObserver(double grace_s) : grace_s_(grace_s) {}
  virtual ~PeerObserver() = default;
  /// Called when a peer exits without detaching, or has failed.
  virtual void lost(int rank, int process, Loss how) = 0;
  /// Fails the streams that wait for a lost rank.
  virtual void fail_streams() noexcept = 0;
  /// Called every 20 ms if ObserverCalls asks for it.
  virtual void look() {}
  /// Called likewise by a second thread. A query may block in drivers and libraries; that delays
  /// other queries, but not the watch.
  virtual void query() {}

 protected:
  /// Schedules fail_streams() after that time. Any thread; the first call counts.
  void fail_streams_in(double seconds);
  /// Schedules a query() soon, in look() of an observer that does not ask for queries.
  void query_once() { wants_query_.store(true); }

 private:
  friend class PeerWatch;
  const double grace_s_;
  std::atomic<bool> wants_query_{false};
  std::atomic<std::int64_t> fails_ns_{0};  ///< 0 = not scheduled, -1 = done
};

/// The periodic callbacks of a PeerObserver that run: none, look(), or look() and query().
enum class ObserverCalls { process_ends, look, look_and_query };

/// Watches the peers until unwatch().
void watch(std::shared_ptr<WatchedPeers> peers, PeerObserver& watched,
           ObserverCalls wants = ObserverCalls::process_ends);
/// Starts the watch thread without peers, so that `plait status` gets an answer at any time.
void answer_always();
/// Starts the watch thread without peers, for looks at the calls in slots (open_calls.hpp).
void watch_open_calls(OpenCallsInfo info);
/// Stops watching. The observer is not touched any more after the return: a running query() is
/// awaited. Not allowed inside the observer's own callbacks.
void unwatch(const PeerObserver& watched) noexcept;

}  // namespace plait
