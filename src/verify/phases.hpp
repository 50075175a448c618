// The phases of a proof, each of which may only run on what the ones before it have found sound:
// bounds (and flags) -> order -> hazards, containment -> contract.
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

/// Where a user's buffers lie in one call: apart, or overlapping as NCCL's in-place layouts say.
enum class Placement : std::uint8_t { out_of_place, in_place };

/// Memory as the proof sees it: a number, and where in it a region's byte 0 lies.
struct MemorySpan {
  std::size_t index = 0;
  std::uint64_t offset = 0;
};

/// Regions -> memories. Spaces of a place are apart, but for an in-place call's input and output.
class Memories {
 public:
  Memories(const Plan& plan, Placement placement);
  std::size_t count() const { return kSpaces * places_; }
  MemorySpan of(const Region& region) const;

 private:
  static constexpr std::size_t kSpaces = 5;
  const Plan& plan_;
  std::size_t places_;
  Placement placement_;
};

/// Does the collective have an in-place form?
bool has_in_place(Collective collective);

/// Counts, lanes, regions, paths: after it every index and offset of the plan can be used.
void check_plan(const Plan& plan, Findings& findings);
void check_lanes(const Plan& plan, Findings& findings);
void check_regions(const Plan& plan, Findings& findings);
void check_paths(const Plan& plan, Findings& findings);
void check_flags(const Plan& plan, Findings& findings);
/// Of words that may jump: no value is raised twice.
void check_raises(const Plan& plan, Findings& findings);
void check_privacy(const Plan& plan, Findings& findings);
void check_hazards(const Plan& plan, const OpOrder& order, Placement placement, Findings& findings);
void check_containment(const Plan& plan, const OpOrder& order, Findings& findings);
/// Engines: the caller's stream, the hardware queue, and calls in a row.
void check_streams(const Plan& plan, const OpOrder& order, Findings& findings);
void check_one_queue(const Plan& plan, Findings& findings);
void check_in_a_row(const std::vector<const Plan*>& calls, Findings& findings);
void check_in_a_graph(const std::vector<const Plan*>& calls, Findings& findings);
void check_branches(const Plan& plan, const OpOrder& order, Findings& findings);
/// Returns the distinct orders of summation found in the outputs.
std::vector<std::string> check_contract(const Plan& plan, const OpOrder& order, Placement placement,
                                        Findings& findings);

}  // namespace plait
