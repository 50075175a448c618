// A CUDA driver emulated in host memory: streams are queues of copies, event records and event
// waits, run by a test in any order that a GPU could take. Misuse of a real driver (a wait for an
// event never recorded, a stream of another context) is noted as a fault.
#pragma once
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "base/text.hpp"
#include "driver/cuda/api.hpp"

namespace plait_test {

/// Fills memory. The pages of a long range are made at once, since a fault for each page would take
/// most of the time.
inline void fill_pages(void* at, int value, std::size_t bytes) {
#ifdef MADV_POPULATE_WRITE  // not in glibc 2.34
  constexpr std::uintptr_t kPage = 4096;
  constexpr std::size_t kLongRange = 1 << 20;
  const auto address = reinterpret_cast<std::uintptr_t>(at);
  const std::uintptr_t begin = (address + kPage - 1) / kPage * kPage;
  if (bytes >= kLongRange)  // kernels before 5.14 refuse, and the fill makes the pages
    ::madvise(reinterpret_cast<void*>(begin), (address + bytes) / kPage * kPage - begin,
              MADV_POPULATE_WRITE);
#endif
  std::memset(at, value, bytes);
}

namespace cuda = plait::cuda;

struct FakeWork {
  enum class TaskKind { copy, fill, record, wait, busy } kind;
  char* dst = nullptr;
  const char* src = nullptr;
  std::size_t bytes = 0;
  unsigned char value = 0;
  cuda::Event event = nullptr;
  int generation = 0;
  std::size_t number = 0;  // in order of the calls
  cuda::Stream stream = nullptr;
  double ns = 0.0;  // of busy work: kernels, graphs
};

class FakeMachine {
 public:
  /// The machine that the driver's functions act on.
  static FakeMachine& now() {
    static FakeMachine machine;
    return machine;
  }
  void reset() {
    contexts.clear();
    *this = FakeMachine();
  }

  std::map<cuda::Stream, std::deque<FakeWork>> queues;
  std::map<cuda::Stream, cuda::Context> stream_owner;
  std::map<cuda::Event, cuda::Context> event_owner;
  std::map<cuda::Event, int> recorded;         // the latest generation
  std::set<std::pair<cuda::Event, int>> done;  // a wait refers to the generation recorded before it
  std::set<cuda::Event> timing;                // created to measure times
  std::map<cuda::Event, double> done_ns;       // time of the last record
  std::map<cuda::Stream, double> clock_ns;     // by stream, as if all ran at once
  double link_gb_per_s = 395.0, host_gb_per_s = 55.0, copy_ns = 4600.0;
  bool moves_bytes = true;  // false: copies only take their time, and nothing is filled
  static inline thread_local std::vector<cuda::Context> contexts;  // the stack of current contexts
  std::set<void*> allocated;
  std::map<void*, std::size_t> pinned;
  std::vector<std::string> faults;
  std::vector<std::string> calls;
  std::size_t numbers = 0;
  std::uintptr_t handles = 0;
  std::uint64_t copied_bytes = 0;
  bool capturing = false;
  int retained = 0;

  template <class Handle>
  Handle make() {
    return reinterpret_cast<Handle>(0x1000 + 16 * ++handles);
  }
  cuda::Context current() {
    if (contexts.empty()) faults.emplace_back("no context is current");
    return contexts.empty() ? nullptr : contexts.back();
  }
  void check_stream(cuda::Stream stream, const char* call) {
    if (stream_owner.count(stream) == 0 || stream_owner[stream] != current())
      faults.push_back(plait::text("{} on a stream of another context", call));
  }
  void put(cuda::Stream stream, FakeWork work) {
    work.number = numbers++;
    work.stream = stream;
    queues[stream].push_back(work);
  }
  cuda::Stream stream_of(cuda::Context context) {
    const auto stream = make<cuda::Stream>();
    stream_owner[stream] = context;
    queues[stream];
    return stream;
  }

