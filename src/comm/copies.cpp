// Copies: which GPUs two pointers lie on, the plan for them (made and proved once a size), and the
// streams it goes to. One OneProcess a direction, so that opposite copies share nothing but links.
#include "plait/copies.hpp"

#include <algorithm>
#include <cstdio>
#include <mutex>
#include <tuple>

#include "base/env.hpp"
#include "base/text.hpp"
#include "exec/cuda/one_process.hpp"
#include "plait/error.hpp"
#include "plait/report.hpp"

namespace plait {
namespace {

constexpr std::size_t kMostPlans = 256;  // beyond it the cache starts anew

/// "GPU-00112233-4455-...", as NVML writes it.
std::string uuid_of(int ordinal) {
  cuda::Device device = 0;
  unsigned char bytes[16] = {};
  PLAIT_CUDA_CALL(device_get, &device, ordinal);
  PLAIT_CUDA_CALL(device_uuid, reinterpret_cast<char*>(bytes), device);
  std::string uuid = "GPU-";
  for (int i = 0; i < 16; ++i) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", bytes[i]);
    uuid += (i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "") + std::string(digits);
  }
  return uuid;
}

/// The topology's device for each CUDA ordinal: by uuid where it states them, else in order.
std::vector<int> devices_of_ordinals(const Topology& topology) {
  std::vector<int> devices;
  for (int ordinal = 0; ordinal < cuda::device_count(); ++ordinal) {
    int found = -1;
    const std::string uuid = uuid_of(ordinal);
    for (std::size_t i = 0; i < topology.devices.size(); ++i)
      if (topology.devices[i].uuid == uuid) found = static_cast<int>(i);
    devices.push_back(found >= 0 ? found : find_device(topology, DeviceKind::gpu, ordinal));
  }
  return devices;
}

/// Where memory lies, asked in the current context, or in GPU 0's where this thread has none.
cuda::Place place_of(const void* pointer) {
  cuda::Device device = 0;
  cuda::Context context = nullptr;
  if (cuda::api().context_device(&device) == cuda::kSuccess) return cuda::place_of(pointer);
  PLAIT_CUDA_CALL(device_get, &device, 0);
  PLAIT_CUDA_CALL(primary_retain, &context, device);  // kept: copies will want it again
  const cuda::Current current(context);
  return cuda::place_of(pointer);
}

int gpu_of(const char* name, const void* pointer) {
  const cuda::Place place = pointer == nullptr ? cuda::Place{} : place_of(pointer);
  if (place.memory != cuda::kMemoryOnDevice || place.ordinal < 0)
    throw Error(ErrorCode::invalid_argument,
                text(name, ": wanted memory of a GPU, found ",
                     pointer == nullptr ? "a null pointer" : "host memory; copy it there first"));
  return place.ordinal;
}

void check_apart(const void* dst, const void* src, std::uint64_t bytes) {
  const auto to = reinterpret_cast<std::uintptr_t>(dst),
             from = reinterpret_cast<std::uintptr_t>(src);
  if (to < from + bytes && from < to + bytes)
    throw Error(ErrorCode::invalid_argument,
                text("wanted dst and src apart, found them overlap by ",
                     bytes - (to > from ? to - from : from - to), " of ", bytes, " bytes"));
}

}  // namespace

struct Copies::State {
  using Pair = std::tuple<int, int, bool>;  // dst, src, both ways
  struct Ready {
    Plan plan;
    cuda::BoundCopies bound;
  };

  int device_of(int ordinal) const {
    const int device = ordinal >= 0 && ordinal < static_cast<int>(devices.size())
                           ? devices[static_cast<std::size_t>(ordinal)]
                           : -1;
    if (device < 0)
      throw Error(ErrorCode::no_device, text("wanted GPU ", ordinal, " in topology ", topology.name,
                                             ", which has ", rank_devices(topology).size()));
    return device;
  }

  Plan plan_for(const Pair& pair, std::uint64_t bytes, Params params) const {
    const auto [dst, src, both] = pair;
    if (const auto relay = params.find("relay"); relay != params.end())
      relay->second = device_of(static_cast<int>(relay->second));
    Request request;
    request.collective = both ? Collective::send_recv : Collective::copy;
    request.type = DataType::uint8;
    request.count = bytes;
    request.ranks = 2;
    request.peer = 1;
    request.devices = {device_of(src), device_of(dst)};
    Plan plan = propose_one(topology, request, "striped", params);
    if (const Report report = verify(plan); !report.proved())
      throw Error(ErrorCode::internal,
                  text("plan ", label(plan), " is not right: ", print(report)));
    return plan;
  }

