// Runs the rounds of the path check and words the faults. An exchange between ranks stands before
// deadlines start, and between reading and overwriting a body.
#include "gpu/path_check/path_check.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <thread>

#include "base/log.hpp"
#include "base/text.hpp"
#include "plait/error.hpp"

namespace plait::cuda {
namespace {

bool await(const std::function<bool()>& done, double wait_s) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(wait_s);
  while (!done()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
  return true;
}

std::string described(int rank, int peer, std::uint32_t found, double wait_s) {
  const std::string theirs = text("rank {}'s GPU", peer), mine = text("rank {}'s", rank);
  if ((found & kPathUnproved) != 0) return text("{} kernel got no command to begin", mine);
  if ((found & kPathStored) != 0)
    return text("data that {} stores into {} arrives changed", theirs, mine);
  if ((found & kPathLoaded) != 0)
    return text("data that {} GPU loads from rank {}'s differs from what is stored there", mine,
                peer);
  // After all other faults: the peer may be late because the peer's own wait for this rank timed
  // out.
  if ((found & kPathSilent) != 0)
    return text("data that {} stores into {} did not arrive within {} s", theirs, mine, wait_s);
  if ((found & kPathPushed) != 0)
    return text("data that {} copies into {} arrives changed", theirs, mine);
  return text("data that {} GPU copies out of rank {}'s differs from what is stored there", mine,
              peer);
}

bool holds(const PathBody& body, std::uint64_t nonce, int writer, int reader, PathMethod method,
           unsigned round) {
  for (unsigned unit = 0; unit < kPathThreads; ++unit)
    if (!(body[unit] == path_unit(nonce, writer, reader, method, round, unit))) return false;
  return true;
}

/// What a rank has found. Data that is late may come from a sound path, if a host has stalled.
struct PathResult {
  std::string fault;  ///< the first; empty = none
  bool is_wrong = false;
};

/// Returns the first fault in this rank's memory. name: of a rank in errors.
PathResult fault_in(const PathInbox& inbox, int rank, int ranks, std::uint64_t nonce,
                    unsigned round, double wait_s, const std::function<int(int)>& name) {
  for (int peer = 0; peer < ranks; ++peer) {
    if (peer == rank) continue;
    const PathMail& mail = inbox.with[peer];
    std::uint32_t found = 0;
    for (const std::uint32_t one : mail.found) found |= one;
    if (!holds(mail.pushed, nonce, peer, rank, PathMethod::pushed, round)) found |= kPathPushed;
    if (!holds(mail.pulled, nonce, peer, rank, PathMethod::offered, round)) found |= kPathPulled;
    if (found == 0) continue;
    return {text("direct access between GPUs is broken here, though the driver grants it: {}; let "
                 "the IOMMU and PCIe access control (ACS) pass it, or set NCCL_P2P_DISABLE=1",
                 described(name(rank), name(peer), found, wait_s)),
            (found & ~unsigned{kPathSilent | kPathUnproved}) != 0};
  }
  return {};
}

/// Ends the kernel on every way out.
class Stopping {
 public:
  explicit Stopping(PathSide& side) : side_(side) {}
  ~Stopping() { side_.set_command(kPathStop); }
  Stopping(const Stopping&) = delete;
  Stopping& operator=(const Stopping&) = delete;

 private:
  PathSide& side_;
};

class CudaPathSide : public PathSide {
 public:
  CudaPathSide(const PathPlace& place, std::uint64_t nonce, const PathTimeouts& timeouts)
      : place_(place), inbox_(std::make_unique<PathInbox>()) {
    for (int rank = 0; rank < place.ranks; ++rank)
      args_.inboxes[rank] = place.inboxes[static_cast<std::size_t>(rank)];
    args_.signal = reinterpret_cast<PathSignal*>(place.device_signal);
    args_.nonce = nonce;
    args_.start_ns = static_cast<unsigned long long>(timeouts.start_s * 2e9);
    args_.wait_ns = static_cast<unsigned long long>(timeouts.wait_s * 1e9);
    args_.rank = place.rank;
    args_.ranks = place.ranks;
  }

