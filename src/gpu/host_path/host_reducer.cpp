// Runs the thread of CPU cores: it spins while a job runs and sleeps between jobs.
#include "gpu/host_path/host_reducer.hpp"

#include <chrono>

#include "base/threads.hpp"
#include "cpu/cpu.hpp"
#include "cpu/spin.hpp"

namespace plait::cuda {

HostReducer::HostReducer(HostFlags& flags, int rank, int threads, const StopPage& stop_page,
                         double wait_s)
    : flags_(flags),
      rank_(rank),
      stop_page_(stop_page),
      wait_s_(wait_s),
      team_(threads - 1),
      counted_(flags.reduced[rank]) {}

void HostReducer::start() {
  if (thread_.joinable()) return;
  team_.start();
  thread_ = quiet_thread([this] { serve(); });
}

HostReducer::~HostReducer() {
  stops_ = true;
  {
    const std::lock_guard<std::mutex> hold(guard_);
  }  // the thread sleeps now, or checks again
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void HostReducer::begin(const HostJob& job) {
  {
    const std::lock_guard<std::mutex> hold(guard_);
    jobs_.push_back(job);
  }
  wake_.notify_one();
}

void HostReducer::serve() {
  for (;;) {
    std::unique_lock<std::mutex> hold(guard_);
    await(wake_, hold, [this] { return stops_ || !jobs_.empty(); });
    if (stops_) return;
    const HostJob job = jobs_.front();
    jobs_.pop_front();
    hold.unlock();
    if (!run(job)) return;
  }
}

/// Returns false if the job was given up. Then this rank raises no more flags, since later flags
/// would count from there.
bool HostReducer::run(const HostJob& job) {
  const std::atomic_ref<std::uint32_t> mine(flags_.reduced[rank_]);
  const bool is_done = run_host_job(
      job, rank_, [&](std::uint32_t value) { return await_chunk(counted_ + value, job.ranks); },
      [&](std::uint32_t chunk) { team_.reduce(job.reduction(chunk)); },
      [&](std::uint32_t value) { mine.store(counted_ + value, std::memory_order_release); });
  if (!is_done) return false;  // the communicator has ended
  counted_ += job.cut.chunks;
  shift_.reset();
  return true;
}

/// Returns true if no job needs an end: a kernel has given up, or this object ends.
bool HostReducer::is_over() const {
  const auto read = [](const std::uint32_t& word) {
    return std::atomic_ref<std::uint32_t>(const_cast<std::uint32_t&>(word)).load();
  };
  return stops_ || read(stop_page_.stop) != kNoFault || read(stop_page_.fault.code) != kNoFault;
}

bool HostReducer::await_chunk(std::uint32_t value, int ranks) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(wait_s_);
  const auto is_here = [&] {
    for (int rank = 0; rank < ranks; ++rank)
      if (!reached(
              std::atomic_ref<std::uint32_t>(flags_.arrived[rank]).load(std::memory_order_acquire),
              value))
        return false;
    return true;
  };
  if (!shift_) shift_.emplace(team_);
  if (spin_until(is_here, std::chrono::milliseconds(2))) return true;
  shift_.reset();  // a rank is late
  while (!is_over() && std::chrono::steady_clock::now() < end) {
    if (is_here()) return true;
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  return false;
}

}  // namespace plait::cuda
