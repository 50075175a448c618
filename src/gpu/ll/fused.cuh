// Kernels one_shot and two_shot: an all_reduce in a single kernel without a barrier, because every
// packet carries a flag. one_shot: every rank pushes its message to all ranks and reduces
// everything. two_shot: every rank reduces its own shard and pushes the result to all ranks, or for
// a reduce to the root. Ideas: NCCL's LL protocol (data and flag in a single 64-bit store);
// "Lamport" buffers, in which a value that no sender sends means "not here yet".
#pragma once
#include "gpu/abi/ll_args.hpp"
#include "gpu/device/memory.cuh"
#include "gpu/ll/ll_cut.hpp"

namespace plait::cuda {

/// Flag packet: 16 bytes travel as 32. Each 64-bit word has 32 bits of data and the call number as
/// flag. Serves any type. Packets need no clearing, since a later call has another number.
struct FlagPacket {
  static constexpr int kBytes = kFlagPacketBytes;
  template <DataType kType>
  static __device__ void send(char* at, const Unit& unit, unsigned call) {
    const unsigned long long flag = static_cast<unsigned long long>(call) << 32;
    store_pair(at, (unit.lo & 0xffffffffull) | flag, unit.lo >> 32 | flag);
    store_pair(at + 16, (unit.hi & 0xffffffffull) | flag, unit.hi >> 32 | flag);
  }
  struct LoadedPacket {
    Unit a, b;
  };
  static __device__ LoadedPacket load(const char* at) {
    return {load_pair(at), load_pair(at + 16)};
  }
  template <DataType kType>
  static __device__ bool is_here(const LoadedPacket& packet, unsigned call) {
    const auto [a, b] = packet;
    return a.lo >> 32 == call && a.hi >> 32 == call && b.lo >> 32 == call && b.hi >> 32 == call;
  }
  static __device__ Unit unit_of(const LoadedPacket& packet) {
    const auto [a, b] = packet;
    return {(a.lo & 0xffffffffull) | a.hi << 32, (b.lo & 0xffffffffull) | b.hi << 32};
  }
  static __device__ void clear(char*) {}
};

/// NaN-sentinel packet: 16 bytes travel as 16. A word of all ones, a NaN in every float type, means
/// "not here yet". A sender replaces that word by another NaN; the result has the canonical NaN
/// either way. A word is 32 bits (64 for fp64) and is checked by itself, so no wider store needs to
/// be atomic.
struct NanSentinelPacket {
  static constexpr int kBytes = kSentinelPacketBytes;
  template <DataType kType>
  static __device__ unsigned long long clean(unsigned long long word) {
    if constexpr (kType == DataType::fp64) return word == ~0ull ? 0x7fffffffffffffffull : word;
    unsigned lo = static_cast<unsigned>(word), hi = static_cast<unsigned>(word >> 32);
    lo = lo == ~0u ? 0x7fffffffu : lo;
    hi = hi == ~0u ? 0x7fffffffu : hi;
    return lo | static_cast<unsigned long long>(hi) << 32;
  }
  template <DataType kType>
  static __device__ bool is_word(unsigned long long word) {
    if constexpr (kType == DataType::fp64) return word != ~0ull;
    return static_cast<unsigned>(word) != ~0u && static_cast<unsigned>(word >> 32) != ~0u;
  }
  template <DataType kType>
  static __device__ void send(char* at, const Unit& unit, unsigned) {
    store_pair(at, clean<kType>(unit.lo), clean<kType>(unit.hi));
  }
  using LoadedPacket = Unit;
  static __device__ LoadedPacket load(const char* at) { return load_pair(at); }
  template <DataType kType>
  static __device__ bool is_here(const LoadedPacket& packet, unsigned) {
    return is_word<kType>(packet.lo) && is_word<kType>(packet.hi);
  }
  static __device__ Unit unit_of(const LoadedPacket& packet) { return packet; }
  static __device__ void clear(char* at) { store_pair(at, ~0ull, ~0ull); }
};

/// Returns the number of this call. The number selects the part of the inboxes.
__device__ inline unsigned number_of_call(const DeviceState* state) {
  return peek_flag(&state->fused_calls) + 1;
}

/// Returns the offset of a call's part of the inboxes: calls alternate between two halves. A packet
/// of the call before tells a sender that the packets of the half are cleared. Behind a bus stores
/// may pass each other: a late clear would delete a new packet. Calls then take turns among eight
/// parts, and fence_earlier_clears() or fence_clears() of the calls between lands the clears.
__device__ inline unsigned long long part_of_call(const CallArgs& args, unsigned number,
                                                  unsigned long long part_bytes) {
  return (number & (args.behind_bus != 0 ? kPartsBehindBus - 1 : 1u)) * part_bytes;
}
/// Lands clears of earlier calls behind a bus, in every fourth call: a fence takes longer than a
/// small call waits. Called as a call begins, since a test in the loop of steps takes registers.
/// One thread fences for all. Assumed of the hardware, not given by PTX's memory model: the fence
/// of a thread also waits for stores to the bus by other threads of earlier kernels. The model
/// orders these stores only if the peer synchronises with the fence, and a packet is a relaxed
/// store. A part is written again four calls or more after the fence.
__device__ inline void fence_earlier_clears(const CallArgs& args, unsigned number) {
  if (args.behind_bus != 0 && number % (kPartsBehindBus / 2) == 0 && blockIdx.x == gridDim.x - 1 &&
      threadIdx.x == blockDim.x - 1)
    __threadfence_system();
}
/// Lands all clears behind a bus at the end of a call whose time matters less. Called by all
/// threads.
__device__ inline void fence_clears(const CallArgs& args) {
  if (args.behind_bus == 0) return;
  __syncthreads();
  if (threadIdx.x == 0) __threadfence_system();
}

/// Ends the call: the next kernel reads the next call number once all blocks have been here. Blocks
/// count arrivals in the low 32 bits of `fused_done`. Block 0 adds 2^32 - (blocks - 1), so that the
/// last arrival carries into the call number in the high 32 bits, in any order. Counting with a
/// wait for the atomic's result takes 0.15 us more; a single-block grid stores the number instead,
/// 0.15 us less. The blocks of the next kernel may be scheduled here at the latest, and once all
/// packets of a block are here at the earliest: blocks of a call that still waits for peers would
/// occupy twice the SMs, and the kernels of two communicators might no longer fit side by side.
__device__ inline void end_fused_call(DeviceState* state, unsigned number) {
  __syncthreads();
  let_next_grid_start();
  if (threadIdx.x != 0) return;
  if (gridDim.x == 1)
    state->fused_calls = number;
  else
    add_relaxed_64(&state->fused_done, blockIdx.x != 0 ? 1 : (1ull << 32) - (gridDim.x - 1));
}

/// State and helpers of one_shot and two_shot. kRanks = 0: the number of ranks is known at run time
/// only.
template <DataType kType, int kOp, int kRanks, class Packet>
struct FusedCall {
  using Sum = Accumulator<kType, kOp>;
  using Stored = typename Sum::Stored;
  static constexpr int kTogether = kRanks == 2 ? 2 : 1;
  static constexpr int kHeld = kRanks == 0 ? 1 : kRanks;

