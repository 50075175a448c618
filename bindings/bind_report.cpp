// verify() and Report, and the proofs of engines.
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include "bind.hpp"
#include "comm/choose/prove_engines.hpp"
#include "plait/report.hpp"

using namespace plait;

namespace {

const std::vector<cuda::EngineCase>& cases() {
  static const std::vector<cuda::EngineCase> all = cuda::engine_cases();
  return all;
}

void bind_engine_proofs(nb::module_& module) {
  nb::class_<EngineProof>(module, "EngineProof", "What became of a case; no findings = proved.")
      .def_ro("engine", &EngineProof::engine)
      .def_ro("label", &EngineProof::label)
      .def_ro("refusal", &EngineProof::refusal)
      .def_prop_ro("findings", [](const EngineProof& proof) { return proof.findings; })
      .def_ro("ops", &EngineProof::ops);
  module.def("engine_case_count", [] { return cases().size(); });
  module.def(
      "prove_engine_case", [](std::size_t number) { return prove(cases().at(number)); },
      nb::arg("number"), nb::call_guard<nb::gil_scoped_release>(),
      "Makes the plans of one case of engines' calls and proves them.");
}

}  // namespace

void bind_report(nb::module_& module) {
  nb::class_<Finding>(module, "Finding", "One broken rule: rule, place, sentence.")
      .def_ro("rule", &Finding::rule)
      .def_ro("rank", &Finding::rank)
      .def_ro("lane", &Finding::lane)
      .def_ro("op", &Finding::op)
      .def_ro("path", &Finding::path)
      .def_ro("sentence", &Finding::sentence)
      .def("__str__", [](const Finding& finding) { return print(finding); })
      .def("__repr__",
           [](const Finding& finding) { return "<plait.Finding " + print(finding) + ">"; });
  nb::class_<Report>(module, "Report", "What a proof found; empty findings = proved.")
      .def_ro("plan", &Report::plan)
      .def_prop_ro("findings", [](const Report& report) { return report.findings; })
      .def_ro("orders", &Report::orders)
      .def_ro("ops", &Report::ops)
      .def_prop_ro("proved", &Report::proved)
      .def("to_json", [](const Report& report) { return to_json(report); })
      .def_static("from_json", &report_from_json, nb::arg("json"))
      .def("__str__", [](const Report& report) { return print(report); });
  module.def(
      "verify", [](const Plan& plan) { return verify(plan); }, nb::arg("plan"),
      nb::call_guard<nb::gil_scoped_release>(), "Proves the plan or says all that is wrong.");
  bind_engine_proofs(module);
}
