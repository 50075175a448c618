// Entry points of the fake libcuda.so.1. Under test programs that set fake_cuda(), launches are
// recorded and memory is address space; under TEST_LIBCUDA, ranks of MPI get guarded memory.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <set>
#include <thread>
#include <utility>

#include "fake_cuda/fake_gpu.hpp"
#include "fake_cuda/fake_mapping.hpp"
#include "fake_cuda/guarded_memory.hpp"
#include "gpu/abi/call_args.hpp"
#include "gpu/abi/path_args.hpp"

namespace plait_test {
#ifdef __SANITIZE_THREAD__
extern "C" {  // Functions of the CUDA runtime library, which has no header for them.
void AnnotateIgnoreSyncBegin(const char* file, int line);
void AnnotateIgnoreSyncEnd(const char* file, int line);
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);
}
#endif

namespace {

using namespace plait::cuda;

constexpr Result kInvalidValue = 1, kNotFound = 500, kOutOfResources = 701;
constexpr int kFixedBytes = 1024;  // Static shared memory of any kernel.
constexpr int kMostRegisters = 1 << 16, kRegisters = 96;

/// Serializes calls of many threads in the fake driver. The lock must not order the
/// program's own accesses: ThreadSanitizer must see neither the lock nor the emulation under the
/// lock.
class OneCall {
 public:
  OneCall() {
    unseen(true);
    guard().lock();
  }
  ~OneCall() {
    guard().unlock();
    unseen(false);
  }
  OneCall(const OneCall&) = delete;
  OneCall& operator=(const OneCall&) = delete;

  /// Shows kernels on host threads to ThreadSanitizer. The sanitizer sees a kernel's threads, and
  /// needs to see their start and end by the caller.
  class ShownKernel {
   public:
    ShownKernel() { unseen(false); }
    ~ShownKernel() { unseen(true); }
    ShownKernel(const ShownKernel&) = delete;
    ShownKernel& operator=(const ShownKernel&) = delete;
  };

