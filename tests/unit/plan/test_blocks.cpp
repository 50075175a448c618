// Requests by the size of a message, as nccl-tests counts bytes.
#include <doctest/doctest.h>

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
