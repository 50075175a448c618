// Counts the calls of plans. Consecutive calls of a plan share a table look-up.
#pragma once
#include <cstdint>
#include <memory>
#include <mutex>

#include "comm/choose/choose.hpp"
#include "comm/gpu/gpu_calls.hpp"

namespace plait {

class PlanCounters {
 public:
  void count(const std::shared_ptr<const ProvedPlan>& plan) {
    const std::lock_guard lock(guard_);
    if (last_ != plan) {
      add_last();
      last_ = plan;
    }
    ++last_calls_;
  }
  Counters counters() {
    const std::lock_guard lock(guard_);
    add_last();
    return counters_;
  }

 private:
  void add_last() {
    if (last_ == nullptr || last_calls_ == 0) return;
    counters_.calls += last_calls_;
    counters_.calls_of[last_->counted_as] += last_calls_;
    for (const auto& [path, bytes] : last_->bytes_of_path)
      counters_.bytes_of_path[path] += bytes * last_calls_;
    last_calls_ = 0;
  }

  std::mutex guard_;
  Counters counters_;  ///< without the last calls of plan `last_`
  std::shared_ptr<const ProvedPlan> last_;
  std::uint64_t last_calls_ = 0;
};

}  // namespace plait
