// CUDA driver calls for benchmarks and tests in Python: memory, streams, events and graphs as
// integers. Programs use a framework instead.
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include <vector>

#include "bind.hpp"
#include "driver/cuda/api.hpp"
#include "gpu/device/direct_access.hpp"
#include "gpu/device/gpu_kind.hpp"
#include "plait/error.hpp"

using namespace plait;

namespace {

using Number = std::uintptr_t;

cuda::DevicePointer at(Number address) { return static_cast<cuda::DevicePointer>(address); }

template <class Handle>
Handle handle(Number number) {
  return reinterpret_cast<Handle>(number);
}

template <class Handle>
Number number(Handle given) {
  return reinterpret_cast<Number>(given);
}

/// A GPU's primary context, current during each call.
class GpuDevice {
 public:
  explicit GpuDevice(int ordinal) {
    if (ordinal < 0 || ordinal >= cuda::device_count()) {
      const std::string why = cuda::why_no_cuda();
      throw Error(ErrorCode::no_device, why.empty() ? "wanted a GPU numbered from 0, found " +
                                                          std::to_string(cuda::device_count())
                                                    : "wanted a GPU; " + why);
    }
    PLAIT_CUDA_CALL(device_get, &device_, ordinal);
    PLAIT_CUDA_CALL(primary_retain, &context_, device_);
  }
  ~GpuDevice() {
    if (context_ != nullptr) cuda::api().primary_release(device_);
  }
  GpuDevice(const GpuDevice&) = delete;
  GpuDevice& operator=(const GpuDevice&) = delete;

  /// Makes the context current, for libraries that use the thread's current GPU.
  void make_current() const { PLAIT_CUDA_CALL(context_push, context_); }
  std::string name() const {
    char name[256] = "";
    PLAIT_CUDA_CALL(device_name, name, static_cast<int>(sizeof name), device_);
    return name;
  }
  int multiprocessors() const {
    int count = 0;
    PLAIT_CUDA_CALL(device_attribute, &count, cuda::kAttributeMultiprocessors, device_);
    return count;
  }
  std::pair<std::size_t, std::size_t> memory() const {
    const cuda::Current current(context_);
    std::size_t free_bytes = 0, total_bytes = 0;
    PLAIT_CUDA_CALL(memory_info, &free_bytes, &total_bytes);
    return {free_bytes, total_bytes};
  }
  Number allocate(std::size_t bytes) const {
    const cuda::Current current(context_);
    cuda::DevicePointer pointer = 0;
    PLAIT_CUDA_CALL(memory_alloc, &pointer, bytes);
    return pointer;
  }
  void release(Number pointer) const {
    const cuda::Current current(context_);
    PLAIT_CUDA_CALL(memory_free, at(pointer));
  }
  /// Copies, and synchronises before and after: a copy from pageable memory may return early.
  void copy(Number dst, Number src, std::size_t bytes) const {
    const cuda::Current current(context_);
    PLAIT_CUDA_CALL(context_synchronize);
    if (bytes != 0) PLAIT_CUDA_CALL(memory_copy, at(dst), at(src), bytes);
    PLAIT_CUDA_CALL(context_synchronize);
  }
  void copy_async(Number dst, Number src, std::size_t bytes, Number stream) const {
    const cuda::Current current(context_);
    PLAIT_CUDA_CALL(memory_copy_async, at(dst), at(src), bytes, handle<cuda::Stream>(stream));
  }
  void fill(Number dst, unsigned char value, std::size_t bytes, Number stream) const {
    const cuda::Current current(context_);
    if (bytes != 0)
      PLAIT_CUDA_CALL(memory_set_async, at(dst), value, bytes, handle<cuda::Stream>(stream));
  }
  void pin(Number base, std::size_t bytes) const {
    const cuda::Current current(context_);
    PLAIT_CUDA_CALL(host_register, handle<void*>(base), bytes, cuda::kHostRegisterPortable);
  }
  void unpin(Number base) const {
    const cuda::Current current(context_);
    PLAIT_CUDA_CALL(host_unregister, handle<void*>(base));
  }
  void enable_peer(const GpuDevice& peer) const {
    const cuda::Current current(context_);
    const cuda::Result result = cuda::api().context_enable_peer(peer.context_, 0);
    if (result != cuda::kPeerAccessAlreadyEnabled) cuda::require(result, "cuCtxEnablePeerAccess");
  }
  bool can_reach(const GpuDevice& peer) const {
    int can = 0;
    PLAIT_CUDA_CALL(device_can_access_peer, &can, device_, peer.device_);
    return can != 0;
  }

