// Broadcasts, gathers, scatters and all-to-alls. Each rank chooses a layout, as MPI allows: only
// type signatures agree.
#include "mixed_calls.hpp"

namespace {

struct Movement {
  CallSetting setting;
  int pairs = 0;  ///< per rank
  std::unique_ptr<IntPairs> in, out;
  std::vector<int> counts, displs;  ///< in elements of the output
  std::int32_t value(int from, int to, int word) const {
    return static_cast<std::int32_t>(mixed(setting.seed, static_cast<std::uint64_t>(from),
                                           static_cast<std::uint64_t>(to),
                                           static_cast<std::uint64_t>(word)));
  }
  /// Writes the ints of a part, or compares them.
  void put(IntPairs& where, int part, int from, int to) const {
    for (int word = 0; word < 2 * pairs; ++word)
      where.at(2 * pairs * part + word) = value(from, to, word);
  }
  bool has(IntPairs& where, int part, int from, int to) const {
    for (int word = 0; word < 2 * pairs; ++word)
      if (where.at(2 * pairs * part + word) != value(from, to, word)) return false;
    return true;
  }
};

using Shared = std::shared_ptr<Movement>;

PendingCall broadcast(const Shared& call, int root, Dice& own) {
  Movement& m = *call;
  m.out = std::make_unique<IntPairs>(m.pairs, own.one_in(3));
  if (m.setting.rank == root) m.put(*m.out, 0, root, 0);
  PendingCall pending;
  EITHER(m.setting, pending.request, MPI_Bcast, MPI_Ibcast, m.out->data(), m.out->count(m.pairs),
         m.out->type(), root);
  pending.right = [call, root] {
    return call->has(*call->out, 0, root, 0) && call->out->holes_stand();
  };
  return pending;
}

PendingCall gather(const Shared& call, int root, bool to_all, bool in_place_all, Dice& own) {
  Movement& m = *call;
  const int ranks = m.setting.ranks, rank = m.setting.rank;
  const bool receives = to_all || rank == root;
  const bool in_place = to_all ? in_place_all : receives && own.one_in(3);
  m.in = std::make_unique<IntPairs>(m.pairs, own.one_in(3));
  m.out = std::make_unique<IntPairs>(m.pairs * ranks, own.one_in(3));
  m.put(*m.in, 0, rank, 0);
  if (in_place) m.put(*m.out, rank, rank, 0);
  const void* const in = in_place ? MPI_IN_PLACE : m.in->data();
  const int in_count = m.in->count(m.pairs), out_count = m.out->count(m.pairs);
  PendingCall pending;
  if (to_all) {
    EITHER(m.setting, pending.request, MPI_Allgather, MPI_Iallgather, in, in_count, m.in->type(),
           m.out->data(), out_count, m.out->type());
  } else {
    EITHER(m.setting, pending.request, MPI_Gather, MPI_Igather, in, in_count, m.in->type(),
           m.out->data(), out_count, m.out->type(), root);
  }
  pending.right = [call, receives, ranks] {
    for (int from = 0; receives && from < ranks; ++from)
      if (!call->has(*call->out, from, from, 0)) return false;
    return call->out->holes_stand();
  };
  return pending;
}

/// Each rank's part has a different length, and the parts are in reverse order.
PendingCall gather_uneven(const Shared& call, Dice& common, Dice& own) {
  Movement& m = *call;
  const int ranks = m.setting.ranks, rank = m.setting.rank, most = m.pairs;
  std::vector<int> pairs;
  for (int one = 0; one < ranks; ++one) pairs.push_back(most - common.below(most / 3 + 1));
  // Open MPI 5.0 computes the message's size, and from it the algorithm, from the receive counts
  // and the send type: with two kinds of types the ranks disagree and hang.
  const bool strided = own.one_in(3);
  m.in = std::make_unique<IntPairs>(most, strided);
  m.out = std::make_unique<IntPairs>(most * ranks, strided);
  for (int one = 0; one < ranks; ++one) {
    m.counts.push_back(m.out->count(pairs[static_cast<std::size_t>(one)]));
    m.displs.push_back(m.out->count(most * (ranks - 1 - one)));
  }
  m.put(*m.in, 0, rank, 0);
  const int mine = m.in->count(pairs[static_cast<std::size_t>(rank)]);
  PendingCall pending;
  EITHER(m.setting, pending.request, MPI_Allgatherv, MPI_Iallgatherv, m.in->data(), mine,
         m.in->type(), m.out->data(), m.counts.data(), m.displs.data(), m.out->type());
  pending.right = [call, ranks, pairs] {
    Movement& now = *call;
    for (int from = 0; from < ranks; ++from)
      for (int word = 0; word < 2 * pairs[static_cast<std::size_t>(from)]; ++word)
        if (now.out->at(2 * now.pairs * (ranks - 1 - from) + word) != now.value(from, 0, word))
          return false;
    return now.out->holes_stand();
  };
  return pending;
}

PendingCall scatter(const Shared& call, int root, Dice& own) {
  Movement& m = *call;
  const int ranks = m.setting.ranks, rank = m.setting.rank;
  const bool in_place = rank == root && own.one_in(3);
  m.in = std::make_unique<IntPairs>(m.pairs * ranks, own.one_in(3));
  m.out = std::make_unique<IntPairs>(m.pairs, own.one_in(3));
  for (int to = 0; to < ranks; ++to) m.put(*m.in, to, root, to);
  void* const out = in_place ? MPI_IN_PLACE : m.out->data();
  PendingCall pending;
  EITHER(m.setting, pending.request, MPI_Scatter, MPI_Iscatter, m.in->data(), m.in->count(m.pairs),
         m.in->type(), out, m.out->count(m.pairs), m.out->type(), root);
  pending.right = [call, root, rank, in_place] {
    return (in_place || call->has(*call->out, 0, root, rank)) && call->out->holes_stand();
  };
  return pending;
}

PendingCall all_to_all(const Shared& call, bool in_place, Dice& own) {
  Movement& m = *call;
  const int ranks = m.setting.ranks, rank = m.setting.rank;
  m.in = std::make_unique<IntPairs>(m.pairs * ranks, own.one_in(3));
  m.out = std::make_unique<IntPairs>(m.pairs * ranks, own.one_in(3));
  for (int to = 0; to < ranks; ++to) m.put(in_place ? *m.out : *m.in, to, rank, to);
  const void* const in = in_place ? MPI_IN_PLACE : m.in->data();
  PendingCall pending;
  EITHER(m.setting, pending.request, MPI_Alltoall, MPI_Ialltoall, in, m.in->count(m.pairs),
         m.in->type(), m.out->data(), m.out->count(m.pairs), m.out->type());
  pending.right = [call, ranks, rank] {
    for (int from = 0; from < ranks; ++from)
      if (!call->has(*call->out, from, from, rank)) return false;
    return call->out->holes_stand();
  };
  return pending;
}

}  // namespace

PendingCall mixed_movement(const CallSetting& setting, Dice& common, Dice& own) {
  auto call = std::make_shared<Movement>();
  call->setting = setting;
  call->pairs = 1 + common.below(common.one_in(8) ? 10000 : 500);
  const int root = common.below(setting.ranks);
  const int kind = common.below(9);
  if (kind > 5) return mixed_uneven(setting, common, own);
  // MPICH 4.0 sometimes uses MPI_IN_PLACE of its own non-blocking calls as an address.
  const bool in_place = common.one_in(3) && setting.blocking;
  PendingCall pending;
  if (kind == 0) pending = broadcast(call, root, own);
  if (kind == 1) pending = gather(call, root, false, in_place, own);
  if (kind == 2) pending = gather(call, root, true, in_place, own);
  if (kind == 3) pending = gather_uneven(call, common, own);
  if (kind == 4) pending = scatter(call, root, own);
  if (kind == 5) pending = all_to_all(call, in_place, own);
  if (call->in && own.one_in(2)) call->in->free_type();
  if (call->out && own.one_in(2)) call->out->free_type();
  return pending;
}
