// What ranks send each other, any number of messages in one call, in both directions at once. Every
// channel between two ranks has a team of threads for each direction, so no message waits for one
// that goes elsewhere or comes back; those between the same two ranks keep their order. Small ones
// go as flag packets, larger ones by tiles in slots of the receiver. A sender runs ahead until its
// peer's slots are full: the receiver need not be in the call.
// Idea: NCCL's channels and point-to-point works.
#pragma once
#include "exec/cuda/device/units.cuh"
#include "exec/cuda/ll/fused.cuh"
#include "exec/cuda/messages/message_ends.cuh"
#include "exec/cuda/messages/message_share.cuh"

namespace plait::cuda {

/// What the threads of a team share.
struct MessageTeamShared {
  unsigned long long barriers[kMessageMovers][kMessageStages];
  MessageWork works[2];    ///< the one that is served, by parity of its number
  volatile unsigned open;  ///< tiles of this message that may be moved: there is room, or they came
  volatile unsigned done[kMessageMovers];    ///< 1 + the last tile that each has moved
  volatile unsigned limit;                   ///< tiles from here on are not moved: the team leaves
  volatile unsigned over;                    ///< not 0: or a shared message is over there
  volatile unsigned numbers[kMessageSlots];  ///< of open tiles of a shared message, by their places
  volatile unsigned block;                   ///< whose end is served; or kNoBlock
  volatile unsigned leaves;                  ///< not 0: this end, as others need the team
  volatile unsigned long long since_ns;      ///< when the wait began in which it does
  volatile unsigned covers;                  ///< not 0: sees to ends that were left
};

/// Threads that serve an end: one direction of one channel to or from one rank.
struct MessageTeam {
  const MessageArgs& args;
  MessageTeamShared& shared;
  Team team;
  unsigned side;
  unsigned channel;  // and the row of its words: host channels come behind all others
  int peer;
  unsigned blocks;  // of this peer
  unsigned next_work, end_work;
  unsigned moved;                   // tiles of the next work, as it was taken up
  unsigned packets, tiles, shares;  // through here so far, in all calls
  unsigned packets_taken;           // one thread's: as seen at the beginning
  unsigned next_channel;            // one thread's, of a host channel: whose tile it takes next
  unsigned begun;                   // one thread's: MessageFlags::begun before this block
  bool broken;                      // nothing goes on here
  SpinTimeout timeout;

  __device__ MessageTeam(const MessageArgs& given, MessageTeamShared& between, const Team& threads,
                         unsigned index, unsigned direction)
      : args(given), shared(between), team(threads), side(direction) {
    begun = threadIdx.x == 0 ? atomicAdd(&mine().begun, 1u) : 0;  // not waited for here
    begin(index);
    moved = 0;
    broken = should_exit(args.state);
    if (team.lane != 0) return;
    shared.block = index;
    shared.leaves = 0;
    shared.covers = 0;
  }
  __device__ void begin(unsigned block) {
    unsigned place = 0, before = 0;
    while (block >= args.block_end[place]) before = args.block_end[place++];
    blocks = args.block_end[place] - before;
    channel = block - before;
    if (channel >= args.channels) channel += kMessageChannels - args.channels;
    next_channel = channel * (kMessageChannels / kMessageHostChannels);  // apart from the others
    peer = args.peer[place];
    next_work = args.first[side][place];
    end_work = args.end[side][place];
    packets = mine().packets[side][channel][peer];
    tiles = mine().tiles[side][channel][peer];
    shares = mine().shares[side][channel][peer];
    // Under way together with these counts, not after them.
    packets_taken =
        side == kSend && team.lane == 0 ? load_flag(&mine().packets_taken[channel][peer]) : 0;
  }
  __device__ MessageFlags& mine() const { return *args.flags[args.rank]; }
  __device__ MessageFlags& theirs() const { return *args.flags[peer]; }
  /// Where `from` has its slots and lines among those that `owner` keeps for its peers.
  __device__ static unsigned long long place(int owner, int from) {
    return static_cast<unsigned long long>(from - (from > owner ? 1 : 0));
  }
  __device__ unsigned long long index(int owner, int from) const {
    return place(owner, from) * args.all_channels + channel;
  }
  __device__ int owner() const { return side == kSend ? peer : args.rank; }
  __device__ int sender() const { return side == kSend ? args.rank : peer; }
  __device__ bool through_host() const { return channel >= kMessageChannels; }
  __device__ unsigned slots() const { return through_host() ? kMessageHostSlots : kMessageSlots; }
  __device__ char* slot(unsigned tile) const {
    if (through_host()) {
      const unsigned at = owner() * kMessageHostChannels + channel - kMessageChannels;
      return args.host_slots + (at * kMessageHostSlots + tile % kMessageHostSlots) *
                                   static_cast<unsigned long long>(kMessageSlotBytes);
    }
    const auto at = index(owner(), sender()) * kMessageSlots + tile % kMessageSlots;
    return args.slots[owner()] + at * kMessageSlotBytes;
  }
  __device__ char* packet(unsigned message, unsigned unit) const {
    const auto at = index(owner(), sender()) * kMessagePacketDepth + message % kMessagePacketDepth;
    return args.packets[owner()] + (at * kMessagePacketUnits + unit) * FlagPacket::kBytes;
  }
  /// Tiles of a message that are a channel's. Of a shared one, host channels may take some of them.
  __device__ static unsigned tiles_of(const MessageWork& work, unsigned channel) {
    const unsigned long long units = (work.bytes + 15) / 16,
                             all = (units + work.tile_units - 1) / work.tile_units;
    return all > channel ? static_cast<unsigned>((all - channel - 1) / work.channels + 1) : 0;
  }
  /// In the message, of a channel's tile.
  __device__ static unsigned number_of(const MessageWork& work, unsigned channel, unsigned tile) {
    return channel + tile * work.channels;
  }
  __device__ static unsigned long long first(const MessageWork& work, unsigned number) {
    return static_cast<unsigned long long>(number) * work.tile_units;
  }
  __device__ static unsigned length(const MessageWork& work, unsigned number) {
    const unsigned long long units = (work.bytes + 15) / 16 - first(work, number);
    return static_cast<unsigned>(min(units, static_cast<unsigned long long>(work.tile_units)));
  }

