// All-reduce, reduce, and both reduce-scatters over every type and operation of plait's and some
// more. Values are small whole numbers, hence sums are exact in any order.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "mixed_calls.hpp"

namespace {

struct NamedOp {
  MPI_Op op;
  int number;
};

template <class T>
T reduced(int number, T a, T b) {
  if (number == 0) return static_cast<T>(a + b);
  if (number == 1) return static_cast<T>(a * b);
  if (number == 2) return std::min(a, b);
  if (number == 3) return std::max(a, b);
  if constexpr (std::is_integral_v<T>) {
    if (number == 4) return static_cast<T>(a & b);
    if (number == 5) return static_cast<T>(a | b);
    if (number == 6) return static_cast<T>(a ^ b);
    return static_cast<T>(a != 0 && b != 0);
  }
  return a;
}

const MPI_Op kOps[] = {MPI_SUM, MPI_PROD, MPI_MIN, MPI_MAX, MPI_BAND, MPI_BOR, MPI_BXOR, MPI_LAND};

constexpr int kServedOps = 7;  ///< the first ones

template <class T>
struct Reduction {
  CallSetting setting;
  int number = 0;
  HostOrGpuVector<T> in, out;
  T value(int rank, int at) const {
    const auto wide =
        mixed(setting.seed, static_cast<std::uint64_t>(rank), static_cast<std::uint64_t>(at));
    return static_cast<T>(wide % 3);
  }
  T result(int at) const {
    T all = value(0, at);
    for (int rank = 1; rank < setting.ranks; ++rank) all = reduced(number, all, value(rank, at));
    return all;
  }
  bool right(int first, int count) const {
    for (int at = 0; at < count; ++at) {
      const T wanted = result(first + at);
      if (std::memcmp(&out[static_cast<std::size_t>(at)], &wanted, sizeof(T)) != 0) return false;
    }
    return true;
  }
};

template <class T>
using Shared = std::shared_ptr<Reduction<T>>;

template <class T>
PendingCall whole(const Shared<T>& call, MPI_Datatype type, int count, Dice& common, Dice& own) {
  Reduction<T>& r = *call;
  const bool rooted = common.one_in(3);
  const int root = common.below(r.setting.ranks);
  const bool has_result = !rooted || root == r.setting.rank;
  // MPICH 4.0's reduce uses MPI_IN_PLACE as an address on three ranks.
  const bool may_be_rooted = r.setting.blocking && r.number < kServedOps && own.one_in(3);
  const bool in_place = has_result && (rooted ? may_be_rooted : common.one_in(3));
  if (in_place) r.out = r.in;
  const void* const in = in_place ? MPI_IN_PLACE : device_ptr(r.in.data());
  void* const out = has_result ? device_ptr(r.out.data()) : nullptr;
  const MPI_Op op = kOps[r.number];
  PendingCall pending;
  if (rooted) {
    EITHER(r.setting, pending.request, MPI_Reduce, MPI_Ireduce, in, out, count, type, op, root);
  } else {
    EITHER(r.setting, pending.request, MPI_Allreduce, MPI_Iallreduce, in, out, count, type, op);
  }
  pending.right = [call, has_result, count] { return !has_result || call->right(0, count); };
  return pending;
}

template <class T>
PendingCall scattered(const Shared<T>& call, MPI_Datatype type, int count, Dice& common) {
  Reduction<T>& r = *call;
  const int ranks = r.setting.ranks, rank = r.setting.rank;
  const bool even = common.one_in(2), in_place = common.one_in(3) && r.setting.blocking;
  auto counts = std::make_shared<std::vector<int>>(ranks, count / ranks);
  int total = 0, first = 0;
  for (int one = 0; one < ranks; ++one) {
    int& mine = (*counts)[static_cast<std::size_t>(one)];
    if (!even) mine = common.below(count / ranks + 1);
    if (one < rank) first += mine;
    total += mine;
  }
  r.in.resize(static_cast<std::size_t>(total) + 1);
  const int mine = (*counts)[static_cast<std::size_t>(rank)];
  r.out.resize(static_cast<std::size_t>(total) + 1);
  if (in_place) r.out = r.in;
  const void* const in = in_place ? MPI_IN_PLACE : device_ptr(r.in.data());
  void* const out = device_ptr(r.out.data());
  const MPI_Op op = kOps[r.number];
  PendingCall pending;
  if (even) {
    EITHER(r.setting, pending.request, MPI_Reduce_scatter_block, MPI_Ireduce_scatter_block, in, out,
           mine, type, op);
  } else {
    EITHER(r.setting, pending.request, MPI_Reduce_scatter, MPI_Ireduce_scatter, in, out,
           counts->data(), type, op);
  }
  pending.right = [call, counts, first, mine] { return call->right(first, mine); };
  return pending;
}

template <class T>
PendingCall reduction(const CallSetting& setting, MPI_Datatype type, Dice& common, Dice& own) {
  auto call = std::make_shared<Reduction<T>>();
  call->setting = setting;
  call->number = common.below(std::is_integral_v<T> ? 8 : 4);
  const int count = 1 + common.below(common.one_in(8) ? 40000 : 2000);
  for (int at = 0; at <= count; ++at) call->in.push_back(call->value(setting.rank, at));
  call->out.assign(call->in.size(), T{});
  if (common.one_in(3)) return scattered(call, type, count, common);
  return whole(call, type, count, common, own);
}

}  // namespace

PendingCall mixed_reduction(const CallSetting& setting, Dice& common, Dice& own) {
  switch (common.below(10)) {
    case 0: return reduction<std::int8_t>(setting, MPI_INT8_T, common, own);
    case 1: return reduction<std::uint8_t>(setting, MPI_UNSIGNED_CHAR, common, own);
    case 2: return reduction<short>(setting, MPI_SHORT, common, own);
    case 3: return reduction<unsigned short>(setting, MPI_UNSIGNED_SHORT, common, own);
    case 4: return reduction<int>(setting, MPI_INT, common, own);
    case 5: return reduction<unsigned>(setting, MPI_UNSIGNED, common, own);
    case 6: return reduction<long>(setting, MPI_LONG, common, own);
    case 7: return reduction<std::uint64_t>(setting, MPI_UINT64_T, common, own);
    case 8: return reduction<float>(setting, MPI_FLOAT, common, own);
    default: return reduction<double>(setting, MPI_DOUBLE, common, own);
  }
}