  bool ready(const FakeWork& work) {
    return work.kind != FakeWork::TaskKind::wait || done.contains({work.event, work.generation});
  }
  void perform(const FakeWork& work) {
    double& now_ns = clock_ns[work.stream];
    if (work.kind == FakeWork::TaskKind::copy) {
      if (moves_bytes) std::memcpy(work.dst, work.src, work.bytes);
      copied_bytes += work.bytes;
      const bool by_host = is_pinned(work.dst) || is_pinned(work.src);
      now_ns +=
          copy_ns + static_cast<double>(work.bytes) / (by_host ? host_gb_per_s : link_gb_per_s);
    }
    if (work.kind == FakeWork::TaskKind::busy) now_ns += work.ns;
    if (work.kind == FakeWork::TaskKind::fill && moves_bytes)
      fill_pages(work.dst, work.value, work.bytes);
    if (work.kind == FakeWork::TaskKind::wait) now_ns = std::max(now_ns, done_ns[work.event]);
    if (work.kind != FakeWork::TaskKind::record) return;
    done.insert({work.event, work.generation});
    done_ns[work.event] = now_ns;
  }
  bool is_pinned(const void* pointer) const {
    const auto* at = static_cast<const char*>(pointer);
    return std::any_of(pinned.begin(), pinned.end(), [at](const auto& one) {
      const auto* base = static_cast<const char*>(one.first);
      return at >= base && at < base + one.second;
    });
  }
  double latest_ns() const {
    double latest = 0.0;
    for (const auto& [stream, ns] : clock_ns) latest = std::max(latest, ns);
    return latest;
  }
  /// Runs all queues; the next queue to continue is chosen at random.
  void run_by_chance(unsigned seed) {
    std::mt19937 random(seed);
    for (;;) {
      std::vector<cuda::Stream> open;
      bool is_empty = true;
      for (auto& [stream, queue] : queues) {
        is_empty &= queue.empty();
        if (!queue.empty() && ready(queue.front())) open.push_back(stream);
      }
      if (open.empty()) {
        if (!is_empty) faults.emplace_back("the streams stand still");
        return;
      }
      auto& queue = queues[open[random() % open.size()]];
      perform(queue.front());
      queue.pop_front();
    }
  }
  /// Runs all queues as a single queue, in the order of the calls.
  void run_in_order() {
    std::map<std::size_t, FakeWork> all;
    for (auto& [stream, queue] : queues) {
      for (const FakeWork& work : queue) all[work.number] = work;
      queue.clear();
    }
    for (const auto& [number, work] : all) {
      if (!ready(work)) faults.emplace_back("one hardware queue would stand still");
      perform(work);
    }
  }
};

inline FakeMachine& machine() { return FakeMachine::now(); }

inline void fake_contexts(cuda::Api& api) {
  using namespace plait::cuda;
  api.device_get = [](Device* device, int ordinal) { return *device = ordinal, kSuccess; };
  api.primary_retain = [](Context* context, Device device) {
    ++machine().retained;
    *context = reinterpret_cast<Context>(static_cast<std::uintptr_t>(0x100 + device));
    return kSuccess;
  };
  api.primary_release = [](Device) { return --machine().retained, kSuccess; };
  api.context_push = [](Context context) {
    machine().contexts.push_back(context);
    return kSuccess;
  };
  api.context_pop = [](Context*) { return machine().contexts.pop_back(), kSuccess; };
  api.device_can_access_peer = [](int* can, Device, Device) { return *can = 1, kSuccess; };
  api.context_enable_peer = [](Context, unsigned) { return kSuccess; };
}

inline void fake_streams(cuda::Api& api) {
  using namespace plait::cuda;
  api.stream_create = [](Stream* stream, unsigned, int) {
    *stream = machine().stream_of(machine().current());
    return kSuccess;
  };
  api.stream_destroy = [](Stream stream) { return machine().queues.erase(stream), kSuccess; };
  api.stream_synchronize = [](Stream) { return kSuccess; };
  api.stream_is_capturing = [](Stream, int* status) {
    *status = machine().capturing ? kCaptureRelaxed : kCaptureNone;
    return kSuccess;
  };
  api.event_create = [](Event* event, unsigned flags) {
    *event = machine().make<Event>();
    if ((flags & kEventDisableTiming) == 0) machine().timing.insert(*event);
    machine().event_owner[*event] = machine().current();
    return kSuccess;
  };
  api.event_destroy = [](Event event) { return machine().event_owner.erase(event), kSuccess; };
  api.event_elapsed = [](float* ms, Event begin, Event end) {
    FakeMachine& all = machine();
    for (const Event event : {begin, end}) {
      if (!all.timing.contains(event) || all.event_owner[event] != all.current())
        all.faults.emplace_back("times of an event that has none, or of another context");
      if (all.recorded[event] == 0) all.faults.emplace_back("times of an event never recorded");
      if (!all.done.contains({event, all.recorded[event]})) return kNotReady;
    }
    *ms = static_cast<float>((all.done_ns[end] - all.done_ns[begin]) * 1e-6);
    return kSuccess;
  };
  api.event_synchronize = [](Event) { return machine().run_by_chance(1), kSuccess; };
}

inline void fake_work(cuda::Api& api) {
  using namespace plait::cuda;
  api.event_record = [](Event event, Stream stream) {
    machine().check_stream(stream, "event_record");
    if (machine().event_owner[event] != machine().stream_owner[stream])
      machine().faults.emplace_back("an event of another context is recorded");
    machine().calls.push_back("record");
    machine().put(stream, {FakeWork::TaskKind::record, nullptr, nullptr, 0, 0, event,
                           ++machine().recorded[event], 0});
    return kSuccess;
  };
  api.stream_wait_event = [](Stream stream, Event event, unsigned) {
    machine().check_stream(stream, "stream_wait_event");
    if (machine().recorded[event] == 0)
      machine().faults.emplace_back("an event is awaited before it is recorded");
    machine().calls.push_back("wait");
    machine().put(stream, {FakeWork::TaskKind::wait, nullptr, nullptr, 0, 0, event,
                           machine().recorded[event], 0});
    return kSuccess;
  };
  api.memory_copy_async = [](DevicePointer dst, DevicePointer src, std::size_t bytes,
                             Stream stream) {
    machine().check_stream(stream, "memory_copy_async");
    machine().calls.push_back("copy");
    machine().put(stream, {FakeWork::TaskKind::copy, reinterpret_cast<char*>(dst),
                           reinterpret_cast<const char*>(src), bytes, 0, nullptr, 0, 0});
    return kSuccess;
  };
  api.memory_copy_batch = [](const DevicePointer* dsts, const DevicePointer* srcs,
                             const std::size_t* bytes, std::size_t count,
                             const CopyAttributes* attributes, const std::size_t* first_with,
                             std::size_t attributes_count, std::size_t*, Stream stream) {
    machine().check_stream(stream, "memory_copy_batch");
    if (machine().capturing || stream == nullptr || attributes_count != 1 || *first_with != 0 ||
        attributes->source_order != kSourceInStreamOrder || count == 0)
      machine().faults.emplace_back("a batch that no driver takes");
    machine().calls.push_back("batch");
    for (std::size_t i = count; i-- != 0;) {  // in another order than that of the call
      auto* const dst = reinterpret_cast<char*>(dsts[i]);
      const auto* const src = reinterpret_cast<const char*>(srcs[i]);
      if (machine().is_pinned(dst) || machine().is_pinned(src))
        machine().faults.emplace_back("a batch through host memory");
      machine().put(stream, {FakeWork::TaskKind::copy, dst, src, bytes[i], 0, nullptr, 0, 0});
    }
    return kSuccess;
  };
  api.memory_alloc = [](DevicePointer* pointer, std::size_t bytes) {
    void* memory = std::malloc(bytes);
    machine().allocated.insert(memory);
    *pointer = reinterpret_cast<DevicePointer>(memory);
    return kSuccess;
  };
  api.memory_free = [](DevicePointer pointer) {
    machine().allocated.erase(reinterpret_cast<void*>(pointer));
    std::free(reinterpret_cast<void*>(pointer));
    return kSuccess;
  };
  api.host_register = [](void* base, std::size_t bytes, unsigned) {
    return machine().pinned[base] = bytes, kSuccess;
  };
  api.host_unregister = [](void* base) { return machine().pinned.erase(base), kSuccess; };
}

/// Returns the table of functions that act on FakeMachine::now().
inline cuda::Api fake_api() {
  cuda::Api api;
  fake_contexts(api);
  fake_streams(api);
  fake_work(api);
  return api;
}

}  // namespace plait_test
