// Slices of equal length, cut between vectors; the one who asks takes the first.
#include "exec/cpu/reduce_team.hpp"

#include <pthread.h>
#include <signal.h>

#include <algorithm>

#include "exec/cpu/cpu.hpp"

namespace plait {
namespace {

constexpr std::uint64_t kGrain = 64;             // elements: whole vectors of every type
constexpr std::uint64_t kLeastSlice = 16 << 10;  // elements: less is done before a helper wakes

void reduce_slice(const ReduceJob& job, std::size_t slice, std::size_t slices) {
  const std::uint64_t each = (job.count + slices - 1) / slices;
  const std::uint64_t step = (each + kGrain - 1) / kGrain * kGrain;
  const std::uint64_t from = std::min(job.count, slice * step);
  const std::uint64_t count = std::min(job.count, from + step) - from;
  if (count == 0) return;
  const std::uint64_t offset = from * bytes_of(job.type);
  const void* sources[ReduceJob::kMostSources];
  for (int s = 0; s < job.source_count; ++s)
    sources[s] = static_cast<const char*>(job.sources[s]) + offset;
  reduce_cpu(job.type, job.op, static_cast<char*>(job.dst) + offset, sources, job.source_count,
             count, job.source_count, true, job.op == ReduceOp::premul_sum ? job.scales : nullptr);
}

}  // namespace

ReduceTeam::ReduceTeam(int helpers) : helpers_(static_cast<std::size_t>(std::max(0, helpers))) {}

ReduceTeam::~ReduceTeam() {
  {
    const std::lock_guard<std::mutex> hold(guard_);
    is_over_ = true;
  }
  begin_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

/// Signals are the program's: none is taken by a helper.
void ReduceTeam::start() {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  while (threads_.size() < helpers_)
    threads_.emplace_back([this, slice = threads_.size() + 1] { help(slice); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void ReduceTeam::help(std::size_t slice) {
  std::unique_lock<std::mutex> hold(guard_);
  for (std::uint64_t done = 0;;) {
    begin_.wait(hold, [&] { return is_over_ || jobs_ != done; });
    if (is_over_) return;
    done = jobs_;
    const ReduceJob job = job_;
    hold.unlock();
    reduce_slice(job, slice, helpers_ + 1);
    hold.lock();
    if (--busy_ == 0) end_.notify_one();
  }
}

void ReduceTeam::reduce(const ReduceJob& job) {
  const std::lock_guard<std::mutex> one(asking_);
  if (helpers_ == 0 || job.count < kLeastSlice * (helpers_ + 1)) return reduce_slice(job, 0, 1);
  if (threads_.empty()) start();
  {
    const std::lock_guard<std::mutex> hold(guard_);
    job_ = job;
    ++jobs_;
    busy_ = helpers_;
  }
  begin_.notify_all();
  reduce_slice(job, 0, helpers_ + 1);
  std::unique_lock<std::mutex> hold(guard_);
  end_.wait(hold, [this] { return busy_ == 0; });
}

}  // namespace plait
