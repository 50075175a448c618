// One rank's device memory and its peers', mapped: what every kernel and copy addresses. Ranks may
// be processes (CUDA IPC) or threads of one (peer access); nothing above this knows which.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "driver/cuda/api.hpp"
#include "exec/cuda/copies/copy_args.hpp"
#include "exec/cuda/device/arena_layout.hpp"
#include "exec/cuda/lines/line_args.hpp"
#include "exec/cuda/messages/message_args.hpp"
#include "exec/cuda/paths/path_args.hpp"

namespace plait::cuda {

/// Every rank's bytes in rank order: the one service that setting up needs. Called alike by all.
using Exchange = std::function<std::vector<std::string>(const std::string& mine)>;

/// What lies in front of all parts of an arena: the words in which ranks meet. Of device memory, so
/// the host takes addresses of it and nothing else.
struct ArenaHeader {
  DeviceState state;                                                ///< a rank's own
  alignas(4096) std::uint32_t flags[kMaxCudaRanks][kFlagsPerPair];  ///< of plans, by writer
  TileFlags tiles;
  EngineFlags engines;
  ChainWords chains;
  alignas(64) ShotWords shots;
  MessageFlags messages;
  alignas(alignof(PathUnit)) PathInbox paths;  ///< for the proof of paths, and for nothing after it
};

class DeviceArena {
 public:
  /// Allocates in the current context. has_header: false of a later room, whose calls meet in the
  /// words of the first.
  DeviceArena(int rank, const DeviceArenaSizes& sizes, bool has_header = true);
  ~DeviceArena();
  DeviceArena(const DeviceArena&) = delete;
  DeviceArena& operator=(const DeviceArena&) = delete;

  /// All ranks together, before anything else is asked, and all again where it failed on one: fills
  /// this rank's memory and maps the others'. `context` is the current one, of `device`.
  /// Error(mismatch) where sizes differ between ranks, no_device where two GPUs cannot reach each
  /// other. What failed is freed when it is destroyed, not before: freeing may wait for kernels
  /// that wait for a peer.
  void share(Context context, int device, const Exchange& exchange, Stream stream);

  const DeviceArenaSizes& sizes() const { return sizes_; }
  /// True where every rank is a process of its own: said alike by all ranks. Within a process the
  /// driver was seen to put copies that pull on the other GPU's queues, behind what that rank waits
  /// with; calls by copy engines have not been tried there since.
  bool in_processes() const { return in_processes_; }
  /// Of the rank's GPU that has the fewest.
  unsigned least_multiprocessors() const { return multiprocessors_; }
  /// Hardware queues that streams share, of the rank that has the fewest. Where a program has asked
  /// for one (CUDA_DEVICE_MAX_CONNECTIONS=1), what follows an event keeps all other streams
  /// waiting.
  unsigned least_connections() const { return connections_; }
  /// The peers' memory is theirs alone again; then only this rank's own can be asked for.
  void unmap_peers() noexcept;
  /// A random word that all ranks of this communicator know, and no other's.
  std::uint64_t nonce() const { return nonce_; }
  ArenaHeader* header(int owner) const { return reinterpret_cast<ArenaHeader*>(base(owner)); }
  /// The first byte of a part; where it is in halves, of the first.
  char* at(ArenaPart part, int owner) const {
    return reinterpret_cast<char*>(base(owner) + layout_.at(part));
  }
  DeviceState* state() const { return &header(rank_)->state; }
  /// The word that `writer` raises in `owner`'s memory.
  std::uint32_t* flag(int owner, int writer, int index) const {
    return &header(owner)->flags[writer][index];
  }
  std::uint64_t bytes() const { return layout_.total_bytes(); }

 private:
  DevicePointer base(int owner) const { return base_[static_cast<std::size_t>(owner)]; }
  void fill(Stream stream);
  void map_peers(Context context, int device, const Exchange& exchange);
  int rank_;
  bool in_processes_ = true;
  unsigned multiprocessors_ = ~0u;
  unsigned connections_ = ~0u;
  std::uint64_t nonce_ = 0;
  DevicePointer mine_ = 0;
  DeviceArenaSizes sizes_;
  ArenaLayout layout_;
  std::vector<DevicePointer> base_;    // by rank, as mapped here
  std::vector<DevicePointer> opened_;  // by rank; 0 = it is this process's own, or not mapped
};

}  // namespace plait::cuda
