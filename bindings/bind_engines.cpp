// Engines on GPUs: their list, parameters, refusals, and the choice for a request.
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bind.hpp"
#include "comm/choose/mpi_sizes.hpp"
#include "comm/choose/what_runs.hpp"
#include "comm/multinode/under_nccl.hpp"
#include "gpu/lanes/plan_memory.hpp"
#include "plan/former_names.hpp"
#include "plan/sum_order.hpp"

namespace nb = nanobind;
using namespace plait;

namespace {

std::vector<StrategyInfo> engine_infos() {
  std::vector<StrategyInfo> infos;
  for (const cuda::Engine* const engine : cuda::engines()) infos.push_back(engine->info());
  return infos;
}

std::vector<std::pair<std::string, std::string>> refusals(const Request& request,
                                                          const std::optional<Topology>& topology) {
  std::vector<std::pair<std::string, std::string>> found;
  const cuda::Group group = topology ? described_group(*topology, request, memory_of(read_env()))
                                     : cuda::usual_group(request.ranks);
  const std::string masked = topology ? why_masked(*topology, checked(request, *topology)) : "";
  for (const cuda::Engine* const engine : cuda::engines()) {
    std::string why = why_not(*engine, request, {}, group);
    if (why.empty()) why = masked;
    if (!why.empty()) found.emplace_back(engine->info().name, std::move(why));
  }
  return found;
}

/// Returns the plan that ranks on H200 GPUs would run.
Plan engine_plan(const Topology& topology, const Request& request, const std::string& name,
                 const std::map<std::string, std::int64_t>& params, bool overlap_compute,
                 std::uint64_t memory, unsigned sm_budget) {
  const Request placed = checked(request, topology);
  const cuda::Group group = cuda::usual_group(request.ranks, overlap_compute, memory, sm_budget);
  const cuda::Selector selector(group, {}, true);
  const cuda::EngineChoice choice = selector.best(request, {name, params}).value();
  return cuda::plan_of(*choice.engine, topology, placed, choice.tuning, group);
}

std::optional<std::uint64_t> served(const MinBytes& least, const std::string& name) {
  const std::uint64_t bytes = least[static_cast<std::size_t>(parse_collective(name))];
  return bytes == kNever ? std::nullopt : std::optional(bytes);
}

std::unique_ptr<GpuPlans> described_with_memory(const Topology& topology, const Request& request) {
  return described_plans(topology, request, false, SumOrder::rank_order, memory_of(read_env()));
}

void bind_choices(nb::module_& module) {
  module.def(
      "taken_by_calls",
      [](const Topology& topology, const Request& request) {
        const Env env = read_env();
        return taken_by_calls(topology, request, env.bitwise, demanded_order(env), memory_of(env));
      },
      nb::arg("topology"), nb::arg("request"), nb::call_guard<nb::gil_scoped_release>(),
      "The plan by lanes of a call without a strategy, as PLAIT_BITWISE and PLAIT_SUM_ORDER have "
      "it; raises UnsupportedError without one.");
  module.def(
      "taken_by_cpu_ranks",
      [](const Topology& topology, const Request& request) {
        const Env env = read_env();
        return taken_by_cpu_ranks(topology, request, env.bitwise, demanded_order(env));
      },
      nb::arg("topology"), nb::arg("request"), nb::call_guard<nb::gil_scoped_release>(),
      "The same of CPU ranks that play the topology's machine.");
  module.def(
      "for_calls",
      [](const Topology& topology, const Request& request) {
        const auto plans = described_with_memory(topology, request);
        return plans == nullptr ? topology : plans->topology();
      },
      nb::arg("topology"), nb::arg("request"),
      "The topology as plans of calls have it: on GPUs of one node with the memory of the ranks' "
      "arenas, and without relays by GPUs outside the job. Proposals for it are plans that calls "
      "can run; links keep their places.");
  module.def(
      "why_no_call",
      [](const Topology& topology, const Plan& plan) -> std::string {
        const auto plans = described_with_memory(topology, plan.request);
        return plans == nullptr ? "" : plans->why_not(plan);
      },
      nb::arg("topology"), nb::arg("plan"),
      "Why calls on the topology's GPUs refuse a plan, with the memory that the plan wants; empty "
      "= they run the plan, or the ranks are on CPUs or on several nodes.");
  module.def(
      "goes_through_host",
      [](const Topology& topology, const Request& request) {
        return go_through_host(topology, checked(request, topology));
      },
      nb::arg("topology"), nb::arg("request"),
      "True if the ranks' GPUs do not all address each other, and go through host memory.");
  module.def(
      "why_library_runs",
      [](const Topology& topology, const Request& request) {
        return why_library_runs(topology, request, read_env().bitwise);
      },
      nb::arg("topology"), nb::arg("request"),
      "Why NCCL alone does a call between GPUs of several nodes; '' if plait takes part.");
}

void bind_entry_points(nb::module_& module) {
  nb::class_<MpiSizes>(module, "MpiSizes", "Smallest messages that the drop-in under MPI serves.")
      .def(
          "on_host",
          [](const MpiSizes& of, const std::string& name) { return served(of.on_host, name); },
          nb::arg("collective"), "In host memory, in a node; None = none is served.")
      .def(
          "on_gpus",
          [](const MpiSizes& of, const std::string& name) { return served(of.on_gpus, name); },
          nb::arg("collective"), "In GPU memory, in a node.")
      .def(
          "multinode",
          [](const MpiSizes& of, const std::string& name) { return served(of.multinode, name); },
          nb::arg("collective"), "In host memory, over several nodes.");
  module.def(
      "mpi_sizes",
      [](bool with_host) {
        Env env = read_env();
        env.mpi_host |= with_host;
        return mpi_sizes(env);
      },
      nb::arg("with_host") = false,
      "As this environment has it; with_host: as if PLAIT_MPI_HOST were 1.");
  nb::class_<UnderNccl>(module, "UnderNccl", "What serves a call of a program under NCCL.")
      .def_ro("engine", &UnderNccl::engine, "WhatRuns of plait's engine, or None.")
      .def_ro("other", &UnderNccl::other, "What else of plait serves the call; '' = nothing.")
      .def_ro("why", &UnderNccl::why, "Why NCCL serves the call; '' = plait serves the call.")
      .def_ro("is_error", &UnderNccl::is_error, "True if PLAIT_BITWISE_STRICT=1 refuses the call.");
  module.def(
      "under_nccl",
      [](const Topology& topology, const Request& request, const std::string& table) {
        return under_nccl(topology, request, read_env(), cuda::TuningTable(table));
      },
      nb::arg("topology"), nb::arg("request"), nb::arg("table") = "",
      nb::call_guard<nb::gil_scoped_release>(),
      "What serves the call under NCCL with this environment; table: the one beside NCCL.");
  module.def(
      "tuning_file_beside_nccl",
      [](const Topology& topology, const Request& request, const std::string& nccl) {
        return tuning_file_beside_nccl(topology, request, read_env(), nccl);
      },
      nb::arg("topology"), nb::arg("request"), nb::arg("nccl"),
      "Path of the tuning table that the drop-in reads beside an NCCL of this version; '' = none.");
}

}  // namespace

