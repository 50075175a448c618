// Copies between GPUs of this process, and a memory load on a GPU to measure alongside copies.
#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bind.hpp"
#include "gpu/device/kernels.hpp"
#include "plait/copies.hpp"

using namespace plait;

namespace {

using Number = std::uintptr_t;

template <class Pointer = void*>
Pointer at(Number address) {
  return reinterpret_cast<Pointer>(address);
}

/// a := b + 3 c over arrays of a GPU, as in STREAM: emulates a memory-bound kernel.
class Triad {
 public:
  Triad(int ordinal, std::uint64_t bytes) : bytes_(bytes / 16 * 16) {
    PLAIT_CUDA_CALL(device_get, &device_, ordinal);
    PLAIT_CUDA_CALL(primary_retain, &context_, device_);
    const cuda::Current current(context_);
    PLAIT_CUDA_CALL(device_attribute, &multiprocessors_, cuda::kAttributeMultiprocessors, device_);
    kernels_ = std::make_unique<cuda::Kernels>();
    for (cuda::DevicePointer& array : arrays_)
      PLAIT_CUDA_CALL(memory_alloc, &array, static_cast<std::size_t>(bytes_));
  }
  ~Triad() {
    if (cuda::api().context_push(context_) != cuda::kSuccess) return;
    kernels_.reset();
    for (const cuda::DevicePointer array : arrays_) cuda::api().memory_free(array);
    cuda::Context popped = nullptr;
    cuda::api().context_pop(&popped);
    cuda::api().primary_release(device_);
  }
  Triad(const Triad&) = delete;
  Triad& operator=(const Triad&) = delete;

  void enqueue(int rounds, Number stream) {
    const cuda::Current current(context_);
    unsigned long long count = bytes_ / 16;
    kernels_->launch(kernels_->find("plait_stream_triad"),
                     {static_cast<unsigned>(2 * multiprocessors_), 512, false},
                     at<cuda::Stream>(stream),
                     {&arrays_[0], &arrays_[1], &arrays_[2], &count, &rounds});
  }
  std::uint64_t bytes_per_round() const { return 3 * bytes_; }

 private:
  std::uint64_t bytes_;
  cuda::Device device_ = 0;
  cuda::Context context_ = nullptr;
  int multiprocessors_ = 0;
  std::unique_ptr<cuda::Kernels> kernels_;
  cuda::DevicePointer arrays_[3] = {};
};

}  // namespace

void bind_copies(nb::module_& module) {
  using release = nb::call_guard<nb::gil_scoped_release>;
  nb::class_<Copies>(module, "Copies", "Copies between this process's GPUs over every path.")
      .def(nb::init<const std::string&, const std::vector<std::string>&>(),
           nb::arg("topology") = std::string(), nb::arg("masks") = std::vector<std::string>{},
           release())
      .def_prop_ro("topology", &Copies::topology)
      .def(
          "copy",
          [](Copies& copies, Number dst, Number src, std::uint64_t bytes, Number dst_stream,
             Number src_stream, const Copies::Params& params) {
            copies.copy(at(dst), at(src), bytes, at(dst_stream), at(src_stream), params);
          },
          nb::arg("dst"), nb::arg("src"), nb::arg("bytes"), nb::arg("dst_stream"),
          nb::arg("src_stream"), nb::arg("params") = Copies::Params{}, release())
      .def(
          "exchange",
          [](Copies& copies, const std::vector<Number>& here, const std::vector<Number>& there,
             std::uint64_t bytes, const Copies::Params& params) {
            const auto side = [](const std::vector<Number>& three) {
              return Copies::ExchangeSide{at(three.at(0)), at(three.at(1)), at(three.at(2))};
            };
            copies.exchange(side(here), side(there), bytes, params);
          },
          nb::arg("here"), nb::arg("there"), nb::arg("bytes"), nb::arg("params") = Copies::Params{},
          release(), "Both ways at once; each side is [output, input, stream].")
      .def("plan_for", &Copies::plan_for, nb::arg("dst_gpu"), nb::arg("src_gpu"), nb::arg("bytes"),
           nb::arg("both_ways") = false, nb::arg("params") = Copies::Params{}, release());
  nb::class_<Triad>(module, "Triad", "A STREAM-like load on one GPU's memory.")
      .def(nb::init<int, std::uint64_t>(), nb::arg("ordinal"), nb::arg("bytes"), release())
      .def("enqueue", &Triad::enqueue, nb::arg("rounds"), nb::arg("stream"))
      .def_prop_ro("bytes_per_round", &Triad::bytes_per_round);
}
