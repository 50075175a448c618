// Tests of Builder, of requests, and of printed plans.
#include <limits>

#include "plait/error.hpp"
#include "unit/verify/example.hpp"

namespace plait {

TEST_CASE("partition covers a range once, in granules") {
  for (const std::uint64_t bytes : {0, 1, 127, 128, 129, 1000, 4096})
    for (const int parts : {1, 2, 3, 7, 16}) {
      const std::vector<Range> ranges = partition({64, bytes}, parts, 128);
      CHECK(ranges.size() == static_cast<std::size_t>(parts));
      std::uint64_t at = 64;
      for (const Range& range : ranges) {
        CHECK(range.offset == at);
        at += range.bytes;
        if (at < 64 + bytes) CHECK(range.bytes % 128 == 0);
      }
      CHECK(at == 64 + bytes);
    }
}

TEST_CASE("slices stay inside their region") {
  const Region whole{Space::scratch, 1, 100, 50};
  CHECK(slice(whole, {10, 40}) == Region{Space::scratch, 1, 110, 40});
  CHECK_THROWS_AS(slice(whole, {10, 41}), Error);
  CHECK_THROWS_AS(slice(whole, {std::numeric_limits<std::uint64_t>::max(), 2}), Error);
}

TEST_CASE("the builder numbers words a lane and hands out bytes once") {
  const Topology topology = example::machine(2);
  Request unchecked;
  unchecked.ranks = 2;
  unchecked.count = 8;
  Builder builder(topology, checked(unchecked, topology), "trial");
  const int one = builder.lane(0, LaneKind::kernel, "one");
  const int two = builder.lane(0, LaneKind::kernel, "two");
  CHECK(builder.lane(0, LaneKind::kernel, "one") == one);
  const Event first = builder.signal(one, 1), second = builder.signal(one, 1);
  const Event other = builder.signal(two, 1);
  CHECK(first.flag == second.flag);
  CHECK(second.value == 2);
  CHECK(other.flag != first.flag);
  CHECK_THROWS_AS(builder.wait(one, first), Error);  // the flag is rank 1's
  const Region low = builder.alloc(Space::scratch, 0, 1);
  const Region high = builder.alloc(Space::scratch, 0, 1);
  CHECK(low.offset == 0);
  CHECK(high.offset == 128);
  CHECK_THROWS_AS(builder.alloc(Space::input, 0, 1), Error);
  const Plan plan = builder.build();
  CHECK(epochs_per_call(plan) == 2);
  CHECK(flags_per_pair(plan) == 2);
  CHECK(op_count(plan) == 3);
}

TEST_CASE("requests are checked") {
  const Topology topology = example::machine(4);
  Request request;
  request.ranks = 5;
  CHECK_THROWS_AS(checked(request, topology), Error);
  request.ranks = 4;
  CHECK(checked(request, topology).devices == std::vector<int>{0, 1, 2, 3});
  request.count = static_cast<std::uint64_t>(-1);
  CHECK_THROWS_AS(checked(request, topology), Error);
  request.count = 1;
  request.op = ReduceOp::bit_and;
  CHECK_THROWS_AS(checked(request, topology), Error);
  request.type = DataType::int32;
  CHECK_NOTHROW(checked(request, topology));
  request.devices = {0, 1, 1, 2};
  CHECK_THROWS_AS(checked(request, topology), Error);
  CHECK(parse_collective("AllReduce") == Collective::all_reduce);
  CHECK(parse_type("bfloat16") == DataType::bf16);
  CHECK_THROWS_AS(parse_reduce_op("summ"), Error);
}

TEST_CASE("ops print on one line each") {
  Plan plan = example::direct(Collective::all_reduce, 2, 64);
  plan.params = {{"pieces", 2}};
  CHECK(label(plan) == "example(pieces=2)");
  const std::string printed = print(plan);
  INFO(printed);
  for (const char* line :
       {"plan example(pieces=2): all_reduce of 64 fp32 (sum) on 2 ranks, devices 0 1",
        "  sum order rank_order", "  over nvlink:0>1: 256 bytes",
        "r0.main#0 signal flag 0 of rank 1 by rank 0 := 1",
        "r0.main#1 wait flag 0 of rank 0 by rank 1 >= 1",
        "r0.main#2 copy scratch[1]+0x0:256 <- input[0]+0x0:256 via nvlink:0>1 hop 0",
        "r1.main#5 reduce output[1]+0x0:256 <- scratch[1]+0x0:256 + input[1]+0x0:256 finish"})
    CHECK(printed.find(line) != std::string::npos);
}

TEST_CASE("bytes are counted by path") {
  const Plan plan = example::direct(Collective::all_gather, 3, 64);
  const auto bytes = bytes_per_path(plan);
  CHECK(bytes.at("nvlink:0>2") == 256);
  CHECK(bytes.at("local") == 9 * 256);
}

}  // namespace plait
