// Calls that count by the same words run one after the other, whatever streams they are on, in
// graphs and outside of them. Each eager call ends with a record of one event. In a capture a call
// on another stream than the last one goes behind that by edges; and where graphs may be replayed
// beside eager calls or other graphs, a capture begins by waiting for that event when it is
// replayed, and its last call is followed by a record of it: so what the host launches first comes
// first. Only the stream of the call itself is touched, since others may have been destroyed.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "driver/cuda/types.hpp"

namespace plait::cuda {

/// Where a stream is when a call comes on it.
struct StreamPlace {
  /// Its number: no two streams of a process ever have the same. In a capture its handle.
  std::uint64_t stream = 0;
  std::uint64_t capture = 0;  ///< that it is in, likewise; 0 = none
};

/// Calls of one capture.
struct CapturedCalls {
  std::uint64_t capture = 0;
  std::uint64_t stream = 0;         ///< of the last one
  std::vector<GraphNode> ends;      ///< what that stream goes on behind
  GraphNode record = nullptr;       ///< of the event, behind the last call; null = none
  std::vector<GraphNode> recorded;  ///< what it is behind
};

/// Marker, of one event that is the end of the last call: place(stream); record(stream) and
/// wait(stream), outside of captures; in them wait_at_replay(stream), go_behind(stream, calls) and
/// end(stream, calls, records), which takes note of the stream's place, and puts the record there.
template <class Marker, class Stream>
class CallOrder {
 public:
  /// mixes_graphs: graphs are ordered beside eager calls and each other.
  explicit CallOrder(bool mixes_graphs = true) : mixes_graphs_(mixes_graphs) {}
  void mix_graphs(bool mixes) { mixes_graphs_ = mixes; }

  /// What comes on `stream` goes on behind earlier calls. waits: false where an eager call does so
  /// by itself.
  StreamPlace before(Marker& marker, Stream stream, bool waits = true) {
    const StreamPlace place = marker.place(stream);
    ++open_;
    if (place.capture != 0)
      begin_captured(marker, stream, place);
    else if (waits && (replays_ || (recorded_ && place.stream != last_)))
      marker.wait(stream);
    return place;
  }
  /// A call has been put on `stream`, which was at `place` before.
  void after(Marker& marker, Stream stream, const StreamPlace& place) {
    put(marker, stream, place);
    --open_;
  }
  /// False where the event does not say when all calls have ended: one broke off on the way, or is
  /// in a graph that is not ordered.
  bool knows_end() const { return open_ == 0 && (mixes_graphs_ || captures_.empty()); }

 private:
  static constexpr std::size_t kMostCaptures = 64;  // at a time: they end without a word

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
  /// The oldest one makes room.
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
  int open_ = 0;            // calls between before() and after()
  std::uint64_t last_ = 0;  // stream of the last eager call
  bool recorded_ = false;   // some eager call has ended
  bool replays_ = false;    // graphs of such calls may be replayed
  std::vector<CapturedCalls> captures_;
};

}  // namespace plait::cuda
