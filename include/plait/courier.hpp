// Courier: lowers send, receive and release, the form of textbook algorithms, to lanes of copies,
// signals and waits. Strategies use couriers. A courier has a lane on each rank. Messages land in
// slots of the receiver's scratch: pushed over the direct link, or, without a link, pulled by the
// receiver from the sender's host ring. Steps are recorded first and written at the end, so that
// every rank opens its slots first and raises no flag that no rank awaits.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "plait/builder.hpp"
#include "plait/strategy.hpp"

namespace plait {

/// A message in flight: the region at the receiver, and the number on the channel.
struct Message {
  Region region;
  int channel = -1;  ///< -1 = empty, never sent
  int index = 0;
};

/// How a message travels. `best`: over the direct link, else through host memory; the sender's lane
/// continues once the sent regions have been read. `host`: through host memory on a separate lane;
/// the sender's lane continues at once, and the sent regions must not change until the message is
/// received.
enum class Route : std::uint8_t { best, host };

/// Record steps in an order that could run step by step: a message is received after the send, and
/// a pair has at most `slots` unreleased messages. Lanes in this order cannot deadlock.
class Courier {
 public:
  /// `sharers`: number of couriers of the plan that share the host ring.
  Courier(Builder& builder, std::string name, int slots, int sharers);

  /// Sets the least size in bytes of slots that are made from now on.
  void slots_of(std::uint64_t bytes) { least_slot_bytes_ = bytes; }

  /// Sends a message that joins several regions of `from`.
  void send(int from, int to, const std::vector<Region>& srcs, Route route = Route::best);
  /// Receives the oldest message from -> to not yet received; `bytes` must be the size sent (0: no
  /// message was sent).
  Message receive(int to, int from, std::uint64_t bytes, Route route = Route::best);
  /// Frees the message's region at the receiver. Every message must be released.
  void release(const Message& message);
  void reduce(int rank, const Region& dst, const std::vector<Region>& srcs, bool finish);
  void copy(int rank, const Region& dst, const Region& src);
  /// Puts later steps on the lanes of that stage, a lane per rank: each part of a pipeline is a
  /// stage. All messages of a pair and route must be sent in the same stage.
  void on(const std::string& stage);
  /// Orders the rank's later steps in stage `later` after all steps so far in stage `earlier`.
  void follow(int rank, const std::string& later, const std::string& earlier);
  /// Writes all recorded steps to the builder.
  void write();

 private:
  enum class StepKind : std::uint8_t { send, receive, release, reduce, copy, follow };
  struct RecordedStep {
    StepKind kind;
    std::string stage;
    int rank;
    Message message;  // send, receive, release
    Region dst;
    std::vector<Region> srcs;
    bool finish = false;
    std::string earlier;  // follow
  };
  /// A ring in host memory between two hops of a path.
  struct HostRing {
    int owner = 0;
    std::vector<Region> ring;
    std::vector<Event> freed;  // by piece: awaited by the lane that fills the ring
  };
  struct Channel {
    int from = 0;
    int to = 0;
    Route route = Route::best;
    std::string stage;           // of the sends
    Path path;                   // a single link: push; more: through host rings
    bool needs_opening = false;  // nothing else tells the sender that the receiver has begun
    std::vector<Region> slots;
    std::vector<Message> sent;
    std::vector<std::uint64_t>
        knowledge;  // by message: bit r = the sender knows that rank r has begun
    int received = 0;
    Event opened;
    std::vector<Event> arrived;
    std::vector<Event> released;
    std::vector<HostRing> stages;  // a ring between each two hops
    std::uint64_t piece_bytes = 0;
    bool direct() const { return path.links.size() <= 1; }
  };

  int channel_between(int from, int to, Route route);
  Region slot_for(Channel& channel, std::uint64_t bytes);
  int lane(int rank, const std::string& stage);
  std::uint64_t& knowledge(int rank, const std::string& stage);
  void open_channels();
  void write_step(const RecordedStep& step);
  void write_send(const RecordedStep& step);
  void push(Channel& channel, const RecordedStep& step);
  void send_through_ring(Channel& channel, const RecordedStep& step);
  void send_piece(Channel& channel, const Region& dst, const Region& src);
  int hop_lane(const Channel& channel, int hop);
  void await_slot(Channel& channel, int lane, int index);

  Builder& builder_;
  std::string name_;
  int slots_;
  int sharers_;
  std::uint64_t least_slot_bytes_ = 0;
  std::vector<Channel> channels_;
  std::map<std::tuple<int, int, Route>, int> channel_of_pair_;
  std::string stage_;
  std::map<std::pair<int, std::string>, std::uint64_t>
      knowledge_;  // by lane: ranks that have begun, as bits
  std::vector<RecordedStep> steps_;
};

/// Returns the path of a courier's messages: the direct link, else the best path through host
/// memory. Error(unsupported) if the pair has neither.
Path courier_path(const Topology& topology, int src_device, int dst_device,
                  Route route = Route::best);

/// How couriers cut a message into chunks and lanes.
struct CourierCut {
  std::string lane_name;
  int chunks = 1;  ///< the least number; more if scratch would not hold a chunk
  int lanes = 1;   ///< chunks go to the lanes in turn
  int slots = 1;   ///< for each pair and lane
  /// Most scratch bytes that a rank needs for a chunk, per byte of the chunk.
  double scratch_per_byte = 1.0;
};
using Cut = CourierCut;  ///< former name

/// Returns a cut by parameters, and notes the parameters in the plan. The parameter named `counted`
/// gives the number of chunks, by default `chunks`; "lanes" by default min(number of chunks,
/// `lanes`).
CourierCut cut_from(Builder& builder, const Params& params, const std::string& counted, int chunks,
                    int lanes);
/// Calls body(courier, chunks) for every lane, with the lane's chunks of the message in order.
void in_lanes(Builder& builder, const CourierCut& cut,
              const std::function<void(Courier&, const std::vector<Range>&)>& body);
/// Calls body(courier, chunk) for every chunk of the message, each lane's chunks in order.
void in_chunks(Builder& builder, const CourierCut& cut,
               const std::function<void(Courier&, Range)>& body);

}  // namespace plait
