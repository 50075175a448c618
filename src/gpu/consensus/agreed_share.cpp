// Each rank corrects a share by the rank's own times; a call gets the minimum of all ranks'
// proposals.
#include "gpu/consensus/agreed_share.hpp"

#include "gpu/abi/call_args.hpp"

namespace plait::cuda {
namespace {

static_assert(AgreedNumber::kRanks >= kMaxCudaRanks);

/// Host shares of calls from a size on, HGX H200 (E-0059, E-0128, E-0533); sizes in rising order.
struct ShareRow {
  int ranks;
  LinkCarrier carrier;
  std::uint64_t least_bytes;
  double link_bytes_per_ns;  // Message bytes per ns.
  double around_ns;          // Before the first copy and after the last copy.
  double best_share;         // Fraction of the message on the host path, without further load.
  double fork_ns;
};
constexpr ShareRow kShareRows[] = {
    {2, LinkCarrier::copy_engines, kLeastSharedBytes, 375.0, 45000.0, kBestHostPermille / 1000.0,
     8000.0},
    {2, LinkCarrier::kernel, kLeastExchangedBytes, 362.0, 10000.0, kBestExchangedPermille / 1000.0,
     28000.0},
    {4, LinkCarrier::kernel, kLeastGatheredBytes, 229.0, 20000.0, 0.0775, 25000.0},
    {4, LinkCarrier::kernel, 192ull << 20, 229.0, 20000.0, 0.0900, 25000.0},
    {4, LinkCarrier::kernel, 1536ull << 20, 229.0, 20000.0, 0.1025, 25000.0},
};

}  // namespace

SharedSize AgreedShare::size_of(LinkCarrier carrier, std::uint64_t bytes) const {
  const int row_ranks = ranks_ == 3 ? 4 : ranks_;
  SharedSize size;
  for (const ShareRow& one : kShareRows)
    if (one.ranks == row_ranks && one.carrier == carrier && bytes >= one.least_bytes)
      size = {one.best_share, static_cast<double>(bytes) / one.link_bytes_per_ns + one.around_ns,
              one.fork_ns};
  return size;
}

void AgreedShare::open(AgreedNumber::NumberPage* page, int rank, int ranks, double wait_s) {
  if (page == nullptr) return;
  rank_ = rank;
  ranks_ = ranks;
  agreed_.emplace(*page, rank, ranks, wait_s);
  for (Event* event : {&marks_.begin, &marks_.link, &marks_.host})
    PLAIT_CUDA_CALL(event_create, event, 0);
}

void AgreedShare::close() noexcept {
  for (Event* event : {&marks_.begin, &marks_.link, &marks_.host}) {
    if (*event != nullptr) api().event_destroy(*event);
    *event = nullptr;
  }
  agreed_.reset();
}

/// Takes the times of the last sample if complete. Never waits, and drops times that the driver
/// cannot give.
void AgreedShare::learn() {
  if (!sample_) return;
  const RelaxedCaptureMode relaxed;
  float link_ms = 0.0F, host_ms = 0.0F;
  Result result = api().event_elapsed(&host_ms, marks_.begin, marks_.host);
  if (result == kSuccess) result = api().event_elapsed(&link_ms, marks_.begin, marks_.link);
  if (result == kNotReady) return;
  if (result == kSuccess && link_ms > 0.0F && host_ms > 0.0F) {
    sample_->direct_ns = 1e6 * static_cast<double>(link_ms);
    sample_->host_ns = 1e6 * static_cast<double>(host_ms);
    share_.learn(*sample_);
  }
  sample_.reset();
}

std::uint32_t AgreedShare::next(LinkCarrier carrier, std::uint64_t bytes, std::uint64_t chunk_bytes,
                                std::uint32_t voters) {
  level_ = 0;
  votes_ = (voters >> rank_ & 1) != 0;
  size_ = size_of(carrier, bytes);
  if (!agreed_ || size_.host_share <= 0.0) return 0;
  learn();
  const int proposal = votes_ ? share_.choose(size_, !sample_) : HostShare::kLevels;
  level_ = agreed_->next(proposal, bytes, voters);
  if (votes_) share_.ran(level_);
  if (level_ == 0) return 0;
  if (votes_ && sample_) ++sample_->calls;
  // Shares are cut to whole chunks.
  return permille_at(level_, size_, static_cast<double>(chunk_bytes) / static_cast<double>(bytes));
}

const PathMarks* AgreedShare::timed(std::uint64_t bytes, std::uint64_t share_bytes) {
  if (level_ == 0 || share_bytes == 0 || !votes_ || sample_) return nullptr;
  if (!is_warm_) {
    is_warm_ = true;
    return nullptr;
  }
  const double share = static_cast<double>(share_bytes) / static_cast<double>(bytes);
  sample_ = PathSample{size_, level_, share, 0.0, 0.0, 1};
  return &marks_;
}

}  // namespace plait::cuda
