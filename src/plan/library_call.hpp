// What a call of the library between nodes gives to whom: the meaning of `join` ops, for all who
// prove, run or price them.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "plait/plan.hpp"

namespace plait {

/// Bytes [lo, hi) of what a rank gets from a collective.
struct Given {
  std::uint64_t lo = 0;
  std::uint64_t hi = 0;
  int from = -1;             ///< whose input it is; -1 = the sum over all
  std::uint64_t origin = 0;  ///< where in that input, or in each, it begins
};

/// Of a collective's output at one rank, in order.
std::vector<Given> given_by(const Request& request, int rank);
/// The call as a request among its members, which are its ranks 0, 1, ...
Request request_of(const Plan& plan, const LibraryCall& call);
/// The index of a rank among the call's; -1 where it does not take part.
int member_of(const LibraryCall& call, int rank);
/// Whether a member gets something that another one gave: only then does it end after that began.
bool depends_on(const Request& request, int member, int other);

/// What is wrong with the plan's calls by themselves.
std::vector<std::string> call_faults(const Plan& plan);

/// A rank that joins wrongly: at an op of a lane, or (-1) nowhere.
struct MemberFault {
  int rank = 0;
  int lane = -1;
  int op = -1;
  std::string fault;
};
/// Each rank of a call has one op in it, and all its joins on one lane: then libraries that start
/// the calls of a rank one by one start them in an order that all ranks share.
std::vector<MemberFault> member_faults(const Plan& plan);
/// Where a join's regions are not as large as the collective says; empty = they are.
std::string size_fault(const Plan& plan, const Op& op, int rank);
/// Whether a join's regions, at these offsets of one memory, overlap as NCCL lets them: the smaller
/// buffer is the member's block of the larger.
bool is_in_place(const Plan& plan, const Op& op, int rank, std::uint64_t dst, std::uint64_t src);

}  // namespace plait
