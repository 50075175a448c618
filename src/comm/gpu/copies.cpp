// plait.copy: finds the GPUs of two pointers and the topology, and checks the copy. PairCopies has
// the plans and streams.
#include "plait/copies.hpp"

#include "base/env.hpp"
#include "base/text.hpp"
#include "comm/choose/reach.hpp"
#include "comm/gpu/pair_copies.hpp"
#include "plait/error.hpp"

namespace plait {
namespace {

/// Returns the topology's device for each CUDA ordinal.
std::vector<int> devices_of_ordinals(const Topology& topology) {
  std::vector<int> devices;
  for (int ordinal = 0; ordinal < cuda::device_count(); ++ordinal)
    devices.push_back(device_of_gpu(topology, cuda::uuid_of(ordinal), ordinal));
  return devices;
}

/// Returns the location of memory, queried in the current context, or in GPU 0's if this thread has
/// none.
cuda::PointerLocation place_of(const void* pointer) {
  cuda::Device device = 0;
  cuda::Context context = nullptr;
  if (cuda::api().context_device(&device) == cuda::kSuccess) return cuda::place_of(pointer);
  PLAIT_CUDA_CALL(device_get, &device, 0);
  PLAIT_CUDA_CALL(primary_retain, &context, device);  // kept: later copies will need it
  const cuda::Current current(context);
  return cuda::place_of(pointer);
}

int gpu_of(const char* name, const void* pointer) {
  const cuda::PointerLocation place =
      pointer == nullptr ? cuda::PointerLocation{} : place_of(pointer);
  if (place.memory != cuda::kMemoryOnDevice || place.ordinal < 0)
    throw Error(ErrorCode::invalid_argument,
                text("{}: wanted memory of a GPU, found {}", name,
                     pointer == nullptr ? "a null pointer" : "host memory; copy it there first"));
  return place.ordinal;
}

void check_apart(const void* dst, const void* src, std::uint64_t bytes) {
  const auto to = reinterpret_cast<std::uintptr_t>(dst),
             from = reinterpret_cast<std::uintptr_t>(src);
  if (to < from + bytes && from < to + bytes)
    throw Error(ErrorCode::invalid_argument,
                text("wanted dst and src apart, found them overlap by {} of {} bytes",
                     bytes - (to > from ? to - from : from - to), bytes));
}

}  // namespace

struct Copies::State : PairCopies {
  using PairCopies::PairCopies;
};

Copies::Copies(const std::string& topology, const std::vector<std::string>& masks) {
  if (const std::string why = cuda::why_no_cuda(); !why.empty())
    throw Error(ErrorCode::no_device, text("wanted GPUs to copy between; {}", why));
  const Env env = read_env();
  const std::string& name = topology.empty() ? env.topology : topology;
  Topology found = name.empty() ? discover() : load_topology(name);
  const std::vector<std::string> left_out = requested_masks(masks, env);
  if (!left_out.empty()) found = without(found, left_out);
  std::vector<int> devices = devices_of_ordinals(found);
  found = without_others(found, devices);
  state_ = std::make_unique<State>(std::move(found), std::move(devices));
}

Copies::~Copies() = default;

const Topology& Copies::topology() const { return state_->topology(); }

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
  state_->node_of({to, from, false}).copy_within(to, dst, src, bytes, after, before);
}

void Copies::exchange(const ExchangeSide& here, const ExchangeSide& there, std::uint64_t bytes,
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
