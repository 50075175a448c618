// The caller's buffers of a call on GPUs: alignment check and kernel arguments.
#pragma once
#include <algorithm>
#include <cstdint>
#include <span>
#include <string>

#include "base/text.hpp"
#include "gpu/abi/call_args.hpp"
#include "plait/error.hpp"
#include "plait/plan.hpp"

namespace plait::cuda {

/// Device memory of a call. scalars: premul_sum, a factor per rank, or empty.
struct CallBuffers {
  const void* input = nullptr;
  void* output = nullptr;
  std::span<const double> scalars;
};

/// Returns the buffers from these bytes of input and output on.
inline CallBuffers behind(const CallBuffers& buffers, std::uint64_t input, std::uint64_t output) {
  return {static_cast<const char*>(buffers.input) + input,
          static_cast<char*>(buffers.output) + output, buffers.scalars};
}

inline void set_scalars(CallArgs& args, std::span<const double> scalars) {
  for (std::size_t i = 0; i < kMaxCudaRanks; ++i)
    args.scalars[i] = i < scalars.size() ? scalars[i] : 1.0;
}

inline void set_buffers(CallArgs& args, const CallBuffers& buffers) {
  args.input = buffers.input;
  args.output = buffers.output;
  set_scalars(args, buffers.scalars);
}

/// Makes a direct call in pieces of at most `piece_bytes` of each part. args: with the shape of the
/// whole call.
template <class Args, class Launch>
void launch_pieces(Args args, std::uint64_t piece_bytes, const CallBuffers& buffers,
                   const Launch& launch) {
  const std::uint64_t part_bytes = args.shape.part_bytes;
  set_scalars(args, buffers.scalars);
  for (std::uint64_t at = 0; at < part_bytes; at += piece_bytes) {
    args.input = static_cast<const char*>(buffers.input) + at;
    args.output = static_cast<char*>(buffers.output) + at;
    args.shape.part_bytes = std::min(piece_bytes, part_bytes - at);
    if (args.shape.own_bytes != 0) args.shape.own_bytes = args.shape.part_bytes;
    launch(args);
  }
}

/// Why a message goes in no pieces of half an inbox. most_pieces: that a call may have.
inline std::string too_small_inbox(std::uint64_t half_bytes, std::uint64_t most_pieces) {
  return text(
      "packet buffer of {} bytes a call is too small: the message does not fit into {} pieces "
      "(raise PLAIT_DEVICE_MEMORY)",
      half_bytes, most_pieces);
}

/// Error(invalid_argument) if memory that this rank reads or writes is not aligned to the elements.
/// Unused buffers are not checked: peers of a root often pass null or a buffer of another type.
inline void check_alignment(const Request& request, int rank, const void* input,
                            const void* output) {
  const std::uint64_t element = bytes_of(request.type);
  const auto check_one = [&](const char* name, const void* pointer, std::uint64_t bytes) {
    if (bytes != 0 && reinterpret_cast<std::uintptr_t>(pointer) % element != 0)
      throw Error(ErrorCode::invalid_argument,
                  text("{}: wanted memory aligned to its elements of {} bytes, found address {}",
                       name, element, pointer));
  };
  check_one("input", input, input_bytes(request, rank));
  check_one("output", output, output_bytes(request, rank));
}

}  // namespace plait::cuda
