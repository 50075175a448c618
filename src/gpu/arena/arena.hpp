// Arena of a rank and of the rank's peers, mapped for kernels and copies: in GPU memory, or in
// pinned host memory if GPUs do not address each other. Ranks are processes (memory at fixed
// addresses, or CUDA IPC) or threads of a process (peer access); callers need not know which.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "driver/cuda/api.hpp"
#include "gpu/abi/call_args.hpp"
#include "gpu/arena/arena_layout.hpp"
#include "gpu/arena/file_exchange.hpp"
#include "gpu/arena/fixed_memory.hpp"
#include "plait/error.hpp"

namespace plait::cuda {

/// Allgather of the set-up: returns every rank's bytes in rank order. Called by all ranks alike.
using Exchange = std::function<std::vector<std::string>(const std::string& mine)>;

/// Allocates zeroed host memory of that size for each rank, mapped by all, and returns each rank's
/// in rank order. All ranks call this together. The memory outlives all arenas.
using HostMemory =
    std::function<std::vector<std::byte*>(const Exchange& exchange, std::uint64_t bytes)>;

class DeviceArena;

/// GPUs do not reach each other's memory, as the mapping or the path check has found. All ranks
/// throw this together, with the same reason, so all can take arenas in host memory instead.
class NoDirectAccess : public Error {
 public:
  NoDirectAccess(ErrorCode code, const std::string& reason, bool is_broken)
      : Error(code, reason), is_broken_(is_broken) {}
  /// True if the driver grants the access, so programs and libraries that trust the driver hang, or
  /// compute with missing data.
  bool is_broken() const { return is_broken_; }

 private:
  bool is_broken_;
};

/// Place of an arena beside another arena; calls use both.
struct ArenaPlace {
  /// Arena directly in front, shared once, which is destroyed later; null = anywhere.
  const DeviceArena* front = nullptr;
  /// Bytes of an arena that will lie directly behind; 0 = none. Without fixed addresses the arena
  /// in front allocates these bytes too.
  std::uint64_t behind_bytes = 0;
};

class DeviceArena {
 public:
  /// Allocates in the current context. contents: without flags for a large arena, whose calls use
  /// the header of the small one. host: allocates arenas in host memory; null = in GPU memory. A
  /// rank's own state is in GPU memory in both cases, since kernels update the state by atomics,
  /// and so are parts that no peer uses. islands: of arenas in host memory, by rank: ranks with
  /// equal numbers map each other's memory of such parts; empty = no ranks do. files: hands the
  /// files of memory at fixed addresses to ranks that are processes; null = CUDA IPC.
  DeviceArena(int rank, const DeviceArenaSizes& sizes, const ArenaContents& contents,
              HostMemory host = nullptr, std::vector<int> islands = {},
              OpenFileExchange files = nullptr, ArenaPlace place = {});
  ~DeviceArena();
  DeviceArena(const DeviceArena&) = delete;
  DeviceArena& operator=(const DeviceArena&) = delete;

  /// Fills this rank's memory and maps the others'. All ranks call this together before any other
  /// use, and again if the call failed on a rank. `context` is current and belongs to `device`.
  /// Error(mismatch) if sizes differ between ranks, NoDirectAccess if a rank's driver maps no
  /// memory of a peer. Memory of a failed attempt is freed by the destructor only, because a free
  /// may wait for kernels that wait for a peer.
  void share(Context context, int device, const Exchange& exchange, Stream stream);

  /// What becomes of the arena's contents.
  enum class Contents { kept, dropped };
  /// Gives memory at fixed addresses up until the next share(); other arenas stay. kept: share()
  /// brings the contents back. Needs that no work of any rank uses the arena. If the contents
  /// cannot be kept, this rank's memory stays.
  void give_up(Contents contents, Stream stream) noexcept;
  /// True if give_up() frees the memory: it is at fixed addresses. The same on all ranks after
  /// share().
  bool is_fixed() const { return fixed_ != nullptr; }
  /// False after give_up(), until the next share().
  bool is_made() const { return fixed_ == nullptr || fixed_->is_made(); }

