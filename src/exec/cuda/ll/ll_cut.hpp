// How a call by lines (hop, ll_chain) is cut where its lines do not fit into half an inbox at
// once, and how two_shot then uses them again. Pure arithmetic.
#pragma once
#include <algorithm>
#include <cstdint>

#include "exec/cuda/ll/ll_args.hpp"
#include "plait/plan.hpp"

namespace plait::cuda {

// A 16-byte unit on its way.
inline constexpr std::uint64_t kSentinelPacketBytes = 16;  ///< a word of all ones: not there yet
inline constexpr std::uint64_t kFlagPacketBytes = 32;      ///< 32 bits of data, 32 of a flag
inline constexpr std::uint64_t kEscapeFlagBytes = 8;       ///< beside a sentinel packet of any bits

/// Of a hop, and of a chain in short pieces: each begins and ends alone (5 us of two ranks, by
/// bench/results/gpu_two_shot_memory_h100x2.csv, when two_shot went so), and saves memory.
inline constexpr std::uint64_t kMostLlPieces = 6;

/// 16-byte units of what the request counts, the last one begun.
inline std::uint64_t units_of(const Request& request) {
  return (request.count * bytes_of(request.type) + 15) / 16;
}

/// Of a piece, in the inbox of a rank: kernels count in 32 bits, some steps past the end.
inline constexpr std::uint64_t kMostPackets = 1ull << 31;

/// Pieces alike but for one that is shorter, cut between the lines of all ranks: the last, or along
/// a chain the first.
struct LlCut {
  std::uint64_t pieces = 0;
  std::uint64_t units = 0;  ///< 16-byte units of a piece
};

/// Lines that a rank gets for a message of so many units: from every other one, the whole message,
/// or its own share and the others' results.
inline std::uint64_t packets_for(std::uint64_t units, int ranks, bool is_one_shot) {
  const auto n = static_cast<std::uint64_t>(ranks);
  return (n - 1) * (is_one_shot ? units : 2 * ((units + n - 1) / n));
}

/// Whether half an inbox of so many lines holds all of a message.
inline bool holds_packets(std::uint64_t room, std::uint64_t units, int ranks, bool is_one_shot) {
  return units <= kMostPackets &&
         packets_for(units, ranks, is_one_shot) <= std::min(room, kMostPackets);
}

/// What is still cached when it is taken.
inline constexpr std::uint64_t kCachedPacketBytes = 24ull << 20;

/// Units of every shard that a step of long_two_shot may have, so that slots hold enough steps.
/// room: bytes of half an inbox.
inline std::uint64_t most_shot_units(std::uint64_t room, std::uint64_t packet_bytes, int ranks,
                                     int ahead) {
  const auto slots = 2 * static_cast<std::uint64_t>(std::max(1, ranks - 1));
  const auto ring = static_cast<std::uint64_t>(shot_ring(ahead));
  return std::min(room, kCachedPacketBytes) / packet_bytes / slots / ring;
}

/// How a hop with parts of so many units is cut: an inbox has, for every other rank, a line and a
/// word beside for each unit of a piece, and one to greet. Of several others no more than is still
/// cached when it is taken: an all_gather of 32 MiB of four ranks takes 92 us in two pieces, 111 in
/// one.
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

/// The steps of what takes lines again in one launch: of long_chain, whose pieces are whole steps
/// where one fits, and of long_two_shot.
struct LlStep {
  std::uint64_t units = 1;           ///< that all threads of a rank pass in a step, of each shard
  std::uint64_t most_units = ~0ull;  ///< of a piece of a chain
  int ahead = 1;                     ///< of long_two_shot
};

/// The same along a chain: a line for each unit of a piece, and for every other rank one to greet.
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
