// Converts a call's arguments to contiguous buffers of this rank, and back. A layout with holes
// costs this rank a copy and other ranks nothing.
#pragma once
#include <cstddef>
#include <memory>
#include <vector>

#include "shims/mpi/args/shape.hpp"
#include "shims/mpi/staging/staging.hpp"

namespace plait::mpi {

/// This rank's buffers in a call. Created and ended in a thread that may call MPI.
class PackedCall {
 public:
  /// gpu: result of gpu_of_call(); -1 = input() and output() must be host memory. Throws
  /// Error(out_of_memory) if this rank cannot stage.
  PackedCall(CollectiveArgs args, const CallShape& shape, const RankPosition& position, int gpu);
  bool is_on_gpu() const { return gpu_ >= 0; }
  int gpu() const { return gpu_; }
  /// Replaces GPU buffers by staging buffers, in any thread: not all ranks have GPU buffers.
  void bring_to_host(int rank);
  const Request& request() const { return request_; }
  /// Sizes of a call with own_counts; else null.
  const OwnCounts* own() const { return own_.sends.empty() ? nullptr : &own_; }
  /// Bytes of the message; with own_counts, of this rank's part.
  std::uint64_t bytes() const { return bytes_; }
  const void* input() const { return input_; }
  void* output() const { return output_; }
  /// Retains datatypes for a call that ends later: the program may free them earlier.
  void retain_types();
  /// Unpacks the outputs and copies staging buffers back, after the call has run.
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
