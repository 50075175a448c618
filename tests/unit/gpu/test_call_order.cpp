// The order of a communicator's calls on a recording driver. The driver tracks the calls that
// surely precede each call, by streams, events, captures, edges and replays. A single run therefore
// covers all orders that a GPU could take: any two calls must be ordered.
#include <doctest/doctest.h>

#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "driver/cuda/api.hpp"
#include "gpu/device/event_marker.hpp"
#include "plait/error.hpp"

using namespace plait::cuda;

namespace {

/// Numbers of the calls that precede an event or call, a call itself included.
using Before = std::set<int>;

void add(Before& to, const Before& more) { to.insert(more.begin(), more.end()); }

struct OrderNode {
  enum Kind { call, record, wait } kind = call;
  Event event = nullptr;
  std::vector<std::size_t> after;
};

struct FakeGraph {
  std::vector<OrderNode> nodes;
  Before last;  // replay
};

struct FakeStream {
  std::uint64_t number = 0;
  Before before;
  std::uint64_t capture = 0;
  std::vector<GraphNode> ends;
};

struct FakeEvent {
  Before before;
  std::uint64_t capture = 0;
  std::vector<GraphNode> ends;
};

/// The recording driver. Use of an unknown handle is a fault.
struct Driver {
  std::map<Stream, FakeStream> streams;
  std::map<Event, FakeEvent> events;
  std::map<std::uint64_t, FakeGraph> captures;
  std::vector<Before> calls;
  std::vector<std::string> faults;
  std::vector<std::string> heard;  // calls that the driver got
  bool refuses_waits = false;
  std::uint64_t numbers = 0;

  FakeStream& at(Stream stream) {
    if (!streams.contains(stream)) faults.emplace_back("a stream that was destroyed is touched");
    return streams[stream];
  }
  FakeGraph& graph(Graph graph) { return captures[reinterpret_cast<std::uint64_t>(graph)]; }
};

Driver* now = nullptr;

GraphNode node_of(std::size_t number) { return reinterpret_cast<GraphNode>(number + 1); }
std::size_t number_of(GraphNode node) { return reinterpret_cast<std::size_t>(node) - 1; }

void chain(FakeStream& stream, OrderNode node) {
  FakeGraph& graph = now->captures[stream.capture];
  for (const GraphNode end : stream.ends) node.after.push_back(number_of(end));
  graph.nodes.push_back(std::move(node));
  stream.ends = {node_of(graph.nodes.size() - 1)};
}

Result capture_info(Stream given, int* status, std::uint64_t* id, Graph* graph,
                    const GraphNode** ends, std::size_t* count) {
  const FakeStream& stream = now->at(given);
  *status = stream.capture != 0 ? kCaptureThreadLocal : kCaptureNone;
  *id = stream.capture;
  if (graph != nullptr) *graph = reinterpret_cast<Graph>(stream.capture);
  if (ends != nullptr) *ends = stream.ends.data(), *count = stream.ends.size();
  return kSuccess;
}

Result record(Event given, Stream on) {
  now->heard.emplace_back("record");
  FakeStream& stream = now->at(on);
  now->events[given] = {stream.before, stream.capture, stream.ends};
  return kSuccess;
}

Result wait(Stream on, Event given, unsigned flags) {
  if (now->refuses_waits) return kCaptureImplicit;
  now->heard.emplace_back("wait");
  FakeStream& stream = now->at(on);
  const FakeEvent& event = now->events[given];
  if (flags == kEventExternal) {
    if (stream.capture == 0) now->faults.emplace_back("an external wait outside of a capture");
    chain(stream, {OrderNode::wait, given, {}});
  } else if (event.capture != 0) {
    if (stream.capture == 0) stream.capture = event.capture;
    if (stream.capture != event.capture) now->faults.emplace_back("an event of another capture");
    stream.ends.insert(stream.ends.end(), event.ends.begin(), event.ends.end());
  } else {
    if (stream.capture != 0) now->faults.emplace_back("a capture waits for what is outside");
    add(stream.before, event.before);
  }
  return kSuccess;
}

Api fake_api() {
  Api api;
  api.event_create = [](Event* event, unsigned) {
    *event = reinterpret_cast<Event>(++now->numbers);
    now->events[*event];
    return kSuccess;
  };
  api.event_destroy = [](Event event) { return now->events.erase(event), kSuccess; };
  api.stream_capture_info = capture_info;
  api.stream_id = [](Stream stream, std::uint64_t* id) {
    if (now->at(stream).capture != 0) now->faults.emplace_back("a capture is ended by a question");
    return *id = now->at(stream).number, kSuccess;
  };
  api.event_record = record;
  api.stream_wait_event = wait;
  api.stream_update_capture = [](Stream on, GraphNode* nodes, std::size_t count, unsigned) {
    FakeStream& stream = now->at(on);
    stream.ends.insert(stream.ends.end(), nodes, nodes + count);
    return kSuccess;
  };
  api.graph_add_record = [](GraphNode* made, Graph graph, const GraphNode* after, std::size_t count,
                            Event event) {
    OrderNode node{OrderNode::record, event, {}};
    for (std::size_t i = 0; i < count; ++i) node.after.push_back(number_of(after[i]));
    now->graph(graph).nodes.push_back(node);
    *made = node_of(now->graph(graph).nodes.size() - 1);
    return kSuccess;
  };
  api.graph_add_edges = [](Graph graph, const GraphNode* from, const GraphNode* to, std::size_t) {
    now->graph(graph).nodes[number_of(*to)].after.push_back(number_of(*from));
    return kSuccess;
  };
  api.graph_remove_edges = [](Graph graph, const GraphNode* from, const GraphNode* to,
                              std::size_t) {
    auto& after = now->graph(graph).nodes[number_of(*to)].after;
    if (std::erase(after, number_of(*from)) != 1)
      now->faults.emplace_back("an edge that is not there is removed");
    return kSuccess;
  };
  return api;
}

const Api kApi = fake_api();

/// A program with a single communicator.
class OrderProgram {
 public:
  explicit OrderProgram(bool mixes_graphs) : order_(mixes_graphs) {
    now = &driver_;
    marker_.open();
  }
  Driver& driver() { return driver_; }

