// Streams without work take no part in calls by copy engines: in a graph an empty stream adds a
// useless edge, and the driver then runs copies and the kernels beside them in turn
// (docs/design/copy_engines.md).
#include <doctest/doctest.h>

#include <map>
#include <memory>
#include <vector>

#include "gpu/copy/copy_tuning.hpp"
#include "gpu/copy/engine_ring.hpp"
#include "gpu/host_path/with_host_part.hpp"
#include "gpu/select/engine_cases.hpp"
#include "gpu/select/engines.hpp"
#include "plait/builder.hpp"

using namespace plait;
using namespace plait::cuda;

namespace {

/// Inspects the work of a call: each event of a stream must follow some work on that stream.
class LookingQueue : public EngineQueue {
 public:
  explicit LookingQueue(EngineQueue& queue) : queue_(queue) {}

  void copy(Stream stream, char* dst, const char* src, std::uint64_t bytes) override {
    work(stream);
    queue_.copy(stream, dst, src, bytes);
  }
  void copy_all(Stream stream, const std::vector<OneCopy>& copies) override {
    work(stream);
    queue_.copy_all(stream, copies);
  }
  void step(Stream stream, const EngineStep& step) override {
    work(stream);
    queue_.step(stream, step);
  }
  void end(Stream stream, const EngineEnd& end) override {
    work(stream);
    queue_.end(stream, end);
  }
  void reduce(Stream stream, const PieceArgs& args, DataType type, unsigned blocks) override {
    work(stream);
    queue_.reduce(stream, args, type, blocks);
  }
  void begin_on_host(Stream stream, const HostJob& job) override {
    work(stream);
    queue_.begin_on_host(stream, job);
  }
  void record(cuda::Event event, Stream stream) override {
    if (stream != PlanBook::home() && !has_worked_[stream]) ++empty_records;
    has_worked_[stream] = false;
    queue_.record(event, stream);
  }
  void follow(Stream stream, cuda::Event event) override {
    waits_[stream] = true;
    queue_.follow(stream, event);
  }
  /// Streams that waited and did no work afterwards.
  int idle() const {
    int count = 0;
    for (const auto& [stream, waits] : waits_) count += waits;
    return count;
  }

  int empty_records = 0;

 private:
  void work(Stream stream) {
    has_worked_[stream] = true;
    waits_[stream] = false;
  }

  EngineQueue& queue_;
  std::map<Stream, bool> has_worked_, waits_;  // work, and waits without work, since the last
                                               // record
};

}  // namespace

TEST_CASE("streams of copy engines without work take no part in a call") {
  int calls = 0;
  for (const Engine* engine : {&copy_exchange_engine(), &copy_ring_engine()})
    for (const Collective collective : engine->info().collectives)
      for (const Group& group : {tiny_group(2), host_group(2), tiny_group(3), tiny_group(4)})
        for (const std::uint64_t count : {1ull, 5000ull, 100003ull}) {
          const int ranks = group.ranks;
          Request request;
          request.collective = collective;
          request.ranks = ranks;
          request.count = count;
          const Topology topology = linked_machine(ranks);
          request = checked(request, topology);
          if (!why_not(*engine, request, {}, group).empty()) continue;
          CAPTURE(engine->info().name);
          CAPTURE(name_of(request));
          CAPTURE(ranks);
          CAPTURE(count);
          std::vector<std::unique_ptr<LookingQueue>> queues;
          plan_through(*engine, topology, request, {}, group,
                       [&](PlanBook& book, int rank) -> EngineQueue& {
                         queues.push_back(std::make_unique<LookingQueue>(book.queue(rank)));
                         return *queues.back();
                       });
          ++calls;
          for (const auto& queue : queues) {
            CHECK(queue->empty_records == 0);
            CHECK(queue->idle() == 0);
          }
        }
  CHECK(calls > 40);
}

TEST_CASE("a root whose part stays in place takes nothing out of a ring") {
  Request request;
  request.collective = Collective::broadcast;
  request.ranks = 4;
  request.root = 1;
  request.count = 100003;
  const Topology topology = linked_machine(request.ranks);
  const Group group = tiny_group(request.ranks);
  request = checked(request, topology);
  PlanBook book(topology, request, group);
  for (int rank = 0; rank < request.ranks; ++rank) {
    LookingQueue queue(book.queue(rank));
    CallArgs call = book.call(rank);
    call.input = call.output;
    const RingCut cut = ring_cut(request, group, {});
    EngineRing(queue, book.path(), cut, call).enqueue(PlanBook::fork(), PlanBook::home());
    CAPTURE(rank);
    CHECK(queue.empty_records == 0);
    CHECK(queue.idle() == 0);
  }
}
