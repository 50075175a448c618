// Liveness page: memory where a process publishes whether it lives, whether it exited by itself,
// the DetachStage of each rank, and failures of ranks. A sealed memfd. Peers open the page by
// process and file number, read-only.
#pragma once
#include <sys/types.h>

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/deferred_teardown.hpp"
#include "comm/shm/memory.hpp"

namespace plait {

/// This process's own page. A forked child publishes nothing: the page is the parent's.
class LivenessPage {
 public:
  /// Largest number of ranks with a slot at a time.
  static constexpr int kSlots = 5000;

  /// Throws Error if the system gives no shared memory.
  LivenessPage();

  /// Takes a free slot and returns the text by which peers open the slot; "" if none is free.
  std::string show(int& slot);
  /// Publishes the detach stage of the rank that holds the slot. `unmapped` frees the slot.
  void leave(int slot, DetachStage stage) noexcept;
  /// Publishes that the rank at `place` has failed although the process lives.
  void fail(int slot) noexcept;
  /// Publishes that the process exits by itself. Takes no lock.
  void end() noexcept;
  /// File descriptor of the page, to send to peers.
  int file() const { return file_.get(); }
  /// The LivenessFutex's place.
  std::uint32_t& liveness() const;

 private:
  bool is_mine() const noexcept;
  const pid_t owner_;
  Fd file_;
  Mapping memory_;
  std::mutex guard_;
  std::vector<int> free_;  // slots that were given back
  int used_ = 0;           // slots that were ever taken
};

/// A peer rank's slot on the liveness page of the peer's process.
class PeerLiveness {
 public:
  /// Opens the page by process and file number. Empty if the page cannot be opened or is no
  /// liveness page.
  static std::optional<PeerLiveness> open(const std::string& shown);
  /// Opens a page received as a descriptor.
  static std::optional<PeerLiveness> open(const std::string& shown, const Fd& page);
  int process() const { return process_; }
  /// True once the thread that held the process's LivenessFutex has died holding it.
  bool has_died() const;
  bool ended_by_itself() const;
  bool has_reached(DetachStage stage) const;
  bool has_failed() const;

 private:
  Mapping memory_;
  int process_ = 0;
  int slot_ = 0;
  std::uint32_t turn_ = 0;
};

}  // namespace plait
