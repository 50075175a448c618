// Stages GPU memory for calls that the native MPI or plait's CPU ranks run: each buffer on a GPU
// gets a staging buffer in pinned host memory.
#pragma once
#include <optional>
#include <type_traits>
#include <vector>

#include "shims/mpi/args/collective_args.hpp"
#include "shims/mpi/args/layout.hpp"

namespace plait::mpi {

/// Contiguous elements of a buffer, from `at` bytes after the address on.
struct TypedRange {
  std::intptr_t at;
  Count count;
  Handle type;
};

/// A buffer with a part per rank or neighbour.
struct PartsBuffer {
  const void* buffer;
  Count count;  ///< per part, if `counts` is null
  Handle type;
  CountArray counts{}, displs{};  ///< per part; displs in extents, with `types` in bytes
  const void* types = nullptr;    ///< per part, if different
  bool is_one = false;            ///< a single part for all
  static PartsBuffer one(const void* buffer, Count count, Handle type) {
    return {buffer, count, type, {}, {}, nullptr, true};
  }
  static PartsBuffer alike(const void* buffer, Count count, Handle type) {
    return {buffer, count, type};
  }
  static PartsBuffer unlike(const void* buffer, CountArray counts, CountArray displs, Handle type) {
    return {buffer, 0, type, counts, displs};
  }
  static PartsBuffer mixed(const void* buffer, CountArray counts, CountArray displs,
                           const void* types) {
    return {buffer, 0, 0, counts, displs, types};
  }
  std::vector<TypedRange> ranges(int ranks) const;
};

/// The rank and the number of parts by which a collective's buffers are laid out.
struct StagingRank {
  int ranks = 0;  ///< parts of a buffer; for an intercommunicator, of the remote group
  int rank = 0;   ///< this rank
  bool is_root = false;
  /// Whether the rank sends to the root or receives from the root; in an intercommunicator, false
  /// in the root's group. MPI ignores the buffers of a rank that is neither root nor peer.
  bool is_peer_of_root = true;
};

class CallStaging {
 public:
  CallStaging() = default;
  /// comm: the communicator whose error handler gets the call's errors.
  explicit CallStaging(Handle comm) : comm_(comm) {}
  /// Adds a buffer with `count` elements that the call reads.
  void add_input(const void* buffer, Handle type, Count count);
  /// Adds a buffer that the call writes. whole: the call writes every byte; else the staging buffer
  /// first gets the present content.
  void add_output(void* buffer, Handle type, Count count, bool whole);
  /// Adds a receive buffer; the status says how much was written.
  void add_received(void* buffer, Handle type, Count count, bool is_pinned);
  void add_scan(const void* in, void* out, Handle type, Count count);
  /// Adds the parts sent to and received from each rank, or each rank of the remote group.
  void add_of_ranks(Handle comm, const PartsBuffer& in, const PartsBuffer& out);
  /// The same for neighbours.
  void add_of_neighbours(Handle comm, const PartsBuffer& in, const PartsBuffer& out);
  /// Stages contiguous bytes of a GPU, in any thread; returns the host address. Uses no legacy
  /// stream: a copy on the legacy stream would end a capture of the program's.
  std::byte* add_bytes(int gpu, const void* buffer, std::uint64_t bytes, bool reads,
                       ByteRange written);
  /// Adds the buffers that this rank reads and writes in a collective. Without `rank_here` asks the
  /// MPI about the communicator; in a persistent call the program may have freed the communicator.
  void add(const CollectiveArgs& args);
  void add(const CollectiveArgs& args, const StagingRank& rank_here);

  bool is_empty() const { return buffers_.empty(); }
  /// Returns the staging buffer's address for a buffer on a GPU; other arguments unchanged.
  template <class T>
  T substitute(T argument) const {
    if constexpr (std::is_same_v<T, const void*> || std::is_same_v<T, void*>)
      return const_cast<T>(found(argument, std::is_same_v<T, const void*>));
    else
      return argument;
  }
  /// Fills the staging buffers again, for another start.
  void fetch();
  /// Copies what a successful call wrote to the GPUs; of a message, the first `received` bytes.
  void put_back(std::uint64_t received = 0);

 private:
  struct Received {
    RetainedLayout layout;
    Count count;
  };
  struct StagedArgument {
    StagingBuffer staging_buffer;
    bool is_input;
    bool read;                     ///< before the call
    std::vector<ByteRange> parts;  ///< ranges to read; empty = all
    std::vector<ByteRange> written;
    std::optional<Received> received;
  };
  /// With MPI_BOTTOM an input and an output may have the same address.
  const void* found(const void* argument, bool is_input) const;
  /// Adds a staging buffer; pieces(list) appends the data ranges to a list. Returns null if all
  /// data are in host memory.
  template <class Pieces>
  StagedArgument* stage_argument(const DataLocation& where, const void* buffer, ByteRange span,
                                 bool is_input, bool read, const Pieces& pieces,
                                 bool is_pinned = true);
  static void fetch(StagedArgument& one);
  void add_inputs(const PartsBuffer& parts, int ranks);
  void add_outputs(const PartsBuffer& parts, int ranks, bool whole);
  /// Returns whether a staging buffer needs the present content of an output.
  bool reads_output(const DataLocation& where, bool whole) const;
  Handle comm_ = 0;
  std::vector<StagedArgument> buffers_;
};

}  // namespace plait::mpi
