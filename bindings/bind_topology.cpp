// Topology and its parts, discovery, loading, masks, and named paths.
#include <nanobind/operators.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include "bind.hpp"
#include "plait/topology.hpp"
#include "topo/parameters.hpp"
#include "topo/shipped.hpp"

using namespace plait;

namespace {

void bind_parts(nb::module_& module) {
  nb::class_<Device>(module, "Device", "One memory and the processor that works on it.")
      .def_prop_ro("kind", [](const Device& device) { return name_of(device.kind); })
      .def_ro("index", &Device::index)
      .def_ro("node", &Device::node)
      .def_ro("numa", &Device::numa)
      .def_ro("model", &Device::model)
      .def_ro("address", &Device::address)
      .def_ro("uuid", &Device::uuid)
      .def_ro("rail", &Device::rail)
      .def_ro("affinity", &Device::affinity);
  nb::class_<Resource>(module, "Resource", "A capacity that several links draw on.")
      .def_ro("name", &Resource::name)
      .def_rw("gb_per_s", &Resource::gb_per_s);
  nb::class_<Link>(module, "Link", "One directed hop between two devices.")
      .def_prop_ro("kind", [](const Link& link) { return name_of(link.kind); })
      .def_ro("src", &Link::src)
      .def_ro("dst", &Link::dst)
      .def_ro("width", &Link::width)
      .def_rw("gb_per_s", &Link::gb_per_s)
      .def_rw("latency_ns", &Link::latency_ns)
      .def_ro("resources", &Link::resources);
  nb::class_<Parameter>(module, "Parameter", "A number of the machine, with its source.")
      .def(nb::init<>())
      .def_rw("value", &Parameter::value)
      .def_rw("source", &Parameter::source);
  nb::class_<Path>(module, "Path", "A named route between two devices.")
      .def_prop_ro("kind", [](const Path& path) { return name_of(path.kind); })
      .def_ro("devices", &Path::devices)
      .def_ro("links", &Path::links)
      .def_ro("name", &Path::name)
      .def("__repr__", [](const Path& path) { return path.name; });
}

}  // namespace

void bind_topology(nb::module_& module) {
  bind_parts(module);
  nb::class_<Topology>(module, "Topology", "A machine: devices, directed links, shared resources.")
      .def_rw("name", &Topology::name)
      .def_rw("source", &Topology::source)
      .def_prop_ro("devices", [](const Topology& topology) { return topology.devices; })
      .def_prop_rw(
          "resources", [](const Topology& topology) { return topology.resources; },
          [](Topology& topology, std::vector<Resource> value) {
            topology.resources = std::move(value);
          })
      .def_prop_rw(
          "links", [](const Topology& topology) { return topology.links; },
          [](Topology& topology, std::vector<Link> value) { topology.links = std::move(value); })
      .def_prop_rw(
          "parameters", [](const Topology& topology) { return topology.parameters; },
          [](Topology& topology, std::map<std::string, Parameter> value) {
            topology.parameters = std::move(value);
          })
      .def(nb::self == nb::self)
      .def("rank_devices", &rank_devices, "Devices that ranks run on: GPUs, else CPUs.")
      .def("device_label", &device_label, nb::arg("device"))
      .def("find_link", &find_link, nb::arg("src_device"), nb::arg("dst_device"))
      .def("paths_between", &paths_between, nb::arg("src_device"), nb::arg("dst_device"),
           "All paths of a pair, direct first.")
      .def("path", &find_path, nb::arg("name"))
      .def("path_gb_per_s", &path_gb_per_s, nb::arg("path"))
      .def("path_latency_ns", &path_latency_ns, nb::arg("path"))
      .def("parameter", nb::overload_cast<const Topology&, std::string_view, double>(&parameter),
           nb::arg("key"), nb::arg("otherwise"))
      .def("without", &without, nb::arg("masks"), "The topology less some links, as `--without`.")
      .def("fingerprint", &fingerprint)
      .def("problems", &problems)
      .def("to_json", [](const Topology& topology) { return to_json(topology); })
      .def_static("from_json", &topology_from_json, nb::arg("json"))
      .def("__str__", [](const Topology& topology) { return print(topology); })
      .def("__repr__",
           [](const Topology& topology) { return "<plait.Topology " + topology.name + ">"; });
  module.def("discover", &discover, nb::call_guard<nb::gil_scoped_release>(),
             "The machine plait runs on; without GPUs its CPU cores.");
  module.def("load_topology", &load_topology, nb::arg("name_or_file"),
             "A shipped topology by name, a JSON file by path, or \"local-cpu\".");
  module.def("shipped_topologies", &shipped_topologies);
  module.def(
      "shipped_topology_text",
      [](const std::string& name) {
        for (const ShippedFile& file : shipped_files())
          if (name == file.name) return std::string(file.begin, file.end);
        return std::string();
      },
      nb::arg("name"), "The file of a shipped topology; empty if no file has that name.");
  module.def(
      "topology_parameters",
      [] {
        nb::list kinds;
        for (const ParameterKind& kind : parameter_kinds()) {
          const std::string words = kind.fallback;
          kinds.append(
              nb::make_tuple(kind.key, words.empty() ? nb::cast(kind.otherwise) : nb::cast(words)));
        }
        return kinds;
      },
      nb::sig("def topology_parameters() -> list[tuple[str, float | str]]"),
      "Parameters of a topology other than speeds: (name, default).");
  module.def("local_cpu", &local_cpu, nb::arg("ranks"));
}
