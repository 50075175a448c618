// A word a call, taken by compare-and-swap and used again once both have passed it.
#include "exec/cuda/settled.hpp"

#include <chrono>
#include <thread>

#include "base/text.hpp"
#include "plait/error.hpp"

namespace plait::cuda {

int Settled::next(int mine) {
  const std::uint64_t call = words_.passed[rank_].load(std::memory_order_relaxed);
  const std::uint64_t tag = call + 1;
  std::atomic<std::uint64_t>& word = words_.said[call % kCalls];
  const std::atomic<std::uint64_t>& other = words_.passed[1 - rank_];
  const auto began = std::chrono::steady_clock::now();
  while (other.load(std::memory_order_acquire) + kCalls <= call) {
    if (std::chrono::steady_clock::now() - began > std::chrono::duration<double>(wait_s_))
      throw Error(ErrorCode::timeout,
                  text("rank ", rank_, " is ", kCalls, " calls ahead of rank ", 1 - rank_,
                       " and waited ", wait_s_, " s; see whether that rank still runs"));
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  std::uint64_t found = word.load(std::memory_order_acquire);
  const std::uint64_t wanted = tag << 8 | static_cast<std::uint64_t>(mine & 255);
  if (found >> 8 != tag && word.compare_exchange_strong(found, wanted)) found = wanted;
  words_.passed[rank_].store(tag, std::memory_order_release);
  return static_cast<int>(found & 255);
}

}  // namespace plait::cuda
