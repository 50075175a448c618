// The kernel of pre-multiplied sums on the host, bit for bit as the CPU's products: every type,
// alignment and cut into rows, factors in the arguments and in memory. Random whole calls, cut as
// GpuCalls cuts them, equal the sum of rounded products.
#include <doctest/doctest.h>

#include <cstring>
#include <random>
#include <vector>

#include "base/text.hpp"
#include "conformance/device_on_host.hpp"
// Needs device_on_host.hpp first, for the definitions of a device.
#include "cpu/reference_reduce.hpp"
#include "gpu/scale/scale.cuh"
#include "gpu/scale/scaled_input.hpp"
#include "unit/scale.hpp"

using namespace plait;

namespace {

using Bytes = std::vector<char>;
constexpr DataType kTypes[] = {
#define PLAIT_TYPE(name, bytes, is_float, nccl_value) DataType::name,
#include "plait/types.def"
#undef PLAIT_TYPE
};

/// Runs the kernel's threads one after the other on the caller's thread, and resets the indices:
/// helpers of later tests on this thread read blockIdx.
void run_kernel(const cuda::ScaleArgs& args, unsigned blocks, unsigned threads) {
  gridDim.x = blocks, blockDim.x = threads;
  for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x)
    for (threadIdx.x = 0; threadIdx.x < threads; ++threadIdx.x) cuda::scale(args);
  threadIdx = blockIdx = blockDim = gridDim = {};
}

Bytes products(DataType type, const Bytes& input, std::uint64_t factor) {
  const std::size_t element = bytes_of(type);
  Bytes factors(input.size()), made(input.size());
  for (std::size_t at = 0; at < factors.size(); at += element)
    std::memcpy(factors.data() + at, &factor, element);
  reduce_reference(type, ReduceOp::prod, made.data(), {input.data(), factors.data()},
                   input.size() / element, 2, true, {});
  return made;
}

/// Returns any bits; half of the time bits of numbers near 1, whose products do not overflow.
Bytes random_input(DataType type, std::uint64_t count, std::mt19937& random) {
  Bytes made(count * bytes_of(type));
  for (char& one : made) one = static_cast<char>(random());
  if (type == DataType::fp32 && random() % 2 == 0)
    for (std::size_t at = 0; at < count; ++at) {
      const float value = 1.0f + static_cast<float>(random() % 100'000) * 1e-5f;
      std::memcpy(made.data() + 4 * at, &value, sizeof value);
    }
  return made;
}

std::uint64_t random_factor(DataType type, std::mt19937& random) {
  std::uint64_t bits = 0;
  const Bytes one = random_input(type, 1, random);
  std::memcpy(&bits, one.data(), one.size());
  return bits;
}

/// Pieces of a call of all ranks, by the kernel and the reference's sum.
void check_call(const Request& sum, std::uint64_t most_piece, std::mt19937& random) {
  const std::size_t element = bytes_of(sum.type);
  std::vector<Bytes> inputs, outputs, wanted;
  std::vector<std::uint64_t> factors;
  std::vector<Bytes> all;
  for (int rank = 0; rank < sum.ranks; ++rank) {
    inputs.push_back(random_input(sum.type, input_bytes(sum, rank) / element, random));
    factors.push_back(random_factor(sum.type, random));
    all.push_back(products(sum.type, inputs.back(), factors.back()));
    outputs.emplace_back(sum.count * element);
  }
  for (std::uint64_t at = 0; at < sum.count;) {
    std::vector<Bytes> made;
    std::uint64_t count = 0;
    for (int rank = 0; rank < sum.ranks; ++rank) {
      const std::size_t r = static_cast<std::size_t>(rank);
      const cuda::ScaledPieces pieces = cuda::scaled_pieces(sum, rank);
      // Short calls are cut too, but not a call whose products lie in each rank's output.
      const std::uint64_t piece =
          sum.collective == Collective::all_reduce ? pieces.piece : most_piece;
      count = std::min(piece, sum.count - at);
      const cuda::ScaledRows rows = cuda::rows_of_piece(sum, count);
      made.emplace_back(rows.rows * rows.count * element);
      char* const to = pieces.in_output ? outputs[r].data() + at * element : made.back().data();
      const bool is_in_memory = random() % 2 == 0;
      run_kernel(cuda::scale_args(sum.type,
                                  is_in_memory ? cuda::ScaleFactor{&factors[r], 0}
                                               : cuda::ScaleFactor{nullptr, factors[r]},
                                  rows, inputs[r].data() + at * element, to),
                 1 + random() % 3, 1 + random() % 40);
      if (pieces.in_output) std::memcpy(made.back().data(), to, made.back().size());
    }
    for (int rank = 0; rank < sum.ranks; ++rank) {
      std::vector<const void*> sources;
      const std::uint64_t block = sum.collective == Collective::reduce_scatter
                                      ? static_cast<std::uint64_t>(rank) * count * element
                                      : 0;
      for (const Bytes& one : made) sources.push_back(one.data() + block);
      reduce_reference(sum.type, ReduceOp::sum,
                       outputs[static_cast<std::size_t>(rank)].data() + at * element, sources,
                       count, sum.ranks, true, {});
    }
    at += count;
  }
  for (int rank = 0; rank < sum.ranks; ++rank) {
    std::vector<const void*> sources;
    const std::uint64_t block = sum.collective == Collective::reduce_scatter
                                    ? static_cast<std::uint64_t>(rank) * sum.count * element
                                    : 0;
    for (const Bytes& one : all) sources.push_back(one.data() + block);
    Bytes right(sum.count * element);
    reduce_reference(sum.type, ReduceOp::sum, right.data(), sources, sum.count, sum.ranks, true,
                     {});
    CAPTURE(text("{} of {} {} over {} ranks, rank {}", name_of(sum.collective), sum.count,
                 name_of(sum.type), sum.ranks, rank));
    CHECK(outputs[static_cast<std::size_t>(rank)] == right);
  }
}

}  // namespace

