// Streams, events, captures and graphs of the stand-in: a stream is a thread with a queue of tasks;
// graph nodes run concurrently unless an edge orders them. Using a destroyed stream ends the
// program. Also counts calls by name.
#include "tests/shims/standin/streams.hpp"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <set>
#include <stdexcept>
#include <string>

namespace standin {

[[noreturn]] void refuse(const char* why) {
  std::fprintf(stderr, "stand-in: %s\n", why);
  std::abort();
}

Queue::Queue(std::uint64_t number) : number_(number), worker_([this] { run(); }) {}

Queue::~Queue() {
  synchronize();
  {
    const std::lock_guard<std::mutex> hold(guard_);
    ends_ = true;
  }
  wake_.notify_all();
  worker_.join();
}

void Queue::push(Task task) {
  const std::lock_guard<std::mutex> hold(guard_);
  tasks_.push_back(std::move(task));
  wake_.notify_all();
}

void Queue::synchronize() {
  std::unique_lock<std::mutex> hold(guard_);
  idle_.wait(hold, [this] { return tasks_.empty() && !busy_; });
}

bool Queue::idle() {
  const std::lock_guard<std::mutex> hold(guard_);
  return tasks_.empty() && !busy_;
}

void Queue::run() {
  std::unique_lock<std::mutex> hold(guard_);
  for (;;) {
    wake_.wait(hold, [this] { return ends_ || !tasks_.empty(); });
    if (tasks_.empty()) return;
    Task task = std::move(tasks_.front());
    tasks_.pop_front();
    busy_ = true;
    hold.unlock();
    task();
    task = nullptr;
    hold.lock();
    busy_ = false;
    idle_.notify_all();
  }
}

namespace {

std::atomic<bool> has_failed{false};  // a stream of this process
std::mutex guard;                     // guards all members below and captures
std::uint64_t numbers = 0;

std::set<Queue*>& alive() {
  static auto* const all = new std::set<Queue*>;
  return *all;
}

/// Calls of the drop-in's markers that fail next.
std::set<std::pair<void*, std::string>>& refused() {
  static auto* const all = new std::set<std::pair<void*, std::string>>;
  return *all;
}

Queue* made() {
  auto* const stream = new Queue(++numbers);
  alive().insert(stream);
  return stream;
}

/// Requires the lock.
Queue& stream_of(void* stream) {
  static Queue* const standard = made();
  auto* const found = stream == nullptr ? standard : static_cast<Queue*>(stream);
  if (!alive().contains(found)) refuse("a stream is touched that was destroyed");
  return *found;
}

Queue& checked_stream(void* stream) {
  const std::lock_guard<std::mutex> hold(guard);
  return stream_of(stream);
}

Queue* removed(void* stream) {
  const std::lock_guard<std::mutex> hold(guard);
  Queue& found = stream_of(stream);
  alive().erase(&found);
  return &found;
}

Capture& capture_of(Queue& stream) {
  if (stream.capture == nullptr) refuse("a stream is not in a capture");
  return *stream.capture;
}

/// Adds a node behind all work of the captured stream; later work goes behind it.
void chain(Queue& stream, GraphNode node) {
  Capture& capture = capture_of(stream);
  node.after = stream.ends;
  capture.nodes.push_back(std::move(node));
  stream.ends = {capture.nodes.size() - 1};
}

/// Runs the nodes as a GPU would: a node when all dependencies have ended.
void run_nodes(const std::vector<GraphNode>& nodes,
               const std::vector<std::shared_ptr<Completion>>& at) {
  std::vector<Completion> ended(nodes.size());
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < nodes.size(); ++i)
    threads.emplace_back([&, i] {
      for (const std::size_t before : nodes[i].after) ended[before].wait();
      if (nodes[i].task && !has_failed.load()) nodes[i].task();
      if (nodes[i].records && at[i]) at[i]->reach();
      if (!nodes[i].records && at[i]) at[i]->wait();
      ended[i].reach();
    });
  for (std::thread& thread : threads) thread.join();
}

std::mutex counting;
std::map<std::string, std::uint64_t>& seen() {
  static auto* const counts = new std::map<std::string, std::uint64_t>;
  return *counts;
}

}  // namespace

void push(void* stream, Task task) {
  const std::lock_guard<std::mutex> hold(guard);
  Queue& found = stream_of(stream);
  if (found.capture == nullptr)
    return found.push([task = std::move(task)] {
      if (!has_failed.load()) task();
    });
  GraphNode node;
  node.task = std::move(task);
  chain(found, std::move(node));
}

void record(StreamEvent& event, void* stream, bool at_replay) {
  const std::lock_guard<std::mutex> hold(guard);
  Queue& found = stream_of(stream);
  if (at_replay) {
    GraphNode node;
    node.event = &event;
    node.records = true;
    return chain(found, std::move(node));
  }
  event.capture = found.capture;
  event.ends = found.ends;
  if (found.capture != nullptr) return;
  event.last = std::make_shared<Completion>();
  found.push([point = event.last] { point->reach(); });
}

void wait(void* stream, StreamEvent& event, bool at_replay) {
  const std::lock_guard<std::mutex> hold(guard);
  Queue& found = stream_of(stream);
  if (at_replay) {
    GraphNode node;
    node.event = &event;
    return chain(found, std::move(node));
  }
  if (event.capture != nullptr) {
    if (found.capture != nullptr && found.capture != event.capture)
      refuse("an event of another capture is awaited");
    found.capture = event.capture;  // the stream joins the capture
    found.ends.insert(found.ends.end(), event.ends.begin(), event.ends.end());
  } else if (found.capture != nullptr) {
    refuse("a capture waits for an event outside of it");
  } else if (event.last != nullptr) {
    found.push([point = event.last] { point->wait(); });
  }
}

