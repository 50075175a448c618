// Request, Plan, propose; enums are plain strings in Python ("all_reduce", "bf16", "sum").
#include <nanobind/operators.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <algorithm>

#include "base/text.hpp"
#include "bind.hpp"
#include "cpu/reference.hpp"
#include "plait/error.hpp"
#include "plait/plan.hpp"
#include "plait/report.hpp"
#include "plan/blocks.hpp"
#include "plan/sum_order.hpp"
#include "planner/strategy.hpp"

using namespace plait;

namespace {

Request make_request(const std::string& collective, std::int64_t count, const std::string& type,
                     const std::string& op, int ranks, int root, int peer, std::vector<int> devices,
                     std::vector<std::uint64_t> counts) {
  if (count < 0)
    throw Error(ErrorCode::invalid_argument, "wanted a count >= 0, found " + std::to_string(count));
  Request request;
  request.collective = parse_collective(collective);
  request.count = static_cast<std::uint64_t>(count);
  request.type = parse_type(type);
  request.op = parse_reduce_op(op);
  request.ranks = ranks;
  request.root = root;
  request.peer = peer;
  request.devices = std::move(devices);
  request.counts = std::move(counts);
  request = normal(std::move(request));
  if (const std::string fault = counts_fault(request); !fault.empty())
    throw Error(ErrorCode::invalid_argument, fault);
  return request;
}

void bind_request(nb::module_& module) {
  nb::class_<Request>(
      module, "Request",
      "A collective, its size and type; counts are elements, as in NCCL. counts: of "
      "uneven blocks, by rank (all_to_all: by sender, then receiver).")
      .def(
          "__init__",
          [](Request* self, const std::string& collective, std::int64_t count,
             const std::string& type, const std::string& op, int ranks, int root, int peer,
             std::vector<int> devices, std::vector<std::uint64_t> counts) {
            new (self) Request(make_request(collective, count, type, op, ranks, root, peer,
                                            std::move(devices), std::move(counts)));
          },
          nb::arg("collective"), nb::arg("count"), nb::arg("type") = "fp32", nb::arg("op") = "sum",
          nb::arg("ranks") = 1, nb::arg("root") = 0, nb::arg("peer") = 0,
          nb::arg("devices") = std::vector<int>{}, nb::arg("counts") = std::vector<std::uint64_t>{})
      .def_prop_ro("collective", [](const Request& request) { return name_of(request.collective); })
      .def_ro("count", &Request::count)
      .def_prop_ro("type", [](const Request& request) { return name_of(request.type); })
      .def_prop_ro("op", [](const Request& request) { return name_of(request.op); })
      .def_ro("ranks", &Request::ranks)
      .def_ro("root", &Request::root)
      .def_ro("peer", &Request::peer)
      .def_ro("devices", &Request::devices)
      .def_ro("counts", &Request::counts, "Empty if all blocks have `count` elements.")
      .def_prop_ro("name", [](const Request& request) { return name_of(request); })
      .def_prop_ro("amount", [](const Request& request) { return amount_of(request); })
      .def("input_bytes", &input_bytes, nb::arg("rank"))
      .def("output_bytes", &output_bytes, nb::arg("rank"))
      .def("message_bytes", &message_bytes)
      .def("busbw_factor", &busbw_factor)
      .def("checked", &checked, nb::arg("topology"),
           "Raises InvalidArgumentError for an impossible request; fills in devices.")
      .def("to_json", [](const Request& request) { return to_json(request); })
      .def("__repr__",
           [](const Request& request) {
             return text("<plait.Request {} of {} {} {}, {} ranks>", name_of(request),
                         amount_of(request), name_of(request.type), name_of(request.op),
                         request.ranks);
           })
      .def(nb::self == nb::self);
}

void bind_propose(nb::module_& module) {
  nb::class_<StrategyInfo>(module, "StrategyInfo")
      .def_ro("name", &StrategyInfo::name)
      .def_ro("idea", &StrategyInfo::idea)
      .def_ro("source", &StrategyInfo::source)
      .def_prop_ro("collectives", [](const StrategyInfo& info) {
        std::vector<std::string> names;
        for (const Collective collective : info.collectives)
          names.emplace_back(name_of(collective));
        return names;
      });
  module.def("strategies", &strategies);
  module.def(
      "takes_counts",
      [](const std::string& name) {
        const std::vector<const Strategy*> all = all_strategies();
        return std::any_of(all.begin(), all.end(), [&](const Strategy* one) {
          return one->info.name == name && one->takes_counts;
        });
      },
      nb::arg("strategy"), "Whether it plans blocks that have a count each.");
  module.def(
      "propose",
      [](const Topology& topology, const Request& request) {
        std::vector<Refusal> refusals;
        std::vector<Plan> plans = propose(topology, request, &refusals);
        std::vector<std::pair<std::string, std::string>> refused;
        for (const Refusal& refusal : refusals)
          refused.emplace_back(refusal.strategy, refusal.reason);
        return std::pair(std::move(plans), std::move(refused));
      },
      nb::arg("topology"), nb::arg("request"), nb::call_guard<nb::gil_scoped_release>(),
      "(plans, best first by estimate; refusals as (strategy, reason)).");
  module.def(
      "propose_one",
      [](const Topology& topology, const Request& request, const std::string& strategy,
         const std::map<std::string, std::int64_t>& params) {
        check_op_count(topology, request, strategy, params);
        return propose_one(topology, request, strategy, params);
      },
      nb::arg("topology"), nb::arg("request"), nb::arg("strategy"),
      nb::arg("params") = std::map<std::string, std::int64_t>{},
      nb::call_guard<nb::gil_scoped_release>());
}

/// Runs a plan by the reference executor. Throws Error(invalid_argument) for a plan that the
/// verifier does not accept.
void run_proved(const Plan& plan, const std::vector<std::uintptr_t>& inputs,
                const std::vector<std::uintptr_t>& outputs, const std::vector<double>& scalars) {
  if (const Report report = verify(plan); !report.proved())
    throw Error(ErrorCode::invalid_argument,
                text("plan {} is not right: {}", label(plan), print(report)));
  std::vector<const void*> sources;
  std::vector<void*> results;
  for (const std::uintptr_t address : inputs)
    sources.push_back(reinterpret_cast<const void*>(address));
  for (const std::uintptr_t address : outputs) results.push_back(reinterpret_cast<void*>(address));
  run_reference(plan, sources, results, scalars);
}

}  // namespace

