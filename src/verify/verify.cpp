// Verifies plans: runs the phases of phases.hpp in turn, each only if the earlier phases found no
// fault. A broken index is then a single finding, not a crash or a hundred consequences.
#include <exception>
#include <functional>

#include "base/text.hpp"
#include "verify/phases.hpp"

namespace plait {
namespace {

std::vector<std::string> check_order(const Plan& plan, Findings& findings) {
  const OpOrder order(plan, findings);
  if (order.sequence().size() != op_count(plan)) return {};  // deadlock: no complete run
  check_containment(plan, order, findings);
  if (!plan.counts.empty()) check_streams(plan, order, findings);
  const std::uint64_t before = findings.total();
  check_hazards(plan, order, Placement::out_of_place, findings);
  const std::vector<std::string> orders =
      check_contract(plan, order, Placement::out_of_place, findings);
  // A fault out of place would be reported again in place.
  if (has_in_place(plan.request.collective) && findings.total() == before) {
    check_hazards(plan, order, Placement::in_place, findings);
    check_contract(plan, order, Placement::in_place, findings);
  }
  return orders;
}

void check_all(const Plan& plan, Findings& findings, Report& report) {
  check_plan(plan, findings);
  if (!findings.none()) return;
  check_lanes(plan, findings);
  if (!findings.none()) return;
  check_regions(plan, findings);
  check_flags(plan, findings);
  if (!findings.none()) return;
  check_paths(plan, findings);
  check_privacy(plan, findings);
  report.orders = check_order(plan, findings);
  if (plan.counts.empty() || !findings.none()) return;
  check_one_queue(plan, findings);
  if (findings.none()) check_in_a_row({&plan, &plan}, findings);
}

Report reported(const Plan& plan, const std::function<void(Findings&, Report&)>& check) noexcept {
  Report report;
  Findings findings(plan);
  try {
    check(findings, report);
  } catch (const std::exception& error) {
    findings.of_plan(Rule::plan, text("wanted a plan that can be proved, found {}", error.what()));
  }
  report.findings = findings.taken();
  return report;
}

Report reported_row(const std::vector<const Plan*>& calls,
                    void (*check)(const std::vector<const Plan*>&, Findings&)) noexcept {
  const Plan none;
  return reported(calls.empty() ? none : *calls.front(), [&](Findings& findings, Report& report) {
    for (const Plan* call : calls) {
      report.plan += text("{}{}", report.plan.empty() ? "" : ", then ", label(*call));
      report.ops += op_count(*call);
    }
    check(calls, findings);
  });
}

}  // namespace

Report verify(const Plan& plan) noexcept {
  return reported(plan, [&](Findings& findings, Report& report) {
    report.plan = label(plan);
    report.ops = op_count(plan);
    check_all(plan, findings, report);
  });
}

Report verify_in_a_row(const std::vector<const Plan*>& calls) noexcept {
  return reported_row(calls, check_in_a_row);
}

Report verify_in_a_graph(const std::vector<const Plan*>& calls) noexcept {
  return reported_row(calls, check_in_a_graph);
}

}  // namespace plait