  const DeviceArenaSizes& sizes() const { return sizes_; }
  /// True if every rank is a separate process; the same on all ranks. Within a process the driver
  /// was seen to put pulling copies on the other GPU's queues, behind that rank's waits.
  /// Copy-engine calls have not been tried within a process since.
  bool in_processes() const { return in_processes_; }
  /// Unmaps the peers' memory. Afterwards only this rank's own memory is accessible.
  void unmap_peers() noexcept;
  /// The same on all ranks together: afterwards each rank may free its memory, which no peer maps.
  void leave_peers(const Exchange& exchange);
  /// Random number shared by the ranks of this communicator alone.
  std::uint64_t nonce() const { return nonce_; }
  /// Flags of a row in `owner`'s header. Device memory, so the host only takes addresses in it.
  char* at(const FlagsRow& row, int owner) const {
    return reinterpret_cast<char*>(base(owner) + header_.at(row));
  }
  template <class Flags>
  Flags* flags(const ArenaFlags<Flags>& row, int owner) const {
    return reinterpret_cast<Flags*>(at(row, owner));
  }
  /// First byte of a part; of the first half if the part has halves.
  /// Null for another rank's own part, unless the rank is of the same island.
  char* at(const ArenaPart& part, int owner) const;
  /// Own state of this rank, in front of all flags.
  DeviceState* state() const { return reinterpret_cast<DeviceState*>(mine_); }
  /// Memory of this rank alone, on the GPU and on the host.
  std::uint64_t gpu_bytes() const {
    if (host_) return own_.total_bytes();
    if (is_inside_front()) return 0;
    return layout_.total_bytes() + (fixed_ == nullptr ? place_.behind_bytes : 0);
  }
  std::uint64_t host_bytes() const { return host_ ? layout_.total_bytes() : 0; }
  std::uint64_t bytes() const { return gpu_bytes() + host_bytes(); }

 private:
  struct ArenaRecord;
  struct SharedRecords;
  DevicePointer base(int owner) const { return base_[static_cast<std::size_t>(owner)]; }
  /// The first byte behind the arena of `owner`.
  DevicePointer behind(int owner) const { return base(owner) + layout_.total_bytes(); }
  /// True if `place_.front` has allocated this arena's memory.
  bool is_inside_front() const { return place_.front != nullptr && !place_.front->is_fixed(); }
  void lie_inside_front(const Exchange& exchange);
  void fill(Stream stream);
  void map_host(const Exchange& exchange);
  void fill_host(std::byte* mine) const;
  void forget_host() noexcept;
  void make_fixed();
  void allocate();
  void make_contents(Stream stream);
  bool keep(Stream stream) noexcept;
  SharedRecords exchange_records(Context context, int device, const Exchange& exchange,
                                 const char* address);
  void map_peers(Context context, int device, const Exchange& exchange);
  bool map_fixed(Context context, int device, const Exchange& exchange);
  std::string map_files(FileExchange& files, const std::vector<std::string>& addresses, int mine);
  std::string map_peer(std::size_t peer, const ArenaRecord& other, const ArenaRecord& mine);
  std::string map_gpu_memory(DevicePointer& mapped, std::size_t peer, const ArenaRecord& other,
                             const ArenaRecord& mine);
  bool is_of_my_island(std::size_t peer) const;
  int rank_;
  bool in_processes_ = true;
  std::uint64_t nonce_ = 0;
  DevicePointer mine_ = 0;  // In GPU memory: the arena, or this rank's state alone.
  DeviceArenaSizes sizes_;
  std::vector<const ArenaPart*> parts_;
  HeaderLayout header_;
  ArenaLayout own_;     // Of arenas in host memory: parts in this rank's GPU memory.
  ArenaLayout layout_;  // Of all other memory.
  HostMemory host_;
  std::vector<int> islands_;
  OpenFileExchange files_;
  ArenaPlace place_;
  std::unique_ptr<FixedMemory> fixed_;  // Of mine_; null = by cuMemAlloc.
  bool has_lasted_ = false;             // Peers have mapped fixed_, so addresses are in use.
  bool has_contents_ = false;           // fixed_ holds what an earlier share() made.
  std::vector<char> kept_;              // Contents of memory that was given up.
  std::vector<DevicePointer> base_;     // By rank, as mapped here.
  std::vector<DevicePointer>
      own_base_;                       // By rank: own parts of this island's ranks; 0 = not mapped.
  std::vector<DevicePointer> opened_;  // By rank; 0 = memory of this process, or not mapped.
  std::vector<std::byte*> host_bases_;  // By rank; registered with the driver.
};

}  // namespace plait::cuda