  Stream stream() {
    return place_stream(reinterpret_cast<Stream>(0x1000 + 16 * ++driver_.numbers));
  }
  Stream place_stream(Stream handle) {
    driver_.streams[handle].number = ++driver_.numbers;
    return handle;
  }
  void destroy(Stream stream) { driver_.streams.erase(stream); }
  void call(Stream stream) {
    const StreamPlace place = order_.before(marker_, stream);
    FakeStream& on = driver_.at(stream);
    if (on.capture != 0)
      chain(on, {});
    else
      put(on.before);
    order_.after(marker_, stream, place);
  }
  void refused_call(Stream stream) {
    static_cast<void>(order_.before(marker_, stream));
    order_.cancel();
  }
  void broken_call(Stream stream) { static_cast<void>(order_.before(marker_, stream)); }
  bool knows_end() const { return order_.knows_end(); }
  void begin(Stream stream) { driver_.at(stream).capture = ++driver_.numbers; }
  std::uint64_t end(Stream stream) {
    const std::uint64_t ended = driver_.at(stream).capture;
    for (auto& [handle, one] : driver_.streams)
      if (one.capture == ended) one.capture = 0, one.ends.clear();
    return ended;
  }
  void fork(Stream from, Stream to) {
    const Event event = reinterpret_cast<Event>(++driver_.numbers);
    record(event, from);
    wait(to, event, 0);
  }
  void replay(std::uint64_t capture, Stream stream) {
    FakeGraph& graph = driver_.captures[capture];
    FakeStream& on = driver_.at(stream);
    add(on.before, graph.last);
    const auto events = driver_.events;  // waits refer to events recorded before the launch
    Before all = on.before;
    std::vector<Before> ended(graph.nodes.size());
    std::vector<char> done(graph.nodes.size());
    for (std::size_t left = graph.nodes.size(); left > 0;)
      for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
        const OrderNode& node = graph.nodes[i];
        bool ready = done[i] == 0;
        for (const std::size_t before : node.after) ready = ready && done[before] != 0;
        if (!ready) continue;
        ended[i] = on.before;
        for (const std::size_t before : node.after) add(ended[i], ended[before]);
        if (node.kind == OrderNode::wait) add(ended[i], events.at(node.event).before);
        if (node.kind == OrderNode::call) put(ended[i]);
        if (node.kind == OrderNode::record) driver_.events[node.event] = {ended[i], 0, {}};
        add(all, ended[i]);
        done[i] = 1;
        --left;
      }
    on.before = graph.last = all;
  }

  /// Returns the number of pairs of calls without an order.
  int unordered() const {
    int found = 0;
    for (std::size_t i = 0; i < driver_.calls.size(); ++i)
      for (std::size_t j = 0; j < i; ++j)
        found += !driver_.calls[i].contains(static_cast<int>(j)) &&
                 !driver_.calls[j].contains(static_cast<int>(i));
    return found;
  }

 private:
  void put(Before& before) {
    const int number = static_cast<int>(driver_.calls.size());
    before.insert(number);
    driver_.calls.push_back(before);
  }
  Driver driver_;
  EventMarker marker_{kApi};
  CallOrder<EventMarker, Stream> order_;
};

std::vector<std::string> none() { return {}; }

}  // namespace

