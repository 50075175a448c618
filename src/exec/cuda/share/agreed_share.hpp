// How much of each large call goes through host memory: corrected by what earlier ones took, and
// the same on all ranks although none waits for another.
#pragma once
#include <cstdint>
#include <optional>

#include "driver/cuda/api.hpp"
#include "exec/cuda/share/agreed_number.hpp"
#include "exec/cuda/share/host_share.hpp"

namespace plait::cuda {

/// Events of one call: when all ranks were there, and where each path had ended.
struct PathMarks {
  Event begin = nullptr, link = nullptr, host = nullptr;
};

class AgreedShare {
 public:
  /// words: null = no share. In the current context.
  void open(AgreedNumber::NumberPage* page, int rank, int ranks, double wait_s);
  void close() noexcept;

  /// Permille of the next call, of `bytes`, in chunks of so many at least; all calls in order, none
  /// of them captured: a graph would keep its share whatever others do on PCIe. judges: the ranks
  /// (bits) that see both paths end, and so learn and decide.
  std::uint32_t next(std::uint64_t bytes, std::uint64_t chunk_bytes,
                     std::uint32_t voters = AgreedNumber::kAll);
  /// What is to be recorded of that call, of which `share_bytes` go through host memory as it was
  /// cut; null = nothing.
  const PathMarks* timed(std::uint64_t bytes, std::uint64_t share_bytes);

 private:
  void learn();

  SharedSize size_of(std::uint64_t bytes) const;

  int rank_ = 0;
  int ranks_ = 0;
  std::optional<AgreedNumber> agreed_;
  HostShare share_;
  SharedSize size_;     // of the call asked for last,
  int level_ = 0;       // what it got,
  bool votes_ = false;  // and whether this rank is to learn from it
  PathMarks marks_;
  std::optional<PathSample> sample_;  // on its way
  bool is_warm_ = false;              // the first call touches what has just been made
};

}  // namespace plait::cuda
