// The check of paths on host threads: the kernel itself, copies in host memory, and every fault of
// a broken machine between a writer and an owner.
#pragma once
#include "conformance/device_on_host.hpp"
// Needs device_on_host.hpp first, for the definitions of a device.
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "gpu/path_check/path_check.cuh"
#include "gpu/path_check/path_check.hpp"

namespace plait_test {

namespace cuda = plait::cuda;

/// Fault of data that a rank writes for a peer (or, with pulls, takes from the peer).
enum class PathTrouble {
  none,
  mirror,  ///< only the writer sees the data
  stale,   ///< the first round arrives, later rounds do not
  flip,    ///< a single bit is flipped
};

struct EmulatedPathFault {
  int writer = -1;
  int owner = -1;
  PathTrouble stores = PathTrouble::none, pushes = PathTrouble::none, pulls = PathTrouble::none;
  /// The writer's host stalls before it lets its kernel begin, in the first checks.
  double stall_s = 0;
  int stalls = 0;
};

/// Memory of `owner` as a faulty rank addresses it: a copy. A thread forwards arriving data.
class TroubledView {
 public:
  TroubledView(cuda::PathInbox& owner, int writer, PathTrouble trouble)
      : owner_(owner.with[writer]), seen_(mine_->with[writer]), trouble_(trouble) {
    if (trouble_ != PathTrouble::mirror) hand_ = std::thread([this] { hand_on(); });
  }
  ~TroubledView() {
    ending_.store(true);
    if (hand_.joinable()) hand_.join();
  }
  TroubledView(const TroubledView&) = delete;
  TroubledView& operator=(const TroubledView&) = delete;
  cuda::PathInbox* words() { return mine_.get(); }

 private:
  void hand_on() {
    for (std::uint32_t handed = 0; !ending_.load(); std::this_thread::yield()) {
      const std::uint32_t round = std::atomic_ref(seen_.round).load(std::memory_order_acquire);
      if (round == handed) continue;
      if (round == 1 || trouble_ != PathTrouble::stale)
        std::memcpy(owner_.stored, seen_.stored, sizeof owner_.stored);
      if (trouble_ == PathTrouble::flip) owner_.stored[round & 1][7].hi ^= 1ull << 40;
      handed = round;
      std::atomic_ref(owner_.round).store(round, std::memory_order_release);
    }
  }
  std::unique_ptr<cuda::PathInbox> mine_ = std::make_unique<cuda::PathInbox>();
  cuda::PathMail& owner_;
  cuda::PathMail& seen_;
  PathTrouble trouble_;
  std::atomic<bool> ending_{false};
  std::thread hand_;
};

class EmulatedPaths : public cuda::PathSide {
 public:
  /// words: every rank's. late_s: time of work on the GPU before the kernel starts.
  EmulatedPaths(const std::vector<cuda::PathInbox*>& words, int rank, std::uint64_t nonce,
                const cuda::PathTimeouts& timeouts, const EmulatedPathFault& trouble,
                double late_s = 0)
      : words_(words), trouble_(trouble), late_s_(late_s) {
    args_.signal = &signal_;
    args_.nonce = nonce;
    args_.start_ns = static_cast<unsigned long long>(timeouts.start_s * 2e9);
    args_.wait_ns = static_cast<unsigned long long>(timeouts.wait_s * 1e9);
    args_.rank = rank;
    args_.ranks = static_cast<int>(words.size());
    for (std::size_t peer = 0; peer < words.size(); ++peer) args_.inboxes[peer] = words[peer];
    trouble_stores();
  }
  ~EmulatedPaths() override {
    set_command(cuda::kPathStop);
    end_threads();
  }
  void reset(std::uint64_t nonce) override {
    end_threads();
    barriers_.clear();
    shared_.clear();
    args_.nonce = nonce;
    std::memset(static_cast<void*>(&mine()), 0, sizeof mine());
    signal_ = {};
    trouble_stores();
  }

