// Copy engines, small kernels and host functions of several ranks, emulated in host memory. Each
// stream is a queue; a test runs queues in any order that GPUs could take, or all of a rank's as a
// single hardware queue. Ranks may come late, give up or be aborted, as in
// gpu/copy/engines.cuh.
#pragma once
#include <algorithm>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "cpu/cpu.hpp"
#include "gpu/copy/engine_queue.hpp"

namespace plait_test {

namespace cuda = plait::cuda;

/// Order of a rank's streams: random, a single hardware queue, or a graph with a single queue.
enum class QueueOrder { by_chance, one_queue, one_branch };

class FakeEngines {
 public:
  struct QueuedWork {
    std::function<bool()> ready;
    std::function<void()> run;
    std::function<void()> give_up = {};              // waits only: work before the waits fail
    std::function<void(unsigned random)> tear = {};  // copies only: copies a part
    int rank = -1;                                   // rank of the stream that fails
    bool opens_late = false;                         // ends the delay of a rank
  };
  /// Faults to inject; none unless a rank is late.
  struct InjectedDelay {
    bool deadlines = false;  // waits are given up if no rank can continue, and now and then
    int aborted = -1;        // rank with an aborting program, instead of waits given up
  };
  InjectedDelay trouble;
  bool is_aborted(int rank) const { return aborted_.contains(rank); }
  bool has_failed(int rank) const { return failed_.contains(rank); }
  /// Runs the following work on a rank's stream after another rank has given up.
  void come_late(int rank, cuda::Stream stream) {
    put(rank, stream, {[this] { return is_open_; }, [] {}, {}, {}, rank, true});
  }

  void put(int rank, cuda::Stream stream, QueuedWork work) {
    work.rank = rank;
    std::vector<StreamNode>& nodes = nodes_[rank];
    StreamNode node{work, {}};
    const auto last = last_.find({rank, stream});
    if (last != last_.end()) node.after.push_back(last->second);
    last_[{rank, stream}] = nodes.size();
    nodes.push_back(std::move(node));
    streams_[{rank, stream}].push_back(work);
    hardware_[rank].push_back(std::move(work));
  }
  /// A rank's cores have a separate queue, whatever streams share.
  void put_on_cores(int rank, const QueuedWork& work) {
    constexpr int kCores = 1000;
    streams_[{kCores + rank, nullptr}].push_back(work);
    hardware_[kCores + rank].push_back(work);
  }
  void record(int rank, cuda::Event event, cuda::Stream stream) {
    const Moment moment{rank, event, ++recorded_[{rank, event}]};
    put(rank, stream, {[] { return true; }, [this, moment] { done_.insert(moment); }});
    record_at_[moment] = nodes_[rank].size() - 1;
  }
  void follow(int rank, cuda::Stream stream, cuda::Event event) {
    const int generation = recorded_[{rank, event}];
    if (generation == 0) faults.emplace_back("an event is awaited before it is recorded");
    const Moment moment{rank, event, generation};
    put(rank, stream, {[this, moment] { return done_.contains(moment); }, [] {}});
    const auto recorded = record_at_.find(moment);
    if (recorded != record_at_.end()) nodes_[rank].back().after.push_back(recorded->second);
  }

  /// Runs every stream by itself; the next stream to continue is random.
  void run_by_chance(unsigned seed) {
    run(streams_, seed);
    hardware_.clear();
  }
  /// Runs all streams of a rank as a single hardware queue, in the order of the calls.
  void run_as_one_queue(unsigned seed) {
    run(hardware_, seed);
    streams_.clear();
  }
  /// Runs all streams of a rank as a single queue in any order that streams and events allow, as a
  /// graph may order branches.
  void run_as_one_branch(unsigned seed) {
    std::mt19937 random(seed);
    for (auto& [rank, nodes] : nodes_) hardware_[rank] = any_order(nodes, random);
    run_as_one_queue(seed);
  }
  void run(QueueOrder order, unsigned seed) {
    if (order == QueueOrder::by_chance) run_by_chance(seed);
    if (order == QueueOrder::one_queue) run_as_one_queue(seed);
    if (order == QueueOrder::one_branch) run_as_one_branch(seed);
  }
  std::vector<std::string> faults;
  struct Copy {
    int rank;  // rank of the engine
    const char* dst;
  };
  std::vector<Copy> copies;  // in order of completion

 private:
  using Moment = std::tuple<int, cuda::Event, int>;
  struct StreamNode {
    QueuedWork work;
    std::vector<std::size_t> after;  // nodes of the same rank
  };

