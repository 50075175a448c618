// A page of memory that a process shows to others on its machine: whether it lives, whether it
// ended by itself, how far each of its ranks has come in leaving its communicator, and which of
// them has failed. Nameless and sealed; others open it by process and number, and only read it.
#pragma once
#include <sys/types.h>

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/deferred_teardown.hpp"
#include "comm/memory/memory.hpp"

namespace plait {

/// This process's own page. A child made by fork shows nothing and changes nothing: the page is its
/// parent's.
class LivenessPage {
 public:
  /// Ranks that can have a place at the same time.
  static constexpr int kSlots = 5000;

  /// Error where the system gives no such memory.
  LivenessPage();

  /// A free place, and what others open it by; "" where none is free.
  std::string show(int& place);
  /// Of the rank that holds the place. From `unmapped` on, the place is free for another one.
  void leave(int place, DetachStage left) noexcept;
  /// Publishes that the rank at `place` has failed although its process lives.
  void fail(int place) noexcept;
  /// The process ends by itself. Takes no lock.
  void end() noexcept;
  /// The page as a file, for others that are handed it.
  int file() const { return file_.get(); }
  /// The LivenessFutex's place.
  std::uint32_t& liveness() const;

 private:
  bool is_mine() const noexcept;
  const pid_t owner_;
  Fd file_;
  Mapping memory_;
  std::mutex guard_;
  std::vector<int> free_;  // places that were given back
  int used_ = 0;           // places that were ever given out
};

/// One rank's place on a page that a process showed.
class PeerLiveness {
 public:
  /// Empty where the page cannot be opened, or is none.
  static std::optional<PeerLiveness> open(const std::string& shown);
  /// The same, by the page that was handed over.
  static std::optional<PeerLiveness> open(const std::string& shown, const Fd& page);
  int process() const { return process_; }
  /// True once the thread that held the process's LivenessFutex has died with it.
  bool has_died() const;
  bool ended_by_itself() const;
  bool has_reached(DetachStage left) const;
  bool has_failed() const;

 private:
  Mapping memory_;
  int process_ = 0;
  int place_ = 0;
  std::uint32_t turn_ = 0;
};

}  // namespace plait