void bind_engines(nb::module_& module) {
  nb::class_<cuda::Param>(module, "EngineParam", "A row of params.def: a whole number, 0 to most.")
      .def_ro("name", &cuda::Param::name)
      .def_ro("unset", &cuda::Param::unset, "chosen by size")
      .def_ro("most", &cuda::Param::most)
      .def_ro("grain", &cuda::Param::grain, "values are its multiples")
      .def_prop_ro("engines", &cuda::engines_of, "names of those that take it")
      .def_ro("meaning", &cuda::Param::meaning);
  nb::class_<cuda::EngineChoice>(module, "Choice",
                                 "The engine of a call, and the source of the choice.")
      .def_prop_ro("engine",
                   [](const cuda::EngineChoice& choice) { return choice.engine->info().name; })
      .def_prop_ro("params",
                   [](const cuda::EngineChoice& choice) { return cuda::params_of(choice.tuning); })
      .def_prop_ro("by", [](const cuda::EngineChoice& choice) { return cuda::name_of(choice.by); })
      .def_ro("beats_nccl", &cuda::EngineChoice::beats_nccl, "None if unknown.");
  bind_choices(module);
  module.def("former_names", &former_names,
             "Names of engines up to version 0.1, and the names of today.");
  module.def("engines", &engine_infos, "The engines of calls on GPUs, as StrategyInfo.");
  module.def("engine_params", &cuda::params, "The parameters that engines take.");
  module.def(
      "engine_plan", &engine_plan, nb::arg("topology"), nb::arg("request"), nb::arg("engine"),
      nb::arg("params") = std::map<std::string, std::int64_t>{}, nb::arg("overlap_compute") = false,
      nb::arg("memory") = 0, nb::arg("sm_budget") = 0, nb::call_guard<nb::gil_scoped_release>(),
      "Plan of an engine's call on all ranks, as on H200 GPUs with this device memory; no lanes "
      "if the engine states none.");
  nb::class_<WhatRuns>(module, "WhatRuns", "Engine or plan of a request on GPUs.")
      .def_ro("choice", &WhatRuns::choice)
      .def_ro("plan", &WhatRuns::plan)
      .def_ro("predicted_us", &WhatRuns::predicted_us)
      .def_ro("proof", &WhatRuns::proof, "Of a call, and of two in a row.")
      .def_ro(
          "otherwise", &WhatRuns::otherwise,
          "The Choice of the same call launched the other way (eagerly if this one is captured, "
          "captured if it is eager), if it differs; else None.");
  module.def(
      "what_would_run",
      [](const Topology& topology, const Request& request, const std::string& engine,
         const std::map<std::string, std::int64_t>& params, bool eager, const std::string& table,
         std::uint64_t memory, int pair_of) {
        const Env env = read_env();
        return what_would_run(topology, request, {engine, params},
                              eager ? Launch::eager : Launch::graph, cuda::TuningTable(table),
                              memory != 0 ? DescribedMemory{.bytes = memory} : memory_of(env),
                              pair_of, demanded_order(env));
      },
      nb::arg("topology"), nb::arg("request"), nb::arg("engine") = "",
      nb::arg("params") = std::map<std::string, std::int64_t>{}, nb::arg("eager") = false,
      nb::arg("table") = "", nb::arg("memory") = 0, nb::arg("pair_of") = 0,
      nb::call_guard<nb::gil_scoped_release>(),
      "Engine that ranks on such GPUs choose, one process each, without a budget; table: "
      "of the machine; memory: of a communicator on each GPU, 0 = as the environment has it; "
      "pair_of: not 0 = a pair of ranks in "
      "a communicator of that size. None = a plan by lanes.");
  module.def(
      "engine_refusals", &refusals, nb::arg("request"),
      nb::arg("topology") = std::optional<Topology>{},
      "(engine, reason) of engines that do not serve the request on the topology's GPUs, or on "
      "H200s.");
  module.def(
      "why_no_plans",
      [](const Topology& topology, const Request& request) {
        return described_group(topology, request).lacks(cuda::kLaneKernels);
      },
      nb::arg("topology"), nb::arg("request"),
      "Why the topology's GPUs run no kernel of a plan; empty = they do.");
  bind_entry_points(module);
}
