// Meeting: ranks of this host find each other by the name of a communicator of another library, and
// exchange records through shared memory. A rank enters the name before the library's call. The
// library's call returns once all ranks are in the call, so a later look finds all ranks of this
// host.
//
// An entry is a symbolic link in the rendezvous folder: made at once, never half written, without a
// lock. The link's target names the rank's process and memory (a sealed memfd). Process number and
// start time show that the process of an entry has died, and the next rank to enter removes the
// entry.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/liveness/peer_watch.hpp"
#include "comm/shm/memory.hpp"

namespace plait {

/// Most bytes of a record in Meeting::allgather().
inline constexpr std::size_t kMeetingRecordBytes = 4096;

/// The name of a communicator, alike on all its ranks, and this rank's number among all ranks that
/// may enter the name.
struct MeetingName {
  std::string name;
  int seat = 0;
};

class Meeting {
 public:
  /// Called at least every few ms of a wait; throws if waiting is pointless.
  using GiveUp = std::function<void()>;

  /// Enters the name. The rank counts in in_process() also if it can show nothing to its peers.
  explicit Meeting(const MeetingName& of);
  /// Removes the entry. Peers that wait for this rank get an error.
  ~Meeting();
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;

  /// Returns why this rank can show nothing to its peers; empty = it has entered the name.
  const std::string& why_hidden() const { return why_hidden_; }
  /// Called once by every rank, after the library has made the communicator. Returns whether all
  /// `ranks` ranks have met on this host; the answer is the same on all ranks that have entered.
  bool find_all(int rank, int ranks, const GiveUp& give_up);
  /// Returns all ranks' records by rank. After find_all() has returned true. Throws
  /// Error(peer_lost) if a rank has left or died.
  std::vector<std::string> allgather(const std::string& mine, const GiveUp& give_up);
  /// Hands over the slot on this process's liveness page, and returns the text by which peers open
  /// the slot.
  std::string take_liveness(int& slot);
  /// Returns how many ranks of this process have entered the name. Final once the library has made
  /// the communicator.
  int in_process() const;
  /// Returns the entered name as digits. Ranks of this process that meet have the same digits, and
  /// this process has them for no other meeting.
  const std::string& digits() const { return digits_; }
  /// Returns a word that no other communicator has, the same on all ranks. After find_all() has
  /// returned true.
  std::string word_of_all() const;

 private:
  struct MeetingPeer {
    int seat = 0;
    std::uint64_t token = 0;
    int file = -1;
    std::string liveness;
    Mapping page;
    int rank = -1;
  };
  struct SeatCount;

  bool is_mine() const noexcept;
  /// Counts this rank among those of the process; sets digits_ and here_.
  void count(const MeetingName& of);
  /// Makes the page and the entry. Throws Error.
  void show();
  void publish_answer(std::uint32_t answer) noexcept;
  /// Returns the other live entries of the name.
  std::vector<MeetingPeer> find_entries() const;
  /// Maps the peers' pages; returns false if a page cannot be mapped.
  bool open_pages();
  std::uint64_t hash_of_all() const;
  /// Fills peers_; returns whether `ranks` ranks in all have entered, and are within reach.
  bool find_peers(std::size_t ranks);
  bool have_all_found(int rank, int ranks, const GiveUp& give_up);
  /// Waits until is_done(peer) for every peer; throws if a peer has left or died before.
  template <class IsDone>
  void await_peers(const GiveUp& give_up, const IsDone& is_done) const;

  const int owner_;
  std::string digits_, path_, why_hidden_;
  std::shared_ptr<SeatCount> here_;
  int seat_ = 0;
  int rank_ = -1;
  std::uint64_t token_ = 0;
  int liveness_slot_ = -1;
  std::string liveness_;
  Fd file_;
  Mapping page_;
  std::vector<MeetingPeer> peers_;  ///< all other ranks
  std::shared_ptr<WatchedPeers> alive_;
  std::uint32_t round_ = 0;
};

/// Shows a name under another, for ranks that know only the other. The entry lasts as long as the
/// object.
class MeetingAlias {
 public:
  MeetingAlias(const std::string& other, const std::string& name);
  ~MeetingAlias();
  MeetingAlias(const MeetingAlias&) = delete;
  MeetingAlias& operator=(const MeetingAlias&) = delete;
  /// Returns the name shown under `other` by a live process; empty if there is none, or several.
  static std::string find(const std::string& other);

 private:
  const int owner_;
  std::string path_;
};

}  // namespace plait