  __device__ bool give_up(unsigned where) {
    if (broken) return true;
    broken = timeout.expired(args.state, args.stop_page, args.wait_ns, static_cast<unsigned>(peer),
                             where, ~0u);
    if (!broken && timeout.checked_host() && should_leave(&mine(), gridDim.x, timeout.began_ns)) {
      shared.since_ns = timeout.began_ns;
      shared.leaves = 1;
      broken = true;
    }
    return broken;
  }
  /// One thread. What was there before the word was raised can be read, or written, from here on.
  __device__ void await_flag(const unsigned* flag, unsigned value) {
    if (!reached(load_flag(flag), value)) {  // most often one look is enough
      while (!broken && !reached(peek_flag(flag), value)) give_up(value);
      load_flag(flag);
    }
    timeout.began_ns = 0;  // the next wait has its own deadline
  }
  /// All threads, of which one waits.
  __device__ void await_together(const unsigned* flag, unsigned value) {
    if (team.lane == 0) await_flag(flag, value);
    broken = team.any(broken);
  }

  // --- lines ------------------------------------------------------------------------------------
  static constexpr unsigned kTogether = 4;

  /// Never that of a line which nobody has written, nor of the message before in the same place.
  __device__ static unsigned flag_of(unsigned message) { return message * 2 + 1; }

  __device__ void await_lines_taken(unsigned value) {
    if (team.lane == 0 && !reached(packets_taken, value))
      await_flag(&mine().packets_taken[channel][peer], value);
    broken = team.any(broken);
  }
  __device__ void send_packets(const MessageWork& work) {
    const unsigned message = packets, limit = length(work, channel),
                   step = kTogether * team.threads;
    const bool whole = is_aligned(work.memory);
    for (unsigned at = 0; at < limit; at += step) {
      Unit held[kTogether];
#pragma unroll
      for (unsigned u = 0; u < kTogether; ++u) {
        const unsigned unit = at + u * team.threads + team.lane;
        if (unit < limit)
          held[u] =
              load_any(work.memory, first(work, channel) + unit, work.bytes, whole, work.element);
      }
      if (at == 0)
        await_lines_taken(message + 1 - kMessagePacketDepth);  // it lay in the same place
      if (broken) return;
#pragma unroll
      for (unsigned u = 0; u < kTogether; ++u) {
        const unsigned unit = at + u * team.threads + team.lane;
        if (unit < limit)
          FlagPacket::send<DataType::uint8>(packet(message, unit), held[u], flag_of(message));
      }
    }
  }
  __device__ void take_packets(const MessageWork& work) {
    const unsigned message = packets, limit = length(work, channel),
                   step = kTogether * team.threads;
    const bool whole = is_aligned(work.memory);
    for (unsigned at = team.lane; at < limit && !broken; at += step) {
      FlagPacket::LoadedPacket got[kTogether];
      bool all_here;
      do {
        all_here = true;
#pragma unroll
        for (unsigned u = 0; u < kTogether; ++u)
          if (at + u * team.threads < limit)
            got[u] = FlagPacket::load(packet(message, at + u * team.threads));
#pragma unroll
        for (unsigned u = 0; u < kTogether; ++u)
          if (at + u * team.threads < limit)
            all_here &= FlagPacket::is_here<DataType::uint8>(got[u], flag_of(message));
      } while (!all_here && !give_up(at));
      timeout.began_ns = 0;
      if (broken) break;
#pragma unroll
      for (unsigned u = 0; u < kTogether; ++u)
        if (at + u * team.threads < limit)
          store_any(work.memory, first(work, channel) + at + u * team.threads,
                    FlagPacket::unit_of(got[u]), work.bytes, whole, work.element);
    }
    broken = team.any(broken);
    // No fence: only loads come before, and these have ended when their flags were looked at.
    if (team.lane == 0 && !broken)
      store_flag_relaxed(&theirs().packets_taken[channel][args.rank], message + 1);
  }

