// Marker of a CallOrder on a GPU: an event, plus the graph nodes of captures.
#pragma once
#include <optional>

#include "driver/cuda/primary.hpp"
#include "gpu/device/call_order.hpp"

namespace plait::cuda {

/// Interface that CallOrder uses; tests implement the interface without a GPU. Throws Error.
class Marker {
 public:
  virtual ~Marker() = default;
  virtual StreamPlace place(Stream stream) const = 0;
  virtual void record(Stream stream) = 0;
  virtual void wait(Stream stream) = 0;  ///< Does nothing if nothing was recorded.
  virtual void wait_at_replay(Stream stream) = 0;
  virtual void go_behind(Stream stream, const CapturedCalls& calls) = 0;
  virtual void end(Stream stream, CapturedCalls& calls, bool records) = 0;
  /// True until the last record has been reached; false without a record.
  virtual bool is_ahead() const noexcept = 0;
};

class EventMarker final : public Marker {
 public:
  /// Uses the driver functions of `api` in the current context.
  explicit EventMarker(const Api& api) : api_(&api) {}
  /// Opens the marker in a GPU's primary context, whichever context is current.
  explicit EventMarker(int ordinal) : api_(&api()), primary_(std::in_place, ordinal) {
    const std::optional<Current> there = in_context();
    open();
  }
  ~EventMarker() override {
    if (primary_) close();
  }
  void open() { require(api_->event_create(&end_, kEventDisableTiming), "event_create"); }
  void close() noexcept {
    if (end_ != nullptr) api_->event_destroy(end_);
    end_ = nullptr;
  }

  StreamPlace place(Stream stream) const override {
    StreamPlace found;
    const char* function = "";
    // A default stream belongs to the current context, any other stream to the context that made
    // the stream.
    if (reinterpret_cast<std::uint64_t>(stream) > kLastDefaultStream &&
        look(stream, found, function) == kSuccess)
      return found;
    const std::optional<Current> there = in_context();
    require(look(stream, found, function), function);
    return found;
  }
  bool capturing(Stream stream) const {
    int status = kCaptureNone;
    require(api_->stream_is_capturing(stream, &status), "stream_is_capturing");
    return status != kCaptureNone;
  }
  void record(Stream stream) override {
    const std::optional<Current> there = in_context();
    require(api_->event_record(end_, stream), "event_record");
  }
  void wait(Stream stream) override {
    const std::optional<Current> there = in_context();
    require(api_->stream_wait_event(stream, end_, 0), "stream_wait_event");
  }

  bool is_ahead() const noexcept override {
    const RelaxedCaptureMode relaxed;
    return end_ != nullptr && api_->event_query(end_) == kNotReady;
  }

  void wait_at_replay(Stream stream) override {
    const std::optional<Current> there = in_context();
    require(api_->stream_wait_event(stream, end_, kEventExternal), "stream_wait_event");
  }
  void go_behind(Stream stream, const CapturedCalls& calls) override {
    const std::optional<Current> there = in_context();
    std::vector<GraphNode> ends = calls.ends;
    require(api_->stream_update_capture(stream, ends.data(), ends.size(), kAddCaptureDependencies),
            "stream_update_capture");
  }
  /// The record depends on the calls but lies between no two calls: a place between calls would
  /// cost 0.8 us per call. A single record is moved on, since a record per call would cost 0.3 us
  /// of host time at each replay (E-0186).
  void end(Stream stream, CapturedCalls& calls, bool records) override {
    const std::optional<Current> there = in_context();
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
  /// function: the driver function that answered last.
  Result look(Stream stream, StreamPlace& found, const char*& function) const {
    int status = kCaptureNone;
    function = "stream_capture_info";
    const Result result =
        api_->stream_capture_info(stream, &status, &found.capture, nullptr, nullptr, nullptr);
    if (result != kSuccess) return result;
    if (status != kCaptureNone) {  // Asking for the stream's id would end the capture.
      found.stream = reinterpret_cast<std::uint64_t>(stream);
      return kSuccess;
    }
    found.capture = 0;
    function = "stream_id";
    return api_->stream_id(stream, &found.stream);
  }
  std::optional<Current> in_context() const {
    if (!primary_) return std::nullopt;
    Context there = nullptr;
    if (api_->context_current(&there) == kSuccess && there == primary_->context())
      return std::nullopt;
    return std::optional<Current>(std::in_place, primary_->context());
  }

  const Api* api_;
  std::optional<Primary> primary_;
  Event end_ = nullptr;
};

}  // namespace plait::cuda
