// A call's arguments -> plait's request and this rank's contiguous buffers, and back. What is
// chosen goes by what all ranks have alike (collective, root, operation, bytes); what only this
// rank has (its layout in memory) costs this rank a copy and changes no choice.
#pragma once
#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "plait/plan.hpp"
#include "shims/mpi/asked.hpp"
#include "shims/mpi/layout.hpp"
#include "shims/mpi/staging.hpp"

namespace plait::mpi {

/// What all ranks of a call find alike.
struct Shape {
  Request request;
  std::uint64_t part_bytes = 0;  ///< of one rank's part, the largest
};

/// This rank in a communicator.
struct Place {
  int rank = 0;
  int ranks = 0;
};

/// No message of the call is larger; ~0 where that takes a closer look.
std::uint64_t most_bytes(const Asked& asked);
/// Nothing where the call must pass on: it is empty, wrong, or not plait's.
std::optional<Shape> shape_of(const Asked& asked, const Place& place);

/// The GPU that all buffers of this rank lie on, each as plait wants it; -1 where one does not.
int gpu_of_call(const Asked& asked, const Shape& shape, const Place& place);

/// One rank's part in a call, with what it stages. Made and ended in a thread that may call MPI.
class Job {
 public:
  /// gpu: what gpu_of_call() says; -1 = input() and output() are to be host memory. Throws
  /// Error(out_of_memory) where this rank cannot stage.
  Job(Asked asked, const Shape& shape, const Place& place, int gpu);
  bool is_on_gpu() const { return gpu_ >= 0; }
  int gpu() const { return gpu_; }
  /// Puts host memory in the place of the GPU's, in any thread: other ranks' buffers lie elsewhere.
  void bring_to_host(int rank);
  const Request& request() const { return request_; }
  const void* input() const { return input_; }
  void* output() const { return output_; }
  /// For a call that ends later: the program may free its datatypes before.
  void keep_types();
  /// Puts what was staged to its places, once the call has run.
  void end();

 private:
  struct Staged {
    const std::byte* from;
    std::byte* to;
    Count count;
    Layout layout;
  };
  void set_buffers(const Asked& asked, const Shape& shape, const Place& place);
  std::byte* room(std::uint64_t bytes);
  const void* packed(const void* from, Count count, const Layout& layout, std::uint64_t at_least);
  void broadcast(const Asked& asked, const Shape& shape, const Place& place);
  void give(const Asked& asked, const Place& place);
  void take(const Asked& asked, const Shape& shape, const Place& place);
  void take_parts(const Asked& asked, const Place& place);

  Request request_;
  int gpu_;
  Staging staging_;
  const void* input_ = nullptr;
  void* output_ = nullptr;
  std::vector<std::unique_ptr<std::byte[]>> rooms_;
  std::vector<Staged> staged_;
  std::vector<Handle> kept_;
};

}  // namespace plait::mpi
