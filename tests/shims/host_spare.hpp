// Spare of the platform over host memory: counts in place of memory, by the rules of SpareArena.
#pragma once
#include <atomic>
#include <memory>
#include <utility>

#include "shims/nccl/engine.hpp"
#include "tests/shims/standin/standin.hpp"

namespace plait::nccl {

class HostSpare : public EngineSpare {
 public:
  /// Notes a communicator that made its first arena at its creation, unless the next one opens at
  /// its first call.
  static void note(int ranks, bool opens_next_later) {
    noted_ranks.store(opens_next_later ? 0 : ranks);
  }
  static std::unique_ptr<HostSpare> begin(int ranks) {
    return noted_ranks.load() == ranks ? std::make_unique<HostSpare>() : nullptr;
  }
  static HostSpare* of(EngineSpare* spare) { return static_cast<HostSpare*>(spare); }
  HostSpare() { standin_count("spare begun"); }
  ~HostSpare() override { standin_count(is_taken_ ? "spare ended" : "spare dropped"); }
  void take() {
    if (!std::exchange(is_taken_, true)) standin_count("spare taken");
  }

 private:
  static inline std::atomic<int> noted_ranks{0};
  bool is_taken_ = false;
};

}  // namespace plait::nccl
