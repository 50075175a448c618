// Communicators of this rank with a single peer, made when both ranks request a pair. Each pair is
// made in a new thread. Therefore a rank that waits for a peer also joins all peers that wait for
// this rank: ranks may request pairs in any order, even around a ring.
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
  /// Joins the peer. Returns or throws soon after the peer or this communicator ends.
  using Make = std::function<std::unique_ptr<Communicator>(int peer)>;
  /// interrupt: called now and then while a thread waits for a peer; an exception ends that wait.
  PairCommunicators(const Controls& controls, Make make, std::function<void()> interrupt = nullptr)
      : controls_(controls), make_(std::move(make)), interrupt_(std::move(interrupt)) {}
  /// Waits for the attempts under way. Each must end by itself.
  ~PairCommunicators();
  PairCommunicators(const PairCommunicators&) = delete;
  PairCommunicators& operator=(const PairCommunicators&) = delete;

  /// Returns the pair of this rank and `peer`. Throws the error of make_; the next call tries
  /// again. Any thread.
  Communicator& get(int peer);
  /// Returns the pairs made until now. The pairs live as long as this object.
  std::vector<Communicator*> made();
  /// Aborts all pairs made so far.
  void abort() noexcept;

 private:
  using Result = std::shared_future<std::shared_ptr<Communicator>>;
  struct Making {
    Result result;
    std::thread thread;
    int number;  // sequence number: a thread removes only the attempt that it saw fail
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
