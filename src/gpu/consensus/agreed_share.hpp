// Fraction of each large call that goes through host memory: corrected by the times of earlier
// calls, and equal on all ranks although no rank waits for another. A captured call keeps the
// fraction that earlier eager calls of the size have measured, less a margin.
#pragma once
#include <atomic>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

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

/// Mapped by all ranks; zeroed before the first rank starts.
struct SharePage {
  static constexpr std::size_t kSizes = 64;  ///< By the logarithm of the message's bytes.
  static constexpr std::size_t kClasses = 2 * 2 * kSizes;  ///< Carrier, one way or both, size.
  AgreedNumber::NumberPage calls;
  /// By rank: least balanced share of the latest timed calls, in thousandths; 0 = none was timed.
  std::atomic<std::uint16_t> balanced[AgreedNumber::kRanks][kClasses];
};

class AgreedShare {
 public:
  /// Opens in the current context. page: null = nothing goes through host memory.
  void open(SharePage* page, int rank, int ranks, double wait_s);
  void close() noexcept;

  /// Returns the host share of the next call in thousandths. `bytes`: size of the call, cut into
  /// chunks of at least `chunk_bytes`. Called for all eager calls in order. voters: ranks (bits)
  /// that see both paths end, and therefore learn and decide.
  std::uint32_t next(LinkCarrier carrier, std::uint64_t bytes, std::uint64_t chunk_bytes,
                     std::uint32_t voters = AgreedNumber::kAll);
  /// next() of a captured call, whose replays keep the share: captured_permille() of the balance
  /// that eager calls of the size have measured, or else of smaller sizes.
  std::uint32_t captured(LinkCarrier carrier, std::uint64_t bytes,
                         std::uint32_t voters = AgreedNumber::kAll);
  /// Events to record for that call, with `share_bytes` through host memory; null = none.
  const PathMarks* timed(std::uint64_t bytes, std::uint64_t share_bytes);

 private:
  static constexpr std::size_t kLatest = 4;  // Timed calls of a class that count.
  void learn();
  void publish(double balanced);
  std::uint32_t measured(std::size_t share_class, std::uint32_t voters) const;

  SharedSize size_of(LinkCarrier carrier, std::uint64_t bytes) const;

  int rank_ = 0;
  int ranks_ = 0;
  SharePage* page_ = nullptr;
  std::optional<AgreedNumber> agreed_;
  HostShare share_;
  SharedSize size_;     // Size in the last next().
  int level_ = 0;       // Its level.
  bool votes_ = false;  // This rank learns from that call.
  PathMarks marks_;
  std::optional<PathSample> sample_;                          // In flight.
  std::size_t class_ = 0;                                     // Class in the last next().
  std::size_t sample_class_ = 0;                              // Class of sample_.
  std::map<std::size_t, std::vector<std::uint16_t>> latest_;  // By class: oldest first.
  bool is_warm_ = false;  // The first call is not timed, since that call touches fresh
                          // memory.
};

}  // namespace plait::cuda
