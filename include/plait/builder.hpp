// Builder: strategies call it to write a plan. A builder hands out regions, numbers flags and names
// lanes. signal() returns the Event to pass to wait(); the builder chooses flags and values, so by
// construction each flag has a single writer lane and growing values.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "plait/plan.hpp"

namespace plait {

struct NodeStep;

/// Bytes [offset, offset + bytes) of the message.
struct Range {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  bool operator==(const Range&) const = default;
};

/// Cuts a range into `parts` consecutive ranges. Sizes are multiples of `granule` bytes, except for
/// the last non-empty part, and differ by at most a granule. The last parts may be empty.
std::vector<Range> partition(Range whole, int parts, std::uint64_t granule);
/// Part of a region: `range` is relative to the region's own start.
Region slice(const Region& region, Range range);

/// A flag and the value that a wait() waits for.
struct Event {
  Flag flag;
  std::uint32_t value = 0;
};

class Builder {
 public:
  /// `request` must be checked().
  Builder(const Topology& topology, const Request& request, std::string strategy);

  const Topology& topology() const { return topology_; }
  const Request& request() const { return plan_.request; }
  int ranks() const { return plan_.request.ranks; }
  /// Topology device of a place (a rank or relay GPU), and the number of places.
  int device(int place) const;
  int places() const { return ranks() + static_cast<int>(plan_.relay_devices.size()); }
  int lanes() const { return static_cast<int>(plan_.lanes.size()); }
  int rank_of(int lane) const { return plan_.lanes.at(static_cast<std::size_t>(lane)).rank; }
  /// Cuts of a message lie at multiples of this number of bytes.
  std::uint64_t granule() const { return 128; }

  /// Returns the index of the lane of that rank and name; adds the lane at first use.
  int lane(int rank, LaneKind kind, const std::string& name);
  /// Returns the place of a relay GPU, a topology device outside the job that lends scratch.
  int relay(int device);
  int guest(int device) { return relay(device); }  ///< former name of relay()

  Region input(int rank, Range range) const;
  Region output(int rank, Range range) const;
  /// Returns unused bytes of scratch, inbox or ring at a place, 128-byte aligned.
  Region alloc(Space space, int place, std::uint64_t bytes);

  /// Adds a copy inside a memory or over the direct link. A copy or reduce of 0 bytes adds no op.
  void copy(int lane, const Region& dst, const Region& src);
  /// Adds a copy over hop `hop` of a path.
  void copy(int lane, const Region& dst, const Region& src, const Path& path, int hop);
  void reduce(int lane, const Region& dst, std::vector<Region> srcs, bool finish = true);
  /// Appends an op unchanged, with indices valid in this plan.
  void take(int lane, Op op);
  void reserve(int lane, std::size_t ops);
  int path_index(const Path& path);
  /// Raises a flag of rank `owner`, after all earlier ops of the lane.
  Event signal(int lane, int owner);
  /// Waits for the event; the lane must belong to the flag's owner.
  void wait(int lane, const Event& event);

  /// Signals a flag that an engine numbers and counts itself (Plan::counts).
  void raise(int lane, const Flag& flag, std::uint32_t value);
  /// Waits for a flag of raise(); `before`: see Op.
  void await(int lane, const Flag& flag, std::uint32_t value, std::uint32_t before = 0);

  /// Reserves `count` flags of (owner, writer), numbered by the caller; returns the first index.
  int flags(int owner, int writer, int count);
  /// Adds a call of the library between nodes, and a rank's part in the call; 0 bytes = no region.
  int call(LibraryCall call);
  void join(int lane, int call, const Region& dst, const Region& src, bool finish = false);

  void param(const std::string& name, std::int64_t value) { plan_.params[name] = value; }
  void sum_order(SumOrder order) { plan_.sum_order = order; }
  void kernel(const std::string& name) { plan_.kernel = name; }
  void symmetric(bool on) { plan_.symmetric = on; }
  void stripe(const std::string& route, Range range);

  /// Replaces all written so far by a plan. Error(invalid_argument) for a plan of another request.
  void adopt(Plan plan);

  /// If set, a strategy for several nodes stores its steps here. with_lanes: also writes the lanes.
  void collect_steps(std::vector<NodeStep>* steps, bool with_lanes = false) {
    steps_ = steps;
    writes_lanes_ = with_lanes;
  }
  std::vector<NodeStep>* collected_steps() const { return steps_; }
  bool writes_lanes() const { return writes_lanes_; }
  int ops_of(int lane) const {
    return static_cast<int>(plan_.lanes.at(static_cast<std::size_t>(lane)).ops.size());
  }

  /// Returns the plan, without lanes that have no ops. The builder is empty afterwards.
  Plan build();

 private:
  Op& append(int lane, OpKind kind);

  const Topology& topology_;
  Plan plan_;
  std::vector<NodeStep>* steps_ = nullptr;
  bool writes_lanes_ = true;
  std::map<std::string, int> path_of_name_;
  std::map<std::pair<int, std::string>, int> lane_of_name_;
  std::map<std::pair<int, int>, Event> last_event_;   // (lane, owner) -> last event
  std::map<std::pair<int, int>, int> flags_of_pair_;  // (owner, writer) -> flags in use
  std::map<std::pair<int, int>, Path> direct_;        // device pair -> direct path
};

}  // namespace plait