void bind_plan(nb::module_& module) {
  bind_request(module);
  nb::class_<Plan>(module, "Plan", "A collective at one size on one topology: lanes of ops.")
      .def_ro("request", &Plan::request)
      .def_ro("strategy", &Plan::strategy)
      .def_ro("params", &Plan::params)
      .def_ro("topology", &Plan::topology)
      .def_prop_ro("sum_order", [](const Plan& plan) { return name_of(plan.sum_order); })
      .def(
          "in_order",
          [](const Plan& plan, const std::string& order) {
            return in_order(plan, parse_sum_order("order", order));
          },
          nb::arg("order"),
          "The plan with its sums in an order (rank_order, tree or tree_rounded), or None if its "
          "ops cannot sum in that order.")
      .def_ro("kernel", &Plan::kernel)
      .def_ro("symmetric", &Plan::symmetric)
      .def_ro("scratch_bytes", &Plan::scratch_bytes)
      .def_ro("inbox_bytes", &Plan::inbox_bytes)
      .def_ro("ring_bytes", &Plan::ring_bytes)
      .def_prop_ro("stripes",
                   [](const Plan& plan) {
                     std::vector<nb::tuple> rows;
                     for (const Stripe& stripe : plan.stripes)
                       rows.push_back(nb::make_tuple(stripe.route, stripe.offset, stripe.bytes));
                     return rows;
                   })
      .def_prop_ro(
          "lanes",
          [](const Plan& plan) {
            std::vector<nb::tuple> rows;
            for (const Lane& lane : plan.lanes)
              rows.push_back(
                  nb::make_tuple(lane.rank, name_of(lane.kind), lane.name, lane.ops.size()));
            return rows;
          },
          "(rank, kind, name, op count) of each lane.")
      .def_prop_ro("label", [](const Plan& plan) { return label(plan); })
      .def("op_count", &op_count)
      .def("bytes_per_path", &bytes_per_path)
      .def(
          "op_text",
          [](const Plan& plan, std::size_t lane, std::size_t op) {
            return print(plan.lanes.at(lane).ops.at(op), plan);
          },
          nb::arg("lane"), nb::arg("op"))
      .def("to_json", [](const Plan& plan) { return to_json(plan); })
      .def_static("from_json", &plan_from_json, nb::arg("json"))
      .def(nb::self == nb::self)
      .def("__str__", [](const Plan& plan) { return print(plan); })
      .def("__repr__", [](const Plan& plan) { return "<plait.Plan " + label(plan) + ">"; });
  bind_propose(module);
  module.def(
      "run_reference", &run_proved, nb::arg("plan"), nb::arg("inputs"), nb::arg("outputs"),
      nb::arg("scalars") = std::vector<double>{},
      "Runs all ranks of a proved plan in this thread; addresses of input_bytes / output_bytes of "
      "each rank. Raises InvalidArgumentError with the verifier's findings for other plans.");
}