TEST_CASE("calls on streams that are destroyed at once are ordered") {
  OrderProgram program(true);
  const Stream handle = program.stream();
  program.call(handle);
  program.destroy(handle);
  for (int i = 0; i < 20; ++i) {
    // Another stream with the same handle, and other streams.
    const Stream next = i % 2 == 0 ? program.place_stream(handle) : program.stream();
    program.call(next);
    program.destroy(next);
  }
  CHECK(program.unordered() == 0);
  CHECK(program.driver().faults == none());
}

TEST_CASE("one stream costs a record a call, and a wait where graphs may be replayed") {
  OrderProgram program(true);
  const Stream stream = program.stream();
  for (int i = 0; i < 3; ++i) program.call(stream);
  CHECK(program.driver().heard == std::vector<std::string>{"record", "record", "record"});
  program.begin(stream);
  program.call(stream);
  program.end(stream);
  program.driver().heard.clear();
  program.call(stream);
  CHECK(program.driver().heard == std::vector<std::string>{"wait", "record"});
}

TEST_CASE("fork, a call on either stream, join: replays are in order") {
  for (const bool mixes : {false, true}) {
    OrderProgram program(mixes);
    const Stream main = program.stream(), s1 = program.stream(), s2 = program.stream();
    program.begin(main);
    for (const Stream side : {s1, s2}) program.fork(main, side);
    program.call(s1);
    program.call(s2);
    program.call(s1);
    program.call(main);
    for (const Stream side : {s1, s2}) program.fork(side, main);
    const std::uint64_t graph = program.end(main);
    for (int i = 0; i < 50; ++i) program.replay(graph, main);
    CHECK(program.driver().calls.size() == 200);
    CHECK(program.unordered() == 0);
    CHECK(program.driver().faults == none());
    // Calls, and with graph mixing a wait and a record.
    CHECK(program.driver().captures[graph].nodes.size() == (mixes ? 6 : 4));
  }
}

TEST_CASE("an eager call is ordered after a capture has begun on the stream of the last one") {
  OrderProgram program(false);
  const Stream first = program.stream(), second = program.stream();
  program.call(first);
  program.begin(first);
  program.call(second);
  program.end(first);
  CHECK(program.unordered() == 0);
  CHECK(program.driver().faults == none());
}

TEST_CASE(
    "the end of calls is known beside calls that are refused, and unknown after a broken one") {
  OrderProgram program(true);
  const Stream first = program.stream(), second = program.stream();
  program.refused_call(first);
  program.call(first);
  program.refused_call(second);
  CHECK(program.knows_end());
  program.driver().refuses_waits = true;
  CHECK_THROWS_AS(program.call(second), plait::Error);
  CHECK(program.knows_end());  // The call never began.
  program.driver().refuses_waits = false;
  program.begin(second);
  program.refused_call(second);
  program.call(second);
  program.end(second);
  CHECK(program.knows_end());
  CHECK(program.unordered() == 0);
  CHECK(program.driver().faults == none());
  program.broken_call(first);
  program.call(first);
  CHECK(!program.knows_end());
}

TEST_CASE("a capture that has ended, or was given up, leaves nothing for a later one") {
  OrderProgram program(true);
  for (int i = 0; i < 200; ++i) {
    const Stream main = program.stream(), side = program.stream();
    program.begin(main);
    if (i % 3 != 0) program.call(main);
    program.fork(main, side);
    program.call(side);
    program.fork(side, main);
    const std::uint64_t graph = program.end(main);
    if (i % 2 == 0) program.replay(graph, main);
    program.call(main);
    program.destroy(main);
    program.destroy(side);
  }
  CHECK(program.unordered() == 0);
  CHECK(program.driver().faults == none());
}

TEST_CASE("graphs, eager calls and captures by chance are in order; unless graphs are not mixed") {
  for (const bool mixes : {true, false})
    for (unsigned seed = 1; seed <= 20; ++seed) {
      CAPTURE(seed);
      std::mt19937 drawn(seed);
      const auto random = [&] { return static_cast<unsigned>(drawn()); };
      OrderProgram program(mixes);
      std::vector<Stream> streams;
      for (int i = 0; i < 4; ++i) streams.push_back(program.stream());
      std::vector<std::uint64_t> graphs;
      for (int turn = 0; turn < 60; ++turn) {
        const auto any = [&] { return streams[random() % streams.size()]; };
        const unsigned what = turn == 0 ? 0 : random() % 5;
        if (what == 0) {
          const Stream main = any(), side = program.stream();
          program.begin(main);
          program.fork(main, side);
          for (unsigned i = random() % 4; i < 4; ++i) program.call(random() % 2 ? main : side);
          program.fork(side, main);
          graphs.push_back(program.end(main));
          program.destroy(side);
        } else if (what < 3) {
          program.replay(graphs[random() % graphs.size()], any());
        } else {
          program.call(any());
        }
      }
      CHECK(program.driver().faults == none());
      if (mixes)
        CHECK(program.unordered() == 0);
      else
        CHECK(program.unordered() > 0);  // hence the nodes and events are needed
    }
}