  // --- tiles of shared messages (message_share.cuh) ----------------------------------------------
  // One thread. A sender asks for no more than it has slots for.

  /// Takes tiles to send, so that the end has up to `most`; it has `have`. Returns how many it has
  /// then: fewer, where the message is over here. Their numbers are shown to the team.
  __device__ unsigned take_to_send(const MessageWork& work, unsigned have, unsigned most) {
    if (!through_host()) {
      const unsigned now = claim_front(&mine().claims[channel][peer], shares + 1,
                                       tiles_of(work, channel), have, most);
      for (; have < now; ++have)
        shared.numbers[have % kMessageSlots] = number_of(work, channel, have);
      return now;
    }
    for (unsigned left = work.channels; have < most && left != 0; ++next_channel) {
      next_channel %= work.channels;
      const unsigned tile =
          claim_end(&mine().claims[next_channel][peer], shares + 1, tiles_of(work, next_channel));
      if (tile == kNoTile) {
        --left;
        continue;
      }
      shared.numbers[have++ % kMessageSlots] = number_of(work, next_channel, tile);
      left = work.channels;
    }
    return have;
  }
  /// The same of tiles that have come.
  __device__ unsigned take_to_receive(unsigned have, unsigned most) {
    for (; have < most; ++have) {
      const unsigned number = peek_flag(&mine().numbers[channel][peer][(tiles + have) % slots()]);
      if (number == kNoTile) break;
      shared.numbers[have % kMessageSlots] = number;
    }
    return have;
  }
  __device__ unsigned take(const MessageWork& work, unsigned have, unsigned most) {
    return side == kSend ? take_to_send(work, have, most) : take_to_receive(have, most);
  }
  /// Before the peer is told that the tile is there.
  __device__ void publish_number(unsigned tile, unsigned number) const {
    store_flag_relaxed(&theirs().numbers[channel][args.rank][(tiles + tile) % slots()], number);
  }
  /// Of a tile that is open; of a message that is not shared, of any.
  __device__ unsigned number(const MessageWork& work, unsigned tile) const {
    return work.shared != 0 ? shared.numbers[tile % kMessageSlots] : number_of(work, channel, tile);
  }

  // --- tiles that bulk copies cannot move, by all threads ----------------------------------------

  /// All threads: the number of the next tile of any message; kNoTile of a shared one that is over.
  __device__ unsigned next_number(const MessageWork& work) {
    if (work.shared == 0) return number_of(work, channel, moved);
    if (team.lane == 0) shared.over = take(work, moved, moved + 1) == moved ? 1 : 0;
    team.barrier();
    return shared.over != 0 ? unsigned{kNoTile} : shared.numbers[moved % kMessageSlots];
  }
  __device__ void send_tiles(const MessageWork& work, unsigned count) {
    for (bool over = false; moved < count && !over; ++moved) {
      await_together(&mine().taken[channel][peer], tiles + moved + 1 - slots());
      if (broken) return;
      const unsigned number = next_number(work);
      over = number == kNoTile;
      if (!over)
        put_units(team, slot(tiles + moved), work.memory, work.bytes, first(work, number),
                  length(work, number), work.element);
      team.barrier();
      if (team.lane != 0) continue;
      if (work.shared != 0) publish_number(moved, number);
      store_flag(&theirs().arrived[channel][args.rank], tiles + moved + 1);
    }
  }
  __device__ void take_tiles(const MessageWork& work, unsigned count) {
    for (bool over = false; moved < count && !over; ++moved) {
      await_together(&mine().arrived[channel][peer], tiles + moved + 1);
      if (broken) return;
      const unsigned number = next_number(work);
      over = number == kNoTile;
      if (!over)
        take_units(team, work.memory, work.bytes, first(work, number), slot(tiles + moved),
                   length(work, number), work.element);
      team.barrier();
      if (team.lane == 0) store_flag(&theirs().taken[channel][args.rank], tiles + moved + 1);
    }
  }

