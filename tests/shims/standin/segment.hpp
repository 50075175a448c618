// Shared memory of a stand-in communicator: a memfd that other ranks open by pid and descriptor,
// without a name. A set of slots for making communicators, and a set for streams.
#pragma once
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace standin {

inline constexpr int kMaxRanks = 8;
inline constexpr std::size_t kSlotBytes = 64 << 10;
inline constexpr std::size_t kMailBytes = 16 << 10;

/// Returns how long a rank waits before it counts a peer as lost, in s.
inline double patience_s() {
  const char* given = std::getenv("STANDIN_PATIENCE_S");
  return given == nullptr ? 30 : std::atof(given);
}

struct RankBoard {
  std::atomic<std::uint64_t> arrived[kMaxRanks];  // a single writer each, monotonic
  char slots[kMaxRanks][kSlotBytes];
};

/// Message slot from a rank to another: counts of pieces written and read, and a piece.
struct MessageSlot {
  std::atomic<std::uint64_t> written, read;
  std::size_t bytes;
  char body[kMailBytes];
};

struct Segment {
  RankBoard making;
  RankBoard streams;
  MessageSlot mail[kMaxRanks][kMaxRanks];
  alignas(16) char paths[kMaxRanks][128 << 10];  // memory for the path check
};

/// Waits until done(); throws if stopped() or the time is over. As kernels do, the function checks
/// stopped() only after some polls.
inline void wait_for(const std::function<bool()>& done, const std::function<bool()>& stopped) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(patience_s());
  for (int spins = 0; !done(); ++spins) {
    if (spins >= 50 && stopped()) throw std::runtime_error("aborted");
    if (std::chrono::steady_clock::now() > end) throw std::runtime_error("a rank did not come");
    if (spins < 50)
      std::this_thread::yield();
    else
      std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

struct SegmentHandle {
  int process = 0;
  int file = -1;
};

inline SegmentHandle make_segment() {
  const int file = ::memfd_create("standin-nccl", 0);
  if (file < 0 || ::ftruncate(file, sizeof(Segment)) != 0) throw std::runtime_error("no memfd");
  return {::getpid(), file};
}

inline Segment* map_segment(const SegmentHandle& where) {
  const std::string path =
      "/proc/" + std::to_string(where.process) + "/fd/" + std::to_string(where.file);
  const int file = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) throw std::runtime_error("cannot open " + path);
  void* base = ::mmap(nullptr, sizeof(Segment), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  ::close(file);
  if (base == MAP_FAILED) throw std::runtime_error("cannot map");
  return static_cast<Segment*>(base);
}

inline void barrier(RankBoard& board, int rank, int ranks, const std::function<bool()>& stopped) {
  const std::uint64_t mine = board.arrived[rank].load() + 1;
  board.arrived[rank].store(mine);
  wait_for(
      [&] {
        for (int peer = 0; peer < ranks; ++peer)
          if (board.arrived[peer].load() < mine) return false;
        return true;
      },
      stopped);
}

/// Returns every rank's `bytes` in rank order; `mine` may be null on ranks without input.
inline std::vector<char> gather(RankBoard& board, int rank, int ranks, const void* mine,
                                std::size_t bytes, const std::function<bool()>& stopped) {
  std::vector<char> all(bytes * static_cast<std::size_t>(ranks));
  for (std::size_t at = 0; at < bytes || at == 0; at += kSlotBytes) {
    const std::size_t piece = std::min(kSlotBytes, bytes - at);
    if (mine != nullptr) std::memcpy(board.slots[rank], static_cast<const char*>(mine) + at, piece);
    barrier(board, rank, ranks, stopped);
    for (int peer = 0; peer < ranks; ++peer)
      if (piece != 0)
        std::memcpy(all.data() + static_cast<std::size_t>(peer) * bytes + at, board.slots[peer],
                    piece);
    barrier(board, rank, ranks, stopped);
  }
  return all;
}

}  // namespace standin