 private:
  static std::recursive_mutex& guard() {
    static std::recursive_mutex one;
    return one;
  }
#ifdef __SANITIZE_THREAD__
  static void unseen(bool begins) {
    if (begins) {
      AnnotateIgnoreSyncBegin(__FILE__, __LINE__);
      AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
      AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
    } else {
      AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
      AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
      AnnotateIgnoreSyncEnd(__FILE__, __LINE__);
    }
  }
#else
  static void unseen(bool) {}
#endif
};

/// Kernels with bulk copies exist in code for 9.0 and later only.
bool exists(const std::string& kernel) {
  const int made_for = fake_cuda().gpu.made_for;
  return made_for >= 90 || (made_for > 0 && kernel.rfind("plait_tiled", 0) != 0);
}

template <class Handle>
const std::string& kernel_of(Handle handle) {
  return fake_cuda().kernels[reinterpret_cast<std::uintptr_t>(handle) - 1];
}

void emulate_device(Api& api) {
  api.device_count = [](int* count) { return *count = fake_cuda().gpu.seen, 0; };
  api.device_can_access_peer = [](int* can, Device device, Device peer) {
    return *can = static_cast<int>(fake_cuda().gpu.seen == 1 || device / 2 == peer / 2), kSuccess;
  };
  api.device_name = [](char* name, int length, Device) {
    std::strncpy(name, fake_cuda().gpu.name, static_cast<std::size_t>(length));
    return kSuccess;
  };
  api.device_attribute = [](int* value, int attribute, Device) {
    const FakeGpu& gpu = fake_cuda().gpu;
    constexpr int kMostSharedBytes = 97;
    *value = attribute == kAttributeMultiprocessors ? gpu.multiprocessors
             : attribute == kAttributeComputeMajor  ? gpu.major
             : attribute == kAttributeComputeMinor  ? gpu.minor
             : attribute == kMostSharedBytes        ? gpu.shared_bytes
             : attribute == kAttributeMapsMemory || attribute == kAttributeSharesFiles
                 ? static_cast<int>(gpu.maps_memory)
                 : 0;
    return kSuccess;
  };
  api.device_uuid = [](char* uuid, Device device) {
    const FakeGpu& gpu = fake_cuda().gpu;
    return std::fill_n(uuid, 16, gpu.seen > 1 ? static_cast<char>(device) : gpu.number), kSuccess;
  };
  api.error_name = [](Result, const char** name) { return *name = "CUDA_ERROR_FAKE", kSuccess; };
  api.error_string = [](Result, const char** meaning) { return *meaning = "fake", kSuccess; };
}

/// True for addresses of GPU memory: low ones, where no program has memory.
bool is_on_gpu(DevicePointer pointer) { return pointer < DevicePointer{1} << 44; }

/// Running path checks, by the address of the rank's PathInbox.
struct FakeProof {
  PathArgs args;
  unsigned round = 0;
};
std::mutex proofs_guard;
std::map<DevicePointer, FakeProof> proofs;

void begin_proof(const PathArgs& args) {
  const std::lock_guard<std::mutex> hold(proofs_guard);
  std::fill_n(args.signal->resident, args.ranks, 1u);
  proofs[reinterpret_cast<DevicePointer>(args.inboxes[args.rank])] = {args};
}

/// Fills in what a rank's memory holds after a round. GPU memory lacks what a broken path loses;
/// memory of the host arrives.
void read_proof(const FakeProof& proof, PathInbox& words) {
  const auto fill = [&](PathBody& body, int writer, PathMethod way) {
    for (unsigned unit = 0; unit < kPathThreads; ++unit)
      body[unit] = path_unit(proof.args.nonce, writer, proof.args.rank, way, proof.round, unit);
  };
  const auto inbox = reinterpret_cast<DevicePointer>(proof.args.inboxes[proof.args.rank]);
  for (int peer = 0; peer < proof.args.ranks; ++peer) {
    if (peer == fake_cuda().loses_from && is_on_gpu(inbox)) continue;
    PathMail& mail = words.with[peer];
    std::fill_n(mail.found, kPathThreads, 0u);
    fill(mail.pushed, peer, PathMethod::pushed);
    fill(mail.pulled, peer, PathMethod::offered);
  }
}

int blocks_of(int threads, std::size_t shared_bytes) {
  const FakeGpu& gpu = fake_cuda().gpu;
  const int bytes = static_cast<int>(shared_bytes) + kFixedBytes;
  return std::min({gpu.multiprocessor_threads / threads, kMostRegisters / (threads * kRegisters),
                   gpu.multiprocessor_bytes / bytes});
}

/// Graphs that take as long as the launches captured, by stream while captured.
struct FakeGraphs {
  std::mutex guard;
  std::map<Stream, double> captured_ns;
  std::map<GraphExec, double> ns;
  std::map<Graph, double> made_ns;
};
FakeGraphs& graphs() {
  static FakeGraphs all;
  return all;
}

/// Makes the stream, or the graph that it captures, take the time.
void spend(Stream stream, double ns) {
  const std::lock_guard<std::mutex> hold(graphs().guard);
  const auto capture = graphs().captured_ns.find(stream);
  if (capture != graphs().captured_ns.end())
    capture->second += ns;
  else if (ns > 0)
    machine().put(stream, {.kind = FakeWork::TaskKind::busy, .ns = ns});
}

/// Mode of the thread's captures; global at first, as in a real driver.
thread_local int capture_mode = 0;

void emulate_graphs(Api& api) {
  api.exchange_capture_mode = [](int* mode) { return std::swap(*mode, capture_mode), kSuccess; };
  api.stream_begin_capture = [](Stream stream, int) {
    const std::lock_guard<std::mutex> hold(graphs().guard);
    return graphs().captured_ns[stream] = 0, kSuccess;
  };
  api.stream_end_capture = [](Stream stream, Graph* graph) {
    const std::lock_guard<std::mutex> hold(graphs().guard);
    *graph = machine().make<Graph>();
    graphs().made_ns[*graph] = graphs().captured_ns[stream];
    graphs().captured_ns.erase(stream);
    return kSuccess;
  };
  api.graph_instantiate = [](GraphExec* exec, Graph graph, unsigned long long) {
    const std::lock_guard<std::mutex> hold(graphs().guard);
    *exec = machine().make<GraphExec>();
    graphs().ns[*exec] = graphs().made_ns[graph];
    return kSuccess;
  };
  api.graph_launch = [](GraphExec exec, Stream stream) {
    double ns = 0;
    {
      const std::lock_guard<std::mutex> hold(graphs().guard);
      fake_cuda().graph_launches.push_back(exec);
      ns = graphs().ns[exec];
    }
    return spend(stream, ns), kSuccess;
  };
}

void emulate_kernels(Api& api) {
  api.library_load = [](Library* library, const void*, int*, void**, unsigned, int*, void**,
                        unsigned) {
    *library = machine().make<Library>();
    return fake_cuda().gpu.made_for == 0 ? 209 : kSuccess;
  };
  api.library_kernel = [](Kernel* kernel, Library, const char* name) {
    if (!exists(name)) return kNotFound;
    fake_cuda().kernels.emplace_back(name);
    *kernel = reinterpret_cast<Kernel>(fake_cuda().kernels.size());
    return kSuccess;
  };
  api.kernel_function = [](Function* function, Kernel kernel) {
    return *function = reinterpret_cast<Function>(kernel), kSuccess;
  };
  api.function_set_attribute = [](Function, int, int value) {
    return value + kFixedBytes > fake_cuda().gpu.shared_bytes ? kInvalidValue : kSuccess;
  };
  api.launch = [](const LaunchConfig* config, Function function, void** args, void**) {
    if (blocks_of(static_cast<int>(config->block_x), config->shared_bytes) == 0)
      return kOutOfResources;
    FakeLaunch launch{kernel_of(function),  config->grid_x, config->block_x,
                      config->shared_bytes, false,          1};
    for (unsigned i = 0; i < config->attribute_count; ++i) {
      const LaunchAttribute& attribute = config->attributes[i];
      if (attribute.id == kProgrammaticSerialization) launch.is_programmatic = true;
      if (attribute.id == kClusterDimension) launch.cluster = attribute.value.cluster[0];
    }
    if (launch.blocks % launch.cluster != 0) return kInvalidValue;
    constexpr int kInvalidClusterSize = 912;
    if (static_cast<int>(launch.cluster) > fake_cuda().gpu.multiprocessors)
      return kInvalidClusterSize;
    fake_cuda().launches.push_back(launch);
    fake_cuda().notes.add({kernel_of(function), config->stream});
    if (fake_cuda().on_launch) {
      const OneCall::ShownKernel shown;
      fake_cuda().on_launch(kernel_of(function), config->grid_x, config->block_x, args[0]);
    }
    if (fake_cuda().launch_ns) spend(config->stream, fake_cuda().launch_ns(kernel_of(function)));
    if (kernel_of(function) == "plait_path_check") begin_proof(*static_cast<PathArgs*>(args[0]));
    if (fake_cuda().fault != 0 && kernel_of(function) == "plait_fail_if_peer_lost")
      static_cast<PeerLostArgs*>(args[0])->stop_page->fault = {fake_cuda().fault.exchange(0),
                                                               kNoPeer, 0, ~0u};
    return kSuccess;
  };
}

/// By symbol, so that a table without the functions can be filled too.
void* limits(const std::string& symbol) {
  using Attribute = Result (*)(int*, int, Function);
  using Blocks = Result (*)(int*, Function, int, std::size_t);
  constexpr int kFixedSharedBytes = 1, kMadeForPtx = 5;
  static constexpr Attribute attribute = [](int* value, int which, Function) {
    *value = which == kFixedSharedBytes ? kFixedBytes
             : which == kMadeForPtx     ? fake_cuda().gpu.made_for
                                        : 0;
    return kSuccess;
  };
  static constexpr Blocks blocks = [](int* count, Function, int threads, std::size_t shared_bytes) {
    return *count = blocks_of(threads, shared_bytes), kSuccess;
  };
  if (symbol == "cuFuncGetAttribute") return reinterpret_cast<void*>(attribute);
  if (symbol == "cuOccupancyMaxActiveBlocksPerMultiprocessor")
    return reinterpret_cast<void*>(blocks);
  return nullptr;
}

/// Hands out address space without memory, since no kernel runs.
void emulate_memory(Api& api) {
  api.pointer_attributes = [](unsigned count, int* attributes, void** values,
                              DevicePointer pointer) {
    for (unsigned i = 0; i < count; ++i)
      if (attributes[i] == kPointerContext)
        *static_cast<Context*>(values[i]) = fake_cuda().owner;
      else
        *static_cast<int*>(values[i]) =
            attributes[i] == kPointerMemoryType && is_on_gpu(pointer) ? kMemoryOnDevice : 0;
    return kSuccess;
  };
  api.host_device_pointer = [](DevicePointer* pointer, void* base, unsigned) {
    return *pointer = reinterpret_cast<DevicePointer>(base), kSuccess;
  };
  static const auto copy = api.memory_copy_async;
  api.memory_copy_async = [](DevicePointer dst, DevicePointer src, std::size_t bytes,
                             Stream stream) {
    const std::lock_guard<std::mutex> hold(proofs_guard);
    const auto proof = proofs.find(src);
    if (proof == proofs.end() || bytes != sizeof(PathInbox)) return copy(dst, src, bytes, stream);
    read_proof(proof->second, *reinterpret_cast<PathInbox*>(dst));
    ++proof->second.round;
    return kSuccess;
  };
  constexpr Result kOutOfMemory = 2;
  api.memory_info = [](std::size_t* free_bytes, std::size_t* all_bytes) {
    const std::lock_guard<std::mutex> hold(fake_cuda().memory.guard);
    *all_bytes = std::min(fake_cuda().memory.most, std::size_t{141} << 30);
    *free_bytes = *all_bytes - std::min(*all_bytes, fake_cuda().memory.bytes);
    return kSuccess;
  };
  api.memory_alloc = [](DevicePointer* pointer, std::size_t bytes) {
    static DevicePointer next = DevicePointer{1} << 40;
    FakeMemory& memory = fake_cuda().memory;
    const std::lock_guard<std::mutex> hold(memory.guard);
    if (bytes > memory.most - std::min(memory.most, memory.bytes)) return kOutOfMemory;
    *pointer = next;
    next += (bytes + 4095) / 4096 * 4096;
    memory.parts[*pointer] = bytes;
    memory.bytes += bytes;
    return kSuccess;
  };
  api.memory_free = [](DevicePointer pointer) {
    FakeMemory& memory = fake_cuda().memory;
    const std::lock_guard<std::mutex> hold(memory.guard);
    const auto part = memory.parts.find(pointer);
    if (part == memory.parts.end()) return pointer == 0 ? kSuccess : kInvalidValue;
    memory.bytes -= part->second;
    memory.parts.erase(part);
    return kSuccess;
  };
  api.ipc_open = [](DevicePointer* pointer, IpcHandle, unsigned) {
    static DevicePointer next = DevicePointer{1} << 42;  // of a peer, so of no part
    ++fake_cuda().opened;
    *pointer = next;
    next += DevicePointer{1} << 34;
    return kSuccess;
  };
  api.ipc_close = [](DevicePointer) { return --fake_cuda().opened, kSuccess; };
}

/// Records event records and waits beside the streams' items.
void note_events(Api& api) {
  api.stream_id = [](Stream stream, std::uint64_t* id) {
    return *id = reinterpret_cast<std::uint64_t>(stream), kSuccess;
  };
  static const Api before = api;
  api.event_record = [](Event event, Stream stream) {
    fake_cuda().notes.add({"record", stream, event, true});
    FakeStill& still = fake_cuda().still;
    if (const std::lock_guard<std::mutex> hold(still.guard); still.streams.contains(stream))
      still.events.insert(event);
    else
      still.events.erase(event);
    return before.event_record(event, stream);
  };
  api.stream_wait_event = [](Stream stream, Event event, unsigned flags) {
    fake_cuda().notes.add({"wait", stream, event, false});
    return before.stream_wait_event(stream, event, flags);
  };
}

void count_streams(Api& api) {
  static const Api before = api;
  api.stream_create = [](Stream* stream, unsigned flags, int priority) {
    ++fake_cuda().streams;
    return before.stream_create(stream, flags, priority);
  };
  api.stream_destroy = [](Stream stream) {
    --fake_cuda().streams;
    return before.stream_destroy(stream);
  };
}

/// Returns whether CUDA refuses a call of the function while another thread captures in global
/// mode. An H200's driver takes stream_destroy, but no page of CUDA promises that.
bool is_unsafe(const std::string& function) {
  static const std::set<std::string> all{
      "context_synchronize", "memory_alloc",      "memory_free", "host_register",
      "host_unregister",     "stream_query",      "event_query", "event_synchronize",
      "stream_destroy",      "stream_synchronize"};
  return all.contains(function);
}

/// memory_copy uses the legacy stream, which ends captures of blocking streams in any mode.
void note_unsafe(const char* function) {
  const bool is_legacy = std::string(function) == "memory_copy";
  if (!is_legacy && (capture_mode == kCaptureRelaxed || !is_unsafe(function))) return;
  const OneCall alone;
  fake_cuda().unsafe.add(function);
}

/// The test sets the streams' progress; host waits for all work are counted.
void emulate_progress(Api& api) {
  api.stream_is_capturing = [](Stream, int* status) {
    return *status = fake_cuda().is_capturing ? 1 : kCaptureNone, kSuccess;
  };
  // plait's own streams do not capture while the program's default stream does.
  api.stream_capture_info = [](Stream stream, int* status, std::uint64_t* id, Graph*,
                               const GraphNode**, std::size_t*) {
    const bool captures = fake_cuda().is_capturing && stream == nullptr;
    *id = captures ? 1 : 0;
    return *status = captures ? 1 : kCaptureNone, kSuccess;
  };
  api.stream_query = [](Stream) {
    note_unsafe("stream_query");
    ++fake_cuda().looks;
    return fake_cuda().busy_looks > 0 ? (--fake_cuda().busy_looks, kNotReady) : kSuccess;
  };
  api.event_query = [](Event event) {
    note_unsafe("event_query");
    ++fake_cuda().held_queries;
    while (fake_cuda().holds_queries) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    --fake_cuda().held_queries;
    FakeStill& still = fake_cuda().still;
    const std::lock_guard<std::mutex> hold(still.guard);
    return still.events.contains(event) ? kNotReady : kSuccess;
  };
  api.context_synchronize = [] {
    note_unsafe("context_synchronize");
    return ++fake_cuda().waits_for_all, kSuccess;
  };
  api.memory_copy = [](DevicePointer, DevicePointer, std::size_t) {
    note_unsafe("memory_copy");
    return ++fake_cuda().waits_for_all, kSuccess;
  };
}

void emulate_batches(Api& api) {
  api.memory_copy_batch = [](const DevicePointer*, const DevicePointer*, const std::size_t* bytes,
                             std::size_t count, const CopyAttributes* attributes,
                             const std::size_t* first_with, std::size_t attributes_count,
                             std::size_t*, Stream) {
    if (attributes_count != 1 || *first_with != 0 || count == 0) return kInvalidValue;
    fake_cuda().batches.push_back(
        {{bytes, bytes + count}, attributes->flags, attributes->source_order});
    return kSuccess;
  };
}

template <class Field, class Function>
struct OneAtATime;
template <class Field, class... Arguments>
struct OneAtATime<Field, Result (*)(Arguments...)> {
  static inline Result (*function)(Arguments...) = nullptr;
  static inline const char* name = "";
  static Result call(Arguments... arguments) {
    const OneCall alone;
    note_unsafe(name);
    if (const Result refused = fake_cuda().refuses.said_to(name); refused != kSuccess)
      return refused;
    return function(arguments...);
  }
};

Api emulated() {
  Api api;
#define PLAIT_CUDA_FUNCTION(field, symbol, arguments) guarded::accept(api.field);
#include "driver/cuda/functions.def"
#undef PLAIT_CUDA_FUNCTION
  fake_contexts(api);
  fake_streams(api);
  count_streams(api);
  fake_work(api);
  emulate_device(api);
  emulate_kernels(api);
  emulate_graphs(api);
  machine().moves_bytes = false;  // memory is address space
  emulate_memory(api);
  emulate_mapping(api);
  note_events(api);
  emulate_batches(api);
#define PLAIT_CUDA_FUNCTION(field, symbol, arguments)        \
  {                                                          \
    struct Field;                                            \
    using Emulated = OneAtATime<Field, decltype(api.field)>; \
    Emulated::name = #field;                                 \
    Emulated::function = api.field;                          \
    api.field = &Emulated::call;                             \
  }
#define PLAIT_CUDA_LATER_FUNCTION(version, field, symbol, arguments) \
  PLAIT_CUDA_FUNCTION(field, symbol, arguments)
#include "driver/cuda/functions.def"
#include "driver/cuda/later_functions.def"
#undef PLAIT_CUDA_LATER_FUNCTION
#undef PLAIT_CUDA_FUNCTION
  emulate_progress(api);  // May wait for the test.
  return api;
}

void* find(const std::string& symbol) {
  static const bool is_guarded = std::getenv("TEST_LIBCUDA") != nullptr;
  static const Api api = is_guarded ? guarded::api() : emulated();
  if (void* const found = is_guarded ? nullptr : limits(symbol)) return found;
#define PLAIT_CUDA_FUNCTION(field, name, arguments) \
  if (symbol == #name) return reinterpret_cast<void*>(api.field);
#include "driver/cuda/functions.def"
#undef PLAIT_CUDA_FUNCTION
#define PLAIT_CUDA_LATER_FUNCTION(version, field, name, arguments) \
  if (symbol == #name) return reinterpret_cast<void*>(api.field);
#include "driver/cuda/later_functions.def"
#undef PLAIT_CUDA_LATER_FUNCTION
  return nullptr;
}

}  // namespace

FakeCuda& fake_cuda() {
  static FakeCuda fake;
  return fake;
}

}  // namespace plait_test

using namespace plait_test::guarded;

extern "C" {

int cuGetProcAddress_v2(const char* symbol, void** function, int, std::uint64_t, int*) {
  *function = plait_test::find(symbol);
  return *function == nullptr ? 500 : 0;
}

/// Returns kNotInitialised before cuInit. A program with TEST_CUDA_LATE calls cuInit late or never.
int cuDeviceGetCount(int* count) { return is_begun() ? (*count = 1, kSuccess) : kNotInitialised; }

void emulated_begin() { is_begun() = true; }

std::uint64_t emulated_opens() { return opens.load(); }
std::uint64_t emulated_open_now() { return open_now.load(); }
std::uint64_t emulated_waits() { return waits.load(); }
std::uint64_t emulated_copies_to_host() { return copies_to_host.load(); }

/// Allocates device memory; returns the address at which a test reads and writes the content.
void* emulated_content(std::size_t bytes) {
  const Address whole = (bytes + 4095) / 4096 * 4096;
  const Address begin = memory().used.fetch_add(whole);
  allocations().add(begin, begin + whole);
  return reinterpret_cast<void*>(memory().content + begin);
}

/// Returns the device address of such an address; other addresses unchanged.
void* emulated_device(const void* content) {
  const Address offset = reinterpret_cast<Address>(content) - memory().content;
  if (offset >= kBytes) return const_cast<void*>(content);
  return reinterpret_cast<void*>(memory().device + offset);
}

/// Frees memory; returns true if it was device memory.
int emulated_free(void* content, std::size_t bytes) {
  if (reinterpret_cast<Address>(content) - memory().content >= kBytes) return 0;
  madvise(content, (bytes + 4095) / 4096 * 4096, MADV_REMOVE);
  return 1;
}

}  // extern "C"
