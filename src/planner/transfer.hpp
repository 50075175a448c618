// A message from one rank's memory to another's over a named path -> copies, hop by hop, with the
// signals that order them. One hop is pushed by the sender or pulled by the receiver; two hops
// (host ring, relay GPU) are cut into chunks that go through a few slots, each reused once it is
// empty. Source of chunked two-hop transfers: the host and relay paths of Micro 2021 and WOTIR.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "plait/builder.hpp"

namespace plait {

/// What is known of a message that was sent: when it is there, and when its source may be changed.
/// An event with value 0 was not asked for.
struct Carried {
  Event arrived;  ///< for the receiver
  Event emptied;  ///< for the sender: nobody reads the source any more
};

/// How a Mover sends.
struct MoverOptions {
  std::string name;               ///< prefix of its lanes, unique in the plan
  bool pull = false;              ///< one-hop paths: the receiver copies; else the sender does
  int lanes = 1;                  ///< one-hop lanes of a rank that peers go round (the throttle)
  std::uint64_t most_bytes = 0;   ///< the largest message
  std::uint64_t ring_bytes = 0;   ///< of a rank's host ring, for all messages under way
  std::uint64_t relay_bytes = 0;  ///< of a relay's scratch, for the messages of one sender
  std::function<Path(int from, int to)> path;
};

/// Sends messages between ranks. Messages of one sender leave in the order of the calls. Every wait
/// it writes is for a signal already written, so no order of calls can deadlock.
class Mover {
 public:
  Mover(Builder& builder, MoverOptions options);
  /// Who executes the copy that reads the source, and the one that fills the destination.
  int reader(int from, int to);
  int filler(int from, int to);
  /// Tells `from` that the memory it will write to may be written: needed once a pair before carry.
  /// `home(rank)` is a lane of that rank on which nothing has been awaited yet.
  void open(int from, int to, const std::function<int(int)>& home);
  /// dst := src once all of `after` have happened; each is awaited by the rank that owns it, which
  /// must be the reader or the filler. `step` chooses the lane where there are several.
  Carried carry(int from, int to, const Region& dst, const Region& src,
                const std::vector<Event>& after, int step, bool signal_receiver = true);
  /// The lane of `from` that reads the source of a message that its receiver does not read.
  int source_lane(int from, int to, int step);
  /// Writes the last waits: nobody ends while others still use its memory.
  void close(const std::function<int(int)>& home);

 private:
  struct RingSlots {
    std::vector<Region> regions;
    std::vector<Event> emptied;
    std::size_t next = 0;
  };
  const Path& path(int from, int to);
  int lane(int rank, const char* part, int step);
  Carried carry_direct(int from, int to, const Region& dst, const Region& src,
                       const std::vector<Event>& after, int step, bool signal_receiver);
  Carried carry_hops(int from, int to, const Region& dst, const Region& src,
                     const std::vector<Event>& after, bool signal_receiver);
  int place_between(const Path& path, int from);
  int owner_of(int place) const;
  RingSlots& slots_of(const Path& path, int from);
  void await_open(int lane, int from, int target);

  Builder& builder_;
  MoverOptions options_;
  std::map<std::pair<int, int>, Path> path_of_;
  std::map<std::pair<int, int>, Event> opened_;
  std::set<std::pair<int, int>> awaited_;  // (lane, target) whose opening that lane has awaited
  std::map<std::pair<int, int>, RingSlots>
      slots_of_;  // (sender, place of the slots or -1 for its ring)
  std::map<int, std::map<int, int>>
      last_reader_lanes_;  // relay rank -> (reader's lane -> its rank)
};

/// Bytes of scratch that a plan may use on a device, and of a rank's host ring.
std::uint64_t scratch_limit(const Topology& topology);
std::uint64_t ring_limit(const Topology& topology);
std::uint64_t inbox_limit(const Topology& topology);

}  // namespace plait
