// Reads by system calls of at most 1 GiB. A second thread takes half of a large range.
#include "comm/p2p/pull.hpp"

#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <new>
#include <random>
#include <system_error>

#include "base/threads.hpp"

namespace plait::p2p {
namespace {

constexpr std::uint64_t kMostOfCall = std::uint64_t{1} << 30;
constexpr std::uint64_t kByTwoFrom = 4 << 20;  ///< a smaller range is read before a thread wakes

}  // namespace

int pull_from(int process, std::uint64_t address, void* to, std::uint64_t bytes) {
  for (std::uint64_t done = 0; done < bytes;) {
    const std::uint64_t now = std::min(kMostOfCall, bytes - done);
    iovec here{static_cast<std::byte*>(to) + done, now};
    iovec there{reinterpret_cast<void*>(address + done), now};
    const ssize_t read = ::process_vm_readv(process, &here, 1, &there, 1, 0);
    if (read < 0 && errno == EINTR) continue;
    if (read <= 0) return read < 0 ? errno : EFAULT;
    done += static_cast<std::uint64_t>(read);
  }
  return 0;
}

bool is_forbidden(int error) { return error == EPERM || error == ENOSYS; }

bool can_pull(int process, const ShownProbe& probe) {
  std::array<std::uint64_t, 2> found{};
  return pull_from(process, probe.address, found.data(), sizeof found) == 0 && found == probe.bytes;
}

PullProbe::PullProbe() : bytes_() {
  std::random_device random;
  for (std::uint64_t& word : bytes_) word = std::uint64_t{random()} << 32 | random();
}

TwoThreadPull::~TwoThreadPull() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    is_over_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void TwoThreadPull::forget_thread() noexcept { new (&thread_) std::thread; }

void TwoThreadPull::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    await(changed_, lock, [&] { return is_over_ || todo_; });
    if (is_over_) return;
    const Part part = *todo_;
    todo_.reset();
    lock.unlock();
    const int error = pull_from(part.process, part.address, part.to, part.bytes);
    lock.lock();
    result_ = error;
    changed_.notify_all();
  }
}

int TwoThreadPull::pull(int process, std::uint64_t address, std::byte* to, std::uint64_t bytes) {
  if (bytes < kByTwoFrom) return pull_from(process, address, to, bytes);
  const std::uint64_t half = bytes / 2;
  {
    const std::lock_guard lock(mutex_);
    try {
      if (!thread_.joinable()) thread_ = quiet_thread([this] { run(); });
    } catch (const std::system_error&) {  // no more threads: this one reads all
      return pull_from(process, address, to, bytes);
    }
    todo_ = Part{process, address + half, to + half, bytes - half};
    result_.reset();
  }
  changed_.notify_all();
  const int error = pull_from(process, address, to, half);
  std::unique_lock lock(mutex_);
  await(changed_, lock, [&] { return result_.has_value(); });
  return error != 0 ? error : *result_;
}

}  // namespace plait::p2p