  cuda::OneProcess& node_of(const Pair& pair) {
    auto& node = nodes[pair];
    if (node == nullptr) node = std::make_unique<cuda::OneProcess>();
    return *node;
  }

  std::shared_ptr<const Ready> ready(const Pair& pair, std::uint64_t bytes, const Params& params) {
    auto key = std::tuple(pair, bytes, params);
    if (const auto known = plans.find(key); known != plans.end()) return known->second;
    auto made = std::make_shared<Ready>();
    made->plan = plan_for(pair, bytes, params);
    std::vector<int> ordinals{std::get<1>(pair), std::get<0>(pair)};
    for (const int guest : made->plan.guests)
      ordinals.push_back(
          static_cast<int>(std::find(devices.begin(), devices.end(), guest) - devices.begin()));
    made->bound = node_of(pair).bind(made->plan, ordinals);
    if (plans.size() >= kMostPlans) plans.clear();
    return plans[key] = made;
  }

  void run(const Pair& pair, std::uint64_t bytes, const Params& params,
           const std::vector<cuda::CopyBuffers>& ranks) {
    cuda::OneProcess* node = nullptr;
    std::shared_ptr<const Ready> call;
    {
      const std::lock_guard hold(guard);
      node = &node_of(pair);
      // Before anything is made for a new size, which no capture would outlive.
      node->refuse_capture(std::get<1>(pair), ranks[0].stream);
      node->refuse_capture(std::get<0>(pair), ranks[1].stream);
      call = ready(pair, bytes, params);
    }
    node->run(call->bound, ranks);
  }

  Topology topology;
  std::vector<int> devices;  // by ordinal; -1 = not in the topology
  std::mutex guard;
  std::map<Pair, std::unique_ptr<cuda::OneProcess>> nodes;
  std::map<std::tuple<Pair, std::uint64_t, Params>, std::shared_ptr<const Ready>> plans;
};

Copies::Copies(const std::string& topology, const std::vector<std::string>& masks)
    : state_(std::make_unique<State>()) {
  if (const std::string why = cuda::why_no_cuda(); !why.empty())
    throw Error(ErrorCode::no_device, text("wanted GPUs to copy between; ", why));
  const Env env = read_env();
  const std::string& name = topology.empty() ? env.topology : topology;
  Topology found = name.empty() ? discover() : load_topology(name);
  const std::vector<std::string> left_out = masks.empty() ? split(env.without, ',') : masks;
  if (!left_out.empty()) found = without(found, left_out);
  state_->devices = devices_of_ordinals(found);
  std::vector<std::string> hidden;
  for (const int device : rank_devices(found))
    if (std::find(state_->devices.begin(), state_->devices.end(), device) == state_->devices.end())
      hidden.push_back(text("relay:", device_label(found, device)));
  state_->topology = hidden.empty() ? std::move(found) : without(found, hidden);
}

Copies::~Copies() = default;

const Topology& Copies::topology() const { return state_->topology; }

Plan Copies::plan_for(int dst_gpu, int src_gpu, std::uint64_t bytes, bool both_ways,
                      const Params& params) {
  return state_->plan_for({dst_gpu, src_gpu, both_ways}, bytes, params);
}

void Copies::copy(void* dst, const void* src, std::uint64_t bytes, void* dst_stream,
                  void* src_stream, const Params& params) {
  if (bytes == 0) return;
  const int to = gpu_of("dst", dst), from = gpu_of("src", src);
  auto* const after = static_cast<cuda::Stream>(dst_stream);
  auto* const before = static_cast<cuda::Stream>(src_stream);
  if (to != from)
    return state_->run({to, from, false}, bytes, params,
                       {{src, nullptr, before}, {nullptr, dst, after}});
  check_apart(dst, src, bytes);
  cuda::OneProcess* node = nullptr;
  {
    const std::lock_guard hold(state_->guard);
    node = &state_->node_of({to, from, false});
  }
  node->copy_within(to, dst, src, bytes, after, before);
}

void Copies::exchange(const Side& here, const Side& there, std::uint64_t bytes,
                      const Params& params) {
  if (bytes == 0) return;
  const int a = gpu_of("here", here.output), b = gpu_of("there", there.output);
  if (gpu_of("here", here.input) != a || gpu_of("there", there.input) != b || a == b)
    throw Error(ErrorCode::invalid_argument,
                "wanted both buffers of a side on one GPU and the sides on two, found others");
  check_apart(here.output, here.input, bytes);
  check_apart(there.output, there.input, bytes);
  state_->run({b, a, true}, bytes, params,
              {{here.input, here.output, static_cast<cuda::Stream>(here.stream)},
               {there.input, there.output, static_cast<cuda::Stream>(there.stream)}});
}

}  // namespace plait