  const FusedArgs& args;
  unsigned number = 0;
  unsigned long long half = 0;  // offset of this call's part of the inboxes
  unsigned long long bytes;
  unsigned units;  // 32 bits (kMostPackets) to save registers
  bool aligned;
  bool broken = false;
  SpinTimeout timeout;

  /// Reads no state: open() does.
  __device__ explicit FusedCall(const FusedArgs& given) : args(given) {
    bytes = args.count * sizeof(Stored);
    units = static_cast<unsigned>((bytes + 15) / 16);
    aligned = ((reinterpret_cast<unsigned long long>(args.input) |
                reinterpret_cast<unsigned long long>(args.output)) &
               15) == 0;
  }
  /// Reads the call's number and whether the stream has failed. Called before the first packet, and
  /// behind the first loads of the input, which would else wait for the state's loads: a round trip
  /// to L2.
  __device__ void open() {
    number = number_of_call(args.state);
    half = part_of_call(args, number, args.half_bytes);
    broken = args.state->failed != kNoFault;
  }
  /// Returns the flag of this call's packets. Packets never written hold flag 0; all other flags in
  /// a half have that half's parity.
  __device__ unsigned flag() const { return number != 0 ? number : 1; }
  __device__ int ranks() const { return kRanks == 0 ? args.ranks : kRanks; }
  __device__ Unit own(unsigned unit) const {
    return load_unit<Stored>(static_cast<const char*>(args.input), unit, bytes, aligned);
  }
  __device__ void put(unsigned unit, const Unit& value) const {
    store_unit<Stored, true>(static_cast<char*>(args.output), unit, value, bytes, aligned);
  }
  /// Returns the packet of `unit` in `owner`'s inbox for data of `from`. An inbox has a slot of
  /// `slot_units` packets per sender for parts, and as many again for results.
  enum Payload { kParts, kResults };
  __device__ char* packet(int owner, Payload kind, int from, unsigned slot_units,
                          unsigned unit) const {
    const int place = kRanks == 2 ? 0 : place_among_others(owner, from);
    const unsigned slot = static_cast<unsigned>((kind == kResults ? ranks() - 1 : 0) + place);
    return args.inbox[owner] + half +
           static_cast<unsigned long long>(slot * slot_units + unit) * Packet::kBytes;
  }
  __device__ bool give_up(int peer, unsigned unit) {
    if (!broken)
      broken = timeout.expired(args.state, args.stop_page, args.wait_ns,
                               static_cast<unsigned>(peer), unit, ~0u);
    return broken;
  }
  __device__ Unit take(char* at, int peer, unsigned unit) {
    typename Packet::LoadedPacket got = Packet::load(at);
    while (!Packet::template is_here<kType>(got, flag()) && !give_up(peer, unit))
      got = Packet::load(at);
    Packet::clear(at);
    return Packet::unit_of(got);
  }