  static std::deque<QueuedWork> any_order(const std::vector<StreamNode>& nodes,
                                          std::mt19937& random) {
    std::vector<std::vector<std::size_t>> next(nodes.size());
    std::vector<std::size_t> awaited(nodes.size()), open;
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      for (const std::size_t before : nodes[i].after) next[before].push_back(i);
      awaited[i] = nodes[i].after.size();
      if (awaited[i] == 0) open.push_back(i);
    }
    std::deque<QueuedWork> order;
    while (!open.empty()) {
      std::swap(open[random() % open.size()], open.back());
      const std::size_t one = open.back();
      open.pop_back();
      order.push_back(nodes[one].work);
      for (const std::size_t later : next[one])
        if (--awaited[later] == 0) open.push_back(later);
    }
    return order;
  }

  template <class Queues>
  void run(Queues& queues, unsigned seed) {
    std::mt19937 random(seed);
    std::set<const std::deque<QueuedWork>*> slow;  // continue only if no other can, or now and then
    for (auto& [key, queue] : queues)
      if (random() % 4 == 0) slow.insert(&queue);
    for (;;) {
      std::vector<std::deque<QueuedWork>*> open;
      bool is_empty = true;
      for (auto& [key, queue] : queues) {
        is_empty &= queue.empty();
        if (!queue.empty() && queue.front().ready()) open.push_back(&queue);
      }
      const auto quick =
          std::partition(open.begin(), open.end(), [&](auto* one) { return !slow.contains(one); });
      if (quick != open.begin() && random() % 64 != 0) open.erase(quick, open.end());
      if (trouble.deadlines && !is_empty &&
          (open.empty() || random() % (is_to_abort() ? 200 : 2048) == 0) &&
          run_into_trouble(queues, random))
        continue;
      if (open.empty()) {
        if (!is_empty) faults.emplace_back("all queues stand still");
        queues.clear();
        return;
      }
      std::deque<QueuedWork>& queue = *open[random() % open.size()];
      queue.front().run();
      queue.pop_front();
    }
  }

  bool is_to_abort() const { return trouble.aborted >= 0 && aborted_.empty(); }
  /// Lets a waiting rank give up, or the late rank come. Returns false if neither is possible.
  template <class Queues>
  bool run_into_trouble(Queues& queues, std::mt19937& random) {
    std::vector<QueuedWork> waiting;
    for (auto& [key, queue] : queues)
      if (!queue.empty() && !queue.front().ready() && queue.front().rank >= 0)
        waiting.push_back(queue.front());
    if (is_to_abort()) {
      for (const QueuedWork& one : waiting)
        if (one.give_up && one.rank == trouble.aborted) return aborted_.insert(one.rank).second;
      if (!waiting.empty() && random() % 8 != 0)
        return true;  // unless another rank gives up before
    }
    if (waiting.empty()) return false;
    const QueuedWork& one = waiting[random() % waiting.size()];
    const bool has_begun = !failed_.empty() || !aborted_.empty();
    if (one.opens_late && (has_begun || waiting.size() == 1)) return is_open_ = true;
    if (!one.give_up) return waiting.size() > 1;
    one.give_up();
    failed_.insert(one.rank);
    for (auto& [key, queue] : queues) {  // copies in flight may arrive, in whole or in part
      if (queue.empty() || queue.front().rank != one.rank) continue;
      const QueuedWork& first = queue.front();
      if (first.tear && first.ready()) first.tear(static_cast<unsigned>(random()));
      queue.clear();
    }
    return true;
  }

  std::map<std::pair<int, cuda::Stream>, std::deque<QueuedWork>> streams_;
  std::set<int> failed_, aborted_;
  bool is_open_ = false;
  std::map<int, std::deque<QueuedWork>> hardware_;
  std::map<int, std::vector<StreamNode>> nodes_;  // all work of a rank
  std::map<std::pair<int, cuda::Stream>, std::size_t> last_;
  std::map<Moment, std::size_t> record_at_;
  std::map<std::pair<int, cuda::Event>, int> recorded_;  // the latest generation
  std::set<Moment> done_;
};

/// The queue of a rank.
class FakeQueue : public cuda::EngineQueue {
 public:
  /// counted: chunks of earlier calls.
  FakeQueue(FakeEngines& engines, int rank, cuda::HostFlags& words, std::uint32_t counted)
      : engines_(engines), rank_(rank), words_(words), counted_(counted) {}

