// All-to-alls, gathers and scatters with a count (possibly 0) and a displacement for each part.
// Each rank chooses order, gaps and layout for itself.
#include <numeric>

#include "mixed_calls.hpp"

namespace {

/// A rank's parts in a single buffer, a part for each peer.
struct UnevenSide {
  std::unique_ptr<IntPairs> memory;
  std::vector<int> pairs, first;    ///< per part
  std::vector<int> counts, displs;  ///< per part, in elements
  int all = 0;                      ///< pairs, gaps included

  void make(std::vector<int> sizes, bool in_a_row, Dice& own) {
    pairs = std::move(sizes);
    first.resize(pairs.size());
    const auto gap = [&] { return in_a_row ? 0 : own.below(3); };
    all = gap();
    for (std::size_t at = 0; at < pairs.size(); ++at) {
      const std::size_t part = in_a_row ? at : pairs.size() - 1 - at;
      first[part] = all;
      all += pairs[part] + gap();
    }
    memory = std::make_unique<IntPairs>(all, own.one_in(3));
    for (std::size_t part = 0; part < pairs.size(); ++part) {
      counts.push_back(memory->count(pairs[part]));
      displs.push_back(memory->count(first[part]));
    }
  }
  int used() const { return std::accumulate(pairs.begin(), pairs.end(), 0); }
  void* data() const { return used() == 0 ? nullptr : memory->data(); }
  /// Returns whether the ints outside parts are unchanged.
  bool gaps_stand() const {
    int found = 0;
    for (int word = 0; word < 2 * all; ++word) found += memory->at(word) == IntPairs::kHole ? 1 : 0;
    return found == 2 * (all - used()) && memory->holes_stand();
  }
};

struct Uneven {
  CallSetting setting;
  int most = 0;  ///< largest part, in pairs
  bool both_ways = false;
  UnevenSide in, out;

  std::int32_t value(int from, int to, int word) const {
    const auto found = static_cast<std::int32_t>(
        mixed(setting.seed, static_cast<std::uint64_t>(from), static_cast<std::uint64_t>(to),
              static_cast<std::uint64_t>(word)));
    return found == IntPairs::kHole ? 0 : found;
  }
  /// Pairs that `from` sends `to`; the same in both directions if in place.
  int pairs_of(int from, int to) const {
    if (both_ways && from > to) std::swap(from, to);
    const std::uint64_t drawn = mixed(setting.seed, static_cast<std::uint64_t>(from),
                                      static_cast<std::uint64_t>(to), 1 << 30);
    return drawn % 5 == 0 ? 0 : static_cast<int>(drawn / 5 % static_cast<std::uint64_t>(most + 1));
  }
  std::vector<int> sizes(bool sends) const {
    std::vector<int> found;
    for (int peer = 0; peer < setting.ranks; ++peer)
      found.push_back(sends ? pairs_of(setting.rank, peer) : pairs_of(peer, setting.rank));
    return found;
  }
  void put(UnevenSide& side, int part, int from, int to) const {
    const auto at = static_cast<std::size_t>(part);
    for (int word = 0; word < 2 * side.pairs[at]; ++word)
      side.memory->at(2 * side.first[at] + word) = value(from, to, word);
  }
  bool has(const UnevenSide& side, int part, int from, int to) const {
    const auto at = static_cast<std::size_t>(part);
    for (int word = 0; word < 2 * side.pairs[at]; ++word)
      if (side.memory->at(2 * side.first[at] + word) != value(from, to, word)) return false;
    return true;
  }
  bool has_of_all() const {
    for (int from = 0; from < setting.ranks; ++from)
      if (!has(out, from, from, setting.rank)) return false;
    return out.gaps_stand();
  }
};

using Shared = std::shared_ptr<Uneven>;

/// An argument on ranks where MPI does not read the argument.
const int* const kAnything = reinterpret_cast<const int*>(16);

PendingCall all_to_all(const Shared& call, bool in_place, Dice& own) {
  Uneven& m = *call;
  m.both_ways = in_place;
  m.in.make(m.sizes(true), own.one_in(2), own);
  m.out.make(m.sizes(false), own.one_in(2), own);
  for (int to = 0; to < m.setting.ranks; ++to)
    m.put(in_place ? m.out : m.in, to, m.setting.rank, to);
  const void* const in = in_place ? MPI_IN_PLACE : m.in.data();
  PendingCall pending;
  EITHER(m.setting, pending.request, MPI_Alltoallv, MPI_Ialltoallv, in, m.in.counts.data(),
         m.in.displs.data(), m.in.memory->type(), m.out.data(), m.out.counts.data(),
         m.out.displs.data(), m.out.memory->type());
  pending.right = [call] { return call->has_of_all(); };
  return pending;
}

PendingCall gather(const Shared& call, int root, Dice& own) {
  Uneven& m = *call;
  const int rank = m.setting.rank;
  const bool is_root = rank == root, in_place = is_root && own.one_in(3);
  m.in.make({m.pairs_of(rank, root)}, true, own);
  m.put(m.in, 0, rank, root);
  if (is_root) m.out.make(m.sizes(false), own.one_in(2), own);
  if (in_place) m.put(m.out, rank, rank, root);
  const void* const in = in_place ? MPI_IN_PLACE : m.in.data();
  PendingCall pending;
  EITHER(m.setting, pending.request, MPI_Gatherv, MPI_Igatherv, in, m.in.counts[0],
         m.in.memory->type(), is_root ? m.out.data() : nullptr,
         is_root ? m.out.counts.data() : kAnything, is_root ? m.out.displs.data() : kAnything,
         is_root ? m.out.memory->type() : MPI_INT, root);
  pending.right = [call, is_root] { return !is_root || call->has_of_all(); };
  return pending;
}

PendingCall scatter(const Shared& call, int root, Dice& own) {
  Uneven& m = *call;
  const int rank = m.setting.rank;
  const bool is_root = rank == root, in_place = is_root && own.one_in(3);
  if (is_root) m.in.make(m.sizes(true), own.one_in(2), own);
  for (int to = 0; is_root && to < m.setting.ranks; ++to) m.put(m.in, to, root, to);
  m.out.make({m.pairs_of(root, rank)}, true, own);
  void* const out = in_place ? MPI_IN_PLACE : m.out.data();
  PendingCall pending;
  EITHER(m.setting, pending.request, MPI_Scatterv, MPI_Iscatterv, is_root ? m.in.data() : nullptr,
         is_root ? m.in.counts.data() : kAnything, is_root ? m.in.displs.data() : kAnything,
         is_root ? m.in.memory->type() : MPI_INT, out, m.out.counts[0], m.out.memory->type(), root);
  pending.right = [call, in_place, root, rank] {
    return in_place || (call->has(call->out, 0, root, rank) && call->out.gaps_stand());
  };
  return pending;
}

}  // namespace

PendingCall mixed_uneven(const CallSetting& setting, Dice& common, Dice& own) {
  auto call = std::make_shared<Uneven>();
  call->setting = setting;
  call->most = 1 + common.below(common.one_in(8) ? 8000 : 300);
  const int root = common.below(setting.ranks), kind = common.below(3);
  // MPICH 4.0 sometimes uses MPI_IN_PLACE of its own non-blocking calls as an address.
  const bool in_place = common.one_in(3) && setting.blocking;
  PendingCall pending;
  if (kind == 0) pending = all_to_all(call, in_place, own);
  if (kind == 1) pending = gather(call, root, own);
  if (kind == 2) pending = scatter(call, root, own);
  for (UnevenSide* side : {&call->in, &call->out})
    if (side->memory && own.one_in(2)) side->memory->free_type();
  return pending;
}