  /// A packet that a thread waits for, with the sender.
  struct ExpectedPacket {
    bool is_wanted;
    int from;
    const char* at;
  };
  /// Waits until all wanted packets are here; slot(i) describes got[i]. Each round loads all
  /// packets before the first check, so that a single round trip to L2 may serve all. Returns false
  /// if the wait was given up.
  template <int kSlots, class SlotOf>
  __device__ bool await_packets(typename Packet::LoadedPacket (&got)[kSlots], SlotOf slot) {
    int missing;  // a rank that is waited for, for the error message
    do {
      missing = -1;
#pragma unroll
      for (int i = 0; i < kSlots; ++i)
        if (slot(i).is_wanted) got[i] = Packet::load(slot(i).at);
#pragma unroll
      for (int i = 0; i < kSlots; ++i)
        if (slot(i).is_wanted && !Packet::template is_here<kType>(got[i], flag()))
          missing = slot(i).from;
    } while (missing >= 0 && !give_up(missing, 0));
    return !broken;
  }

  /// Polls kTogether packets from each of kRanksAtOnce ranks together, then reduces in rank order.
  /// at(u, rank) is the packet, mine(u) this rank's own unit. A tree (kTreeSum) sums the ranks
  /// polled together, which are half the ranks or all.
  template <int kRanksAtOnce, class At, class Mine, class Sink>
  __device__ void reduce_together(int valid, At at, Mine mine, Sink sink) {
    static_assert(kHeld % kRanksAtOnce == 0 && (!kIsTree<kOp> || kHeld <= 2 * kRanksAtOnce));
    Unit own[kTogether];  // separate, since dynamic indexing would use local memory
    Sum sum[kTogether];
#pragma unroll
    for (int u = 0; u < kTogether; ++u)
      if (u < valid) own[u] = mine(u);
#pragma unroll
    for (int first = 0; first < kHeld; first += kRanksAtOnce) {
      typename Packet::LoadedPacket got[kTogether * kRanksAtOnce];
      const auto slot = [&](int i) {
        const int u = i / kRanksAtOnce, rank = first + i % kRanksAtOnce;
        return ExpectedPacket{u < valid && rank != args.rank, rank, at(u, rank)};
      };
      if (!await_packets(got, slot)) return;  // a sum needs all parts
#pragma unroll
      for (int u = 0; u < kTogether; ++u)
        if (u < valid) {
          if constexpr (kIsTree<kOp>) {
            Unit taken[kRanksAtOnce];
#pragma unroll
            for (int k = 0; k < kRanksAtOnce; ++k) {
              taken[k] = Packet::unit_of(got[u * kRanksAtOnce + k]);
              if (first + k == args.rank) taken[k] = own[u];
              if (first + k != args.rank) Packet::clear(at(u, first + k));
            }
            Sum part;
            const bool rounds = rounds_sums(args.order);
            part.template sum_tree<0, kRanksAtOnce>(taken, args.op, args.scalars + first, rounds);
            if (first == 0)
              sum[u] = part;
            else
              sum[u].join(part, args.op, rounds);
          }
#pragma unroll
          for (int k = 0; k < kRanksAtOnce && !kIsTree<kOp>; ++k) {
            const int rank = first + k;
            Unit unit = Packet::unit_of(got[u * kRanksAtOnce + k]);
            if (rank == args.rank) unit = own[u];
            if (rank == 0)
              sum[u].first(unit, args.op, args.scalars[0]);
            else
              sum[u].add(unit, args.op, args.scalars[rank]);
            if (rank != args.rank) Packet::clear(at(u, rank));
          }
          if (first + kRanksAtOnce == kHeld) sink(u, sum[u].result(args.op, true, kRanks));
        }
    }
  }
  /// The same for a number of ranks known at run time only.
  template <class At, class Mine, class Sink>
  __device__ void reduce_in_turn(At at, Mine mine, Sink sink) {
    Sum sum;
    for (int rank = 0; rank < args.ranks; ++rank) {
      const Unit unit = rank == args.rank ? mine(0) : take(at(0, rank), rank, 0);
      if (broken) return;
      if (rank == 0)
        sum.first(unit, args.op, args.scalars[0]);
      else
        sum.add(unit, args.op, args.scalars[rank]);
    }
    sink(0, sum.result(args.op, true, args.ranks));
  }
  template <class At, class Mine, class Sink>
  __device__ void reduce_tree_in_turn(At at, Mine mine, Sink sink) {
    Sum sum = sum_in_tree<Sum>(args.ranks, args.op, args.order, args.scalars, [&](int rank) {
      return rank == args.rank ? mine(0) : take(at(0, rank), rank, 0);
    });
    if (!broken) sink(0, sum.result(args.op, true, args.ranks));
  }
  /// Number of ranks, out of kAll, of which a thread holds kTogether packets each at once if it may
  /// hold kMostUnits units.
  template <int kAll, int kMostUnits>
  static constexpr int kPolled = kAll * kTogether * Packet::kBytes < kMostUnits * 16
                                     ? kAll
                                     : kMostUnits * 16 / (kTogether * Packet::kBytes);
  template <int kMostUnits, class At, class Mine, class Sink>
  __device__ void reduce(int valid, At at, Mine mine, Sink sink) {
    if constexpr (kRanks == 0 && kIsTree<kOp>)
      reduce_tree_in_turn(at, mine, sink);
    else if constexpr (kRanks == 0)
      reduce_in_turn(at, mine, sink);
    else
      reduce_together<kPolled<kRanks, kMostUnits>>(valid, at, mine, sink);
  }
};

/// Counts the units first + u * stride below `limit`, for u < kTogether.
__device__ inline int valid_units(unsigned first, unsigned stride, unsigned limit, int together) {
  int valid = 0;
  while (valid < together && first + static_cast<unsigned>(valid) * stride < limit) ++valid;
  return valid;
}

template <DataType kType, int kOp, int kRanks, class Packet>
__device__ void one_shot(const FusedArgs& args) {
  wait_for_grid_before();
  using Call = FusedCall<kType, kOp, kRanks, Packet>;
  Call call(args);
  const unsigned stride = gridDim.x * blockDim.x;
  const unsigned first = blockIdx.x * blockDim.x + threadIdx.x;
  Unit mine[Call::kTogether];
  const auto load = [&](unsigned at, int valid) {
#pragma unroll
    for (int u = 0; u < Call::kTogether; ++u)
      if (u < valid) mine[u] = call.own(at + u * stride);
  };
  // Loads of the first units are under way before any packet is checked.
  load(first, valid_units(first, stride, call.units, Call::kTogether));
  call.open();
  fence_earlier_clears(args, call.number);
  const unsigned step = stride * Call::kTogether;
  const int steps = static_cast<int>((call.units + step - 1) / step);
  const int ranks = call.ranks();
  for (int s = -args.ahead; s < steps && !call.broken; ++s) {
    if (s + args.ahead < steps) {
      const unsigned at = first + static_cast<unsigned>(s + args.ahead) * step;
      const int valid = valid_units(at, stride, call.units, Call::kTogether);
      if (s + args.ahead != 0) load(at, valid);
#pragma unroll
      for (int u = 0; u < Call::kTogether; ++u)
        if (u < valid)
          for (int k = 1; k < ranks; ++k) {
            const int peer = rank_after(args.rank, k, ranks);
            Packet::template send<kType>(
                call.packet(peer, Call::kParts, args.rank, call.units, at + u * stride), mine[u],
                call.flag());
          }
    }
    if (s < 0) continue;
    const unsigned at = first + static_cast<unsigned>(s) * step;
    const int valid = valid_units(at, stride, call.units, Call::kTogether);
    if (valid == 0) continue;
    call.template reduce<kRanks == 2 ? 4 : 8>(  // with two ranks a thread waits for a single peer
        valid,
        [&](int u, int rank) {
          return call.packet(args.rank, Call::kParts, rank, call.units, at + u * stride);
        },
        [&](int u) { return call.own(at + u * stride); },
        [&](int u, const Unit& sum) {
          // A block's packets all come from the peers' blocks of the same number, so these run.
          if (s + 1 == steps) let_next_grid_start();
          call.put(at + u * stride, sum);
        });
  }
  if (call.broken) fail_stream_at_end(args.state);
  end_fused_call(args.state, call.number);
}

/// The inbox takes the peers' parts of this rank's shard, and the peers' results. kToRoot: only the
/// root's inbox takes results. A rank then leaves after the sum of the own shard. All other ranks
/// contribute to that sum, so every rank must have a shard.
template <DataType kType, int kOp, int kRanks, class Packet, bool kToRoot>
struct TwoShot {
  using Call = FusedCall<kType, kOp, kRanks, Packet>;
  static constexpr int kTogether = Call::kTogether;
  static constexpr bool kIsLean =
      kToRoot ? is_lean_two_shot_to_root(kRanks) : is_lean_two_shot(kRanks);
  /// Units of peers that a thread holds at once: eight would not fit in 64 registers.
  static constexpr int kMostHeld = kIsLean ? 4 : 8;
  /// Peers whose results a thread takes together.
  static constexpr int kPeers = kRanks == 0 ? 1 : Call::template kPolled<kRanks - 1, kMostHeld>;
  Call call;
  unsigned shard, stride, first, step;
  int steps;
  unsigned slot_units;  ///< packets of a slot
  int ring;             ///< steps whose packets a slot holds, used in turn

