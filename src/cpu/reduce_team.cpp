// Cuts a job into equal slices between vectors; the calling thread takes the first.
#include "cpu/reduce_team.hpp"

#include <algorithm>

#include "base/threads.hpp"
#include "cpu/cpu.hpp"
#include "cpu/spin.hpp"

namespace plait {
namespace {

constexpr std::uint64_t kGrain = 64;  // elements: whole vectors of every type
constexpr std::uint64_t kLeastSlice = 16
                                      << 10;  // elements: a smaller job ends before a helper wakes
constexpr std::chrono::microseconds kSpin{500};  // least time before a helper sleeps

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
             count, job.source_count, true, job.op == ReduceOp::premul_sum ? job.scales : nullptr,
             job.order);
}

}  // namespace

ReduceTeam::ReduceTeam(int helpers) : helpers_(static_cast<std::size_t>(std::max(0, helpers))) {}

ReduceTeam::~ReduceTeam() {
  is_over_ = true;
  wake();
  for (std::thread& thread : threads_) thread.join();
}

void ReduceTeam::start() {
  threads_.reserve(helpers_);  // so that push_back of a started thread cannot throw
  while (threads_.size() < helpers_)
    threads_.push_back(quiet_thread([this, slice = threads_.size() + 1] { help(slice); }));
}

/// Wakes sleeping helpers. A helper either sees the change or is counted as sleeping.
void ReduceTeam::wake() {
  if (sleeping_ == 0) return;
  const std::lock_guard<std::mutex> hold(guard_);
  begin_.notify_all();
}

void ReduceTeam::help(std::size_t slice) {
  for (std::uint64_t done = 0;;) {
    const auto called = [&] { return is_over_ || jobs_ != done; };
    bool is_called = spin_until(called, kSpin);
    while (!is_called && shifts_ != 0) is_called = spin_until(called, kSpin);
    if (!is_called) {
      std::unique_lock<std::mutex> hold(guard_);
      ++sleeping_;
      await(begin_, hold, called);
      --sleeping_;
    }
    if (is_over_) return;
    done = jobs_;
    reduce_slice(job_, slice, helpers_ + 1);
    --busy_;
  }
}

void ReduceTeam::reduce(const ReduceJob& job) {
  const std::lock_guard<std::mutex> one(asking_);
  if (helpers_ == 0 || job.count < kLeastSlice * (helpers_ + 1)) return reduce_slice(job, 0, 1);
  start();
  job_ = job;
  busy_ = helpers_;
  ++jobs_;
  wake();
  reduce_slice(job, 0, helpers_ + 1);
  while (!spin_until([this] { return busy_ == 0; }, kSpin)) std::this_thread::yield();
}

}  // namespace plait
