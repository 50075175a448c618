// Requests by the size of a message, as nccl-tests counts bytes.
#include <doctest/doctest.h>

#include "plait/error.hpp"
#include "plan/blocks.hpp"

using namespace plait;

TEST_CASE("a request of a message's bytes has the most elements with room, and at least one") {
  Request like;
  like.ranks = 4;
  const auto count = [&](Collective collective, std::uint64_t bytes) {
    like.collective = collective;
    return of_message_bytes(like, bytes).count;
  };
  CHECK(count(Collective::all_reduce, 1024) == 256);  // fp32
  CHECK(count(Collective::all_reduce, 1027) == 256);
  CHECK(count(Collective::all_gather, 1024) == 64);
  CHECK(count(Collective::all_gather, 1039) == 64);
  CHECK(count(Collective::all_gather, 15) == 1);
  like.count = 7;  // the former count does not matter
  CHECK(count(Collective::all_reduce, 4) == 1);
  CHECK(of_message_bytes(like, 1 << 20).ranks == 4);
}

TEST_CASE("sizes of buffers that overflow are an error") {
  Request request;
  request.collective = Collective::all_gather;
  request.count = std::uint64_t{1} << 61;
  request.type = DataType::fp64;
  request.ranks = 2;
  CHECK_THROWS_AS(input_bytes(request, 0), Error);
  CHECK_THROWS_AS(output_bytes(request, 0), Error);
  CHECK_THROWS_AS(message_bytes(request), Error);
  request.count = std::uint64_t{1} << 58;
  CHECK(output_bytes(request, 0) == std::uint64_t{1} << 62);
  request.counts = {1, std::uint64_t{1} << 61};
  CHECK_THROWS_AS(output_bytes(request, 0), Error);
}

TEST_CASE("sizes of buffers are an error for a rank outside the request and for missing counts") {
  Request request;
  request.collective = Collective::all_gather;
  request.count = 7;
  request.ranks = 2;
  for (const bool has_counts : {false, true}) {
    if (has_counts) request.counts = {7, 3};
    CHECK(input_bytes(request, 1) == (has_counts ? 12 : 28));
    for (const int rank : {-1, 2, 1'000'000}) {
      CHECK_THROWS_AS(input_bytes(request, rank), Error);
      CHECK_THROWS_AS(output_bytes(request, rank), Error);
    }
  }
  request.ranks = 3;
  CHECK_THROWS_AS(input_bytes(request, 2), Error);
}
