// A word a call, taken by compare-and-swap and used again once both have passed it.
#include "exec/cuda/settled.hpp"

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/text.hpp"
#include "plait/error.hpp"

namespace plait::cuda {

namespace {

/// All but the number, as a call's word has it.
std::uint64_t head_of(std::uint64_t call, std::uint64_t about) {
  const std::uint64_t mixed = about * 0x9e3779b97f4a7c15ull >> 40;
  return (call + 1) << 32 | mixed << 8;
}

}  // namespace

int Settled::next(int wish, std::uint64_t about) {
  const std::uint64_t call = words_.passed[rank_].load(std::memory_order_relaxed);
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
  const int bounded = std::clamp(wish, 0, 255);
  words_.wished[rank_].store(static_cast<std::uint32_t>(bounded) + 1, std::memory_order_release);
  const auto others = static_cast<int>(words_.wished[1 - rank_].load(std::memory_order_acquire));
  const int least = others == 0 ? bounded : std::min(bounded, others - 1);
  const std::uint64_t head = head_of(call, about);
  std::uint64_t found = word.load(std::memory_order_acquire);
  const std::uint64_t wanted = head | static_cast<std::uint64_t>(least);
  if (found >> 32 != head >> 32 && word.compare_exchange_strong(found, wanted)) found = wanted;
  words_.passed[rank_].store(call + 1, std::memory_order_release);
  if (found >> 8 != head >> 8)
    throw Error(ErrorCode::mismatch,
                text("rank ", 1 - rank_, "'s large call number ", call, " is another than rank ",
                     rank_, "'s: all ranks make the same calls, and capture the same ones"));
  return static_cast<int>(found & 255);
}

}  // namespace plait::cuda