  Number make_stream() const {
    const cuda::Current current(context_);
    cuda::Stream stream = nullptr;
    PLAIT_CUDA_CALL(stream_create, &stream, cuda::kStreamNonBlocking, 0);
    return number(stream);
  }
  void end_stream(Number stream) const {
    const cuda::Current current(context_);
    PLAIT_CUDA_CALL(stream_destroy, handle<cuda::Stream>(stream));
  }
  void synchronize(Number stream) const {
    const cuda::Current current(context_);
    PLAIT_CUDA_CALL(stream_synchronize, handle<cuda::Stream>(stream));
  }
  bool is_done(Number stream) const {
    const cuda::Current current(context_);
    const cuda::Result result = cuda::api().stream_query(handle<cuda::Stream>(stream));
    if (result != cuda::kNotReady) cuda::require(result, "cuStreamQuery");
    return result == cuda::kSuccess;
  }
  Number make_event() const {
    const cuda::Current current(context_);
    cuda::Event event = nullptr;
    PLAIT_CUDA_CALL(event_create, &event, 0);
    return number(event);
  }
  void end_event(Number event) const {
    const cuda::Current current(context_);
    PLAIT_CUDA_CALL(event_destroy, handle<cuda::Event>(event));
  }
  void record(Number event, Number stream) const {
    const cuda::Current current(context_);
    PLAIT_CUDA_CALL(event_record, handle<cuda::Event>(event), handle<cuda::Stream>(stream));
  }
  void wait_event(Number stream, Number event) const {
    const cuda::Current current(context_);
    PLAIT_CUDA_CALL(stream_wait_event, handle<cuda::Stream>(stream), handle<cuda::Event>(event), 0);
  }
  double elapsed_s(Number begin, Number end) const {
    const cuda::Current current(context_);
    float ms = 0;
    PLAIT_CUDA_CALL(event_synchronize, handle<cuda::Event>(end));
    PLAIT_CUDA_CALL(event_elapsed, &ms, handle<cuda::Event>(begin), handle<cuda::Event>(end));
    return static_cast<double>(ms) / 1e3;
  }

  void begin_capture(Number stream) const {
    const cuda::Current current(context_);
    PLAIT_CUDA_CALL(stream_begin_capture, handle<cuda::Stream>(stream), cuda::kCaptureThreadLocal);
  }
  Number end_capture(Number stream) const {
    const cuda::Current current(context_);
    cuda::Graph graph = nullptr;
    cuda::GraphExec exec = nullptr;
    PLAIT_CUDA_CALL(stream_end_capture, handle<cuda::Stream>(stream), &graph);
    const cuda::Result result = cuda::api().graph_instantiate(&exec, graph, 0);
    cuda::api().graph_destroy(graph);
    cuda::require(result, "cuGraphInstantiateWithFlags");
    PLAIT_CUDA_CALL(graph_upload, exec, handle<cuda::Stream>(stream));
    return number(exec);
  }
  void launch(Number graph, Number stream) const {
    const cuda::Current current(context_);
    PLAIT_CUDA_CALL(graph_launch, handle<cuda::GraphExec>(graph), handle<cuda::Stream>(stream));
  }
  void end_graph(Number graph) const {
    const cuda::Current current(context_);
    PLAIT_CUDA_CALL(graph_exec_destroy, handle<cuda::GraphExec>(graph));
  }

 private:
  cuda::Device device_ = 0;
  cuda::Context context_ = nullptr;
};

int driver_version() {
  int version = 0;
  PLAIT_CUDA_CALL(driver_version, &version);
  return version;
}

/// Returns why two GPUs of this process do not address each other; empty = all do, as far as driver
/// and settings say.
std::string why_no_direct_access() {
  std::vector<std::string> uuids;
  for (int ordinal = 0; ordinal < cuda::device_count(); ++ordinal)
    uuids.push_back(cuda::uuid_of(ordinal));
  for (int rank = 0; rank < static_cast<int>(uuids.size()); ++rank) {
    const std::string why = cuda::why_no_direct_access(
        cuda::direct_access(), rank, uuids, cuda::distance_between, cuda::address_each_other);
    if (!why.empty()) return why;
  }
  return "";
}

/// Returns the address of a contiguous numpy array of any element type. numpy's own attributes take
/// microseconds; they serve stable ABIs before 3.11, without buffer protocol.
std::uintptr_t numpy_address(nb::handle array) {
#if defined(Py_LIMITED_API) && Py_LIMITED_API < 0x030b0000
  return nb::cast<std::uintptr_t>(array.attr("__array_interface__")["data"][0]);
#else
  Py_buffer view;
  if (PyObject_GetBuffer(array.ptr(), &view, PyBUF_SIMPLE) != 0) throw nb::python_error();
  const std::uintptr_t address = number(view.buf);
  PyBuffer_Release(&view);
  return address;
#endif
}

/// Returns (device type, ordinal, address, shape, strides in elements, type code, bits, lanes,
/// export) of a DLPack object. export: keeps the exported memory, which may be a copy.
template <class Array>
nb::tuple dlpack_view(const Array& array) {
  nb::list shape, strides;
  for (std::size_t i = 0; i < array.ndim(); ++i) {
    shape.append(array.shape(i));
    strides.append(array.stride(i));
  }
  const nb::dlpack::dtype type = array.dtype();
  const nb::capsule exported(new Array(array),
                             [](void* one) noexcept { delete static_cast<Array*>(one); });
  return nb::make_tuple(array.device_type(), array.device_id(), number(array.data()),
                        nb::tuple(shape), nb::tuple(strides), type.code, type.bits, type.lanes,
                        exported);
}

}  // namespace

