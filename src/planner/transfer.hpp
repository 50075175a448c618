// Mover: writes messages between ranks over named paths as copies, hop by hop, with signals. The
// sender pushes a path of one hop, or the receiver pulls. A path of two hops (host ring, relay GPU)
// goes in chunks through a few slots, each reused when empty. Exchanges and striped use Mover.
// Source of chunked two-hop transfers: the host and relay paths of Micro 2021 and WOTIR.
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

/// Events of a message: the arrival, and the event after which the source may change. Value 0 = no
/// event.
struct Carried {
  Event arrived;  ///< for the receiver
  Event emptied;  ///< for the sender: the source is no longer read
};

/// Options of a Mover.
struct MoverOptions {
  std::string name;   ///< prefix of lane names, unique in the plan
  bool pull = false;  ///< one-hop paths: the receiver copies; else the sender does
  int lanes = 1;      ///< one-hop lanes of a rank, shared by peers in turn (the throttle)
  std::uint64_t most_bytes = 0;   ///< the largest message
  std::uint64_t ring_bytes = 0;   ///< host ring of a rank, for all messages in flight
  std::uint64_t relay_bytes = 0;  ///< scratch on a relay, for a sender's messages
  std::function<Path(int from, int to)> path;
};

/// Sends messages between ranks. A sender's messages leave in the order of the calls. Every wait is
/// for a signal already written: no order of calls can deadlock.
class Mover {
 public:
  Mover(Builder& builder, MoverOptions options);
  /// The ranks that run the copy from the source and the copy to the destination.
  int reader(int from, int to);
  int filler(int from, int to);
  /// Signals `from` that the target is free to write; called once for each pair before carry().
  /// `home(rank)`: a lane of that rank without a wait so far.
  void open(int from, int to, const std::function<int(int)>& home);
  /// Writes dst := src, after all events of `after`. The events' owners must be the reader or the
  /// filler. `step` selects a lane of several.
  Carried carry(int from, int to, const Region& dst, const Region& src,
                const std::vector<Event>& after, int step, bool signal_receiver = true);
  /// The lane of `from` that reads the source, if the receiver does not.
  int source_lane(int from, int to, int step);
  /// Writes the last waits: a rank ends only when no peer uses its memory.
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
  std::set<std::pair<int, int>> awaited_;  // (lane, target): the lane has awaited its opening
  std::map<std::pair<int, int>, RingSlots>
      slots_of_;  // (sender, place of the slots; -1 = the sender's ring)
  std::map<int, std::map<int, int>>
      last_reader_lanes_;  // relay's owner -> (reader's lane -> reader)
};

/// Most bytes that a plan may use: scratch of a device, host ring and inbox of a rank.
std::uint64_t scratch_limit(const Topology& topology);
std::uint64_t ring_limit(const Topology& topology);
std::uint64_t inbox_limit(const Topology& topology);

}  // namespace plait