  /// What this rank sends itself: both teams of all its channels, units in turn.
  __device__ void keep(const MessageWork& work) const {
    if (work.memory == work.kept) return;
    const bool whole = is_aligned(work.memory) && is_aligned(work.kept);
    const unsigned long long units = (work.bytes + 15) / 16, stride = 2ull * blocks * team.threads;
    for (unsigned long long i = (channel * 2ull + side) * team.threads + team.lane; i < units;
         i += kTogether * stride) {
      Unit held[kTogether];
#pragma unroll
      for (unsigned u = 0; u < kTogether; ++u)
        if (i + u * stride < units)
          held[u] = load_any(work.kept, i + u * stride, work.bytes, whole, work.element);
#pragma unroll
      for (unsigned u = 0; u < kTogether; ++u)
        if (i + u * stride < units)
          store_any(work.memory, i + u * stride, held[u], work.bytes, whole, work.element);
    }
  }

  /// The next work, where all threads of the team find it once they have met. Those that still have
  /// to do with the one before look at the other place.
  __device__ void show_work() const {
    if (team.lane != 0 || next_work >= end_work) return;
    shared.works[next_work % 2] =
        next_work < args.noted ? mine().noted[next_work] : args.works[next_work - args.noted];
  }
  /// A message, or what is left of it. bulk(*this, work, count) moves tiles of aligned buffers.
  template <class Bulk>
  __device__ void serve(const MessageWork& work, Bulk bulk) {
    if (work.side == kKeep) return keep(work);
    if (through_host() ? work.shared == 0 : channel >= work.channels) return;
    if (work.by_packets != 0) {
      if (side == kSend)
        send_packets(work);
      else
        take_packets(work);
      if (!broken) ++packets;
      return;
    }
    // A shared message is over where its sender says so.
    const unsigned count = work.shared != 0 ? kNoTile / 2 : tiles_of(work, channel);
    if (!bulk(*this, work, count)) {
      if (side == kSend)
        send_tiles(work, count);
      else
        take_tiles(work, count);
    }
    if (broken) return;
    tiles += moved;
    shares += work.shared;
  }
  /// All of this end's messages, in order, as far as they go.
  template <class Bulk>
  __device__ void serve_end(Bulk bulk) {
    while (true) {
      show_work();
      broken = team.any(broken);  // one may have seen what another has not
      if (broken || next_work >= end_work) break;
      serve(shared.works[next_work % 2], bulk);
      if (broken || ++next_work == end_work) break;
      moved = 0;
      timeout.began_ns = 0;
    }
    if (team.lane != 0 || peer == args.rank) return;
    mine().packets[side][channel][peer] = packets;
    mine().tiles[side][channel][peer] = tiles;
    mine().shares[side][channel][peer] = shares;
    if (!broken || shared.leaves == 0) return;
    mine().places[side][shared.block] = {next_work, moved, shared.since_ns};
    shared.covers = leave_end(&mine(), side, shared.block, gridDim.x) ? 0 : 1;
  }
  /// Takes up an end that some team has left. False where none is.
  __device__ bool take_up() {
    if (team.lane == 0) {
      shared.block = take_left_end(&mine(), side, shared.block);
      shared.leaves = 0;
    }
    team.barrier();
    const unsigned block = shared.block;
    if (block == kNoBlock) return false;
    begin(block);
    const MessagePlace& place = mine().places[side][block];
    next_work = place.work;
    moved = place.moved;
    timeout.began_ns = place.since_ns;
    timeout.polls = 0u - kLooksAtLeft;
    broken = false;
    return true;
  }
  /// Both teams meet, again and again while any end is left that this block must see to.
  __device__ bool goes_on() {
    const bool covers = team.lane == 0 && ((begun & kEndsLeft) != 0 || shared.covers != 0);
    while (__syncthreads_or(covers && must_go_on(&mine(), gridDim.x) ? 1 : 0))
      if (take_up()) return true;
    return false;
  }
  template <class Bulk>
  __device__ void run(Bulk bulk) {
    do serve_end(bulk);
    while (goes_on());
    if (threadIdx.x == 0 && (begun & ~kEndsLeft) + 1 == gridDim.x) mine().begun = 0;
  }
};

/// A launch that only notes works, for one behind it.
__device__ inline void note_works(const MessageArgs& args) {
  MessageWork* const noted = args.flags[args.rank]->noted + args.noted;
  for (unsigned i = threadIdx.x; i < args.work_count; i += blockDim.x) noted[i] = args.works[i];
}

}  // namespace plait::cuda
