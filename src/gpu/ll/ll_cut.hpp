// Arithmetic of direct_ll and ll_chain calls whose packets do not fit into half an inbox at once,
// and of two_shot calls that reuse packets. Engines launch by these cuts and ll_plan.cpp plans by
// them.
#pragma once
#include <algorithm>
#include <cstdint>

#include "gpu/abi/ll_args.hpp"
#include "plait/plan.hpp"

namespace plait::cuda {

// Bytes that a 16-byte unit takes on the wire, by packet format.
inline constexpr std::uint64_t kSentinelPacketBytes = 16;  ///< a word of all ones means "not here
                                                           ///< yet"
inline constexpr std::uint64_t kFlagPacketBytes = 32;      ///< each 64-bit word holds 32 bits of
                                                           ///< data and a 32-bit flag
inline constexpr std::uint64_t kEscapeFlagBytes = 8;       ///< escape word of a packet with
                                                           ///< data of any bits

/// Most pieces of direct_ll, and of a chain in short pieces. Each piece adds a start and an end (5
/// us with two ranks, by bench/results/gpu_two_shot_memory_h100x2.csv, when two_shot worked in
/// pieces) but saves memory.
inline constexpr std::uint64_t kMostLlPieces = 6;

/// Returns the 16-byte units of the request's message, rounded up.
inline std::uint64_t units_of(const Request& request) {
  return (request.count * bytes_of(request.type) + 15) / 16;
}

/// Most packets of a piece in a rank's inbox: kernels count packets in 32 bits, with some steps
/// past the end.
inline constexpr std::uint64_t kMostPackets = 1ull << 31;

/// Equal pieces but for one shorter piece, cut between the packets of all ranks. The last piece is
/// shorter, in a chain the first.
struct LlCut {
  std::uint64_t pieces = 0;
  std::uint64_t units = 0;  ///< 16-byte units of a piece
};

/// Returns the packets that a rank receives for a message of `units`: the whole message from every
/// peer (one_shot), or the own shard and the peers' results.
inline std::uint64_t packets_for(std::uint64_t units, int ranks, bool is_one_shot) {
  const auto n = static_cast<std::uint64_t>(ranks);
  return (n - 1) * (is_one_shot ? units : 2 * ((units + n - 1) / n));
}

/// True if half an inbox of `room` packets holds all packets of a message.
inline bool holds_packets(std::uint64_t room, std::uint64_t units, int ranks, bool is_one_shot) {
  return units <= kMostPackets &&
         packets_for(units, ranks, is_one_shot) <= std::min(room, kMostPackets);
}

/// Most bytes of packets that stay cached until taken.
inline constexpr std::uint64_t kCachedPacketBytes = 24ull << 20;

/// Returns the most units of a shard in a step of long_two_shot, so that slots hold enough steps.
/// room: bytes of half an inbox.
inline std::uint64_t most_shot_units(std::uint64_t room, std::uint64_t packet_bytes, int ranks,
                                     int ahead) {
  const auto slots = 2 * static_cast<std::uint64_t>(std::max(1, ranks - 1));
  const auto ring = static_cast<std::uint64_t>(shot_ring(ahead));
  return std::min(room, kCachedPacketBytes) / packet_bytes / slots / ring;
}

/// Cuts a direct_ll call with parts of `units`. For every peer the inbox has a packet and an escape
/// word per unit of a piece, and a greeting packet. With more than two ranks a piece is also
/// limited to data that stays cached until taken: an all_gather of 32 MiB over four ranks takes 92
/// us in two pieces and 111 us in a single piece.
inline LlCut cut_direct_ll(std::uint64_t units, int ranks, std::uint64_t half_bytes) {
  std::uint64_t packets = kMostPackets;
  if (ranks > 2) half_bytes = std::min(half_bytes, kCachedPacketBytes);
  if (ranks > 1)
    packets = std::min(packets, half_bytes / (kSentinelPacketBytes + kEscapeFlagBytes));
  const std::uint64_t room = packets / static_cast<std::uint64_t>(std::max(1, ranks - 1));
  if (room < 2) return {};
  const std::uint64_t pieces = std::max<std::uint64_t>(1, (units + room - 2) / (room - 1));
  return {pieces, (units + pieces - 1) / pieces};
}

/// Steps of a kernel that reuses packets within a launch. long_chain cuts pieces into whole steps
/// if at least one step fits; long_two_shot has no pieces.
struct LlStep {
  std::uint64_t units = 1;           ///< units of each shard that all threads of a rank pass in a
                                     ///< step
  std::uint64_t most_units = ~0ull;  ///< most units of a piece of a chain
  int ahead = 1;                     ///< steps that pushing runs ahead, long_two_shot only
};

/// Cuts a chain. The inbox has a packet and an escape word per unit of a piece, and a greeting
/// packet for every peer.
inline LlCut cut_chain(std::uint64_t units, int ranks, std::uint64_t half_bytes, LlStep step = {}) {
  const std::uint64_t packets =
      std::min(kMostPackets, half_bytes / (kSentinelPacketBytes + kEscapeFlagBytes));
  const auto greetings = static_cast<std::uint64_t>(std::max(0, ranks - 1));
  if (packets <= greetings) return {};
  const std::uint64_t most = std::min(packets - greetings, step.most_units);
  if (units <= most) return {1, units};
  const std::uint64_t piece = most >= step.units ? most / step.units * step.units : most;
  return {(units + piece - 1) / piece, piece};
}

}  // namespace plait::cuda
