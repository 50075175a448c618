// simulate() and Timeline, as numbers, text and a Perfetto trace.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "base/text.hpp"
#include "bind.hpp"
#include "plait/timeline.hpp"

using namespace plait;

void bind_timeline(nb::module_& module) {
  nb::class_<Span>(module, "Span", "When one op ran.")
      .def_ro("lane", &Span::lane)
      .def_ro("op", &Span::op)
      .def_ro("start_ns", &Span::start_ns)
      .def_ro("end_ns", &Span::end_ns);
  nb::class_<ResourceLoad>(module, "ResourceLoad",
                           "Bytes over one resource and the least time they take.")
      .def_ro("name", &ResourceLoad::name)
      .def_ro("bytes", &ResourceLoad::bytes)
      .def_ro("busy_ns", &ResourceLoad::busy_ns)
      .def_prop_ro(
          "rates",
          [](const ResourceLoad& load) {
            std::vector<std::pair<double, double>> rates;
            for (const Rate& rate : load.rates) rates.emplace_back(rate.at_ns, rate.gb_per_s);
            return rates;
          },
          "(at_ns, GB/s): load of the resource from this time on.");
  nb::class_<Timeline>(module, "Timeline", "Times of a simulated plan's ops.")
      .def_ro("plan", &Timeline::plan)
      .def_ro("topology", &Timeline::topology)
      .def_ro("total_ns", &Timeline::total_ns)
      .def_prop_ro("spans", [](const Timeline& timeline) { return timeline.spans; })
      .def_prop_ro("resources", [](const Timeline& timeline) { return timeline.resources; })
      .def_ro("bound_by", &Timeline::bound_by)
      .def_ro("lower_bound_ns", &Timeline::lower_bound_ns)
      .def_ro("algbw_gb_per_s", &Timeline::algbw_gb_per_s)
      .def_ro("busbw_gb_per_s", &Timeline::busbw_gb_per_s)
      .def("to_json", [](const Timeline& timeline) { return to_json(timeline); })
      .def("to_trace_json", &to_trace_json, nb::arg("plan"), "Chrome/Perfetto trace.")
      .def("__str__", [](const Timeline& timeline) { return print(timeline); })
      .def("__repr__", [](const Timeline& timeline) {
        return text("<plait.Timeline {} on {}: {} us, bound by {}>", timeline.plan,
                    timeline.topology, timeline.total_ns / 1e3, timeline.bound_by);
      });
  module.def(
      "simulate",
      [](const Plan& plan, const Topology& topology) { return simulate(plan, topology); },
      nb::arg("plan"), nb::arg("topology"), nb::call_guard<nb::gil_scoped_release>(),
      "The times of a plan, which need not be proved: verify() says whether a plan is right.");
  module.def(
      "simulate_together",
      [](const std::vector<Plan>& plans, const Topology& topology,
         const std::vector<double>& starts_ns, bool one_thread) {
        std::vector<Job> jobs;
        for (std::size_t i = 0; i < plans.size(); ++i)
          jobs.push_back({plans[i], i < starts_ns.size() ? starts_ns[i] : 0.0});
        return simulate(jobs, topology, SimulateOptions{one_thread});
      },
      nb::arg("plans"), nb::arg("topology"), nb::arg("starts_ns") = std::vector<double>{},
      nb::arg("one_thread") = false, nb::call_guard<nb::gil_scoped_release>(),
      "Plans that share the machine, one Timeline each; one_thread: one host thread enqueues all.");
  module.def(
      "predicted_ns",
      [](const Plan& plan, const Topology& topology, bool eager) {
        return predicted_ns(plan, topology, eager ? Launch::eager : Launch::graph);
      },
      nb::arg("plan"), nb::arg("topology"), nb::arg("eager") = false,
      nb::call_guard<nb::gil_scoped_release>(),
      "What a call takes among others like it: replayed from a CUDA graph, or launched each.");
  module.def("lower_bound_ns", &lower_bound_ns, nb::arg("request"), nb::arg("topology"),
             nb::call_guard<nb::gil_scoped_release>(), "A time that no plan can beat.");
}
