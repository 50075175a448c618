// A word a call, taken by compare-and-swap and used again once all have passed it.
#include "exec/cuda/share/agreed_number.hpp"

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/text.hpp"
#include "plait/error.hpp"

namespace plait::cuda {

namespace {

/// All but the number, as a call's word has it.
std::uint64_t head_of(std::uint64_t call, std::uint64_t about, std::uint32_t judges) {
  const std::uint64_t mixed = (about ^ std::uint64_t{judges} << 40) * 0x9e3779b97f4a7c15ull >> 40;
  return (call + 1) << 32 | mixed << 8;
}

}  // namespace

/// Until nobody needs the word that this call will take.
void AgreedNumber::await_others(std::uint64_t call) const {
  const auto began = std::chrono::steady_clock::now();
  for (int rank = 0; rank < ranks_; ++rank)
    while (rank != rank_ && words_.passed[rank].load(std::memory_order_acquire) + kCalls <= call) {
      if (std::chrono::steady_clock::now() - began > std::chrono::duration<double>(wait_s_))
        throw Error(ErrorCode::timeout,
                    text("rank ", rank_, " is ", kCalls, " calls ahead of rank ", rank,
                         " and waited ", wait_s_, " s; see whether that rank still runs"));
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
}

/// Of the judges that have wished something.
int AgreedNumber::least_wish(int mine, std::uint32_t judges) const {
  int least = mine;
  for (int rank = 0; rank < ranks_; ++rank) {
    if ((judges >> rank & 1) == 0) continue;
    const auto wish = static_cast<int>(words_.wished[rank].load(std::memory_order_acquire));
    if (wish != 0) least = std::min(least, wish - 1);
  }
  return least;
}

int AgreedNumber::next(int wish, std::uint64_t about, std::uint32_t judges) {
  const std::uint64_t call = words_.passed[rank_].load(std::memory_order_relaxed);
  std::atomic<std::uint64_t>& word = words_.said[call % kCalls];
  await_others(call);
  const int bounded = std::clamp(wish, 0, 255);
  if ((judges >> rank_ & 1) != 0)
    words_.wished[rank_].store(static_cast<std::uint32_t>(bounded) + 1, std::memory_order_release);
  const std::uint64_t head = head_of(call, about, judges);
  std::uint64_t found = word.load(std::memory_order_acquire);
  const std::uint64_t wanted = head | static_cast<std::uint64_t>(least_wish(bounded, judges));
  if (found >> 32 != head >> 32 && word.compare_exchange_strong(found, wanted)) found = wanted;
  words_.passed[rank_].store(call + 1, std::memory_order_release);
  if (found >> 8 != head >> 8)
    throw Error(ErrorCode::mismatch,
                text("another rank's large call number ", call, " is another than rank ", rank_,
                     "'s: all ranks make the same calls, and capture the same ones"));
  return static_cast<int>(found & 255);
}

}  // namespace plait::cuda
