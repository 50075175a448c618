// Offsets of contiguous blocks with a count each.
#include "plan/blocks.hpp"

#include <algorithm>
#include <limits>
#include <numeric>

#include "base/text.hpp"

namespace plait {
namespace {

/// Number of elements that `from` sends to `to`.
std::uint64_t count_between(const Request& request, int from, int to) {
  if (request.counts.empty()) return request.count;
  const auto at = [&](int index) { return request.counts[static_cast<std::size_t>(index)]; };
  switch (request.collective) {
    case Collective::all_to_all: return at(from * request.ranks + to);
    case Collective::all_gather:
    case Collective::gather: return at(from);
    default: return at(to);
  }
}

bool has_parts(Collective collective) {
  return collective == Collective::all_to_all || collective == Collective::reduce_scatter ||
         collective == Collective::scatter;
}

bool has_places(Collective collective) {
  return collective == Collective::all_to_all || collective == Collective::all_gather ||
         collective == Collective::gather;
}

bool takes_counts(Collective collective) { return has_parts(collective) || has_places(collective); }

}  // namespace

Range sent_block(const Request& request, int from, int to) {
  std::uint64_t before = 0;
  if (has_parts(request.collective))
    for (int rank = 0; rank < to; ++rank) before += count_between(request, from, rank);
  const std::uint64_t element = bytes_of(request.type);
  return {before * element, count_between(request, from, to) * element};
}

Range received_block(const Request& request, int from, int to) {
  std::uint64_t before = 0;
  if (has_places(request.collective))
    for (int rank = 0; rank < from; ++rank) before += count_between(request, rank, to);
  const std::uint64_t element = bytes_of(request.type);
  return {before * element, count_between(request, from, to) * element};
}

Range part_of(Range block, Range range) {
  const std::uint64_t begin = std::min(range.offset, block.bytes);
  return {block.offset + begin, std::min(range.bytes, block.bytes - begin)};
}

std::uint64_t outside_bytes(const Request& request, int rank, bool gets) {
  const Collective c = request.collective;
  const bool once = gets ? !has_places(c) : !has_parts(c);  // all peers exchange the same bytes
  std::uint64_t bytes = 0;
  for (int peer = 0; peer < request.ranks; ++peer) {
    const int from = gets ? peer : rank, to = gets ? rank : peer;
    if (peer == rank || (c == Collective::gather && to != request.root) ||
        (c == Collective::scatter && from != request.root))
      continue;
    const std::uint64_t block = sent_block(request, from, to).bytes;
    bytes = once ? std::max(bytes, block) : bytes + block;
  }
  return bytes;
}

Request of_message_bytes(Request request, std::uint64_t bytes) {
  request.count = 1;
  request.count = std::max<std::uint64_t>(1, bytes / message_bytes(request));
  return request;
}

std::string counts_fault(const Request& request) {
  const std::vector<std::uint64_t>& counts = request.counts;
  if (counts.empty()) return "";
  if (!takes_counts(request.collective))
    return text("wanted no counts of blocks in {}, found {}", name_of(request.collective),
                counts.size());
  const auto ranks = static_cast<std::size_t>(request.ranks);
  const bool is_matrix = request.collective == Collective::all_to_all;
  if (counts.size() != (is_matrix ? ranks * ranks : ranks))
    return text("wanted {} counts for {} on {} ranks, found {}", is_matrix ? ranks * ranks : ranks,
                name_of(request.collective), ranks, counts.size());
  const std::uint64_t largest = *std::max_element(counts.begin(), counts.end());
  if (request.count != largest)
    return text("wanted the largest of the counts, {}, as the count, found {}", largest,
                request.count);
  if (std::all_of(counts.begin(), counts.end(), [&](auto count) { return count == largest; }))
    return text("wanted counts that differ, found {} for all; leave them out", largest);
  return "";
}

}  // namespace plait
