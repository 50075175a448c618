// Each call has a 64-bit slot, decided by compare-and-swap and reused once all ranks have passed
// the call.
#include "gpu/consensus/agreed_number.hpp"

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/text.hpp"
#include "plait/error.hpp"

namespace plait::cuda {

namespace {

/// Tag of a call in the slot: everything but the number.
std::uint64_t tag_of(std::uint64_t call, std::uint64_t about, std::uint32_t voters) {
  const std::uint64_t mixed = (about ^ std::uint64_t{voters} << 40) * 0x9e3779b97f4a7c15ull >> 40;
  return (call + 1) << 32 | mixed << 8;
}

}  // namespace

/// Waits until no rank needs the slot that this call will use.
void AgreedNumber::await_others(std::uint64_t call) const {
  const auto began = std::chrono::steady_clock::now();
  for (int rank = 0; rank < ranks_; ++rank)
    while (rank != rank_ &&
           page_.calls_done[rank].load(std::memory_order_acquire) + kCalls <= call) {
      if (std::chrono::steady_clock::now() - began > std::chrono::duration<double>(wait_s_))
        throw Error(ErrorCode::timeout,
                    text("rank {} is {} calls ahead of rank {} and waited {} s; check that rank",
                         rank_, kCalls, rank, wait_s_));
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
}

/// Minimum of `mine` and the last proposals of the voters.
int AgreedNumber::least_proposal(int mine, std::uint32_t voters) const {
  int least = mine;
  for (int rank = 0; rank < ranks_; ++rank) {
    if ((voters >> rank & 1) == 0) continue;
    const auto proposal = static_cast<int>(page_.proposed[rank].load(std::memory_order_acquire));
    if (proposal != 0) least = std::min(least, proposal - 1);
  }
  return least;
}

int AgreedNumber::next(int proposal, std::uint64_t about, std::uint32_t voters) {
  const std::uint64_t call = page_.calls_done[rank_].load(std::memory_order_relaxed);
  std::atomic<std::uint64_t>& word = page_.decided[call % kCalls];
  await_others(call);
  const int bounded = std::clamp(proposal, 0, 255);
  if ((voters >> rank_ & 1) != 0)
    page_.proposed[rank_].store(static_cast<std::uint32_t>(bounded) + 1, std::memory_order_release);
  const std::uint64_t tag = tag_of(call, about, voters);
  std::uint64_t found = word.load(std::memory_order_acquire);
  const std::uint64_t wanted = tag | static_cast<std::uint64_t>(least_proposal(bounded, voters));
  if (found >> 32 != tag >> 32 && word.compare_exchange_strong(found, wanted)) found = wanted;
  page_.calls_done[rank_].store(call + 1, std::memory_order_release);
  if (found >> 8 != tag >> 8)
    throw Error(ErrorCode::mismatch, text("large call number {} of rank {} differs from another "
                                          "rank's: all ranks must make and capture the same calls",
                                          call, rank_));
  return static_cast<int>(found & 255);
}

}  // namespace plait::cuda