  static __device__ void run(const FusedArgs& args) {
    wait_for_grid_before();
    // Launch the next grid early (PDL) if no other communicator shares this GPU: the blocks spread
    // evenly over the SMs, which saves 3 %.
    if (args.state->has_neighbour == 0) let_next_grid_start();
    TwoShot shot(args, blockDim.x);
    fence_earlier_clears(args, shot.call.number);
    const int ahead = args.ahead;
    for (int s = -2 * ahead; s < shot.steps && !shot.call.broken; ++s) {
      if (s + 2 * ahead < shot.steps) shot.push(s + 2 * ahead);
      if (s + ahead >= 0 && s + ahead < shot.steps) shot.reduce(s + ahead);
      if (s >= 0 && (!kToRoot || args.rank == args.root)) shot.gather(s);
    }
    if (shot.call.broken) fail_stream_at_end(args.state);
    end_fused_call(args.state, shot.call.number);
  }

  /// threads: threads of a block that pass units.
  __device__ TwoShot(const FusedArgs& args, unsigned threads) : call(args) {
    call.open();
    const auto ranks = static_cast<unsigned>(call.ranks());
    shard = (call.units + ranks - 1) / ranks;
    stride = gridDim.x * threads;
    first = blockIdx.x * threads + threadIdx.x;
    step = stride * kTogether;
    steps = static_cast<int>((shard + step - 1) / step);
    slot_units = shard;
    ring = steps;
  }
  /// Returns a thread's first packet of step s, in any slot.
  __device__ unsigned packet_of(int s) const {
    return first + static_cast<unsigned>(s < ring ? s : s % ring) * step;
  }
  __device__ unsigned limit(int owner) const {  // units of the owner's shard
    const unsigned begin = shard * static_cast<unsigned>(owner);
    return begin >= call.units ? 0 : min(shard, call.units - begin);
  }
  __device__ int peer(int k) const {
    const int at = call.args.rank + k;
    return at < call.ranks() ? at : at - call.ranks();
  }
  /// Loads this rank's units of a step for a peer, and returns the number of units.
  __device__ int load_parts(Unit (&mine)[kTogether], int to, unsigned at) const {
    const int valid = valid_units(at, stride, limit(to), kTogether);
#pragma unroll
    for (int u = 0; u < kTogether; ++u)
      if (u < valid) mine[u] = call.own(shard * to + at + u * stride);
    return valid;
  }
  __device__ void send_parts(const Unit (&mine)[kTogether], int to, unsigned packet,
                             int valid) const {
#pragma unroll
    for (int u = 0; u < kTogether; ++u)
      if (u < valid)
        Packet::template send<kType>(
            call.packet(to, Call::kParts, call.args.rank, slot_units, packet + u * stride), mine[u],
            call.flag());
  }
  /// Loads all parts before the first send, if the thread has registers for all. Otherwise each
  /// send waits for a load, and the next load waits for the send.
  __device__ void push(int s) const {
    const unsigned at = first + static_cast<unsigned>(s) * step, packet = packet_of(s);
    const int ranks = call.ranks();
    if constexpr (kRanks == 0 || kIsLean) {
      for (int k = 1; k < ranks; ++k) {
        Unit mine[kTogether];
        const int valid = load_parts(mine, peer(k), at);
        send_parts(mine, peer(k), packet, valid);
      }
    } else {
      Unit mine[kRanks][kTogether];
      int valid[kRanks];
#pragma unroll
      for (int k = 1; k < ranks; ++k) valid[k] = load_parts(mine[k], peer(k), at);
#pragma unroll
      for (int k = 1; k < ranks; ++k) send_parts(mine[k], peer(k), packet, valid[k]);
    }
  }
  __device__ void reduce(int s) {
    const int rank = call.args.rank, ranks = call.ranks();
    const unsigned at = first + static_cast<unsigned>(s) * step, packet = packet_of(s);
    const int valid = valid_units(at, stride, limit(rank), kTogether);
    if (valid == 0) return;
    call.template reduce<kMostHeld>(
        valid,
        [&](int u, int from) {
          return call.packet(rank, Call::kParts, from, slot_units, packet + u * stride);
        },
        [&](int u) { return call.own(shard * rank + at + u * stride); },
        [&](int u, const Unit& sum) {
          const auto send_to = [&](int to) {
            char* const there =
                call.packet(to, Call::kResults, rank, slot_units, packet + u * stride);
            Packet::template send<kType>(there, sum, call.flag());
          };
          if constexpr (kToRoot) {
            if (rank != call.args.root) return send_to(call.args.root);
          } else {
            for (int k = 1; k < ranks; ++k) send_to(peer(k));
          }
          call.put(shard * rank + at + u * stride, sum);
        });
  }
  __device__ void gather(int s) {
    const unsigned at = first + static_cast<unsigned>(s) * step, packet = packet_of(s);
    const int rank = call.args.rank, ranks = call.ranks();
    for (int first_peer = 1; first_peer < ranks; first_peer += kPeers) {
      typename Packet::LoadedPacket got[kPeers * kTogether];
      const auto unit = [&](int i) { return at + static_cast<unsigned>(i % kTogether) * stride; };
      const auto slot_at = [&](int i, int from) {
        return call.packet(rank, Call::kResults, from, slot_units,
                           packet + static_cast<unsigned>(i % kTogether) * stride);
      };
      const auto slot = [&](int i) {
        const int k = first_peer + i / kTogether, from = peer(k);
        return typename Call::ExpectedPacket{k < ranks && unit(i) < limit(from), from,
                                             slot_at(i, from)};
      };
      if (!call.await_packets(got, slot)) return;
#pragma unroll
      for (int i = 0; i < kPeers * kTogether; ++i)
        if (slot(i).is_wanted) {
          Packet::clear(slot_at(i, slot(i).from));
          call.put(shard * slot(i).from + unit(i), Packet::unit_of(got[i]));
        }
    }
  }
};

template <DataType kType, int kOp, int kRanks, class Packet>
__device__ void two_shot(const FusedArgs& args) {
  TwoShot<kType, kOp, kRanks, Packet, false>::run(args);
}
template <DataType kType, int kOp, int kRanks, class Packet>
__device__ void two_shot_to_root(const FusedArgs& args) {
  TwoShot<kType, kOp, kRanks, Packet, true>::run(args);
}

}  // namespace plait::cuda
