// Fraction of each large call that goes through host memory: corrected by the times of earlier
// calls, and equal on all ranks although no rank waits for another.
#pragma once
#include <cstdint>
#include <optional>

#include "driver/cuda/api.hpp"
#include "gpu/consensus/agreed_number.hpp"
#include "gpu/consensus/host_share.hpp"

namespace plait::cuda {

/// Timing events of a call: all ranks present, end of the direct path, end of the host path.
struct PathMarks {
  Event begin = nullptr, link = nullptr, host = nullptr;
};

/// What moves the rest of the message over the link.
enum class LinkCarrier { copy_engines, kernel };

class AgreedShare {
 public:
  /// Opens in the current context. page: null = nothing goes through host memory.
  void open(AgreedNumber::NumberPage* page, int rank, int ranks, double wait_s);
  void close() noexcept;

  /// Returns the host share of the next call in thousandths. `bytes`: size of the call, cut into
  /// chunks of at least `chunk_bytes`. Called for all calls in order, but not in captures: a graph
  /// would keep the share whatever the load on PCIe. voters: ranks (bits) that see both paths end,
  /// and therefore learn and decide.
  std::uint32_t next(LinkCarrier carrier, std::uint64_t bytes, std::uint64_t chunk_bytes,
                     std::uint32_t voters = AgreedNumber::kAll);
  /// Events to record for that call, with `share_bytes` through host memory; null = none.
  const PathMarks* timed(std::uint64_t bytes, std::uint64_t share_bytes);

 private:
  void learn();

  SharedSize size_of(LinkCarrier carrier, std::uint64_t bytes) const;

  int rank_ = 0;
  int ranks_ = 0;
  std::optional<AgreedNumber> agreed_;
  HostShare share_;
  SharedSize size_;     // Size in the last next().
  int level_ = 0;       // Its level.
  bool votes_ = false;  // This rank learns from that call.
  PathMarks marks_;
  std::optional<PathSample> sample_;  // In flight.
  bool is_warm_ = false;              // The first call is not timed, since that call touches fresh
                                      // memory.
};

}  // namespace plait::cuda