StreamState stream_state(void* stream) {
  const std::lock_guard<std::mutex> hold(guard);
  const Queue& found = stream_of(stream);
  return {found.number(), found.capture == nullptr ? 0 : found.capture->number};
}

void* accepted(void* stream, const char* call) {
  const std::lock_guard<std::mutex> hold(guard);
  if (refused().erase({stream, call}) != 0)
    throw std::runtime_error(std::string("the test wants this call refused: ") + call);
  return stream;
}

std::vector<std::size_t> capture_ends(void* stream) {
  const std::lock_guard<std::mutex> hold(guard);
  return stream_of(stream).ends;
}

void go_behind(void* stream, const std::vector<std::size_t>& nodes) {
  const std::lock_guard<std::mutex> hold(guard);
  Queue& found = stream_of(stream);
  capture_of(found);
  found.ends.insert(found.ends.end(), nodes.begin(), nodes.end());
}

std::size_t add_record(void* stream, StreamEvent& event, const std::vector<std::size_t>& after) {
  const std::lock_guard<std::mutex> hold(guard);
  Capture& capture = capture_of(stream_of(stream));
  GraphNode node;
  node.event = &event;
  node.records = true;
  node.after = after;
  capture.nodes.push_back(std::move(node));
  return capture.nodes.size() - 1;
}

void move_behind(void* stream, std::size_t node, const std::vector<std::size_t>& after) {
  const std::lock_guard<std::mutex> hold(guard);
  capture_of(stream_of(stream)).nodes.at(node).after = after;
}

}  // namespace standin

using namespace standin;

void standin_count(const char* name) {
  const std::lock_guard<std::mutex> hold(counting);
  ++seen()[name];
}

std::uint64_t standin_calls(const char* name) {
  const std::lock_guard<std::mutex> hold(counting);
  return seen()[name];
}

plait::cuda::Stream standin_stream_create() {
  const std::lock_guard<std::mutex> hold(guard);
  return reinterpret_cast<plait::cuda::Stream>(made());
}
void standin_stream_push(void* stream, void (*task)(void*), void* argument) {
  push(stream, [task, argument] { task(argument); });
}
void standin_stream_destroy(void* stream) { delete removed(stream); }
void standin_stream_let_go(void* stream) {
  std::thread([gone = removed(stream)] { delete gone; }).detach();
}
void standin_stream_synchronize(void* stream) { checked_stream(stream).synchronize(); }
void standin_stream_fail(void*) { has_failed.store(true); }
int standin_stream_failed(void* stream) {
  checked_stream(stream);
  return has_failed.load() ? 1 : 0;
}
int standin_stream_idle(void* stream) { return checked_stream(stream).idle() ? 1 : 0; }

void standin_refuse_next(void* stream, const char* call) {
  const std::lock_guard<std::mutex> hold(guard);
  refused().insert({stream, call});
}

void* standin_event_create() { return new StreamEvent; }
void standin_event_destroy(void* event) { delete static_cast<StreamEvent*>(event); }
void standin_event_record(void* event, void* stream) {
  record(*static_cast<StreamEvent*>(event), stream, false);
}
void standin_event_wait(void* stream, void* event) {
  wait(stream, *static_cast<StreamEvent*>(event), false);
}

void standin_capture_begin(void* stream) {
  const std::lock_guard<std::mutex> hold(guard);
  Queue& found = stream_of(stream);
  found.capture = std::make_shared<Capture>();
  found.capture->number = ++numbers;
}

void* standin_capture_end(void* stream) {
  const std::lock_guard<std::mutex> hold(guard);
  auto* const graph = new Graph;
  const std::shared_ptr<Capture> ended = stream_of(stream).capture;
  graph->nodes = capture_of(stream_of(stream)).nodes;
  for (Queue* one : alive())
    if (one->capture == ended) {
      one->capture = nullptr;
      one->ends.clear();
    }
  return graph;
}

std::size_t standin_graph_nodes(void* graph) { return static_cast<Graph*>(graph)->nodes.size(); }

void standin_graph_launch(void* given, void* stream) {
  auto* const graph = static_cast<Graph*>(given);
  const std::lock_guard<std::mutex> hold(guard);
  std::vector<std::shared_ptr<Completion>> at(graph->nodes.size());
  for (std::size_t i = 0; i < at.size(); ++i)
    if (graph->nodes[i].event != nullptr && !graph->nodes[i].records)
      at[i] = graph->nodes[i].event->last;
  for (std::size_t i = 0; i < at.size(); ++i)
    if (graph->nodes[i].records)
      at[i] = graph->nodes[i].event->last = std::make_shared<Completion>();
  const auto before = std::exchange(graph->last, std::make_shared<Completion>());
  stream_of(stream).push([graph, at, before, ended = graph->last] {
    if (before != nullptr) before->wait();
    run_nodes(graph->nodes, at);
    ended->reach();
  });
}

void standin_graph_destroy(void* graph) {
  const std::shared_ptr<Completion> last = static_cast<Graph*>(graph)->last;
  if (last != nullptr) last->wait();
  delete static_cast<Graph*>(graph);
}
