// Sending and taking escaped packets, with data of any bits, by a thread. Base of direct_ll and of
// the chain kernels.
#pragma once
#include "gpu/abi/ll_args.hpp"
#include "gpu/ll/fused.cuh"
#include "gpu/ll/ll_cut.hpp"

namespace plait::cuda {

/// Escaped packet: 16 bytes of any bits travel as 16. A word of all ones means "not here yet". A
/// sender replaces a data word of all ones, or a word equal to the stand-in, by the stand-in, and
/// stores an escape word beside the packet that tells the two cases apart. Escape words are neither
/// written nor read otherwise. Words travel mixed with the number of the packet, so that data with
/// a repeated word (-1 as a mask or as padding is all ones) is no slower than other data.
struct EscapedPacket {
  static constexpr unsigned long long kMissing = ~0ull;
  static constexpr unsigned long long kStandIn =
      0xbf58476d1ce4e5b9ull;  // as rare as any other word

  /// Returns the unit mixed with the packet's number. Different packets of 2^32 - 1 have different
  /// keys, and no key leaves a word unchanged.
  static __device__ Unit mixed(const Unit& unit, unsigned packet) {
    const unsigned half = (packet + 1) * 0x9e3779b9u;
    const unsigned long long key = static_cast<unsigned long long>(half) << 32 | half;
    return {unit.lo ^ key, unit.hi ^ key};
  }

  static __device__ bool is_special(unsigned long long word) {
    return word == kMissing || word == kStandIn;
  }
  /// Checks half of each of the two words.
  static __device__ bool may_be_special(const Unit& unit) {
    const auto lo = static_cast<unsigned>(unit.lo >> 32), hi = static_cast<unsigned>(unit.hi >> 32);
    constexpr auto kMissingHalf = static_cast<unsigned>(kMissing >> 32);
    constexpr auto kStandInHalf = static_cast<unsigned>(kStandIn >> 32);
    return lo == kMissingHalf || lo == kStandInHalf || hi == kMissingHalf || hi == kStandInHalf;
  }
  static __device__ void send(char* at, char* escape_at, const Unit& unit) {
    if (is_special(unit.lo) || is_special(unit.hi)) {
      store_relaxed_64(escape_at, (unit.lo == kMissing ? 1 : 0) | (unit.hi == kMissing ? 2 : 0));
      store_pair(at, is_special(unit.lo) ? kStandIn : unit.lo,
                 is_special(unit.hi) ? kStandIn : unit.hi);
    } else {
      store_pair(at, unit.lo, unit.hi);
    }
  }
  static __device__ bool is_here(const Unit& unit) {
    return unit.lo != kMissing && unit.hi != kMissing;
  }
  static __device__ bool has_stand_in(const Unit& unit) {
    return unit.lo == kStandIn || unit.hi == kStandIn;
  }
  /// escapes: the escape word, bit i = word i was all ones.
  static __device__ Unit meant(const Unit& unit, unsigned long long escapes) {
    return {(escapes & 1) != 0 ? kMissing : unit.lo, (escapes & 2) != 0 ? kMissing : unit.hi};
  }
};

/// Place of the code for stand-ins: once per kernel or once per slot. Short code starts sooner;
/// code per slot leaves more registers.
enum class RareCode { once, often };

/// A call by escaped packets. Half an inbox holds `packets` packets of a call, followed by the
/// escape words.
template <class Args>
struct EscapedCall {
  const Args& args;
  unsigned number = 0;
  unsigned long long half = 0;
  bool broken = false;
  SpinTimeout timeout;

