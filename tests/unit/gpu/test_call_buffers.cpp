// Checks of callers' GPU buffers: only buffers that a rank's role reads or writes.
#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include "gpu/abi/chunk_args.hpp"
#include "gpu/device/call_buffers.hpp"

using namespace plait;

namespace {

const void* at(std::uintptr_t address) { return reinterpret_cast<const void*>(address); }

bool taken(Collective collective, int rank, std::uintptr_t input, std::uintptr_t output) {
  Request request;
  request.collective = collective;
  request.type = DataType::fp32;
  request.count = 100;
  request.ranks = 3;
  request.root = 1;
  try {
    cuda::check_alignment(request, rank, at(input), at(output));
    return true;
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::invalid_argument);
    return false;
  }
}

}  // namespace

TEST_CASE("a pointer that a rank's role does not use may be any") {
  for (const Collective collective : {Collective::reduce, Collective::gather}) {
    CHECK(taken(collective, 0, 0x1000, 0x2001));
    CHECK(taken(collective, 2, 0x1000, 0));
    CHECK_FALSE(taken(collective, 1, 0x1000, 0x2001));  // the root's buffer
    CHECK_FALSE(taken(collective, 0, 0x1002, 0));
  }
  for (const Collective collective : {Collective::broadcast, Collective::scatter}) {
    CHECK(taken(collective, 0, 0x1001, 0x2000));
    CHECK(taken(collective, 2, 0, 0x2000));
    CHECK_FALSE(taken(collective, 1, 0x1001, 0x2000));  // the root's buffer
    CHECK_FALSE(taken(collective, 0, 0, 0x2002));
  }
  for (const Collective collective : {Collective::all_reduce, Collective::all_gather,
                                      Collective::reduce_scatter, Collective::all_to_all}) {
    CHECK(taken(collective, 0, 0x1004, 0x2004));
    CHECK_FALSE(taken(collective, 0, 0x1001, 0x2000));
    CHECK_FALSE(taken(collective, 0, 0x1000, 0x2001));
  }
}

TEST_CASE("the error names the buffer, the wanted and the found alignment") {
  Request request;
  request.count = 8;
  request.ranks = 2;
  request.type = DataType::fp64;
  CHECK_THROWS_WITH_AS(cuda::check_alignment(request, 0, at(0x1000), at(0x2004)),
                       doctest::Contains("output: wanted memory aligned to its elements of 8"),
                       Error);
}

TEST_CASE("a direct call in pieces moves each byte of each part once") {
  std::vector<char> in(64), out(64);
  const double scalars[] = {2.0, 3.0};
  for (const std::uint64_t own_bytes : {0, 50})
    for (const std::uint64_t piece_bytes : {16, 32, 64}) {
      cuda::DirectChunksArgs whole{};
      whole.shape.part_bytes = 50;
      whole.shape.own_bytes = own_bytes;
      std::uint64_t at = 0;
      const auto check = [&](cuda::DirectChunksArgs& piece) {
        CHECK(piece.input == in.data() + at);
        CHECK(piece.output == out.data() + at);
        CHECK(piece.shape.part_bytes == std::min<std::uint64_t>(piece_bytes, 50 - at));
        CHECK(piece.shape.own_bytes == (own_bytes == 0 ? 0 : piece.shape.part_bytes));
        CHECK(piece.scalars[1] == 3.0);
        CHECK(piece.scalars[2] == 1.0);
        at += piece.shape.part_bytes;
      };
      cuda::launch_pieces(whole, piece_bytes, {in.data(), out.data(), scalars}, check);
      CHECK(at == 50);
    }
}
