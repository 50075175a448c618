// Lists each rank's output of a library call by source, and checks calls and joins for faults.
#include "plan/library_call.hpp"

#include <algorithm>
#include <map>
#include <set>

#include "base/text.hpp"
#include "plan/blocks.hpp"

namespace plait {

std::vector<Given> given_by(const Request& request, int rank) {
  const std::uint64_t bytes = output_bytes(request, rank);
  if (bytes == 0) return {};
  std::vector<Given> given;
  switch (request.collective) {
    case Collective::all_reduce:
    case Collective::reduce: return {{0, bytes, -1, 0}};
    case Collective::reduce_scatter: return {{0, bytes, -1, sent_block(request, 0, rank).offset}};
    case Collective::broadcast:
    case Collective::copy: return {{0, bytes, request.root, 0}};
    case Collective::scatter:
      return {{0, bytes, request.root, sent_block(request, request.root, rank).offset}};
    case Collective::send_recv: return {{0, bytes, (rank + request.ranks - 1) % request.ranks, 0}};
    case Collective::all_gather:
    case Collective::gather:
    case Collective::all_to_all:
      for (int peer = 0; peer < request.ranks; ++peer) {
        const Range block = received_block(request, peer, rank);
        if (block.bytes != 0)
          given.push_back({block.offset, block.offset + block.bytes, peer,
                           sent_block(request, peer, rank).offset});
      }
  }
  return given;
}

Request request_of(const Plan& plan, const LibraryCall& call) {
  Request request = plan.request;
  request.collective = call.collective;
  request.count = call.count;
  request.ranks = static_cast<int>(call.ranks.size());
  request.root = call.root;
  request.peer = call.peer;
  request.devices.clear();
  request.counts.clear();
  return request;
}

int member_of(const LibraryCall& call, int rank) {
  const auto found = std::find(call.ranks.begin(), call.ranks.end(), rank);
  return found == call.ranks.end() ? -1 : static_cast<int>(found - call.ranks.begin());
}

bool depends_on(const Request& request, int member, int other) {
  const std::vector<Given> given = given_by(request, member);
  return std::any_of(given.begin(), given.end(),
                     [&](const Given& one) { return one.from < 0 || one.from == other; });
}

namespace {

std::string call_fault(const Plan& plan, const LibraryCall& call) {
  const int members = static_cast<int>(call.ranks.size());
  if (static_cast<unsigned>(call.library) > static_cast<unsigned>(Library::mpi) ||
      static_cast<unsigned>(call.collective) > static_cast<unsigned>(Collective::copy))
    return "wanted a known library and collective, found a number that names none";
  if (!plan.counts.empty()) return "wanted no library call in an engine's plan, found one";
  std::set<int> ranks;
  for (const int rank : call.ranks)
    if (rank < 0 || rank >= plan.request.ranks || !ranks.insert(rank).second)
      return text("wanted ranks in 0..{}, each once, found {}", plan.request.ranks - 1, rank);
  if (members < 2) return text("wanted two ranks or more, found {}", members);
  for (const auto& [what, member] : {std::pair("root", call.root), {"peer", call.peer}})
    if (member < 0 || member >= members)
      return text("wanted a {} in 0..{}, found {}", what, members - 1, member);
  const std::uint64_t most = (1ULL << 46) / bytes_of(plan.request.type);
  if (call.count < 1 || call.count > most)
    return text("wanted 1..{} elements, found {}", most, call.count);
  return "";
}

}  // namespace

std::vector<std::string> call_faults(const Plan& plan) {
  std::vector<std::string> faults;
  for (std::size_t i = 0; i < plan.calls.size(); ++i)
    if (const std::string fault = call_fault(plan, plan.calls[i]); !fault.empty())
      faults.push_back(text("call {}: {}", i, fault));
  return faults;
}

std::vector<MemberFault> member_faults(const Plan& plan) {
  std::vector<MemberFault> faults;
  std::set<std::pair<int, int>> joined;  // call, rank
  std::map<int, int> lane_of_rank;
  for (std::size_t i = 0; i < plan.lanes.size(); ++i)
    for (std::size_t k = 0; k < plan.lanes[i].ops.size(); ++k) {
      const Op& op = plan.lanes[i].ops[k];
      if (op.kind != OpKind::join) continue;
      const int lane = static_cast<int>(i), rank = plan.lanes[i].rank;
      std::string fault;
      if (op.call < 0 || static_cast<std::size_t>(op.call) >= plan.calls.size())
        fault = text("wanted one of the plan's {} calls, found {}", plan.calls.size(), op.call);
      else if (member_of(plan.calls[static_cast<std::size_t>(op.call)], rank) < 0)
        fault = text("wanted a rank of call {}, found rank {}", op.call, rank);
      else if (!joined.insert({op.call, rank}).second)
        fault = text("wanted rank {} to join call {} once, found it twice", rank, op.call);
      else if (lane_of_rank.try_emplace(rank, lane).first->second != lane)
        fault = text("wanted all joins of rank {} on one lane, found two", rank);
      if (!fault.empty()) faults.push_back({rank, lane, static_cast<int>(k), fault});
    }
  for (std::size_t call = 0; call < plan.calls.size(); ++call)
    for (const int rank : plan.calls[call].ranks)
      if (!joined.contains({static_cast<int>(call), rank}))
        faults.push_back(
            {rank, -1, -1,
             text("wanted rank {} to join call {}, found that it does not", rank, call)});
  return faults;
}

std::string size_fault(const Plan& plan, const Op& op, int rank) {
  const LibraryCall& call = plan.calls[static_cast<std::size_t>(op.call)];
  const Request request = request_of(plan, call);
  const int member = member_of(call, rank);
  if (op.srcs.size() > 1) return text("wanted one source or none, found {}", op.srcs.size());
  const std::uint64_t given = op.srcs.empty() ? 0 : op.srcs.front().bytes;
  if (given != input_bytes(request, member))
    return text("wanted {} bytes as what rank {} gives to call {}, found {}",
                input_bytes(request, member), rank, op.call, given);
  if (op.dst.bytes != output_bytes(request, member))
    return text("wanted {} bytes as what rank {} gets of call {}, found {}",
                output_bytes(request, member), rank, op.call, op.dst.bytes);
  return "";
}

bool is_in_place(const Plan& plan, const Op& op, int rank, std::uint64_t dst, std::uint64_t src) {
  const LibraryCall& call = plan.calls[static_cast<std::size_t>(op.call)];
  if (call.collective == Collective::all_to_all || call.collective == Collective::send_recv)
    return false;
  const std::uint64_t given = op.srcs.front().bytes, got = op.dst.bytes;
  const std::uint64_t block = call.count * bytes_of(plan.request.type);
  const std::uint64_t shift =
      given == got ? 0 : block * static_cast<std::uint64_t>(member_of(call, rank));
  return got < given ? dst == src + shift : src == dst + shift;
}

}  // namespace plait
