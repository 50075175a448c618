// Each rank corrects a share of its own by its own times; a call gets the less of what both wish.
#include "exec/cuda/exchange_share.hpp"

namespace plait::cuda {
namespace {

constexpr std::uint64_t kLeastBytes = 384ull << 20;  // eager calls of 256 MiB gained nothing
constexpr double kLinkBytesPerNs = 375.0;            // of engines, HGX H200 (bench/NOTES.md)
constexpr double kAroundNs = 45000.0;                // before the first copy and after the last

SharedSize size_of(std::uint64_t bytes) {
  if (bytes < kLeastBytes) return {};
  return {kBestHostPermille / 1000.0, static_cast<double>(bytes) / kLinkBytesPerNs + kAroundNs};
}

}  // namespace

void ExchangeShare::open(Settled::Words* words, int rank, double wait_s) {
  if (words == nullptr) return;
  settled_.emplace(*words, rank, wait_s);
  for (Event* event : {&times_.begin, &times_.link, &times_.host})
    PLAIT_CUDA_CALL(event_create, event, 0);
}

void ExchangeShare::close() noexcept {
  for (Event* event : {&times_.begin, &times_.link, &times_.host}) {
    if (*event != nullptr) api().event_destroy(*event);
    *event = nullptr;
  }
  settled_.reset();
}

/// Asks, and never waits. A capture elsewhere in the process must not mind; times that cannot be
/// had are done without.
void ExchangeShare::learn() {
  if (!sample_) return;
  int mode = kCaptureRelaxed;
  api().exchange_capture_mode(&mode);
  float link_ms = 0.0F, host_ms = 0.0F;
  Result result = api().event_elapsed(&host_ms, times_.begin, times_.host);
  if (result == kSuccess) result = api().event_elapsed(&link_ms, times_.begin, times_.link);
  api().exchange_capture_mode(&mode);
  if (result == kNotReady) return;
  if (result == kSuccess) {
    sample_->direct_ns = 1e6 * static_cast<double>(link_ms);
    sample_->host_ns = 1e6 * static_cast<double>(host_ms);
    share_.learn(*sample_);
  }
  sample_.reset();
}

std::uint32_t ExchangeShare::next(std::uint64_t bytes, std::uint64_t chunk_bytes) {
  level_ = 0;
  size_ = size_of(bytes);
  if (!settled_ || size_.host_share <= 0.0) return 0;
  learn();
  level_ = settled_->next(share_.choose(size_, !sample_), bytes);
  share_.ran(level_);
  if (level_ == 0) return 0;
  if (sample_) ++sample_->calls;
  // Shares are cut to whole chunks.
  return permille_at(level_, size_, static_cast<double>(chunk_bytes) / static_cast<double>(bytes));
}

const ExchangeTimes* ExchangeShare::timed(const ExchangeCut& cut) {
  if (level_ == 0 || cut.chunks == 0 || sample_) return nullptr;
  if (!is_warm_) {
    is_warm_ = true;
    return nullptr;
  }
  const double share =
      static_cast<double>(cut.bytes - cut.host_from) / static_cast<double>(cut.bytes);
  sample_ = PathSample{size_, level_, share, 0.0, 0.0, 1};
  return &times_;
}

}  // namespace plait::cuda
