// The caller's buffers of a call on GPUs: alignment check and kernel arguments.
#pragma once
#include <cstdint>
#include <span>

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

inline void set_scalars(CallArgs& args, std::span<const double> scalars) {
  for (std::size_t i = 0; i < kMaxCudaRanks; ++i)
    args.scalars[i] = i < scalars.size() ? scalars[i] : 1.0;
}

inline void set_buffers(CallArgs& args, const CallBuffers& buffers) {
  args.input = buffers.input;
  args.output = buffers.output;
  set_scalars(args, buffers.scalars);
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