  void copy(cuda::Stream stream, char* dst, const char* src, std::uint64_t bytes) override {
    engines_.put(rank_, stream,
                 {[] { return true; },
                  [=, this] {
                    std::memcpy(dst, src, bytes);
                    engines_.copies.push_back({rank_, dst});
                  },
                  {},
                  [=](unsigned random) { std::memcpy(dst, src, random % (bytes + 1)); }});
  }
  /// In another order than the driver is told.
  void copy_all(cuda::Stream stream, const std::vector<cuda::OneCopy>& copies) override {
    const std::vector<cuda::OneCopy> chunks = cuda::in_chunks(copies);
    for (auto one = chunks.rbegin(); one != chunks.rend(); ++one)
      copy(stream, one->dst, one->src, one->bytes);
  }
  /// Does what engine_step() does: a rank that is aborted or poisoned goes no further, and a rank
  /// that gives up poisons all peers first.
  void step(cuda::Stream stream, const cuda::EngineStep& step) override {
    const auto is_over = [this] { return engines_.is_aborted(rank_); };
    const auto holds = [step] { return step.flags[step.rank]->poisoned == 0; };
    const auto poison = [step] { poison_peers(step); };
    engines_.put(rank_, stream,
                 {[=] { return is_over() || holds(); },
                  [=] {
                    if (is_over()) return poison();
                    if (step.signals_first != 0) signal(step);
                  },
                  poison});
    engines_.put(rank_, stream,
                 {[=] { return is_over() || (has_come(step) && holds()); },
                  [=] {
                    if (is_over()) return poison();
                    if (step.signals_first == 0) signal(step);
                  },
                  poison});
  }
  void end(cuda::Stream stream, const cuda::EngineEnd& end) override {
    step(stream, end.step);
    put(stream, [end] {
      for (int i = 0; i < 2; ++i)
        if (end.counts[i] != nullptr) *end.counts[i] += end.more[i];
    });
  }
  void reduce(cuda::Stream stream, const cuda::PieceArgs& args, plait::DataType type,
              unsigned) override {
    put(stream, [this, args, type] {
      if (engines_.is_aborted(rank_)) return;
      plait::ReduceJob job;
      job.type = type;
      job.op = static_cast<plait::ReduceOp>(args.op);
      job.order = static_cast<plait::SumOrder>(args.order);
      job.source_count = args.sources;
      job.count = args.bytes / plait::bytes_of(type);
      for (int s = 0; s < args.sources; ++s) job.sources[s] = args.source[s];
      for (int s = 0; s < args.sources; ++s) job.scales[s] = args.scalars[s];
      job.dst = args.dst;
      plait::ReduceTeam(0).reduce(job);
    });
  }
  void begin_on_host(cuda::Stream stream, const cuda::HostJob& job) override {
    put(stream, [this, job] {
      const auto put_on_cores = [&](std::function<bool()> ready, std::function<void()> run) {
        engines_.put_on_cores(rank_, {std::move(ready), std::move(run)});
      };
      cuda::run_host_job(
          job, rank_,
          [&](std::uint32_t value) {
            put_on_cores(
                [this, ranks = job.ranks, all = counted_ + value] {
                  return std::all_of(words_.arrived, words_.arrived + ranks,
                                     [&](std::uint32_t word) { return plait::reached(word, all); });
                },
                [] {});
            return true;
          },
          [&](std::uint32_t chunk) {
            put_on_cores([] { return true; },
                         [job, chunk] { plait::ReduceTeam(0).reduce(job.reduction(chunk)); });
          },
          [&](std::uint32_t value) {
            put_on_cores([] { return true; },
                         [this, all = counted_ + value] { words_.reduced[rank_] = all; });
          });
      counted_ += job.cut.chunks;
    });
  }
  void record(cuda::Event event, cuda::Stream stream) override {
    engines_.record(rank_, event, stream);
  }
  void follow(cuda::Stream stream, cuda::Event event) override {
    engines_.follow(rank_, stream, event);
  }

 private:
  void put(cuda::Stream stream, std::function<void()> run) {
    engines_.put(rank_, stream, {[] { return true; }, std::move(run)});
  }
  static bool has_come(const cuda::EngineStep& step) {
    for (const cuda::EngineWait& wait : step.waits)
      for (int rank = 0; rank < cuda::kMaxCudaRanks; ++rank)
        if ((wait.ranks >> rank & 1) != 0 &&
            !plait::reached(wait.flags[rank], *step.counted + wait.value))
          return false;
    return true;
  }
  static void poison_peers(const cuda::EngineStep& step) {
    for (int rank = 0; rank < step.ranks; ++rank)
      if (rank != step.rank) step.flags[rank]->poisoned = static_cast<std::uint32_t>(step.rank) + 1;
  }
  static void signal(const cuda::EngineStep& step) {
    for (std::uint32_t* word : step.signal)
      if (word != nullptr) *word = *step.counted + step.signal_value;
  }

  FakeEngines& engines_;
  const int rank_;
  cuda::HostFlags& words_;
  std::uint32_t counted_;  // chunks that cores have been given
};

}  // namespace plait_test
