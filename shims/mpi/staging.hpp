// Device memory where the MPI, or plait's CPU ranks, do the work: each buffer that lies on a GPU
// has a twin in pinned host memory, which the call gets in its place.
#pragma once
#include <optional>
#include <type_traits>
#include <vector>

#include "shims/mpi/asked.hpp"
#include "shims/mpi/layout.hpp"

namespace plait::mpi {

class Staging {
 public:
  /// A buffer that the call reads `count` elements of; a twin of it is made where it lies on a GPU.
  void add_input(const void* buffer, Handle type, Count count);
  /// One that it writes; where it may write less than all, the twin holds first what was there.
  void add_output(void* buffer, Handle type, Count count, bool whole);
  /// Where a message goes, of which only its status says how much was written.
  void add_received(void* buffer, Handle type, Count count, bool is_pinned);
  void add_scan(const void* in, void* out, Handle type, Count count);
  /// Bytes in a row on a GPU; the host memory that stands for them.
  std::byte* add_bytes(int gpu, const void* buffer, std::uint64_t bytes, bool reads, Piece written);
  /// Those of a collective that this rank's part in it reads and writes.
  void add(const Asked& asked);

  bool is_empty() const { return twins_.empty(); }
  /// The same arguments, with twins' memory in the place of the GPU's; others as they are.
  template <class T>
  T twin(T argument) const {
    if constexpr (std::is_same_v<T, const void*> || std::is_same_v<T, void*>)
      return const_cast<T>(static_cast<const void*>(found(argument)));
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
    KeptLayout layout;
    Count count;
  };
  struct One {
    Twin twin;
    bool read;
    std::vector<Piece> written;
    std::optional<Received> received;
  };
  const void* found(const void* argument) const;
  /// A new twin; null where the buffer lies in host memory.
  One* one_of(const void* buffer, Piece span, bool read, bool is_pinned = true);
  /// Parts of `each` elements in a row, or where the call says that they lie.
  void add_inputs(const Asked& asked, Count each, int ranks);
  void add_outputs(const Asked& asked, Count each, int ranks, bool whole);
  std::vector<One> twins_;
};

}  // namespace plait::mpi
