// One rank's device memory and its peers', mapped: what every kernel and copy addresses. Ranks may
// be processes (CUDA IPC) or threads of one (peer access); nothing above this knows which.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "driver/cuda/api.hpp"
#include "exec/cuda/copies/copy_args.hpp"
#include "exec/cuda/messages/message_args.hpp"
#include "exec/cuda/paths/path_args.hpp"

namespace plait::cuda {

/// Every rank's bytes in rank order: the one service that setting up needs. Called alike by all.
using Exchange = std::function<std::vector<std::string>(const std::string& mine)>;

/// The parts of an arena; the same on all ranks.
struct DeviceArenaSizes {
  /// Inbox half of flagged lines: 4 MiB, and some, so that pieces of whole lines fit.
  std::uint64_t flagged_bytes = (4ull << 20) + 4096;
  std::uint64_t bare_bytes = 0;          ///< inbox half of bare lines; 0 = chosen
  std::uint64_t tile_bytes = 0;          ///< slots of tiled kernels; 0 = room for 64 KiB tiles
  std::uint64_t rotation_bytes = 0;      ///< slots of copy engines; 0 = chosen
  std::uint64_t message_slot_bytes = 0;  ///< what single peers send
  std::uint64_t message_line_bytes = 0;
  std::uint64_t inbox_bytes = 0;  ///< inbox half of plans
  std::uint64_t scratch_bytes = 0;
  bool operator==(const DeviceArenaSizes&) const = default;
};

class DeviceArena {
 public:
  /// In the current context of `device`. Error(mismatch) where sizes differ between ranks,
  /// no_device where two GPUs cannot reach each other.
  DeviceArena(Context context, int device, int rank, const DeviceArenaSizes& sizes,
              const Exchange& exchange, Stream stream);
  ~DeviceArena();
  DeviceArena(const DeviceArena&) = delete;
  DeviceArena& operator=(const DeviceArena&) = delete;

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
  PathWords* path_words(int owner) const;  ///< for the proof of paths, and for nothing after it
  DeviceState* state() const;              ///< this rank's own counters, as a device address
  /// The word that `writer` raises in `owner`'s memory.
  std::uint32_t* flag(int owner, int writer, int index) const;
  char* flagged(int owner) const;  ///< first half; the second follows
  char* bare(int owner) const;
  TileFlags* tile_flags(int owner) const;
  char* tiles(int owner) const;
  EngineFlags* engine_flags(int owner) const;
  char* rotation_slots(int owner) const;
  MessageFlags* message_flags(int owner) const;
  char* message_slots(int owner) const;
  char* message_lines(int owner) const;
  char* inbox(int owner) const;
  char* scratch(int owner) const;

 private:
  void fill(Stream stream);
  void map_peers(Context context, int device, const Exchange& exchange);
  void release() noexcept;
  int rank_;
  bool in_processes_ = true;
  unsigned multiprocessors_ = ~0u;
  unsigned connections_ = ~0u;
  std::uint64_t nonce_ = 0;
  DevicePointer mine_ = 0;
  DeviceArenaSizes sizes_;
  std::vector<DevicePointer> base_;  // by rank, as mapped here
  std::vector<DevicePointer> opened_;
};

}  // namespace plait::cuda
