// Checks requests, lanes and regions. The later phases use every index and offset without checks.
#include <algorithm>
#include <bit>
#include <limits>
#include <set>

#include "base/text.hpp"
#include "plan/blocks.hpp"
#include "plan/library_call.hpp"
#include "verify/phases.hpp"

namespace plait {
namespace {

template <class Enum>
bool is_within(Enum value, Enum last) {
  return static_cast<unsigned>(value) <= static_cast<unsigned>(last);
}

// Must succeed before names and byte counts of the request are used.
bool check_request(const Request& request, Findings& findings) {
  const auto wrong = [&](const std::string& sentence) {
    findings.of_plan(Rule::plan, sentence);
    return false;
  };
  if (!is_within(request.collective, Collective::copy) ||
      !is_within(request.type, DataType::fp8e5m2) || !is_within(request.op, ReduceOp::bit_xor))
    return wrong("wanted a known collective, type and reduction, found a number that names none");
  if (reduces(request.collective) && !has_reduction(request.type, request.op))
    return wrong(text("wanted a reduction that {} has, found {}", name_of(request.type),
                      name_of(request.op)));
  if (request.ranks < 1 || request.ranks > kMaxRanks)
    return wrong(text("wanted 1..{} ranks, found {}", kMaxRanks, request.ranks));
  for (const auto& [what, rank] : {std::pair("root", request.root), {"peer", request.peer}})
    if (rank < 0 || rank >= request.ranks)
      return wrong(text("wanted a {} in 0..{}, found {}", what, request.ranks - 1, rank));
  const std::uint64_t most = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()) /
                             (bytes_of(request.type) * static_cast<std::uint64_t>(request.ranks));
  if (request.count > most)
    return wrong(text("wanted at most {} elements, found {}", most, request.count));
  if (const std::string fault = counts_fault(request); !fault.empty()) return wrong(fault);
  return true;
}

void check_sizes(const Plan& plan, Findings& findings) {
  const auto ranks = static_cast<std::size_t>(plan.request.ranks);
  const auto check = [&](const char* what, std::size_t wanted, std::size_t found) {
    if (wanted != found)
      findings.of_plan(Rule::plan, text("wanted {} {}, found {}", wanted, what, found));
  };
  check("devices (one a rank)", ranks, plan.request.devices.size());
  check("scratch sizes (one a place)", ranks + plan.relay_devices.size(),
        plan.scratch_bytes.size());
  check("inbox sizes (one a rank)", ranks, plan.inbox_bytes.size());
  check("ring sizes (one a rank)", ranks, plan.ring_bytes.size());
  // Sums over spaces and places must stay far from 2^64, or an arena's layout would wrap around.
  constexpr std::uint64_t kMostBytes = 1ULL << 46;
  constexpr std::size_t kMostRelayDevices = 1024;
  if (plan.relay_devices.size() > kMostRelayDevices)
    findings.of_plan(Rule::plan, text("wanted at most {} relay GPUs, found {}", kMostRelayDevices,
                                      plan.relay_devices.size()));
  for (const auto* sizes : {&plan.scratch_bytes, &plan.inbox_bytes, &plan.ring_bytes})
    for (const std::uint64_t bytes : *sizes)
      if (bytes > kMostBytes)
        findings.of_plan(Rule::plan,
                         text("wanted spaces of at most {} bytes, found {}", kMostBytes, bytes));
  std::set<int> devices;
  for (const std::vector<int>* places : {&plan.request.devices, &plan.relay_devices})
    for (const int device : *places)
      if (device < 0 || !devices.insert(device).second)
        findings.of_plan(Rule::plan,
                         text("wanted one place a device, found device {} twice or < 0", device));
}

std::uint64_t size_of(const Plan& plan, Space space, int place) {
  const auto index = static_cast<std::size_t>(place);
  if (space == Space::scratch) return plan.scratch_bytes[index];
  if (place >= plan.request.ranks) return 0;  // relay GPUs lend scratch only
  switch (space) {
    case Space::input: return input_bytes(plan.request, place);
    case Space::output: return output_bytes(plan.request, place);
    case Space::inbox: return plan.inbox_bytes[index];
    case Space::ring: return plan.ring_bytes[index];
    case Space::scratch: break;
  }
  return 0;
}

/// Returns the fault of a region; empty = none.
std::string fault_of(const Plan& plan, const Region& region) {
  if (!is_within(region.space, Space::ring)) return "wanted a known space, found none";
  const std::size_t places =
      static_cast<std::size_t>(plan.request.ranks) + plan.relay_devices.size();
  if (region.rank < 0 || static_cast<std::size_t>(region.rank) >= places)
    return text("wanted a place in 0..{}, found {}", places - 1, print(region));
  if (region.bytes == 0) return text("wanted at least one byte, found {}", print(region));
  const std::uint64_t size = size_of(plan, region.space, region.rank);
  if (region.offset > size || region.bytes > size - region.offset)
    return text("wanted a region inside the {} bytes of {}[{}], found {}", size,
                name_of(region.space), region.rank, print(region));
  const std::uint64_t element = bytes_of(plan.request.type);
  if (region.offset % element != 0 || region.bytes % element != 0)
    return text("wanted cuts between elements of {} bytes, found {}", element, print(region));
  return "";
}

void check_op(const Plan& plan, int lane, int index, const Op& op, Findings& findings) {
  const bool is_copy = op.kind == OpKind::copy;
  if (op.srcs.empty() || (is_copy && op.srcs.size() != 1))
    findings.of_op(Rule::bounds, lane, index,
                   text("wanted {}, found {}", is_copy ? "one source" : "at least one source",
                        op.srcs.size()));
  if (op.kind == OpKind::reduce && is_tree(plan.sum_order) && !op.srcs.empty() &&
      !has_no_order(plan.request.type, plan.request.op) && !std::has_single_bit(op.srcs.size()))
    findings.of_op(
        Rule::bounds, lane, index,
        text("wanted a power of two of sources to sum in pairs, found {}", op.srcs.size()));
  std::string fault = fault_of(plan, op.dst);
  for (const Region& src : op.srcs) {
    if (fault.empty()) fault = fault_of(plan, src);
    if (fault.empty() && src.bytes != op.dst.bytes)
      fault = text("wanted {} bytes as in {}, found {}", op.dst.bytes, print(op.dst), print(src));
  }
  if (!fault.empty()) findings.of_op(Rule::bounds, lane, index, fault);
}

/// Checks the regions that a rank gives to a library call and gets from the call.
void check_join(const Plan& plan, int lane, int index, const Op& op, Findings& findings) {
  std::string fault = size_fault(plan, op, plan.lanes[static_cast<std::size_t>(lane)].rank);
  for (const Region& src : op.srcs)
    if (fault.empty()) fault = fault_of(plan, src);
  if (fault.empty() && op.dst.bytes != 0) fault = fault_of(plan, op.dst);
  if (!fault.empty()) findings.of_op(Rule::bounds, lane, index, fault);
}

/// Plan::enqueued must list all ops of a lane, or none.
void check_enqueued(const Plan& plan, Findings& findings) {
  std::vector<std::size_t> named(plan.lanes.size(), 0);
  if (plan.enqueued.size() > static_cast<std::size_t>(plan.request.ranks))
    return findings.of_plan(Rule::lane,
                            text("wanted an order of ops for each of {} ranks, found {}",
                                 plan.request.ranks, plan.enqueued.size()));
  for (std::size_t rank = 0; rank < plan.enqueued.size(); ++rank)
    for (const int lane : plan.enqueued[rank]) {
      const auto index = static_cast<std::size_t>(lane);
      if (lane < 0 || index >= plan.lanes.size() ||
          plan.lanes[index].rank != static_cast<int>(rank))
        return findings.of_rank(
            Rule::lane, static_cast<int>(rank),
            text("wanted rank {} to enqueue on its lanes, found lane {}", rank, lane));
      ++named[index];
    }
  for (std::size_t i = 0; i < named.size(); ++i)
    if (named[i] != 0 && named[i] != plan.lanes[i].ops.size())
      findings.of_lane(Rule::lane, static_cast<int>(i),
                       text("wanted all {} ops of {} enqueued, found {}", plan.lanes[i].ops.size(),
                            plan.lanes[i].name, named[i]));
}

}  // namespace

