// Calls that count by the same words run one after the other, whatever streams they are on. One
// stream costs nothing; from the second on, an event a call. Captured calls are not ordered: a
// graph has its own order, and no event may cross a capture's edge.
#pragma once

namespace plait::cuda {

/// Marker: capturing(stream), record(stream) and wait(stream) of one event, the end of the last
/// call.
template <class Marker, class Stream>
class CallOrder {
 public:
  /// What comes on `stream` goes on behind earlier calls. The stream of an earlier call may have
  /// been destroyed, so it is touched once at most: when a second stream first turns up.
  void before(Marker& marker, Stream stream) {
    if ((used_ && stream == last_) || marker.capturing(stream)) return;
    if (used_ && !several_) {
      if (!marker.capturing(last_)) marker.record(last_);
      several_ = true;
    }
    if (several_) marker.wait(stream);
    last_ = stream;
    used_ = true;
  }
  /// Earlier calls, not told of, were on this stream.
  void begin_behind(Stream stream) {
    last_ = stream;
    used_ = true;
  }
  /// A call has been put on `stream`.
  void after(Marker& marker, Stream stream) {
    if (several_ && !marker.capturing(stream)) marker.record(stream);
  }
  /// True where all calls so far were on this stream: then neither has anything to do.
  bool is_only(Stream stream) const { return used_ && !several_ && stream == last_; }

 private:
  Stream last_{};
  bool used_ = false;
  bool several_ = false;  // more than one stream has been seen
};

}  // namespace plait::cuda
