// A driver that refuses a call in the middle of a plait call. Peers count a call once a part of the
// call is on streams, hence a rank that continued would send the peers data of the wrong call.
#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/text.hpp"
#include "fake_cuda/fake_gpu.hpp"
#include "gpu/rank/cuda_rank.hpp"
#include "gpu/select/engines.hpp"
#include "plait/error.hpp"
#include "tests/gpu/ranks.hpp"

using namespace plait;
using plait::cuda::CudaRank;
using plait::cuda::CudaRankOptions;
using plait_test::fake_cuda;

namespace {

constexpr std::uint64_t kMib = 1 << 20;
constexpr std::size_t kMostRanks = 4;
void* const kInput = reinterpret_cast<void*>(std::uintptr_t{1} << 34);
void* const kOutput = reinterpret_cast<void*>(std::uintptr_t{1} << 36);

/// Driver functions that put work on streams.
const char* const kFunctions[] = {"launch", "event_record", "stream_wait_event",
                                  "memory_copy_async", "memory_copy_batch"};

/// A rank with both arena tiers from the start, and host memory as mapped by peers.
class OneRank {
 public:
  explicit OneRank(int ranks, unsigned most_blocks = 0, bool orders_calls = true) {
    fake_cuda().gpu = {};
    CudaRankOptions options;
    options.ranks = ranks;
    options.proves_paths = false;  // No kernel runs here.
    options.memory.plans = options.memory.pairs = true;
    options.memory.budget_bytes = 700 * kMib;
    options.messages = true;
    options.most_blocks = most_blocks;
    options.orders_calls = orders_calls;
    options.ring_bytes = cuda::kPlanRingBytes;
    options.exchange_ring_bytes = cuda::kExchangeRingBytes;
    options.rings = [ranks](const cuda::Exchange&) {
      constexpr std::size_t kBytes = cuda::kPlanRingBytes + cuda::kExchangeRingBytes;
      static std::byte* const all = bench::shared_memory(kMostRanks * kBytes);
      std::vector<std::byte*> bases;
      for (int owner = 0; owner < ranks; ++owner) bases.push_back(all + owner * kBytes);
      return bases;
    };
    shares_ = std::make_unique<cuda::AgreedNumber::NumberPage>();
    options.share_page = shares_.get();
    fake_cuda().refuses.none();
    rank = std::make_unique<CudaRank>(options, [ranks](const std::string& mine) {
      std::vector<std::string> records;
      for (int peer = 0; peer < ranks; ++peer) records.push_back(record_of(peer, mine));
      return records;
    });
  }
  /// Stop code that waiting kernels find.
  std::uint32_t stop() {
    std::uint32_t found = 0;
    fake_cuda().on_launch = [&](const std::string& kernel, unsigned, unsigned, const void* args) {
      if (kernel == "plait_fail_if_peer_lost")
        found = static_cast<const cuda::PeerLostArgs*>(args)->stop_page->stop;
    };
    rank->fail_if_peer_lost(nullptr);
    fake_cuda().on_launch = nullptr;
    return found;
  }

 private:
  /// This rank's record, with another process id if the record starts with this id, because peers
  /// are other processes.
  static std::string record_of(int peer, std::string record) {
    std::int64_t process = 0;
    std::memcpy(&process, record.data(), std::min(record.size(), sizeof process));
    if (process != ::getpid()) return record;
    process += peer;
    std::memcpy(record.data(), &process, sizeof process);
    return record;
  }
  std::unique_ptr<cuda::AgreedNumber::NumberPage> shares_;

