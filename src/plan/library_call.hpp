// Semantics of calls to the library between nodes (NCCL or MPI): the bytes that each rank of a
// `join` op receives. The verifier, executors and the simulator share this file.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "plait/plan.hpp"

namespace plait {

/// Bytes [lo, hi) of a rank's output of a collective, and their source.
struct Given {
  std::uint64_t lo = 0;
  std::uint64_t hi = 0;
  int from = -1;             ///< rank that gives the input; -1 = the sum over all ranks
  std::uint64_t origin = 0;  ///< offset in that input, or in each rank's input
};

/// Returns the parts of `rank`'s output in order of offset.
std::vector<Given> given_by(const Request& request, int rank);
/// Returns the call as a request of its own, with the call's members as ranks 0, 1, ...
Request request_of(const Plan& plan, const LibraryCall& call);
/// Index of `rank` among the call's members; -1 = not a member.
int member_of(const LibraryCall& call, int rank);
/// Whether `member` receives data from `other`. Only then does `member` end after `other` begins.
bool depends_on(const Request& request, int member, int other);

/// Faults of the plan's calls, before any check of `join` ops; empty = none.
std::vector<std::string> call_faults(const Plan& plan);

/// A rank that joins a call wrongly, with the op (lane and op -1 = does not join at all).
struct MemberFault {
  int rank = 0;
  int lane = -1;
  int op = -1;
  std::string fault;
};
/// Checks that each rank of a call joins with a single op, and that a rank's joins are all on the
/// same lane. A library that starts a rank's calls in turn then starts calls in the same order on
/// all ranks.
std::vector<MemberFault> member_faults(const Plan& plan);
/// Returns why a join's regions have the wrong size for the collective; empty = right.
std::string size_fault(const Plan& plan, const Op& op, int rank);
/// Whether a join's regions, at offsets of the same memory, overlap as NCCL allows: the smaller
/// buffer is the member's block inside the larger.
bool is_in_place(const Plan& plan, const Op& op, int rank, std::uint64_t dst, std::uint64_t src);

}  // namespace plait
