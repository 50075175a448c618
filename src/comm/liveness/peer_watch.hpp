// Ranks of one machine watch each other's processes: one that dies leaves kernels of the others
// waiting, and they are told at once. A process shows a page of memory (liveness_page.hpp) where it
// notes which communicators it has left in good order; who knows that frees what others may have
// stored into. One thread a process watches for all of its communicators; another asks libraries
// that may not answer, where that is wanted.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/liveness/liveness_page.hpp"

namespace plait {

/// A place on this process's page for one rank of a communicator, as text for the others; "" where
/// the system gives none.
std::string publish_liveness(int& place);
/// The page itself, for others that are handed it; -1 where there is none.
int liveness_page_fd();
/// How far the rank that holds the place has come in leaving. From `unmapped` on it holds none.
void publish_detach(int place, DetachStage left) noexcept;
/// The rank that holds the place has failed though its process lives: its peers lose it now.
void publish_failed(int place) noexcept;

/// The other ranks of a communicator on this machine.
class WatchedPeers {
 public:
  /// A rank's place, and its process; no process = this one. Not once they are watched.
  void add(int rank, std::optional<PeerLiveness> liveness, Fd process);
  /// True once each of them has come so far in leaving, or its process is gone with all it had on
  /// GPUs. elsewhere: of those in other processes alone.
  bool peers_reached(DetachStage left, bool elsewhere) const;
  /// True once the rank's process has died: before all that it held is torn down.
  bool has_died(int rank) const;
  /// A rank whose process is there no more; -1 = none is known of.
  int first_dead_rank() const;

 private:
  friend class PeerWatch;
  struct WatchedPeer {
    int rank = 0;
    PeerLiveness liveness;
    Fd process;            ///< none: it is this one
    double ended_s = 0;    ///< when it was first seen to have ended
    bool handled = false;  ///< its end has been dealt with
    bool has_exited() const;
    bool is_open() const { return process.valid() && !handled; }
  };
  std::vector<WatchedPeer> list_;
  bool has_unopened_page_ = false;  ///< some rank's page could not be opened
};

/// By rank what publish_liveness() gave there, none of ranks on other machines; mine: which of them
/// is this rank. To be opened while all ranks still wait for each other: one that dies after that
/// is not missed.
std::shared_ptr<WatchedPeers> open_peer_pages(
    const std::vector<std::optional<std::string>>& published, int mine);

/// How a peer was lost.
enum class Loss {
  killed,  ///< its process died
  ended,   ///< its process ended by itself
  failed   ///< its process lives, and it has failed (publish_failed)
};

/// Who is told of its peers. The watching thread calls one at a time; nothing here may wait, nor
/// call a library that may, but for ask().
class PeerObserver {
 public:
  /// grace_s: for a peer that has ended by itself without leaving; what it sent last may still be
  /// on its way.
  explicit PeerObserver(double grace_s) : grace_s_(grace_s) {}
  virtual ~PeerObserver() = default;
  /// A peer has ended without leaving, or has failed.
  virtual void lost(int rank, int process, Loss how) = 0;
  /// What waits for a lost rank fails its stream.
  virtual void fail_streams() noexcept = 0;
  /// Every 20 ms, where it is wanted.
  virtual void look() {}
  /// Likewise, by a thread beside: drivers and libraries may keep it waiting, and then others that
  /// ask, but nobody who watches.
  virtual void query() {}

 protected:
  /// fail_streams() is to be called once that time has passed. Any thread; the first one counts.
  void fail_streams_in(double seconds);

 private:
  friend class PeerWatch;
  const double grace_s_;
  std::atomic<std::int64_t> fails_ns_{0};  ///< 0 = not asked for, -1 = done
};

/// What of a Watched is called besides: nothing, look(), or ask() as well.
enum class ObserverCalls { process_ends, look, look_and_query };

/// From here on until unwatch().
void watch(std::shared_ptr<WatchedPeers> peers, PeerObserver& watched,
           ObserverCalls wants = ObserverCalls::process_ends);
/// Nothing is watched any more for it, nor is it touched from here on: an ask() under way is
/// awaited. Not from its own functions.
void unwatch(const PeerObserver& watched) noexcept;

}  // namespace plait