void check_plan(const Plan& plan, Findings& findings) {
  if (!check_request(plan.request, findings)) return;
  check_sizes(plan, findings);
  if (!is_within(plan.sum_order, SumOrder::tree_rounded))
    findings.of_plan(Rule::plan,
                     "wanted rank_order, algorithm_order, tree or tree_rounded, found no known "
                     "order of summation");
  for (const std::string& fault : call_faults(plan)) findings.of_plan(Rule::plan, fault);
  const std::uint64_t message = message_bytes(plan.request);
  for (const Stripe& stripe : plan.stripes)
    if (stripe.offset > message || stripe.bytes > message - stripe.offset)
      findings.of_plan(Rule::plan,
                       text("wanted stripe {} inside the message of {} bytes, found {}+{}",
                            stripe.route, message, stripe.offset, stripe.bytes));
}

void check_lanes(const Plan& plan, Findings& findings) {
  std::set<std::pair<int, std::string>> names;
  for (std::size_t i = 0; i < plan.lanes.size(); ++i) {
    const Lane& lane = plan.lanes[i];
    const int index = static_cast<int>(i);
    if (lane.rank < 0 || lane.rank >= plan.request.ranks)
      findings.of_lane(Rule::lane, index,
                       text("wanted a rank in 0..{}, found {}", plan.request.ranks - 1, lane.rank));
    if (!is_within(lane.kind, LaneKind::cpu))
      findings.of_lane(Rule::lane, index, "wanted a known kind of lane, found none");
    if (!names.insert({lane.rank, lane.name}).second)
      findings.of_lane(Rule::lane, index,
                       text("wanted lane names to differ within a rank, found {} twice on rank {}",
                            lane.name, lane.rank));
    for (std::size_t k = 0; k < lane.ops.size(); ++k) {
      const OpKind kind = lane.ops[k].kind;
      if (!is_within(kind, OpKind::join))
        findings.of_op(Rule::lane, index, static_cast<int>(k), "wanted a known op, found none");
      else if (kind == OpKind::reduce && lane.kind == LaneKind::copy_engine)
        findings.of_op(Rule::lane, index, static_cast<int>(k),
                       "wanted copies, signals and waits on a copy engine, found a reduction");
    }
  }
  check_enqueued(plan, findings);
  if (!findings.none()) return;
  for (const MemberFault& one : member_faults(plan))
    if (one.lane < 0)
      findings.of_rank(Rule::lane, one.rank, one.fault);
    else
      findings.of_op(Rule::lane, one.lane, one.op, one.fault);
}

void check_regions(const Plan& plan, Findings& findings) {
  for (std::size_t i = 0; i < plan.lanes.size(); ++i)
    for (std::size_t k = 0; k < plan.lanes[i].ops.size(); ++k) {
      const Op& op = plan.lanes[i].ops[k];
      if (op.kind == OpKind::copy || op.kind == OpKind::reduce)
        check_op(plan, static_cast<int>(i), static_cast<int>(k), op, findings);
      if (op.kind == OpKind::join)
        check_join(plan, static_cast<int>(i), static_cast<int>(k), op, findings);
    }
}

}  // namespace plait
