// How much of each large exchange of two ranks goes through host memory: corrected by what earlier
// ones took, and the same on both ranks although neither waits for the other.
#pragma once
#include <cstdint>
#include <optional>

#include "driver/cuda/api.hpp"
#include "exec/cuda/exchange_cut.hpp"
#include "exec/cuda/host_share.hpp"
#include "exec/cuda/settled.hpp"

namespace plait::cuda {

/// Events of one call: when the peer was there too, and where each path had ended.
struct ExchangeTimes {
  Event begin = nullptr, link = nullptr, host = nullptr;
};

class ExchangeShare {
 public:
  /// words: null = no share. In the current context.
  void open(Settled::Words* words, int rank, double wait_s);
  void close() noexcept;

  /// Permille of the next call, of `bytes`; all calls in order, none of them captured: a graph
  /// would keep its share whatever others do on PCIe.
  std::uint32_t next(std::uint64_t bytes, std::uint64_t chunk_bytes);
  /// What is to be recorded of that call, as it was cut; null = nothing.
  const ExchangeTimes* timed(const ExchangeCut& cut);

 private:
  void learn();

  std::optional<Settled> settled_;
  HostShare share_;
  SharedSize size_;  // of the call asked for last,
  int level_ = 0;    // and what it got
  ExchangeTimes times_;
  std::optional<PathSample> sample_;  // on its way
  bool is_warm_ = false;              // the first call touches what has just been made
};

}  // namespace plait::cuda
