// Reads the memory of another process on this host (process_vm_readv) without the owner's help, for
// messages of mailboxes and under MPI. Containers and Yama may forbid the read, so a rank tests the
// read once for each peer.
#pragma once
#include <array>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <thread>

namespace plait::p2p {

/// Returns 0, or the error of the read: ESRCH if the process has ended, EPERM or ENOSYS if the
/// kernel or a seccomp profile forbids the read, EFAULT if the range is no memory of both
/// processes.
int pull_from(int process, std::uint64_t address, void* to, std::uint64_t bytes);

/// Returns whether an error of pull_from holds for every range of the other process.
bool is_forbidden(int error);

/// Random bytes in a process, and their address.
struct ShownProbe {
  std::uint64_t address = 0;
  std::array<std::uint64_t, 2> bytes{};
};
/// Returns whether this process reads the bytes of `probe` in the other process.
bool can_pull(int process, const ShownProbe& probe);

/// The probe of this process.
class PullProbe {
 public:
  PullProbe();
  PullProbe(const PullProbe&) = delete;
  PullProbe& operator=(const PullProbe&) = delete;
  ShownProbe shown() const { return {reinterpret_cast<std::uint64_t>(bytes_.data()), bytes_}; }

 private:
  std::array<std::uint64_t, 2> bytes_;
};

/// Reads large ranges by two threads: the owner waits for its message, so its core is free.
class TwoThreadPull {
 public:
  TwoThreadPull() = default;
  ~TwoThreadPull();
  TwoThreadPull(const TwoThreadPull&) = delete;
  TwoThreadPull& operator=(const TwoThreadPull&) = delete;
  /// Same as pull_from. One call at a time.
  int pull(int process, std::uint64_t address, std::byte* to, std::uint64_t bytes);
  /// Forgets the thread: a forked child has no copy of the thread.
  void forget_thread() noexcept;

 private:
  struct Part {
    int process;
    std::uint64_t address;
    std::byte* to;
    std::uint64_t bytes;
  };
  void run();
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Part> todo_;
  std::optional<int> result_;
  bool is_over_ = false;
  std::thread thread_;
};

}  // namespace plait::p2p