  void offer(unsigned round) override {
    for (int peer = 0; peer < args_.ranks; ++peer) {
      cuda::PathMail& mail = mine().with[peer];
      fill_path_body(mail.sent, args_.nonce, args_.rank, peer, cuda::PathMethod::pushed, round);
      fill_path_body(mail.offered, args_.nonce, args_.rank, peer, cuda::PathMethod::offered, round);
    }
  }
  void start() override {
    running_.store(args_.ranks * cuda::kPathThreads);
    for (int block = 0; block < args_.ranks; ++block) {
      barriers_.push_back(std::make_unique<plait_test::ThreadBarrier>(cuda::kPathThreads));
      shared_.push_back(std::make_unique<cuda::PathShared>());
    }
    for (int block = 0; block < args_.ranks; ++block)
      for (int thread = 0; thread < cuda::kPathThreads; ++thread)
        threads_.emplace_back([this, block, thread] { run(block, thread); });
  }
  bool is_resident() override {
    for (int block = 0; block < args_.ranks; ++block)
      if (std::atomic_ref(signal_.resident[block]).load() == 0) return false;
    return true;
  }
  void set_command(cuda::PathCommand command) noexcept override {
    if (command == cuda::kPathGo && args_.rank == trouble_.writer && trouble_.stalls-- > 0)
      std::this_thread::sleep_for(std::chrono::duration<double>(trouble_.stall_s));
    std::atomic_ref(signal_.command).store(command);
  }
  void copy(unsigned round) override {
    for (int peer = 0; peer < args_.ranks; ++peer) {
      if (peer == args_.rank) continue;
      const bool bad = args_.rank == trouble_.writer && peer == trouble_.owner;
      cuda::PathMail& theirs = words_[static_cast<std::size_t>(peer)]->with[args_.rank];
      cuda::PathMail& own = mine().with[peer];
      move(theirs.pushed, own.sent, bad ? trouble_.pushes : PathTrouble::none, round);
      move(own.pulled, theirs.offered, bad ? trouble_.pulls : PathTrouble::none, round);
    }
  }
  bool is_done() override { return running_.load() == 0; }
  cuda::PathInbox read() override { return mine(); }

 private:
  void end_threads() {
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }
  void trouble_stores() {
    if (args_.rank != trouble_.writer || trouble_.stores == PathTrouble::none) return;
    const auto owner = static_cast<std::size_t>(trouble_.owner);
    view_.reset();
    view_ = std::make_unique<TroubledView>(*words_[owner], args_.rank, trouble_.stores);
    args_.inboxes[owner] = view_->words();
  }
  cuda::PathInbox& mine() { return *words_[static_cast<std::size_t>(args_.rank)]; }
  void run(int block, int thread) {
    blockIdx = {static_cast<unsigned>(block)}, threadIdx = {static_cast<unsigned>(thread)};
    block_barrier = barriers_[static_cast<std::size_t>(block)].get();
    std::this_thread::sleep_for(std::chrono::duration<double>(late_s_));
    cuda::path_check(args_, *shared_[static_cast<std::size_t>(block)]);
    running_.fetch_sub(1);
  }
  static void move(cuda::PathBody& to, const cuda::PathBody& from, PathTrouble trouble,
                   unsigned round) {
    if (trouble == PathTrouble::mirror || (trouble == PathTrouble::stale && round > 0)) return;
    std::memcpy(to, from, sizeof to);
    if (trouble == PathTrouble::flip) to[31].lo ^= 1;
  }

  std::vector<cuda::PathInbox*> words_;
  EmulatedPathFault trouble_;
  double late_s_;
  cuda::PathArgs args_{};
  cuda::PathSignal signal_{};
  std::unique_ptr<TroubledView> view_;
  std::vector<std::unique_ptr<plait_test::ThreadBarrier>> barriers_;
  std::vector<std::unique_ptr<cuda::PathShared>> shared_;
  std::vector<std::thread> threads_;
  std::atomic<int> running_{0};
};

}  // namespace plait_test
