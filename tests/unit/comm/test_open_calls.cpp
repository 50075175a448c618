// Tests the slots of calls in which threads are: what a reader sees of a call, a call within a
// call, a call that never returned, and the slots of ended threads.
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "comm/trace/open_calls.hpp"

using namespace plait;

namespace {

std::optional<std::uint64_t> first_word(const CallSlot& slot) {
  const std::optional<CallSlot::OpenCall> call = slot.read();
  return call ? std::optional(call->words[0]) : std::nullopt;
}

}  // namespace

TEST_CASE("a slot shows a call until the call returns") {
  CallSlot slot;
  CHECK_FALSE(slot.read());
  slot.enter(1u, 2u, 3u);
  const CallSlot::OpenCall first = slot.read().value();
  CHECK(first.words[2] == 3);
  CHECK(slot.is_in(first));
  slot.leave();
  CHECK_FALSE(slot.read());
  slot.enter(1u, 2u, 3u);
  CHECK_FALSE(slot.is_in(first));  // a call with equal arguments is another
}

TEST_CASE("a slot shows the last call after a longjmp out of a call") {
  CallSlot slot;
  slot.enter(1u);
  slot.enter(2u);
  CHECK(first_word(slot) == 2u);
  slot.leave();
  CHECK_FALSE(slot.read());
}

TEST_CASE("a slot is outside of calls after a call within a call") {
  CallSlot slot;
  slot.enter(1u);
  slot.enter(2u);
  slot.leave();
  slot.leave();
  CHECK_FALSE(slot.read());
  slot.enter(3u);
  CHECK(first_word(slot) == 3u);
  slot.leave();
  CHECK_FALSE(slot.read());
}

TEST_CASE("a reader never sees words of two calls") {
  using namespace std::chrono;
  CallSlot slot;
  std::atomic<bool> ends{false};
  std::thread caller([&] {
    for (std::uint64_t call = 1; !ends.load(); ++call) {
      slot.enter(call, call, call, call, call, call);
      slot.leave();
    }
  });
  // The thread may start late, and may be outside a call at each of few reads.
  const auto end = steady_clock::now() + seconds(20);
  int seen = 0;
  while (seen < 10'000 && steady_clock::now() < end) {
    const std::optional<CallSlot::OpenCall> call = slot.read();
    if (!call) continue;
    ++seen;
    bool is_whole = true;
    for (const std::uint64_t word : call->words) is_whole = is_whole && word == call->words[0];
    if (!is_whole) CHECK(is_whole);
  }
  ends.store(true);
  caller.join();
  CHECK(seen > 0);
}

TEST_CASE("a slot of an ended thread serves the next thread") {
  CallSlot& slot = take_call_slot();
  slot.enter(1u);
  CHECK(&take_call_slot() != &slot);
  give_call_slot(slot);
  CHECK_FALSE(slot.read());
  CHECK(&take_call_slot() == &slot);
}
