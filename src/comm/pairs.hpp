// The communicators of this rank and one other each, made when both ask for one. Each is made in a
// thread of its own, so that a rank that waits for one peer meets all those meanwhile that want to
// meet it: ranks may ask in any order, round a ring too.
#pragma once
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "comm/liveness/control.hpp"
#include "plait/communicator.hpp"

namespace plait {

class PairCommunicators {
 public:
  /// Meets the peer and returns, or throws, soon where it ends or this communicator does.
  using Make = std::function<std::unique_ptr<Communicator>(int peer)>;
  /// interrupt: asked now and then by who waits for a peer; what it throws ends that wait.
  PairCommunicators(const Controls& controls, Make make, std::function<void()> interrupt = nullptr)
      : controls_(controls), make_(std::move(make)), interrupt_(std::move(interrupt)) {}
  /// What is still being made must give up by itself.
  ~PairCommunicators();
  PairCommunicators(const PairCommunicators&) = delete;
  PairCommunicators& operator=(const PairCommunicators&) = delete;

  /// Of this rank and `peer`, another one. What make throws; then the next call tries again. Any
  /// thread.
  Communicator& get(int peer);
  /// Those that there are; they stay as long as this object.
  std::vector<Communicator*> made();
  /// Of each of those.
  void abort() noexcept;

 private:
  using Result = std::shared_future<std::shared_ptr<Communicator>>;
  struct Making {
    Result result;
    std::thread thread;
    int number;  // of those made so far: who heard of a failure forgets that one only
  };
  struct Started {
    Result result;
    int number;
  };
  Started start(int peer);
  void pair_with_askers();
  void forget(int peer, int number);
  void want(int peer, bool wanted) const;

  const Controls& controls_;
  const Make make_;
  const std::function<void()> interrupt_;
  std::mutex guard_;
  std::map<int, Making> by_peer_;
  int made_so_far_ = 0;
};

}  // namespace plait