TEST_CASE("products equal the CPU's for every type, alignment and stride") {
  std::mt19937 random(3);
  for (const DataType type : kTypes)
    for (int turn = 0; turn < 60; ++turn) {
      const std::uint64_t element = bytes_of(type), rows = 1 + random() % 3;
      const std::uint64_t unit = turn % 2 == 0 ? 16 / element : 1;  // by units, or by elements
      const std::uint64_t count = unit * (1 + random() % 70),
                          stride = count + unit * (random() % 5);
      const std::uint64_t skip = turn % 4 == 3 ? element : 0;
      // Aligned storage of 16-byte units.
      std::vector<ulonglong2> memory(rows * stride * element / 16 + 2), out(memory.size());
      const Bytes input = random_input(type, rows * stride, random);
      char* const from = reinterpret_cast<char*>(memory.data()) + skip;
      std::memcpy(from, input.data(), input.size());
      const std::uint64_t factor = random_factor(type, random);
      const bool in_place = rows == 1 && turn % 3 == 0;
      char* const to = in_place ? from : reinterpret_cast<char*>(out.data()) + skip;
      run_kernel(cuda::scale_args(type, {nullptr, factor}, {rows, count, stride}, from, to),
                 1 + random() % 3, 1 + random() % 9);
      const Bytes right = products(type, input, factor);
      CAPTURE(
          text("{}, {} rows of {}, stride {}, turn {}", name_of(type), rows, count, stride, turn));
      for (std::uint64_t row = 0; row < rows; ++row)
        CHECK(std::memcmp(to + row * count * element, right.data() + row * stride * element,
                          count * element) == 0);
    }
}

TEST_CASE("random pre-multiplied sums, whole and in pieces") {
  std::mt19937 random(5);
  constexpr Collective kCollectives[] = {Collective::all_reduce, Collective::reduce_scatter,
                                         Collective::reduce};
  for (int call = 0; call < plait_test::rounds(2000); ++call) {
    Request sum;
    sum.collective = kCollectives[random() % 3];
    sum.ranks = 2 + static_cast<int>(random() % 7);
    sum.type = kTypes[random() % std::size(kTypes)];
    sum.root = sum.collective == Collective::reduce
                   ? static_cast<int>(random() % static_cast<unsigned>(sum.ranks))
                   : 0;
    sum.count = 1 + random() % 200;
    check_call(sum, 1 + random() % 100, random);
  }
}

TEST_CASE("pieces fit the memory of products, begin aligned, and are alike on all ranks") {
  for (const Collective collective :
       {Collective::all_reduce, Collective::reduce_scatter, Collective::reduce})
    for (const DataType type : kTypes)
      for (const int ranks : {2, 3, 8, 16}) {
        Request sum;
        sum.collective = collective;
        sum.type = type;
        sum.ranks = ranks;
        sum.root = collective == Collective::reduce ? 1 : 0;
        sum.count = (1ull << 30) + 5;
        const std::uint64_t piece = cuda::scaled_pieces(sum, 0).piece;
        for (int rank = 0; rank < ranks; ++rank) {
          const cuda::ScaledPieces pieces = cuda::scaled_pieces(sum, rank);
          CHECK(pieces.piece == piece);
          CHECK(pieces.in_output == (collective == Collective::all_reduce ||
                                     (collective == Collective::reduce && rank == 1)));
        }
        if (collective == Collective::all_reduce) {
          CHECK(piece == sum.count);
          continue;
        }
        const cuda::ScaledRows rows = cuda::rows_of_piece(sum, piece);
        CHECK(rows.rows * rows.count * bytes_of(type) <= cuda::kMostScaledBytes);
        CHECK(2 * rows.rows * rows.count * bytes_of(type) > cuda::kMostScaledBytes);
        CHECK(piece * bytes_of(type) % 16 == 0);
        sum.count = 7;
        CHECK(cuda::scaled_pieces(sum, 0).piece == 7);
      }
}
