// Send, receive and release between ranks, as the classic algorithms are told -> lanes of copies,
// signals and waits. One courier is one lane a rank; messages land in slots of the receiver's
// scratch (pushed over the direct link, or pulled by the receiver out of the sender's host ring
// where the pair has no link). Steps are recorded first and written at the end, so that every rank
// opens its slots before anything else and no flag is raised that nobody awaits.
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

/// A message on its way: where it lies at the receiver, and its number on its channel.
struct Message {
  Region region;
  int channel = -1;  ///< -1 = empty, never sent
  int index = 0;
};

/// How a message travels. `best`: the direct link, else through host memory; the sender goes on
/// once it has read its regions. `host`: through host memory beside the sender's lane, which goes
/// on at once; the regions must stay as they are until the receiver has the message.
enum class Route : std::uint8_t { best, host };

/// Steps must be recorded in an order in which they could run one by one: a message is received
/// after it is sent, and at most `slots` messages of a pair are held unreleased. Lanes that follow
/// such an order cannot deadlock.
class Courier {
 public:
  /// `sharers`: how many couriers of the plan divide the host ring among them.
  Courier(Builder& builder, std::string name, int slots, int sharers);

  /// Slots made from here on hold messages of so many bytes at least.
  void slots_of(std::uint64_t bytes) { least_slot_bytes_ = bytes; }

  /// One message of several regions of `from`, laid side by side.
  void send(int from, int to, const std::vector<Region>& srcs, Route route = Route::best);
  /// The oldest message of from -> to not yet received; `bytes` must be what was sent (0: none
  /// was).
  Message receive(int to, int from, std::uint64_t bytes, Route route = Route::best);
  /// The receiver needs the message's region no longer. Every message must be released.
  void release(const Message& message);
  void reduce(int rank, const Region& dst, const std::vector<Region>& srcs, bool finish);
  void copy(int rank, const Region& dst, const Region& src);
  /// Steps recorded from here on go to the lanes of that stage, one a rank: a pipeline has a stage
  /// for each of its parts. All messages of a pair and route must leave in one stage.
  void on(const std::string& stage);
  /// What is recorded from here on for the rank in stage `later` comes after what was recorded so
  /// far for it in stage `earlier`.
  void follow(int rank, const std::string& later, const std::string& earlier);
  /// Writes all that was recorded into the builder.
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
  /// Where pieces lie in host memory between two hops.
  struct HostRing {
    int owner = 0;
    std::vector<Region> ring;
    std::vector<Event> freed;  // of each piece so far; awaited by the lane that fills the stage
  };
  struct Channel {
    int from = 0;
    int to = 0;
    Route route = Route::best;
    std::string stage;           // in which it is sent
    Path path;                   // one link: pushed; more: through the sender's ring
    bool needs_opening = false;  // the sender cannot otherwise know that the receiver has begun
    std::vector<Region> slots;
    std::vector<Message> sent;
    std::vector<std::uint64_t> knowledge;  // of the sender, when it sent: bit r = r has begun
    int received = 0;
    Event opened;
    std::vector<Event> arrived;
    std::vector<Event> released;
    std::vector<HostRing> stages;  // between two hops each
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
  std::map<std::pair<int, std::string>, std::uint64_t> knowledge_;  // of a lane: who has begun
  std::vector<RecordedStep> steps_;
};

/// The path a courier takes: the direct link, else the best one through host memory.
/// Error(unsupported) where the pair has neither.
Path courier_path(const Topology& topology, int src_device, int dst_device,
                  Route route = Route::best);

/// How a message is cut for couriers.
struct CourierCut {
  std::string lane_name;
  int chunks = 1;  ///< at least; more where scratch would not hold a chunk
  int lanes = 1;   ///< chunks go round the lanes
  int slots = 1;   ///< of a pair and lane
  double scratch_per_byte =
      1.0;  ///< most scratch a rank needs for one chunk, over the chunk's bytes
};

/// A cut by parameters, which the plan notes: `counted` is what says how many chunks, `chunks`
/// where it is not given; "lanes" else as many as there are chunks, at most `lanes`.
CourierCut cut_from(Builder& builder, const Params& params, const std::string& counted, int chunks,
                    int lanes);
/// Calls body(courier, chunks) for every lane with its chunks of the message, in order.
void in_lanes(Builder& builder, const CourierCut& cut,
              const std::function<void(Courier&, const std::vector<Range>&)>& body);
/// Calls body(courier, chunk) for every chunk of the message, each lane's chunks in order.
void in_chunks(Builder& builder, const CourierCut& cut,
               const std::function<void(Courier&, Range)>& body);

}  // namespace plait
