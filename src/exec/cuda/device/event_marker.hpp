// A CallOrder's marker on a GPU: one event, in the current context, and what captures get.
#pragma once
#include "driver/cuda/api.hpp"
#include "exec/cuda/device/call_order.hpp"

namespace plait::cuda {

class EventMarker {
 public:
  /// The driver's functions.
  explicit EventMarker(const Api& api) : api_(&api) {}
  void open() { require(api_->event_create(&end_, kEventDisableTiming), "event_create"); }
  void close() noexcept {
    if (end_ != nullptr) api_->event_destroy(end_);
    end_ = nullptr;
  }

  StreamPlace place(Stream stream) const {
    StreamPlace found;
    int status = kCaptureNone;
    require(api_->stream_capture_info(stream, &status, &found.capture, nullptr, nullptr, nullptr),
            "stream_capture_info");
    if (status != kCaptureNone) {  // asking for its number would end the capture
      found.stream = reinterpret_cast<std::uint64_t>(stream);
      return found;
    }
    found.capture = 0;
    require(api_->stream_id(stream, &found.stream), "stream_id");
    return found;
  }
  bool capturing(Stream stream) const {
    int status = kCaptureNone;
    require(api_->stream_is_capturing(stream, &status), "stream_is_capturing");
    return status != kCaptureNone;
  }
  void record(Stream stream) { require(api_->event_record(end_, stream), "event_record"); }
  void wait(Stream stream) {
    require(api_->stream_wait_event(stream, end_, 0), "stream_wait_event");
  }

  /// True while it has not come to where it was last recorded; false where it never was.
  bool is_ahead() const noexcept {
    const BesideCaptures beside;
    return end_ != nullptr && api_->event_query(end_) == kNotReady;
  }

  void wait_at_replay(Stream stream) {
    require(api_->stream_wait_event(stream, end_, kEventExternal), "stream_wait_event");
  }
  void go_behind(Stream stream, const CapturedCalls& calls) {
    std::vector<GraphNode> ends = calls.ends;
    require(api_->stream_update_capture(stream, ends.data(), ends.size(), kAddCaptureDependencies),
            "stream_update_capture");
  }
  /// The record hangs beside the calls, not between them: there it would cost each 0.8 us, and one
  /// for each call 0.3 us of the host a replay (bench/NOTES.md). So one is moved on.
  void end(Stream stream, CapturedCalls& calls, bool records) {
    int status = kCaptureNone;
    std::uint64_t capture = 0;
    Graph graph = nullptr;
    const GraphNode* ends = nullptr;
    std::size_t count = 0;
    require(api_->stream_capture_info(stream, &status, &capture, &graph, &ends, &count),
            "stream_capture_info");
    calls.ends.assign(ends, ends + count);
    if (!records) return;
    if (calls.record == nullptr) {
      require(api_->graph_add_record(&calls.record, graph, ends, count, end_), "graph_add_record");
    } else {
      for (const GraphNode& node : calls.recorded)
        require(api_->graph_remove_edges(graph, &node, &calls.record, 1), "graph_remove_edges");
      calls.recorded.clear();
      for (const GraphNode& node : calls.ends)
        require(api_->graph_add_edges(graph, &node, &calls.record, 1), "graph_add_edges");
    }
    calls.recorded = calls.ends;
  }

 private:
  const Api* api_;
  Event end_ = nullptr;
};

}  // namespace plait::cuda
