// For each pair of ranks that the collective joins, compares the sender's count with the
// receiver's.
#include "comm/choose/own_counts.hpp"

#include "base/text.hpp"
#include "plait/error.hpp"

namespace plait {
namespace {

bool is_joined(const Request& request, int from, int to) {
  switch (request.collective) {
    case Collective::gather: return to == request.root;
    case Collective::scatter: return from == request.root;
    default: return true;
  }
}

void check_list(const Request& request, const char* what, const std::vector<std::uint64_t>& list) {
  if (list.size() != static_cast<std::size_t>(request.ranks))
    throw Error(ErrorCode::invalid_argument,
                text("{}: wanted a count for each of {} ranks, found {}", what, request.ranks,
                     list.size()));
}

void check_count(const char* what, int peer, std::uint64_t count) {
  if (count == OwnCounts::kNotKnown)
    throw Error(ErrorCode::invalid_argument,
                text("{}: wanted a count for rank {}, found none", what, peer));
  if (count > 1ULL << 62)
    throw Error(
        ErrorCode::invalid_argument,
        text("{}: wanted at most 2^62 elements for rank {}, found {} (overflowing or negative)",
             what, peer, static_cast<std::int64_t>(count)));
}

}  // namespace

void check_own_counts(const Request& request, int rank, const OwnCounts& mine) {
  const Collective c = request.collective;
  if (c != Collective::all_to_all && c != Collective::gather && c != Collective::scatter)
    throw Error(ErrorCode::invalid_argument,
                text("wanted an all_to_all, gather or scatter by own counts, found {}, of which "
                     "every rank knows all counts",
                     name_of(c)));
  if (request.root < 0 || request.root >= request.ranks)
    throw Error(ErrorCode::invalid_argument,
                text("wanted a root in 0..{}, found {}", request.ranks - 1, request.root));
  check_list(request, "counts sent", mine.sends);
  check_list(request, "counts received", mine.gets);
  for (int peer = 0; peer < request.ranks; ++peer) {
    const auto at = static_cast<std::size_t>(peer);
    if (is_joined(request, rank, peer)) check_count("counts sent", peer, mine.sends[at]);
    if (is_joined(request, peer, rank)) check_count("counts received", peer, mine.gets[at]);
  }
}

std::vector<std::uint64_t> counts_of(const Request& request,
                                     const std::vector<OwnCounts>& by_rank) {
  std::vector<std::uint64_t> counts;
  for (int from = 0; from < request.ranks; ++from)
    for (int to = 0; to < request.ranks; ++to) {
      if (!is_joined(request, from, to)) continue;
      const auto sender = static_cast<std::size_t>(from), receiver = static_cast<std::size_t>(to);
      const std::uint64_t sent = by_rank[sender].sends[receiver];
      const std::uint64_t wanted = by_rank[receiver].gets[sender];
      if (sent != wanted)
        throw Error(ErrorCode::mismatch,
                    text("{}_v: rank {} sends rank {} {} elements, of which that one wants {}",
                         name_of(request.collective), from, to, sent, wanted));
      counts.push_back(sent);
    }
  return counts;
}

}  // namespace plait
