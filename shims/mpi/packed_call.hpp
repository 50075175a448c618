// A call's arguments -> this rank's contiguous buffers, and back: a layout with holes costs this
// rank a copy, and nobody else anything.
#pragma once
#include <cstddef>
#include <memory>
#include <vector>

#include "shims/mpi/shape.hpp"
#include "shims/mpi/staging.hpp"

namespace plait::mpi {

/// One rank's part in a call, with what it stages. Made and ended in a thread that may call MPI.
class PackedCall {
 public:
  /// gpu: what gpu_of_call() says; -1 = input() and output() are to be host memory. Throws
  /// Error(out_of_memory) where this rank cannot stage.
  PackedCall(CollectiveArgs args, const CallShape& shape, const RankPosition& position, int gpu);
  bool is_on_gpu() const { return gpu_ >= 0; }
  int gpu() const { return gpu_; }
  /// Puts host memory in the place of the GPU's, in any thread: other ranks' buffers lie elsewhere.
  void bring_to_host(int rank);
  const Request& request() const { return request_; }
  /// Of a call by own counts; else null.
  const OwnCounts* own() const { return own_.sends.empty() ? nullptr : &own_; }
  /// Of the message, or of this rank's part where no rank knows all of it.
  std::uint64_t bytes() const { return bytes_; }
  const void* input() const { return input_; }
  void* output() const { return output_; }
  /// For a call that ends later: the program may free its datatypes before.
  void retain_types();
  /// Puts what was staged to its places, once the call has run.
  void end();

 private:
  struct StagedOutput {
    const std::byte* from;
    std::byte* to;
    Count count;
    Layout layout;
  };
  void set_buffers(const CollectiveArgs& args, const CallShape& shape,
                   const RankPosition& position);
  std::byte* allocate(std::uint64_t bytes);
  const void* packed(const void* from, Count count, const Layout& layout, std::uint64_t at_least);
  const void* packed_parts(const void* from, const CountArray& counts, const CountArray& displs,
                           Handle type, int ranks);
  void broadcast(const CollectiveArgs& args, const CallShape& shape, const RankPosition& position);
  void set_input(const CollectiveArgs& args, const RankPosition& position);
  void set_output(const CollectiveArgs& args, const CallShape& shape, const RankPosition& position);
  void set_output_parts(const CollectiveArgs& args, const RankPosition& position);

  Request request_;
  OwnCounts own_;
  std::uint64_t bytes_;
  int gpu_;
  CallStaging staging_;
  const void* input_ = nullptr;
  void* output_ = nullptr;
  std::vector<std::unique_ptr<std::byte[]>> buffers_;
  std::vector<StagedOutput> outputs_;
  std::vector<RetainedType> retained_types_;
};

}  // namespace plait::mpi