  /// Reads no state: open() does.
  __device__ explicit EscapedCall(const Args& given) : args(given) {}
  /// As FusedCall::open().
  __device__ void open() {
    number = number_of_call(args.state);
    half = part_of_call(args, number, args.half_bytes);
    broken = args.state->failed != kNoFault;
  }
  __device__ char* packet(int owner, unsigned at) const {
    return args.inbox[owner] + half + at * kSentinelPacketBytes;
  }
  __device__ char* escape_at(int owner, unsigned packets, unsigned at) const {
    return packet(owner, packets) + at * kEscapeFlagBytes;
  }
  __device__ bool give_up(int from, unsigned unit) {
    if (!broken)
      broken = timeout.expired(args.state, args.stop_page, args.wait_ns,
                               static_cast<unsigned>(from), unit, ~0u);
    return broken;
  }
  /// Sends unit number `unit` in packet `at`.
  __device__ void send(int owner, unsigned packets, unsigned at, unsigned unit,
                       const Unit& value) const {
    EscapedPacket::send(packet(owner, at), escape_at(owner, packets, at),
                        EscapedPacket::mixed(value, unit));
  }
  /// A unit that a thread takes: number, sender, and packet `at`.
  struct ExpectedUnit {
    bool is_wanted;
    int from;
    unsigned at, unit;
  };
  /// Takes all wanted units; slot(u) describes got[u]. Polls as FusedCall::await_packets() does.
  template <RareCode kRare, int kSlots, class SlotOf>
  __device__ void take_slots(Unit (&got)[kSlots], unsigned packets, SlotOf slot) {
    int missing;  // a unit that is waited for, for the error message
    do {
      missing = -1;
#pragma unroll
      for (int u = 0; u < kSlots; ++u)
        if (slot(u).is_wanted) got[u] = load_pair(packet(args.rank, slot(u).at));
#pragma unroll
      for (int u = 0; u < kSlots; ++u)
        if (slot(u).is_wanted && !EscapedPacket::is_here(got[u])) missing = u;
    } while (missing >= 0 && !give_up(slot(missing).from, slot(missing).unit));
    if constexpr (kRare == RareCode::once) take_escapes(got, packets, slot);
#pragma unroll
    for (int u = 0; u < kSlots; ++u) {
      const ExpectedUnit one = slot(u);
      if (!one.is_wanted) continue;
      if constexpr (kRare == RareCode::often)
        if (EscapedPacket::has_stand_in(got[u]))
          got[u] = EscapedPacket::meant(got[u], escape_flags(packets, one));
      got[u] = EscapedPacket::mixed(got[u], one.unit);
      store_pair(packet(args.rank, one.at), EscapedPacket::kMissing, EscapedPacket::kMissing);
    }
  }
  template <int kSlots, class SlotOf>
  __device__ void take_escapes(Unit (&got)[kSlots], unsigned packets, SlotOf slot) {
    unsigned stand_ins = 0;
#pragma unroll
    for (int u = 0; u < kSlots; ++u)
      if (slot(u).is_wanted && EscapedPacket::may_be_special(got[u])) stand_ins |= 1u << u;
    if (stand_ins == 0) [[likely]]
      return;
    stand_ins = 0;
#pragma unroll
    for (int u = 0; u < kSlots; ++u)
      if (slot(u).is_wanted && EscapedPacket::has_stand_in(got[u])) stand_ins |= 1u << u;
#pragma unroll 1
    for (int at = 0; stand_ins >> at != 0; ++at) {
      if ((stand_ins >> at & 1) == 0) continue;
      const unsigned long long escapes = escape_flags(packets, slot(at));
#pragma unroll
      for (int u = 0; u < kSlots; ++u)
        if (u == at) got[u] = EscapedPacket::meant(got[u], escapes);
    }
  }
  __device__ unsigned long long escape_flags(unsigned packets, const ExpectedUnit& slot) {
    return take_escape_word(slot.from, escape_at(args.rank, packets, slot.at), slot.unit);
  }
  /// Takes `valid` units first, first + stride, ... from rank `from`, beginning at packet `at`.
  template <int kSlots>
  __device__ void take(Unit (&got)[kSlots], int from, unsigned packets, unsigned at, unsigned first,
                       unsigned stride, int valid) {
    take_slots<RareCode::often>(got, packets, [&](int u) {
      return ExpectedUnit{u < valid, from, at + u * stride, first + u * stride};
    });
  }
  __device__ unsigned long long take_escape_word(int from, char* at, unsigned unit) {
    unsigned long long escapes;
    do escapes = load_relaxed_64(at);
    while (escapes == EscapedPacket::kMissing && !give_up(from, unit));
    store_relaxed_64(at, EscapedPacket::kMissing);
    return escapes;
  }
};

}  // namespace plait::cuda
