// The phases of a proof: bounds and flags -> order -> hazards, containment -> contract. verify.cpp
// calls each phase only if the earlier phases found no fault.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "plait/plan.hpp"
#include "verify/findings.hpp"
#include "verify/order.hpp"

namespace plait {

/// Placement of a rank's input and output: separate, or overlapping as in NCCL's in-place layouts.
enum class Placement : std::uint8_t { out_of_place, in_place };

/// Number of a memory, and offset in that memory.
struct MemoryAddress {
  std::size_t index = 0;
  std::uint64_t offset = 0;
};

/// Maps regions to memories. Each space of a place is a memory; in an in-place call input and
/// output share a memory.
class Memories {
 public:
  Memories(const Plan& plan, Placement placement);
  std::size_t count() const { return kSpaces * places_; }
  /// Address of the region's first byte.
  MemoryAddress of(const Region& region) const;

 private:
  static constexpr std::size_t kSpaces = 5;
  const Plan& plan_;
  std::size_t places_;
  Placement placement_;
};

/// Whether the collective has an in-place form.
bool has_in_place(Collective collective);

/// Together these check that every index and offset of the plan can be used.
void check_plan(const Plan& plan, Findings& findings);
void check_lanes(const Plan& plan, Findings& findings);
void check_regions(const Plan& plan, Findings& findings);
void check_paths(const Plan& plan, Findings& findings);
void check_flags(const Plan& plan, Findings& findings);
/// Checks that no value of a flag is raised twice.
void check_raises(const Plan& plan, Findings& findings);
void check_privacy(const Plan& plan, Findings& findings);
void check_hazards(const Plan& plan, const OpOrder& order, Placement placement, Findings& findings);
void check_containment(const Plan& plan, const OpOrder& order, Findings& findings);
/// Engines' plans: order with the caller's stream, a single hardware queue, calls in a row and in
/// graphs.
void check_streams(const Plan& plan, const OpOrder& order, Findings& findings);
void check_one_queue(const Plan& plan, Findings& findings);
void check_in_a_row(const std::vector<const Plan*>& calls, Findings& findings);
void check_in_a_graph(const std::vector<const Plan*>& calls, Findings& findings);
void check_branches(const Plan& plan, const OpOrder& order, Findings& findings);
/// Returns the distinct orders of summation found in the outputs.
std::vector<std::string> check_contract(const Plan& plan, const OpOrder& order, Placement placement,
                                        Findings& findings);

}  // namespace plait
