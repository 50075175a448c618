// Checks what ops access in other ranks' memory, and when. Peers access scratch and ring only
// between the owner's begin and end of the call, so consecutive calls need no joint proof
// (engines' calls do: in_a_row.cpp). Inboxes follow the rule of full exchange. Only their own rank
// accesses user buffers.
#include <algorithm>

#include "base/text.hpp"
#include "verify/phases.hpp"

namespace plait {
namespace {

template <class Visit>
void each_region(const Op& op, Visit visit) {
  if (op.kind == OpKind::signal || op.kind == OpKind::wait) return;
  if (op.dst.bytes != 0) visit(op.dst, true);
  for (const Region& src : op.srcs) visit(src, false);
}

bool is_user(Space space) { return space == Space::input || space == Space::output; }

/// The owner: the use of a place lies between the owner's begin and end. A rank owns its place,
/// rank 0 every relay GPU. The owner is fixed, so that consecutive plans agree.
int owner_of(const Plan& plan, int place) { return place < plan.request.ranks ? place : 0; }

void check_full_exchange(const Plan& plan, const OpOrder& order, Findings& findings) {
  for (int rank = 0; rank < plan.request.ranks; ++rank) {
    std::string missing;
    for (int peer = 0; peer < plan.request.ranks; ++peer)
      if (!order.begins_before_end(peer, rank))
        missing += text("{}{}", missing.empty() ? "" : ", ", peer);
    if (!missing.empty())
      findings.of_rank(Rule::inbox, rank,
                       text("wanted rank {} to hear from every rank before it ends, since the plan "
                            "has inboxes, found nothing heard from {}",
                            rank, missing));
  }
}

}  // namespace

void check_privacy(const Plan& plan, Findings& findings) {
  for (std::size_t i = 0; i < plan.lanes.size(); ++i)
    for (std::size_t k = 0; k < plan.lanes[i].ops.size(); ++k)
      each_region(plan.lanes[i].ops[k], [&](const Region& region, bool is_write) {
        const int rank = plan.lanes[i].rank;
        std::string fault;
        if (is_write && region.space == Space::input)
          fault = text("wanted inputs to be read only, found a write to {}", print(region));
        else if (is_user(region.space) && region.rank != rank && !plan.symmetric)
          fault = text(
              "wanted rank {} to touch its own buffers only, since the plan is not symmetric, "
              "found {}",
              rank, print(region));
        else if (plan.lanes[i].ops[k].kind == OpKind::join && region.rank != rank)
          fault =
              text("wanted rank {} to join with memory of its own, found {}", rank, print(region));
        if (!fault.empty())
          findings.of_op(Rule::privacy, static_cast<int>(i), static_cast<int>(k), fault);
      });
}

void check_containment(const Plan& plan, const OpOrder& order, Findings& findings) {
  for (const Site& here : order.sequence())
    each_region(order.op(here), [&](const Region& region, bool is_write) {
      if (is_user(region.space) && !plan.symmetric) return;  // privacy forbids such an access
      const int owner = owner_of(plan, region.rank);
      const int rank = order.rank(here);
      if (region.space == Space::inbox) {
        if (!is_write && rank != owner)
          findings.of_op(Rule::inbox, here.lane, here.op,
                         text("wanted only rank {} to read its inbox, found rank {} reading {}",
                              owner, rank, print(region)));
        return;
      }
      if (!plan.counts.empty()) return;  // in_a_row.cpp proves that the next call may use the slots
      for (const bool is_begin : {true, false}) {
        const bool is_contained =
            is_begin ? order.after_begin(here, owner) : order.before_end(here, owner);
        if (!is_contained)
          findings.of_op(Rule::containment, here.lane, here.op,
                         text("wanted {} to touch {}{}{}{}, found no order between them",
                              site(plan, here.lane, here.op), print(region),
                              is_begin ? " after rank " : " before rank ", owner,
                              is_begin ? " begins" : " ends"));
      }
    });
  // Executors switch between the halves after every plan with inboxes, even without accesses. Each
  // plan with inboxes must therefore keep all ranks within one call of each other.
  const bool has_inbox = std::any_of(plan.inbox_bytes.begin(), plan.inbox_bytes.end(),
                                     [](std::uint64_t bytes) { return bytes > 0; });
  if (has_inbox) check_full_exchange(plan, order, findings);
}

}  // namespace plait
