// all_reduce_rms_norm for Python: takes addresses, and releases the GIL while ranks wait for each
// other.
#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>

#include "bind.hpp"
#include "plait/communicator.hpp"
#include "plait/error.hpp"

using namespace plait;

namespace {

RmsNormBuffers buffers_at(std::uintptr_t input, std::uintptr_t residual, std::uintptr_t weight,
                          std::uintptr_t output, std::uintptr_t scale) {
  return {reinterpret_cast<const void*>(input), reinterpret_cast<void*>(residual),
          reinterpret_cast<const void*>(weight), reinterpret_cast<void*>(output),
          reinterpret_cast<const float*>(scale)};
}

CallOptions call_options(const std::string& strategy,
                         const std::map<std::string, std::int64_t>& params) {
  CallOptions options;
  options.strategy = strategy;
  options.params = params;
  return options;
}

}  // namespace

void bind_rms_norm(nb::module_& module, nb::class_<Communicator>& type) {
  module.attr("MOST_HIDDEN") = kMostHidden;
  nb::class_<RmsNorm>(module, "RmsNorm", "A call of all_reduce_rms_norm, equal on all ranks.")
      .def(
          "__init__",
          [](RmsNorm* self, std::uint64_t rows, std::uint64_t hidden, const std::string& type_name,
             const std::string& output, double epsilon) {
            new (self) RmsNorm{rows, hidden, parse_type(type_name), parse_type(output),
                               static_cast<float>(epsilon)};
          },
          nb::arg("rows"), nb::arg("hidden"), nb::arg("type"), nb::arg("output"),
          nb::arg("epsilon"));
  type.def(
          "all_reduce_rms_norm",
          [](Communicator& comm, const RmsNorm& norm, std::uintptr_t input, std::uintptr_t residual,
             std::uintptr_t weight, std::uintptr_t output, std::uintptr_t scale,
             const std::string& strategy, const std::map<std::string, std::int64_t>& params) {
            nb::gil_scoped_release unlocked;
            comm.all_reduce_rms_norm(norm, buffers_at(input, residual, weight, output, scale),
                                     call_options(strategy, params));
          },
          nb::arg("norm"), nb::arg("input"), nb::arg("residual"), nb::arg("weight"),
          nb::arg("output"), nb::arg("scale") = 0, nb::arg("strategy") = "",
          nb::arg("params") = std::map<std::string, std::int64_t>{})
      .def(
          "enqueue_all_reduce_rms_norm",
          [](Communicator& comm, const RmsNorm& norm, std::uintptr_t input, std::uintptr_t residual,
             std::uintptr_t weight, std::uintptr_t output, std::uintptr_t scale,
             std::uintptr_t stream, const std::string& strategy,
             const std::map<std::string, std::int64_t>& params) {
            nb::gil_scoped_release unlocked;
            comm.enqueue_all_reduce_rms_norm(
                norm, buffers_at(input, residual, weight, output, scale),
                reinterpret_cast<void*>(stream), call_options(strategy, params));
          },
          nb::arg("norm"), nb::arg("input"), nb::arg("residual"), nb::arg("weight"),
          nb::arg("output"), nb::arg("scale") = 0, nb::arg("stream") = 0, nb::arg("strategy") = "",
          nb::arg("params") = std::map<std::string, std::int64_t>{});
}
