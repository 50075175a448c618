// How calls by copy engines are cut, from what may be tuned and the room there is: the same for
// calls that are made ready on a GPU and for their plans.
#pragma once
#include <cstdint>

#include "exec/cuda/copies/engine_ring.hpp"
#include "exec/cuda/copies/exchange_cut.hpp"
#include "exec/cuda/copies/rotation.hpp"
#include "exec/cuda/group.hpp"

namespace plait::cuda {

/// What a rank's arena holds for copy engines. In a plan's scratch the slots of tiled kernels come
/// first, then those of copy engines, so that plans of both speak of the same bytes.
struct CopyRoom {
  std::uint64_t tile_bytes = 0;   ///< slots of tiled kernels
  std::uint64_t inbox_bytes = 0;  ///< all slots of copy engines
  std::uint64_t slot_bytes = 0;   ///< one slot of a rotation; 0 = no room for rotations
  std::uint64_t lent_bytes = 0;   ///< of tile_bytes, which exchanges of two ranks may borrow
  std::uint64_t ring_bytes = 0;   ///< host memory of one rank; 0 = nothing goes through the host
};
CopyRoom copy_room(const Group& group);

/// The same on all ranks.
struct CopyTuning {
  std::uint64_t piece_bytes = 0;        ///< of a piece, at most; 0 = chosen
  int cuts = -1;                        ///< of an exchange's last piece; -1 = chosen
  std::uint32_t host_permille = 0;      ///< of an exchange, through host memory
  std::uint32_t gather_permille = 0;    ///< of an all_reduce's results, through host memory
  std::uint32_t host_cpu_permille = 0;  ///< of an all_reduce, by CPU cores
  /// Of what CPU cores reduce, so that few chunks are no reason for one.
  std::uint64_t least_chunk_bytes = 64 << 10;
};
/// exchanges: whether two ranks' copy engines exchange what goes through host memory; else its
/// results are gathered. A share that is left to be chosen is none: what earlier calls took is not
/// known here.
CopyTuning copy_tuning(const Tuning& tuning, bool exchanges);

ExchangeCut exchange_cut(std::uint64_t part_bytes, const CopyRoom& room, const CopyTuning& tuning);
RotationCut rotation_cut(std::uint64_t part_bytes, const CopyRoom& room, const CopyTuning& tuning);
RingCut ring_cut(const Request& request, const CopyRoom& room, const CopyTuning& tuning);
/// What CPU cores take of an all_reduce.
HostCut cores_cut(std::uint64_t bytes, const CopyRoom& room, const CopyTuning& tuning);

}  // namespace plait::cuda