void bind_gpu(nb::module_& module) {
  module.def("gpu_count", &cuda::device_count, "Number of GPUs; 0 without a driver.");
  module.def("why_no_gpu", &cuda::why_no_cuda, "Why there is no GPU; empty = there is one.");
  module.def(
      "gpu_kind", [](int ordinal) { return cuda::gpu_kind(ordinal); }, nb::arg("ordinal"),
      "Kind of a GPU, for which measurements hold: model, multiprocessors and NVLinks.");
  module.def("why_no_direct_access", &why_no_direct_access,
             "Why two of the GPUs, a rank each, do not address each other; empty = all do.");
  module.def("cuda_driver_version", &driver_version, "CUDA version of the driver: 13000 = 13.0.");
  module.def("numpy_address", &numpy_address, nb::arg("array"),
             "Address of a contiguous numpy array's memory.");
  module.def("dlpack_view", &dlpack_view<nb::ndarray<nb::ro>>, nb::arg("array"),
             "(device type, ordinal, address, shape, strides, type code, bits, lanes, export).");
  module.def("writable_dlpack_view", &dlpack_view<nb::ndarray<>>, nb::arg("array"),
             "As dlpack_view; raises TypeError for a read-only array.");
  using release = nb::call_guard<nb::gil_scoped_release>;
  nb::class_<GpuDevice>(module, "Gpu", "One GPU; memory, streams, events and graphs are integers.")
      .def(nb::init<int>(), nb::arg("ordinal"))
      .def("make_current", &GpuDevice::make_current, "This thread's GPU from now on.")
      .def_prop_ro("name", &GpuDevice::name)
      .def_prop_ro("multiprocessors", &GpuDevice::multiprocessors)
      .def("memory", &GpuDevice::memory, "(free, total) bytes.")
      .def("allocate", &GpuDevice::allocate, nb::arg("bytes"), release())
      .def("release", &GpuDevice::release, nb::arg("pointer"), release())
      .def("copy", &GpuDevice::copy, nb::arg("dst"), nb::arg("src"), nb::arg("bytes"), release())
      .def("copy_async", &GpuDevice::copy_async, nb::arg("dst"), nb::arg("src"), nb::arg("bytes"),
           nb::arg("stream"))
      .def("fill", &GpuDevice::fill, nb::arg("dst"), nb::arg("value"), nb::arg("bytes"),
           nb::arg("stream"))
      .def("pin", &GpuDevice::pin, nb::arg("base"), nb::arg("bytes"), release())
      .def("unpin", &GpuDevice::unpin, nb::arg("base"), release())
      .def("enable_peer", &GpuDevice::enable_peer, nb::arg("peer"))
      .def("can_reach", &GpuDevice::can_reach, nb::arg("peer"))
      .def("make_stream", &GpuDevice::make_stream)
      .def("end_stream", &GpuDevice::end_stream, nb::arg("stream"))
      .def("synchronize", &GpuDevice::synchronize, nb::arg("stream"), release())
      .def("is_done", &GpuDevice::is_done, nb::arg("stream"))
      .def("make_event", &GpuDevice::make_event)
      .def("end_event", &GpuDevice::end_event, nb::arg("event"))
      .def("record", &GpuDevice::record, nb::arg("event"), nb::arg("stream"))
      .def("wait_event", &GpuDevice::wait_event, nb::arg("stream"), nb::arg("event"))
      .def("elapsed_s", &GpuDevice::elapsed_s, nb::arg("begin"), nb::arg("end"), release())
      .def("begin_capture", &GpuDevice::begin_capture, nb::arg("stream"))
      .def("end_capture", &GpuDevice::end_capture, nb::arg("stream"))
      .def("launch", &GpuDevice::launch, nb::arg("graph"), nb::arg("stream"))
      .def("end_graph", &GpuDevice::end_graph, nb::arg("graph"));
}
