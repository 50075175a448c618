// Orders calls that share flags and counters, on any streams, in graphs and outside. Each eager
// call ends by recording a single event. In a capture, a call on another stream than the last call
// is put behind the last call by graph edges. If graphs may be replayed beside eager calls or
// further graphs, a capture begins with a wait for that event at replay and ends with a record of
// the event, so calls run in the order of host launches. Only the call's own stream is touched,
// because other streams may have been destroyed.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "driver/cuda/types.hpp"

namespace plait::cuda {

/// Position of a stream at the start of a call.
struct StreamPlace {
  /// Stream id, unique in the process; in a capture the stream's handle.
  std::uint64_t stream = 0;
  std::uint64_t capture = 0;  ///< Id of the capture; 0 = none.
};

/// Calls of a capture.
struct CapturedCalls {
  std::uint64_t capture = 0;
  std::uint64_t stream = 0;         ///< Stream of the last call.
  std::vector<GraphNode> ends;      ///< Nodes that this stream continues from.
  GraphNode record = nullptr;       ///< Record of the event behind the last call; null = none.
  std::vector<GraphNode> recorded;  ///< Nodes the record depends on.
};

/// Marker: an event at the end of the last call. Outside captures: place(stream), record(stream)
/// and wait(stream). In captures: wait_at_replay(stream), go_behind(stream, calls) and end(stream,
/// calls, records). end() stores the stream's position and adds the record.
template <class Marker, class Stream>
class CallOrder {
 public:
  /// mixes_graphs: order graphs with eager calls and with each other.
  explicit CallOrder(bool mixes_graphs = true) : mixes_graphs_(mixes_graphs) {}
  void mix_graphs(bool mixes) { mixes_graphs_ = mixes; }

  /// Puts `stream` behind earlier calls. waits: false if an eager call does that itself.
  StreamPlace before(Marker& marker, Stream stream, bool waits = true) {
    const StreamPlace place = marker.place(stream);
    if (place.capture != 0)
      begin_captured(marker, stream, place);
    else if (waits && (replays_ || (recorded_ && place.stream != last_)))
      marker.wait(stream);
    ++open_;
    return place;
  }
  /// Notes that a call was put on `stream`, which was at `place` before.
  void after(Marker& marker, Stream stream, const StreamPlace& place) {
    put(marker, stream, place);
    --open_;
  }
  /// Notes that a call was refused after before(): nothing was put on a stream.
  void cancel() { --open_; }
  /// False if the event does not tell when all calls have ended: a call broke off, or is in a graph
  /// that is not ordered.
  bool knows_end() const { return open_ == 0 && (mixes_graphs_ || captures_.empty()); }

 private:
  // Bound, because the end of a capture is not reported.
  static constexpr std::size_t kMostCaptures = 64;

  void put(Marker& marker, Stream stream, const StreamPlace& place) {
    if (place.capture != 0) {
      CapturedCalls& calls = of(place.capture);
      marker.end(stream, calls, mixes_graphs_);
      calls.stream = place.stream;
      replays_ |= mixes_graphs_;
      return;
    }
    marker.record(stream);
    last_ = place.stream;
    recorded_ = true;
  }

  void begin_captured(Marker& marker, Stream stream, const StreamPlace& place) {
    const CapturedCalls& calls = of(place.capture);
    if (calls.ends.empty()) {
      if (mixes_graphs_) marker.wait_at_replay(stream);
    } else if (calls.stream != place.stream) {
      marker.go_behind(stream, calls);
    }
  }
  /// Drops the oldest capture beyond the limit.
  CapturedCalls& of(std::uint64_t capture) {
    const auto known =
        std::find_if(captures_.begin(), captures_.end(),
                     [&](const CapturedCalls& one) { return one.capture == capture; });
    if (known != captures_.end()) return *known;
    if (captures_.size() == kMostCaptures) captures_.erase(captures_.begin());
    captures_.emplace_back().capture = capture;
    return captures_.back();
  }

  bool mixes_graphs_;
  int open_ = 0;            // Calls between before() and after() or cancel().
  std::uint64_t last_ = 0;  // Stream of the last eager call.
  bool recorded_ = false;   // An eager call has been recorded.
  bool replays_ = false;    // Graphs of ordered calls may be replayed.
  std::vector<CapturedCalls> captures_;
};

}  // namespace plait::cuda
