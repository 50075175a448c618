// A queue that records the work of all ranks, and runs nothing: the plan of a call by copy engines,
// from the code that enqueues the call. Addresses are symbols, flags count from the begin of the
// call, each stream is a lane.
#pragma once
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "gpu/copy/engine_call.hpp"
#include "gpu/engine/group.hpp"
#include "plan/in_a_row.hpp"

namespace plait::cuda {

class PlanQueue;

/// A call of all ranks. The ranks enqueue their parts on their queues in any order.
class PlanBook {
 public:
  /// Scratch has the slots of tiled kernels, then the slots of copy engines, so that plans of both
  /// use the same bytes. Error(unsupported) if the topology lacks a path of the call.
  PlanBook(const Topology& topology, const Request& request, const Group& group);
  ~PlanBook();
  PlanBook(const PlanBook&) = delete;
  PlanBook& operator=(const PlanBook&) = delete;

  const Request& request() const { return plan_.request; }
  EnginePath& path() { return path_; }
  EngineQueue& queue(int rank);
  /// Returns the arguments of a rank's call: buffers, rank and op.
  CallArgs call(int rank) const;
  static Stream home();  ///< the caller's stream
  static Event fork();
  /// Adds an engine's plan as a part of this rank's call, behind the work on the home lane. The
  /// part's buffers begin input_from and output_from bytes into the buffers of the call.
  void add(int rank, const Plan& part, std::uint64_t input_from, std::uint64_t output_from);
  void stripe(const std::string& route, std::uint64_t from, std::uint64_t bytes);
  /// Returns the recorded plan.
  Plan plan(const std::string& strategy, std::map<std::string, std::int64_t> params);

 private:
  friend class PlanQueue;
  enum CounterId : int { kCores = -1 };  // counter of CPU cores; others are flags of EngineFlags
  struct FlagAddress {
    int owner = -1;  // -1 = in host memory, visible to all ranks
    int index = 0;
  };

  std::size_t lane(int rank, Stream stream);
  std::size_t lane(int rank, const std::string& name, LaneKind kind);
  Op& append(std::size_t lane, OpKind kind);
  Region region(const void* at, std::uint64_t bytes) const;
  int path_between(const Region& dst, const Region& src, int& hop);
  int path_index(const Path& path);
  void put_copy(std::size_t lane, const Region& dst, const Region& src);
  FlagAddress flag_address(const std::uint32_t* at) const;
  void raise(std::size_t lane, const FlagAddress& row, int counter, std::uint32_t value);
  void await(std::size_t lane, const FlagAddress& row, int writer, int counter,
             std::uint32_t value);
  int counter_of(const std::uint32_t* counted) const;
  void grow(int rank, int counter, std::uint32_t more);
  std::uint32_t base(int rank, int counter) const;
  void step(int rank, Stream stream, const EngineStep& step);
  void signal_self(std::size_t lane, int rank, int index);
  void wait_self(std::size_t lane, int rank, int index);

  const Topology& topology_;
  Plan plan_;
  EnginePath path_;
  std::vector<std::unique_ptr<EngineFlags>> flags_;  // by rank
  HostFlags host_flags_{};
  std::vector<std::unique_ptr<PlanQueue>> queues_;
  std::map<std::pair<int, std::string>, std::size_t> lane_of_;
  std::set<std::size_t> inside_;  // lanes inside a kernel, enqueued as a whole
  std::map<std::string, int> path_of_;
  std::map<std::pair<int, Event>, int> recorded_;       // index of the event's flag
  std::map<int, int> events_;                           // by rank: events recorded so far
  std::set<std::pair<int, int>> counters_;              // by index
  std::map<std::pair<int, int>, std::uint32_t> grown_;  // by rank and counter
  std::map<int, FlagCounts> parts_;                     // by rank: counts of the parts
  std::map<int, std::uint32_t> part_counts_;            // by index, of all parts
  std::map<int, int> parts_of_rank_;
};

/// The queue of a rank.
class PlanQueue : public EngineQueue {
 public:
  PlanQueue(PlanBook& book, int rank) : book_(book), rank_(rank) {}

  void copy(Stream stream, char* dst, const char* src, std::uint64_t bytes) override;
  /// Error(internal) if the order of the copies matters.
  void copy_all(Stream stream, const std::vector<OneCopy>& copies) override;
  void step(Stream stream, const EngineStep& step) override;
  void end(Stream stream, const EngineEnd& end) override;
  void reduce(Stream stream, const PieceArgs& args, DataType type, unsigned blocks) override;
  void begin_on_host(Stream stream, const HostJob& job) override;
  void record(Event event, Stream stream) override;
  void follow(Stream stream, Event event) override;

 private:
  PlanBook& book_;
  const int rank_;
};

}  // namespace plait::cuda
