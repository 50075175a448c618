// How strategies write plans: regions are handed out, flags are numbered, lanes are named.
// A signal returns the Event that waits name; words and values are the builder's business, so
// "one writer lane a word, values only grow" holds by construction.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "plait/plan.hpp"

namespace plait {

struct NodeStep;

/// Bytes [offset, offset + bytes) of the message; what partition() hands out.
struct Range {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  bool operator==(const Range&) const = default;
};

/// Cuts a range into `parts` consecutive ranges, each but the last non-empty one a multiple of
/// `granule` bytes, sizes differing by at most one granule; late parts may be empty.
std::vector<Range> partition(Range whole, int parts, std::uint64_t granule);
/// Part of a region: `range` is relative to the region's own start.
Region slice(const Region& region, Range range);

/// A flag value that a wait can name.
struct Event {
  Flag flag;
  std::uint32_t value = 0;
};

class Builder {
 public:
  /// `request` must be checked(). Element size and devices are read off it.
  Builder(const Topology& topology, const Request& request, std::string strategy);

  const Topology& topology() const { return topology_; }
  const Request& request() const { return plan_.request; }
  int ranks() const { return plan_.request.ranks; }
  int device(int place) const;
  /// Ranks and relay GPUs; lanes so far, and whose they are.
  int places() const { return ranks() + static_cast<int>(plan_.relay_devices.size()); }
  int lanes() const { return static_cast<int>(plan_.lanes.size()); }
  int rank_of(int lane) const { return plan_.lanes.at(static_cast<std::size_t>(lane)).rank; }
  /// Cuts are made at multiples of this: 128 bytes, or the element where that is larger.
  std::uint64_t granule() const { return 128; }

  /// The lane of that rank and name, made at first use.
  int lane(int rank, LaneKind kind, const std::string& name);
  /// A place for scratch on a GPU outside the job; the same place for the same device.
  int relay(int device);

  Region input(int rank, Range range) const;
  Region output(int rank, Range range) const;
  /// Fresh bytes of a space, 128-byte aligned; never handed out twice.
  Region alloc(Space space, int place, std::uint64_t bytes);

  /// Empty regions are left out: a copy or reduce of 0 bytes adds nothing.
  void copy(int lane, const Region& dst,
            const Region& src);  ///< inside one memory or one direct hop
  void copy(int lane, const Region& dst, const Region& src, const Path& path, int hop);
  void reduce(int lane, const Region& dst, std::vector<Region> srcs, bool finish = true);
  /// An op as it is, with the plan's own numbers: for plans laid into this one.
  void take(int lane, Op op);
  void reserve(int lane, std::size_t ops);
  int path_index(const Path& path);
  /// Raises a flag of `owner` after everything before it on the lane.
  Event signal(int lane, int owner);
  /// The lane must belong to the event's owner.
  void wait(int lane, const Event& event);

  /// The same of an engine's own words, which it numbers and counts itself (Plan::counts).
  void raise(int lane, const Flag& flag, std::uint32_t value);
  /// before: of a wait for 0, see Op.
  void await(int lane, const Flag& flag, std::uint32_t value, std::uint32_t before = 0);

  /// The words [first, first + count) of (owner, writer), for who numbers and counts them itself.
  int flags(int owner, int writer, int count);
  /// A call between nodes, and one rank's part in it; regions of 0 bytes stand for none.
  int call(LibraryCall call);
  void join(int lane, int call, const Region& dst, const Region& src, bool finish = false);

  void param(const std::string& name, std::int64_t value) { plan_.params[name] = value; }
  void sum_order(SumOrder order) { plan_.sum_order = order; }
  void kernel(const std::string& name) { plan_.kernel = name; }
  void symmetric(bool on) { plan_.symmetric = on; }
  void stripe(const std::string& route, Range range);

  /// A plan made elsewhere, in place of all that was written so far. Error(invalid_argument) where
  /// it is for another request.
  void adopt(Plan plan);

  /// Where set, a plan of several nodes is told there, and not laid out as lanes.
  void collect_steps(std::vector<NodeStep>* steps) { steps_ = steps; }
  std::vector<NodeStep>* collected_steps() const { return steps_; }

  /// The finished plan; the builder is empty afterwards. Lanes without ops are dropped.
  Plan build();

 private:
  Op& append(int lane, OpKind kind);

  const Topology& topology_;
  Plan plan_;
  std::vector<NodeStep>* steps_ = nullptr;
  std::map<std::string, int> path_of_name_;
  std::map<std::pair<int, std::string>, int> lane_of_name_;
  std::map<std::pair<int, int>, Event> last_event_;   // (lane, owner) -> last event raised
  std::map<std::pair<int, int>, int> flags_of_pair_;  // (owner, writer) -> words in use
  std::map<std::pair<int, int>, Path> direct_;        // device pair -> direct path, found once
};

}  // namespace plait