  void offer(unsigned round) override {
    for (int peer = 0; peer < place_.ranks; ++peer) {
      PathMail& mail = inbox_->with[peer];
      PathMail* const there = &args_.inboxes[place_.rank]->with[peer];
      fill_path_body(mail.sent, args_.nonce, place_.rank, peer, PathMethod::pushed, round);
      fill_path_body(mail.offered, args_.nonce, place_.rank, peer, PathMethod::offered, round);
      copy_body(&there->sent, &mail.sent);
      copy_body(&there->offered, &mail.offered);
    }
  }
  void reset(std::uint64_t nonce) override {
    args_.nonce = nonce;
    PLAIT_CUDA_CALL(memory_set_async, reinterpret_cast<DevicePointer>(args_.inboxes[place_.rank]),
                    0, sizeof(PathInbox), place_.stream);
    PLAIT_CUDA_CALL(stream_synchronize, place_.stream);
    for (std::uint32_t& resident : place_.signal->resident) std::atomic_ref(resident).store(0);
    set_command(kPathWait);
  }
  void start() override {
    place_.kernels->launch(place_.kernels->find("plait_path_check"),
                           {static_cast<unsigned>(place_.ranks), kPathThreads, false},
                           place_.stream, {&args_});
  }
  bool is_resident() override {
    for (int block = 0; block < place_.ranks; ++block)
      if (std::atomic_ref(place_.signal->resident[block]).load() == 0) return false;
    return true;
  }
  void set_command(PathCommand command) noexcept override {
    std::atomic_ref(place_.signal->command).store(command);
  }
  void copy(unsigned) override {
    for (int peer = 0; peer < place_.ranks; ++peer) {
      if (peer == place_.rank) continue;
      PathMail* const mine = &args_.inboxes[place_.rank]->with[peer];
      PathMail* const theirs = &args_.inboxes[peer]->with[place_.rank];
      copy_body(&theirs->pushed, &mine->sent);
      copy_body(&mine->pulled, &theirs->offered);
    }
  }
  bool is_done() override {
    const Result result = api().stream_query(place_.stream);
    if (result != kNotReady) require(result, "cuStreamQuery");
    return result != kNotReady;
  }
  PathInbox read() override {
    PLAIT_CUDA_CALL(memory_copy_async, reinterpret_cast<DevicePointer>(inbox_.get()),
                    reinterpret_cast<DevicePointer>(args_.inboxes[place_.rank]), sizeof(PathInbox),
                    place_.stream);
    PLAIT_CUDA_CALL(stream_synchronize, place_.stream);
    return *inbox_;
  }

 private:
  void copy_body(PathBody* dst, const PathBody* src) {
    PLAIT_CUDA_CALL(memory_copy_async, reinterpret_cast<DevicePointer>(dst),
                    reinterpret_cast<DevicePointer>(src), sizeof(PathBody), place_.stream);
  }

  PathPlace place_;
  PathArgs args_{};
  std::unique_ptr<PathInbox> inbox_;
};

/// One check of all paths, by all ranks together.
struct PathCheck {
  PathSide& side;
  const Exchange& exchange;
  int rank, ranks;
  const PathTimeouts& timeouts;
  const std::vector<int>& names;

  /// Returns the first fault of any rank, the same on all ranks; wrong if any rank's is.
  PathResult run(std::uint64_t nonce) const {
    PathResult mine;
    const Stopping stopping(side);
    side.offer(0);
    side.start();
    if (!await([&] { return side.is_resident(); }, timeouts.start_s))
      throw Error(ErrorCode::timeout,
                  text("rank {}'s GPU was busy for {} s, so the path check did not start",
                       name(rank), timeouts.start_s));
    exchange("resident");
    side.set_command(kPathGo);
    finish("kernels", timeouts.wait_s * (kPathRounds + 1) + timeouts.copy_s);
    for (unsigned round = 0; round < kPathCopyRounds; ++round) {
      if (round > 0) {
        side.offer(round);
        finish("copies", timeouts.copy_s);
        exchange("offered");
      }
      side.copy(round);
      finish("copies", timeouts.copy_s);
      exchange("copied");
      if (mine.fault.empty())
        mine = fault_in(side.read(), rank, ranks, nonce, round, timeouts.wait_s,
                        [this](int one) { return name(one); });
    }
    return agreed(mine);
  }

 private:
  int name(int one) const { return names.empty() ? one : names[static_cast<std::size_t>(one)]; }
  void finish(const char* what, double wait_s) const {
    if (!await([&] { return side.is_done(); }, wait_s))
      throw Error(ErrorCode::timeout,
                  text("{} on rank {}'s GPU did not end within {} s in the path check", what,
                       name(rank), wait_s));
  }
  PathResult agreed(const PathResult& mine) const {
    PathResult all;
    for (const std::string& fault : exchange(mine.fault))
      if (all.fault.empty()) all.fault = fault;
    if (all.fault.empty()) return all;
    for (const std::string& one : exchange(mine.is_wrong ? "wrong" : ""))
      all.is_wrong |= !one.empty();
    return all;
  }
};

}  // namespace

void fill_path_body(PathBody& body, std::uint64_t nonce, int writer, int reader, PathMethod method,
                    unsigned round) {
  for (unsigned unit = 0; unit < kPathThreads; ++unit)
    body[unit] = path_unit(nonce, writer, reader, method, round, unit);
}

std::string broken_path(PathSide& side, const Exchange& exchange, int rank, int ranks,
                        std::uint64_t nonce, const PathTimeouts& timeouts,
                        const std::vector<int>& names) {
  const PathCheck check{side, exchange, rank, ranks, timeouts, names};
  const PathResult first = check.run(nonce);
  if (first.fault.empty() || first.is_wrong) return first.fault;
  log(LogLevel::info, rank,
      text("data was late in the path check, which runs again: {}", first.fault));
  side.reset(nonce + 1);
  exchange("reset");
  return check.run(nonce + 1).fault;
}

std::unique_ptr<PathSide> path_side(const PathPlace& place, std::uint64_t nonce,
                                    const PathTimeouts& timeouts) {
  return std::make_unique<CudaPathSide>(place, nonce, timeouts);
}

}  // namespace plait::cuda
