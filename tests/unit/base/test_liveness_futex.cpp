// Tests the liveness futex: every kind of thread death marks it, and a release does not.
#include <doctest/doctest.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "base/liveness_futex.hpp"

using namespace plait;

namespace {

using Clock = std::chrono::steady_clock;

double ms_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

std::uint32_t* shared_word() {
  void* page = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  REQUIRE(page != MAP_FAILED);
  return static_cast<std::uint32_t*>(page) + 7;
}

bool await(const std::uint32_t* word, bool (*is_so)(std::uint32_t)) {
  const auto start = Clock::now();
  while (!is_so(std::atomic_ref<std::uint32_t>(const_cast<std::uint32_t&>(*word)).load())) {
    if (ms_since(start) > 20'000) return false;
    usleep(20);
  }
  return true;
}

[[maybe_unused]] bool is_set(std::uint32_t value) { return value != 0; }
bool is_dead(std::uint32_t value) { return holder_died(value); }

/// Forks a child with a thread that holds the futex, and with memory that takes a while to tear
/// down. Tests that fork are left out under ThreadSanitizer.
[[maybe_unused]] pid_t child_that_holds(std::uint32_t* word, std::size_t bytes) {
  const pid_t child = fork();
  if (child != 0) return child;
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory != MAP_FAILED) std::memset(memory, 1, bytes);
  static std::uint32_t* held = word;
  held = word;
  pthread_t thread;
  const auto hold = [](void*) -> void* {
    const LivenessFutex futex(*held);
    for (;;) pause();
  };
  pthread_create(&thread, nullptr, hold, nullptr);
  for (;;) pause();
}

}  // namespace

TEST_CASE("a word is taken, let go of, and taken again by one thread after the other") {
  std::uint32_t word = 0;
  for (int round = 0; round < 3; ++round) {
    std::thread holder([&] {
      const LivenessFutex futex(word);
      CHECK(word == static_cast<std::uint32_t>(syscall(SYS_gettid)));
      CHECK(!holder_died(word));
    });
    holder.join();
    CHECK(word == 0);
    CHECK(!holder_died(word));
  }
}

TEST_CASE("a thread that ends without letting go is dead to the others") {
  std::uint32_t* word = shared_word();
  alignas(LivenessFutex) static std::byte place[sizeof(LivenessFutex)];
  std::thread holder([&] { new (place) LivenessFutex(*word); });
  holder.join();
  CHECK(await(word, is_dead));
}

#if !defined(__SANITIZE_THREAD__)  // ThreadSanitizer loses threads in a forked child
TEST_CASE("a killed process is known at once, before its memory is torn down") {
  double worst_ms = 0;
  int not_yet_ended = 0;
  for (int round = 0; round < 20; ++round) {
    std::uint32_t* word = shared_word();
    const pid_t child = child_that_holds(word, std::size_t{64} << 20);
    REQUIRE(child > 0);
    REQUIRE(await(word, is_set));
    CHECK(!holder_died(*word));
    REQUIRE(kill(child, SIGKILL) == 0);
    const auto killed = Clock::now();
    CHECK(await(word, is_dead));
    worst_ms = std::max(worst_ms, ms_since(killed));
    int status = 0;
    const bool ended = waitpid(child, &status, WNOHANG) == child;
    not_yet_ended += ended ? 0 : 1;
    if (!ended) CHECK(waitpid(child, &status, 0) == child);
    munmap(word - 7, 4096);
  }
  MESSAGE("worst notice: ", worst_ms, " ms");
  CHECK(worst_ms < 5000);  // on a busy machine
  CHECK(not_yet_ended > 0);  // a busy machine may look too late in some rounds, not in all
}
#endif
