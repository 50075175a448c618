// Checks calls of all_reduce_rms_norm, and gives the all_reduce inside them.
#include "plait/rms_norm.hpp"

#include <span>

#include "base/text.hpp"
#include "plait/error.hpp"

namespace plait {
namespace {

constexpr std::uint64_t kMostRows = std::uint64_t{1} << 31;

/// Memory that a call reads or writes.
struct Extent {
  const char* name;
  const void* at;
  std::uint64_t bytes;
  bool is_written;

  bool overlaps(const Extent& other) const {
    const auto mine = reinterpret_cast<std::uintptr_t>(at);
    const auto its = reinterpret_cast<std::uintptr_t>(other.at);
    return mine < its + other.bytes && its < mine + bytes;
  }
};

}  // namespace

void check_norm(const RmsNorm& norm) {
  if (norm.type != DataType::bf16 && norm.type != DataType::fp16)
    throw Error(ErrorCode::unsupported,
                text("all_reduce_rms_norm: wanted bf16 or fp16, found {}", name_of(norm.type)));
  if (norm.output != norm.type && norm.output != DataType::fp8e4m3)
    throw Error(ErrorCode::unsupported,
                text("all_reduce_rms_norm: wanted output of {} or fp8e4m3, found {}",
                     name_of(norm.type), name_of(norm.output)));
  if (norm.hidden == 0 || norm.hidden % 8 != 0 || norm.hidden > kMostHidden)
    throw Error(ErrorCode::invalid_argument,
                text("all_reduce_rms_norm: wanted rows of a multiple of 8 elements, at most {}, "
                     "found {}",
                     kMostHidden, norm.hidden));
  if (norm.rows >= kMostRows)
    throw Error(ErrorCode::invalid_argument,
                text("all_reduce_rms_norm: wanted fewer than {} rows, found {} (overflowing or "
                     "negative)",
                     kMostRows, static_cast<std::int64_t>(norm.rows)));
  if (!(norm.epsilon >= 0))  // a NaN too
    throw Error(
        ErrorCode::invalid_argument,
        text("all_reduce_rms_norm: wanted an epsilon of at least 0, found {}", norm.epsilon));
}

void check_norm(const RmsNorm& norm, const RmsNormBuffers& buffers) {
  check_norm(norm);
  if (norm.rows == 0) return;
  const std::uint64_t row = norm.hidden * bytes_of(norm.type);
  const Extent all[] = {{"input", buffers.input, input_bytes(norm), false},
                        {"residual", buffers.residual, input_bytes(norm), true},
                        {"weight", buffers.weight, row, false},
                        {"output", buffers.output, output_bytes(norm), true},
                        {"scale", buffers.scale, sizeof(float), false}};
  const std::span given = std::span(all).first(buffers.scale == nullptr ? 4 : 5);
  for (const Extent& one : given.first(4)) {
    if (one.at == nullptr)
      throw Error(ErrorCode::invalid_argument,
                  text("{}: wanted {} bytes, found null", one.name, one.bytes));
    if (reinterpret_cast<std::uintptr_t>(one.at) % 16 != 0)
      throw Error(
          ErrorCode::invalid_argument,
          text("{}: wanted memory aligned to 16 bytes, found address {}", one.name, one.at));
  }
  for (const Extent& one : given)
    for (const Extent& other : given) {
      if (&one >= &other || !(one.is_written || other.is_written) || !one.overlaps(other)) continue;
      const bool in_place =
          &one == &all[0] && &other == &all[3] && one.at == other.at && norm.type == norm.output;
      if (!in_place)
        throw Error(ErrorCode::invalid_argument,
                    text("{} and {} overlap: only an output of the input's type may be the input",
                         one.name, other.name));
    }
  if (buffers.scale != nullptr && norm.output != DataType::fp8e4m3)
    throw Error(ErrorCode::invalid_argument,
                text("scale: wanted none for output of {}", name_of(norm.output)));
  if (reinterpret_cast<std::uintptr_t>(buffers.scale) % sizeof(float) != 0)
    throw Error(ErrorCode::invalid_argument, text("scale: wanted the address of a float, found {}",
                                                  static_cast<const void*>(buffers.scale)));
}

Request all_reduce_of(const RmsNorm& norm, int ranks) {
  Request request;
  request.collective = Collective::all_reduce;
  request.count = norm.rows * norm.hidden;
  request.type = norm.type;
  request.ranks = ranks;
  return request;
}

std::uint64_t input_bytes(const RmsNorm& norm) {
  return norm.rows * norm.hidden * bytes_of(norm.type);
}

std::uint64_t output_bytes(const RmsNorm& norm) {
  return norm.rows * norm.hidden * bytes_of(norm.output);
}

}  // namespace plait
