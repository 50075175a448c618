// Moves any number of messages between ranks in a single call, in both directions at once. Each
// channel between two ranks has a team of threads per direction, so no message waits for a message
// with another peer or direction. Messages between two ranks stay in order. Small messages go as
// flagged LL packets, larger messages as tiles in slots of the receiver. A sender runs ahead until
// the receiver's slots are full, so the receiver need not be in the call. Idea: NCCL's channels and
// point-to-point works.
#pragma once
#include "gpu/device/units.cuh"
#include "gpu/ll/fused.cuh"
#include "gpu/p2p/message_ends.cuh"
#include "gpu/p2p/message_share.cuh"

namespace plait::cuda {

/// Shared memory of a team.
struct MessageTeamShared {
  unsigned long long barriers[kMessageMovers][kMessageStages];
  MessageWork works[2];  ///< Current work, by parity of the index.
  /// Tiles of this message that may be moved: a slot is free, or data has arrived.
  volatile unsigned open;
  volatile unsigned done[kMessageMovers];  ///< 1 + last tile moved by each thread.
  /// First tile that is not moved, because the team abandons the endpoint.
  volatile unsigned limit;
  volatile unsigned over;  ///< Not 0: a shared message ends at `limit`.
  /// Tile numbers of open tiles of a shared message, by slot.
  volatile unsigned numbers[kMessageSlots];
  volatile unsigned block;               ///< Block of the endpoint served, or kNoBlock.
  volatile unsigned leaves;              ///< Not 0: the team abandons this endpoint for another.
  volatile unsigned long long since_ns;  ///< Start of that wait.
  volatile unsigned covers;              ///< Not 0: the team serves abandoned endpoints.
};

/// Threads that serve an endpoint: a direction of a channel to or from a rank.
struct MessageTeam {
  const MessageArgs& args;
  MessageTeamShared& shared;
  Team team;
  unsigned side;
  unsigned channel;  // Also the row of the flags; host channels come last.
  int peer;
  unsigned blocks;  // Blocks of this peer.
  unsigned next_work, end_work;
  unsigned moved;                   // Tiles of the next work that are already moved.
  unsigned packets, tiles, shares;  // Counts of this endpoint over all calls.
  unsigned packets_taken;           // Single thread: value at the start.
  unsigned next_channel;            // Single thread, host channels: channel of the next claim.
  unsigned begun;                   // Single thread: MessageFlags::begun before this block.
  bool broken;                      // The endpoint makes no more progress.
  SpinTimeout timeout;

  __device__ MessageTeam(const MessageArgs& given, MessageTeamShared& between, const Team& threads,
                         unsigned index, unsigned direction)
      : args(given), shared(between), team(threads), side(direction) {
    begun = threadIdx.x == 0 ? atomicAdd(&mine().begun, 1u) : 0;  // Not waited for here.
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
    // Spread the host channels.
    next_channel = channel * (kMessageChannels / kMessageHostChannels);
    peer = args.peer[place];
    next_work = args.first[side][place];
    end_work = args.end[side][place];
    packets = mine().packets[side][channel][peer];
    tiles = mine().tiles[side][channel][peer];
    shares = mine().shares[side][channel][peer];
    // Loaded together with the preceding counts, not afterwards.
    packets_taken =
        side == kSend && team.lane == 0 ? load_flag(&mine().packets_taken[channel][peer]) : 0;
  }
  __device__ MessageFlags& mine() const { return *args.flags[args.rank]; }
  __device__ MessageFlags& theirs() const { return *args.flags[peer]; }
  /// Index of `from` among the peers that `owner` keeps slots for.
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
  /// Number of a message's tiles that belong to a channel. Host channels may take some if the
  /// message is shared.
  __device__ static unsigned tiles_of(const MessageWork& work, unsigned channel) {
    const unsigned long long units = (work.bytes + 15) / 16,
                             all = (units + work.tile_units - 1) / work.tile_units;
    return all > channel ? static_cast<unsigned>((all - channel - 1) / work.channels + 1) : 0;
  }
  /// Number in the message of a channel's tile.
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
  /// A single thread: waits until the flag reaches `value`. Data published before the flag may be
  /// read, and freed slots written, from here on.
  __device__ void await_flag(const unsigned* flag, unsigned value) {
    if (!reached(load_flag(flag), value)) {  // A single look is usually enough.
      while (!broken && !reached(peek_flag(flag), value)) give_up(value);
      load_flag(flag);
    }
    timeout.began_ns = 0;  // The next wait has a new deadline.
  }
  /// All threads; a single thread waits.
  __device__ void await_together(const unsigned* flag, unsigned value) {
    if (team.lane == 0) await_flag(flag, value);
    broken = team.any(broken);
  }

  // --- LL packets -------------------------------------------------------------------------------
  static constexpr unsigned kTogether = 4;

  /// Flag of a message's packets: differs from the initial value and from the previous message's
  /// flag in the same place.
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
      // The previous message in this place has been taken.
      if (at == 0) await_lines_taken(message + 1 - kMessagePacketDepth);
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
    // No fence: only loads precede, and they ended when their flags were checked.
    if (team.lane == 0 && !broken)
      store_flag_relaxed(&theirs().packets_taken[channel][args.rank], message + 1);
  }

  // --- tiles of shared messages (message_share.cuh) ----------------------------------------------
  // Called by a single thread. A sender claims at most one tile per slot.

  /// Claims tiles to send, in addition to the endpoint's `have`, up to `most` in all. Returns how
  /// many the endpoint holds then: fewer if the message ends here. Publishes the tiles' numbers to
  /// the team.
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
  /// The same for tiles that have arrived.
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
  /// Called before the peer is signalled that the tile has arrived.
  __device__ void publish_number(unsigned tile, unsigned number) const {
    store_flag_relaxed(&theirs().numbers[channel][args.rank][(tiles + tile) % slots()], number);
  }
  /// Number of an open tile; of any tile if the message is not shared.
  __device__ unsigned number(const MessageWork& work, unsigned tile) const {
    return work.shared != 0 ? shared.numbers[tile % kMessageSlots] : number_of(work, channel, tile);
  }

  // --- tiles that bulk copies cannot move, by all threads ----------------------------------------

  /// All threads: number of the next tile; kNoTile if a shared message has ended.
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

  /// Copies a message from this rank to itself: both teams of all channels, unit by unit in turn.
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

  /// Publishes the next work to the team, visible after the next barrier. Threads still busy with
  /// the previous work read the other entry.
  __device__ void show_work() const {
    if (team.lane != 0 || next_work >= end_work) return;
    shared.works[next_work % 2] =
        next_work < args.noted ? mine().noted[next_work] : args.works[next_work - args.noted];
  }
  /// Moves a message or the rest of it. bulk(*this, work, count) moves tiles of aligned buffers.
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
    // The sender decides the end of a shared message.
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
  /// Moves all messages of this endpoint in order, as far as possible.
  template <class Bulk>
  __device__ void serve_end(Bulk bulk) {
    while (true) {
      show_work();
      broken = team.any(broken);  // A fault may have been seen by some threads only.
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
  /// Resumes an endpoint that a team has abandoned. False if none exists.
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
  /// Both teams meet again as long as this block must serve an abandoned endpoint.
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

/// A launch that only stores works for a later launch.
__device__ inline void note_works(const MessageArgs& args) {
  MessageWork* const noted = args.flags[args.rank]->noted + args.noted;
  for (unsigned i = threadIdx.x; i < args.work_count; i += blockDim.x) noted[i] = args.works[i];
}

}  // namespace plait::cuda
