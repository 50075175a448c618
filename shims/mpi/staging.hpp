// Device memory where the MPI, or plait's CPU ranks, do the work: each buffer that lies on a GPU
// has a twin in pinned host memory, which the call gets in its place.
#pragma once
#include <optional>
#include <type_traits>
#include <vector>

#include "shims/mpi/collective_args.hpp"
#include "shims/mpi/layout.hpp"

namespace plait::mpi {

/// Elements of a buffer that lie in a row, from so many bytes behind its address on.
struct TypedRange {
  std::intptr_t at;
  Count count;
  Handle type;
};

/// A buffer of a call that has a part of it for each of several ranks.
struct PartsBuffer {
  const void* buffer;
  Count count;  ///< of each, where `counts` is empty
  Handle type;
  CountArray counts{}, displs{};  ///< of each; places by the type's extent, with `types` by bytes
  const void* types = nullptr;    ///< of each, where `type` is not that of all
  bool is_one = false;            ///< the same part is for all
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

/// A collective's communicator as its buffers are laid out by it.
struct StagingRank {
  int ranks = 0;  ///< that a buffer has parts for; between groups, of the other group
  int rank = 0;   ///< this one
  bool is_root = false;
};

class CallStaging {
 public:
  /// A buffer that the call reads `count` elements of; a twin of it is made where it lies on a GPU.
  void add_input(const void* buffer, Handle type, Count count);
  /// One that it writes; where it may write less than all, the twin holds first what was there.
  void add_output(void* buffer, Handle type, Count count, bool whole);
  /// Where a message goes, of which only its status says how much was written.
  void add_received(void* buffer, Handle type, Count count, bool is_pinned);
  void add_scan(const void* in, void* out, Handle type, Count count);
  /// What goes to each rank of a communicator, or of the other group, and what comes from each.
  void add_of_ranks(Handle comm, const PartsBuffer& in, const PartsBuffer& out);
  /// The same of a process's neighbours.
  void add_of_neighbours(Handle comm, const PartsBuffer& in, const PartsBuffer& out);
  /// Bytes in a row on a GPU; the host memory that stands for them.
  std::byte* add_bytes(int gpu, const void* buffer, std::uint64_t bytes, bool reads,
                       ByteRange written);
  /// Those of a collective that this rank's part in it reads and writes. Without `seat` the MPI is
  /// asked about the communicator, which the program may have freed where the call is persistent.
  void add(const CollectiveArgs& args);
  void add(const CollectiveArgs& args, const StagingRank& rank_here);

  bool is_empty() const { return buffers_.empty(); }
  /// The same arguments, with twins' memory in the place of the GPU's; others as they are.
  template <class T>
  T substitute(T argument) const {
    if constexpr (std::is_same_v<T, const void*> || std::is_same_v<T, void*>)
      return const_cast<T>(found(argument, std::is_same_v<T, const void*>));
    else
      return argument;
  }
  /// Once more, for a call that is made again: twins hold what it reads.
  void fetch();
  /// Puts what was written into the GPUs' memory, of a message the bytes that were received.
  /// After the call has ended well.
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
    std::vector<ByteRange> parts;  ///< what is read where that lies in parts; else all of it
    std::vector<ByteRange> written;
    std::optional<Received> received;
  };
  /// By MPI_BOTTOM an input and an output are one address.
  const void* found(const void* argument, bool is_input) const;
  /// A new twin of what lies on a GPU, which pieces(list) adds the data of to a list; null where
  /// all lie in host memory.
  template <class Pieces>
  StagedArgument* stage_argument(const DataLocation& where, const void* buffer, ByteRange span,
                                 bool is_input, bool read, const Pieces& pieces,
                                 bool is_pinned = true);
  static void fetch(StagedArgument& one);
  void add_inputs(const PartsBuffer& parts, int ranks);
  void add_outputs(const PartsBuffer& parts, int ranks, bool whole);
  std::vector<StagedArgument> buffers_;
};

}  // namespace plait::mpi
