// Each rank corrects a share by the rank's own times; a call gets the minimum of all ranks'
// proposals.
#include "gpu/consensus/agreed_share.hpp"

#include <algorithm>
#include <bit>

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

/// Returns the class of a message in SharePage.
std::size_t class_of(LinkCarrier carrier, std::uint64_t bytes, std::uint32_t voters) {
  const std::size_t is_kernel = carrier == LinkCarrier::kernel ? 1 : 0;
  const std::size_t is_one_way = std::popcount(voters) == 1 ? 1 : 0;
  return (2 * is_kernel + is_one_way) * SharePage::kSizes +
         static_cast<std::size_t>(std::bit_width(bytes) - 1);
}

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

void AgreedShare::open(SharePage* page, int rank, int ranks, double wait_s) {
  if (page == nullptr) return;
  page_ = page;
  rank_ = rank;
  ranks_ = ranks;
  agreed_.emplace(page->calls, rank, ranks, wait_s);
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
    publish(balanced_share(*sample_));
  }
  sample_.reset();
}

/// Shows the least of this rank's latest samples of the class.
void AgreedShare::publish(double balanced) {
  std::vector<std::uint16_t>& latest = latest_[sample_class_];
  if (latest.size() == kLatest) latest.erase(latest.begin());
  latest.push_back(static_cast<std::uint16_t>(std::clamp(1000.0 * balanced, 1.0, 1000.0)));
  page_->balanced[rank_][sample_class_].store(*std::min_element(latest.begin(), latest.end()),
                                              std::memory_order_release);
}

/// Returns the least that a voter shows of the class, or else of the next smaller size that was
/// timed: a larger message balances at a larger share. 0 = none was timed.
std::uint32_t AgreedShare::measured(std::size_t share_class, std::uint32_t voters) const {
  for (std::size_t size = share_class % SharePage::kSizes + 1; size-- > 0; --share_class) {
    std::uint32_t least = 0;
    for (int rank = 0; rank < ranks_; ++rank) {
      const std::uint32_t shown =
          page_->balanced[rank][share_class].load(std::memory_order_acquire);
      if ((voters >> rank & 1) != 0 && shown != 0)
        least = least == 0 ? shown : std::min(least, shown);
    }
    if (least != 0) return least;
  }
  return 0;
}

std::uint32_t AgreedShare::captured(LinkCarrier carrier, std::uint64_t bytes,
                                    std::uint32_t voters) {
  constexpr std::uint64_t kCaptured = std::uint64_t{1} << 63;  // Eager calls are other calls.
  const SharedSize size = size_of(carrier, bytes);
  if (!agreed_ || size.host_share <= 0.0) return 0;
  learn();
  const double balanced = measured(class_of(carrier, bytes, voters), voters) / 1000.0;
  const auto proposal = static_cast<int>(captured_permille(size, balanced));
  // Every rank reads the same page, so the first to come decides alone.
  return static_cast<std::uint32_t>(agreed_->next(proposal, bytes | kCaptured, 0));
}

std::uint32_t AgreedShare::next(LinkCarrier carrier, std::uint64_t bytes, std::uint64_t chunk_bytes,
                                std::uint32_t voters) {
  level_ = 0;
  votes_ = (voters >> rank_ & 1) != 0;
  size_ = size_of(carrier, bytes);
  class_ = class_of(carrier, bytes, voters);
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
  sample_class_ = class_;
  return &marks_;
}

}  // namespace plait::cuda