 public:
  std::unique_ptr<CudaRank> rank;
};

/// A way to enqueue a call, prepared for a rank.
struct CallVariant {
  std::string name;
  int ranks;
  std::function<std::function<void()>(CudaRank&)> prepare;
  unsigned most_blocks = 0;  ///< Limit for the rank's kernels.
};

CallVariant by_engine(const std::string& name, int ranks, Collective collective,
                      std::uint64_t bytes, const std::map<std::string, std::int64_t>& params = {},
                      unsigned most_blocks = 0) {
  Request request;
  request.collective = collective;
  request.ranks = ranks;
  request.count = bytes / bytes_of(request.type);
  request.peer = 1;
  return {text("{} over {} ranks", name, ranks), ranks,
          [=](CudaRank& rank) {
            const std::shared_ptr<cuda::PreparedCall> ready = rank.prepare(
                *cuda::engine_named(name, request), request, cuda::tuning_from(name, params));
            return [=, &rank] { rank.run(*ready, request, {kInput, kOutput, {}}, nullptr); };
          },
          most_blocks};
}

CallVariant by_plan(const std::string& name, cuda::CopiedBy copied_by) {
  return {name, 2, [=](CudaRank& rank) {
            const Topology topology = load_topology("hgx-h200");
            Request request;
            request.ranks = 2;
            request.count = kMib;
            const std::shared_ptr<cuda::BoundPlan> bound =
                rank.bind(propose_one(topology, checked(request, topology), "direct"));
            return [=, &rank] { rank.run(*bound, kInput, kOutput, nullptr, {}, copied_by); };
          }};
}

const std::vector<CallVariant>& call_variants() {
  static const std::vector<CallVariant> all{
      by_engine("one_shot", 4, Collective::all_reduce, 4096),
      by_engine("direct_ll", 2, Collective::all_gather, 64 * kMib),
      by_engine("ll_chain", 4, Collective::broadcast, 64 * kMib),
      by_engine("tiled", 4, Collective::all_reduce, 16 * kMib),
      by_engine("tiled", 4, Collective::all_reduce, 256 * kMib, {{"host_permille", 100}}),
      by_engine("copy_exchange", 2, Collective::all_reduce, 256 * kMib),
      by_engine("copy_exchange", 2, Collective::all_gather, 256 * kMib, {{"host_permille", 0}}),
      by_engine("copy_rotation", 4, Collective::all_reduce, 256 * kMib, {}, 16),
      by_engine("copy_ring", 4, Collective::all_gather, 64 * kMib),
      by_engine("scatter_ring", 4, Collective::all_reduce, 256 * kMib + 4),
      by_plan("a plan by one kernel", cuda::CopiedBy::one_kernel),
      by_plan("a plan by copy engines", cuda::CopiedBy::copy_engines),
      {"messages", 4, [](CudaRank& rank) {
         return [&rank] {
           std::vector<cuda::MessageEnd> messages;
           for (int i = 0; i < 40; ++i) messages.push_back({i % 2 == 0, 1 + i % 3, kOutput, kMib});
           rank.messages(messages, nullptr);
         };
       }}};
  return all;
}

/// Error text that `work` throws; "" without a throw.
std::string thrown_by(const std::function<void()>& work) {
  try {
    work();
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

/// Calls work(function, n) for each function and n = 1, 2, ... and some larger n, until work
/// reports that the call has no n-th such step. Returns the number of cases.
int for_refusals(const std::function<bool(const char*, int)>& work) {
  int made = 0;
  for (const char* const function : kFunctions)
    for (int n = 1; work(function, n); n += 1 + n / 4) ++made;
  fake_cuda().refuses.none();
  return made;
}

}  // namespace

TEST_CASE("a call that fails half-way: streams fail, and later calls are refused") {
  for (const CallVariant& variant : call_variants()) {
    CAPTURE(variant.name);
    const int refusals = for_refusals([&](const char* function, int n) {
      CAPTURE(function);
      CAPTURE(n);
      OneRank one(variant.ranks, variant.most_blocks);
      const std::function<void()> call = variant.prepare(*one.rank);
      fake_cuda().refuses.of(function, n);
      const std::string refused = thrown_by(call);
      if (fake_cuda().refuses.is_ahead()) {  // The call has no n-th step.
        CHECK(refused == "");
        return false;
      }
      CHECK(refused.find("CUDA driver call ") != std::string::npos);
      const std::string checked = thrown_by([&] { one.rank->check(); });
      CHECK(checked.find("a call of rank 0 failed before all of its work was enqueued (") !=
            std::string::npos);
      CHECK(one.stop() == cuda::kFaultLost);
      const std::size_t launches = fake_cuda().launches.size();
      CHECK(thrown_by(call) == checked);
      CHECK(fake_cuda().launches.size() == launches);
      return true;
    });
    CHECK(refusals > 0);
  }
}

TEST_CASE("a call that fails half-way while others order calls: the same") {
  OneRank one(2, 0, false);
  const std::function<void()> call = call_variants()[1].prepare(*one.rank);
  fake_cuda().refuses.of("launch", 2);
  CHECK(thrown_by(call) != "");
  CHECK(thrown_by([&] { one.rank->check(); }) != "");
  CHECK(one.stop() == cuda::kFaultLost);
}

TEST_CASE("a call that fails in a capture has run nothing: later calls work") {
  for (const CallVariant& variant : call_variants()) {
    CAPTURE(variant.name);
    OneRank one(variant.ranks, variant.most_blocks);
    const std::function<void()> call = variant.prepare(*one.rank);
    fake_cuda().is_capturing = true;
    fake_cuda().refuses.of("launch", 1);
    const std::string refused = thrown_by(call);
    fake_cuda().is_capturing = false;
    CHECK(refused != "");
    CHECK(thrown_by([&] { one.rank->check(); }) == "");
    CHECK(one.stop() == cuda::kNoFault);
    CHECK(thrown_by(call) == "");
  }
}

TEST_CASE("a capture that another thread begins amid a call hides no half-enqueued call") {
  for (const CallVariant& variant : call_variants()) {
    CAPTURE(variant.name);
    OneRank one(variant.ranks, variant.most_blocks);
    const std::function<void()> call = variant.prepare(*one.rank);
    fake_cuda().on_launch = [](const std::string&, unsigned, unsigned, const void*) {
      fake_cuda().is_capturing = true;
      fake_cuda().refuses.of("event_record", 1, cuda::kCaptureImplicit);
    };
    const std::string refused = thrown_by(call);
    fake_cuda().on_launch = nullptr;
    fake_cuda().is_capturing = false;
    fake_cuda().refuses.none();
    CHECK(refused.find("event_record") != std::string::npos);
    CHECK(thrown_by([&] { one.rank->check(); }) != "");
    CHECK(one.stop() == cuda::kFaultLost);
  }
}

TEST_CASE("missing streams of a plan fail that call alone, which may be repeated") {
  OneRank one(2);
  const std::function<void()> call = by_plan("", cuda::CopiedBy::copy_engines).prepare(*one.rank);
  fake_cuda().refuses.of("stream_create", 3);
  CHECK(thrown_by(call).find("stream_create") != std::string::npos);
  CHECK(thrown_by([&] { one.rank->check(); }) == "");
  CHECK(thrown_by(call) == "");
}

TEST_CASE("a look at a rank's work reads the streams of plans once all are made") {
  OneRank one(2, 0, false);
  const auto looks_of_one_query = [&] {
    const int before = fake_cuda().looks;
    CHECK(one.rank->has_ended());
    return fake_cuda().looks - before;
  };
  const std::function<void()> call = by_plan("", cuda::CopiedBy::copy_engines).prepare(*one.rank);
  const int without = looks_of_one_query();
  fake_cuda().refuses.of("stream_create", 3);
  CHECK(thrown_by(call) != "");
  CHECK(looks_of_one_query() == without);
  std::atomic<bool> ends{false};
  std::thread watch([&] {  // ThreadSanitizer judges these looks
    while (!ends) CHECK(one.rank->has_ended());
  });
  CHECK(thrown_by(call) == "");
  ends = true;
  watch.join();
  CHECK(looks_of_one_query() > without);
}
