// Broken plans: each breaks a single thing of a correct plan, and has exactly the findings of the
// broken rule.
#include <limits>

#include "unit/verify/example.hpp"

namespace plait {
using example::direct;
using example::drop;
using example::expect;
using example::op;

namespace {

Plan three() { return direct(Collective::all_reduce, 3, 64); }

}  // namespace

TEST_CASE("plan: requests that cannot be meant") {
  Plan plan = three();
  plan.request.ranks = -1;
  expect(plan, "plan", 1, "wanted 1..64 ranks, found -1");
  plan = three();
  plan.request.ranks = 65;
  expect(plan, "plan", 1, "found 65");
  plan = three();
  plan.request.root = 3;
  expect(plan, "plan", 1, "wanted a root in 0..2, found 3");
  plan = three();
  plan.request.count = std::numeric_limits<std::uint64_t>::max();
  expect(plan, "plan", 1, "wanted at most");
  plan = three();
  plan.request.type = static_cast<DataType>(99);
  expect(plan, "plan", 1, "a number that names none");
  for (const auto& [type, reduction] : {std::pair(DataType::fp32, ReduceOp::bit_xor),
                                        std::pair(DataType::int32, ReduceOp::premul_sum)}) {
    plan = three();
    plan.request.type = type;
    plan.request.op = reduction;
    expect(plan, "plan", 1, "wanted a reduction that ");
    plan = direct(Collective::all_gather, 3, 64);  // op is not used
    plan.request.type = type;
    plan.request.op = reduction;
    CHECK(verify(plan).proved());
  }
  plan = three();
  plan.inbox_bytes.pop_back();
  expect(plan, "plan", 1, "wanted 3 inbox sizes (one a rank), found 2");
  plan = three();
  plan.inbox_bytes[1] = 1ULL << 62;  // sums of these sizes would wrap around
  expect(plan, "plan", 1, "wanted spaces of at most");
  plan = three();
  plan.request.devices[2] = 0;
  expect(plan, "plan", 1, "device 0 twice");
  plan = three();
  plan.stripes.push_back({"nvlink", 200, 100});
  expect(plan, "plan", 1, "wanted stripe nvlink inside the message of 256 bytes, found 200+100");
  plan = three();
  plan.sum_order = static_cast<SumOrder>(9);
  expect(plan, "plan", 1, "order of summation");
}

TEST_CASE("lane: wild ranks, kinds, names and ops") {
  Plan plan = three();
  plan.lanes[1].rank = -7;
  expect(plan, "lane", 1, "wanted a rank in 0..2, found -7");
  plan = three();
  plan.lanes[1].rank = 0;
  expect(plan, "lane", 1, "found main twice on rank 0");
  plan = three();
  plan.lanes[1].kind = static_cast<LaneKind>(77);
  expect(plan, "lane", 1, "known kind of lane");
  plan = three();
  plan.lanes[1].kind = LaneKind::copy_engine;
  expect(plan, "lane", 1, "found a reduction");
  plan = three();
  op(plan, 1, OpKind::copy).kind = static_cast<OpKind>(5);
  expect(plan, "lane", 1, "wanted a known op");
}

TEST_CASE("bounds: regions outside, uneven, empty or cut inside an element") {
  Plan plan = three();
  op(plan, 0, OpKind::copy).dst.offset = std::numeric_limits<std::uint64_t>::max() - 3;
  expect(plan, "bounds", 1, "wanted a region inside the 512 bytes of scratch[1]");
  plan = three();
  op(plan, 0, OpKind::copy).srcs[0].rank = -1;
  expect(plan, "bounds", 1, "wanted a place in 0..2");
  plan = three();
  op(plan, 0, OpKind::copy).srcs.clear();
  expect(plan, "bounds", 1, "wanted one source, found 0");
  plan = three();
  op(plan, 0, OpKind::reduce).srcs.clear();
  expect(plan, "bounds", 1, "wanted at least one source, found 0");
  plan = three();
  op(plan, 0, OpKind::reduce).srcs[1].bytes = 128;
  expect(plan, "bounds", 1, "wanted 256 bytes");
  plan = three();
  op(plan, 0, OpKind::copy).dst.bytes = 0;
  expect(plan, "bounds", 1, "wanted at least one byte");
  plan = three();
  op(plan, 0, OpKind::copy).dst.space = static_cast<Space>(5);
  expect(plan, "bounds", 1, "wanted a known space");
  plan = three();
  op(plan, 0, OpKind::copy).dst.bytes = 254;
  op(plan, 0, OpKind::copy).srcs[0].bytes = 254;
  expect(plan, "bounds", 1, "wanted cuts between elements of 4 bytes");
}

TEST_CASE("path: hops that lead elsewhere") {
  Plan plan = three();
  op(plan, 0, OpKind::copy).path = 1000;
  expect(plan, "path", 1, "found 1000");
  plan = three();
  op(plan, 0, OpKind::copy).path = std::numeric_limits<int>::min();
  expect(plan, "path", 1, "or none (-1)");
  plan = three();
  op(plan, 0, OpKind::copy).hop = 1;
  expect(plan, "path", 1, "found hop 1");
  plan = three();
  op(plan, 0, OpKind::copy).path = kLocalPath;
  expect(plan, "path", 1, "found a copy inside one memory");
  plan = three();
  op(plan, 0, OpKind::copy).path = op(plan, 0, OpKind::copy, 1).path;
  expect(plan, "path", 1, "wanted the hop to end at device 1");
  plan = three();
  plan.paths[0].links.clear();
  expect(plan, "path", 1, "wanted one link a hop");
  plan = three();
  plan.paths[1].name = plan.paths[0].name;
  expect(plan, "path", 1, "wanted path names to differ");
}

TEST_CASE("flag: words raised by the wrong lane, rank or value") {
  Plan plan = three();
  op(plan, 0, OpKind::signal).value = 7;
  expect(plan, "flag", 2, "to go from 0 to 1, found 7");
  plan = three();
  op(plan, 0, OpKind::signal).flag.writer = 1;
  expect(plan, "flag", 2,
         "wanted a flag that rank 0 may raise");  // and flag 1 -> 2 is raised first
  plan = three();
  op(plan, 0, OpKind::wait).flag.owner = 2;
  expect(plan, "flag", 1, "wanted a flag in the memory of rank 0");
  plan = three();
  op(plan, 0, OpKind::wait).value = 0;
  expect(plan, "flag", 1, "wanted a value of at least 1");
  plan = three();
  op(plan, 0, OpKind::wait).flag.index = -5;
  expect(plan, "flag", 1, "an index below");
  plan = three();
  Lane second{0, LaneKind::kernel, "second", {op(plan, 0, OpKind::signal)}};
  second.ops[0].value = 3;
  plan.lanes.push_back(second);
  expect(plan, "flag", 1, "wanted one lane to raise");
}

TEST_CASE("deadlock: a signal that never comes") {
  Plan plan = three();
  drop(plan, 0, OpKind::signal, 3);  // "arrived" for rank 2
  expect(plan, "deadlock", 1, "to reach 2, found that it is raised to 1 at most");
}

TEST_CASE("deadlock: a circle names every blocked lane") {
  Plan plan = three();
  for (Lane& lane : plan.lanes)  // all ranks wait before the signals
    std::stable_partition(lane.ops.begin(), lane.ops.end(),
                          [](const Op& op) { return op.kind == OpKind::wait; });
  expect(plan, "deadlock", 3, "is behind the blocked r1.main#0");
}

TEST_CASE("hazard: a reduction that does not wait for a push") {
  Plan plan = three();
  drop(plan, 0, OpKind::wait, 2);  // the wait for rank 1's push
  const Report report = verify(plan);
  INFO(print(report));
  CHECK(report.findings.size() >= 1);
  CHECK(print(report).find("hazard") != std::string::npos);
}

TEST_CASE("hazard: two lanes read and write the same bytes without order") {
  Plan plan = three();
  Lane second{0, LaneKind::kernel, "second", {op(plan, 0, OpKind::reduce)}};
  second.ops[0].srcs = {{Space::input, 0, 0, 256}};
  second.ops[0].dst = {Space::scratch, 0, plan.scratch_bytes[0], 256};
  plan.scratch_bytes[0] += 256;
  plan.lanes.push_back(second);
  expect(plan, "hazard", 1, "(in place)");  // out of place, no op writes the input
  op(plan, 3, OpKind::reduce).dst = {Space::output, 0, 0, 256};
  const Report report = verify(plan);
  CHECK(report.findings.front().rule == "hazard");
  CHECK(report.findings.front().sentence.find("in place") == std::string::npos);
}

TEST_CASE("hazard: an op that partly overlaps its source") {
  Plan plan = three();
  Lane second{0, LaneKind::kernel, "second", {}};
  Op& fill = second.ops.emplace_back();
  const std::uint64_t top = plan.scratch_bytes[0];
  plan.scratch_bytes[0] += 512;
  fill.dst = {Space::scratch, 0, top, 128};
  fill.srcs = {{Space::input, 0, 0, 128}};
  second.ops.push_back(fill);
  second.ops[1].dst.offset = top + 64;
  second.ops[1].dst.bytes = 128;
  second.ops[1].srcs = {{Space::scratch, 0, top, 128}};
  plan.lanes[0].ops.insert(plan.lanes[0].ops.begin(), second.ops.begin(), second.ops.end());
  expect(plan, "hazard", 1, "found that they overlap");
}

TEST_CASE("containment: a push before its owner begins") {
  Plan plan = three();
  drop(plan, 0, OpKind::wait, 0);  // rank 1's "I have begun"
  expect(plan, "containment", 1, "after rank 1 begins");
}

TEST_CASE("containment: a push that its owner does not wait for") {
  Plan plan = three();
  const Op push = op(plan, 0, OpKind::copy);
  Op late = push;
  late.dst.offset = plan.scratch_bytes[1];
  plan.scratch_bytes[1] += 256;
  plan.lanes[0].ops.push_back(late);
  expect(plan, "containment", 1, "before rank 1 ends");
}

TEST_CASE("privacy: a peer's buffers, and a written input") {
  Plan plan = three();
  Op peek = op(plan, 0, OpKind::copy);
  peek.dst = {Space::scratch, 0, plan.scratch_bytes[0], 256};
  peek.srcs[0].rank = 1;
  plan.scratch_bytes[0] += 256;
  for (std::size_t i = 0; i < plan.paths.size(); ++i)
    if (plan.paths[i].devices == std::vector<int>{1, 0}) peek.path = static_cast<int>(i);
  // After rank 1 has begun, and before the push that rank 1 waits for.
  plan.lanes[0].ops.insert(plan.lanes[0].ops.begin() + 4, peek);
  expect(plan, "privacy", 1, "wanted rank 0 to touch its own buffers only");
  plan.symmetric = true;
  CHECK(verify(plan).proved());
  plan = three();
  Op scribble = op(plan, 0, OpKind::reduce);
  scribble.dst = {Space::input, 0, 0, 256};
  scribble.srcs = {{Space::input, 0, 0, 256}};
  plan.lanes[0].ops.push_back(scribble);
  const Report report = verify(plan);
  INFO(print(report));
  CHECK(report.findings.front().rule == "privacy");
}

TEST_CASE("inbox: no full exchange, and a foreign reader") {
  Plan plan = direct(Collective::all_reduce, 3, 64, Space::inbox);
  Op foreign = op(plan, 0, OpKind::copy);
  foreign.dst = {Space::scratch, 0, 0, 256};
  foreign.srcs = {{Space::inbox, 1, 256, 256}};
  plan.scratch_bytes[0] = 256;
  for (std::size_t i = 0; i < plan.paths.size(); ++i)
    if (plan.paths[i].devices == std::vector<int>{1, 0}) foreign.path = static_cast<int>(i);
  plan.lanes[0].ops.push_back(foreign);
  const Report report = verify(plan);
  INFO(print(report));
  CHECK(report.findings.front().rule == "inbox");
  CHECK(report.findings.front().sentence.find("only rank 1 to read") != std::string::npos);

  Plan broadcast = direct(Collective::all_gather, 2, 64, Space::inbox);
  broadcast.request.collective = Collective::broadcast;  // rank 0's input to everyone
  broadcast.lanes[0].ops.resize(2);                      // push, signal
  Op own = op(broadcast, 0, OpKind::copy);
  own.dst = {Space::output, 0, 0, 256};
  own.path = kLocalPath;
  broadcast.lanes[0].ops.push_back(own);
  Op take = own;
  take.dst.rank = 1;
  take.srcs = {op(broadcast, 0, OpKind::copy).dst};
  broadcast.lanes[1].ops = {op(broadcast, 1, OpKind::wait), take};
  expect(broadcast, "inbox", 1, "found nothing heard from 1");
}

TEST_CASE("inbox: reserved, never touched, and no full exchange") {
  // No rank waits for another, yet executors would switch inbox halves after this call.
  Plan plan = direct(Collective::all_gather, 2, 64);
  plan.request.collective = Collective::all_to_all;
  plan.request.count = 0;
  for (Lane& lane : plan.lanes) lane.ops.clear();
  CHECK(verify(plan).proved());
  for (const std::size_t rank : {0, 1}) {
    Plan reserved = plan;
    reserved.inbox_bytes[rank] = 256;
    expect(reserved, "inbox", 2, "since the plan has inboxes, found nothing heard from");
  }
  Plan heard = direct(Collective::all_reduce, 3, 64);
  heard.inbox_bytes[2] = 64;
  CHECK(verify(heard).proved());
}

TEST_CASE("contract: wrong, missing, doubled and misplaced contributions") {
  Plan plan = three();
  drop(plan, 0, OpKind::reduce);
  expect(plan, "contract", 1, "found that no op writes it");
  plan = three();
  op(plan, 0, OpKind::reduce).srcs.pop_back();
  expect(plan, "contract", 1, "found 0+1, which lacks 2");
  plan = three();
  op(plan, 0, OpKind::reduce).srcs.push_back(op(plan, 0, OpKind::reduce).srcs[0]);
  expect(plan, "contract", 1, "counts 0 twice");
  plan = three();
  std::swap(op(plan, 0, OpKind::reduce).srcs[0], op(plan, 0, OpKind::reduce).srcs[1]);
  expect(plan, "contract", 1, "found 1+0+2 where rank order");
  plan.sum_order = SumOrder::algorithm_order;
  expect(plan, "contract", 1, "where another rank has");
  plan = three();
  op(plan, 0, OpKind::reduce).finish = false;
  expect(plan, "contract", 1, "not marked finish");
  plan = direct(Collective::all_reduce, 4, 64);
  plan.sum_order = SumOrder::tree;
  std::swap(op(plan, 0, OpKind::reduce).srcs[1], op(plan, 0, OpKind::reduce).srcs[2]);
  expect(plan, "contract", 1, "found 0+2+1+3 where the order tree is ((0+1)+(2+3))+...");
  plan = three();
  plan.sum_order = SumOrder::tree_rounded;
  expect(plan, "bounds", 3, "wanted a power of two of sources to sum in pairs, found 3");
  plan = three();
  drop(plan, 0, OpKind::copy);
  expect(plan, "contract", 1, "which no op has written");
  plan = three();
  for (Region* region : {&op(plan, 0, OpKind::copy).dst, &op(plan, 0, OpKind::copy).srcs[0]})
    region->bytes = 128;
  expect(plan, "contract", 1, "scratch[1]+0x80:128");
  plan = direct(Collective::all_gather, 3, 64);
  std::swap(op(plan, 0, OpKind::copy, 3).dst, op(plan, 0, OpKind::copy, 4).dst);
  expect(plan, "contract", 2, "wanted byte 0 on of the input of rank 1");
  plan = direct(Collective::all_gather, 3, 64);
  op(plan, 0, OpKind::copy, 3).kind = OpKind::reduce;
  expect(plan, "contract", 2, "wanted no reduction in all_gather");
}

TEST_CASE("contract: operands from different bytes of the message") {
  Plan plan = three();
  Op& reduce = op(plan, 0, OpKind::reduce);
  Op half = reduce;
  reduce.dst.bytes = half.dst.bytes = 128;
  for (Region& src : reduce.srcs) src.bytes = 128;
  for (Region& src : half.srcs) src.bytes = 128;
  half.dst.offset += 128;
  for (Region& src : half.srcs) src.offset += 128;
  half.srcs[1].offset -= 128;
  plan.lanes[0].ops.push_back(half);
  expect(plan, "contract", 1, "found bytes 128 and 0 summed");
}

TEST_CASE("contract: a copy for the reduction of a single rank") {
  Plan plan = direct(Collective::all_reduce, 1, 64);
  op(plan, 0, OpKind::reduce).kind = OpKind::copy;
  for (const ReduceOp reduction : {ReduceOp::premul_sum, ReduceOp::sum}) {  // a factor; a NaN
    plan.request.op = reduction;
    expect(plan, "contract", 1, "found the input as it is, where ");
  }
  plan.request.type = DataType::int32;
  CHECK(verify(plan).proved());
}

TEST_CASE("contract: inputs that are scaled and rounded before a tree sums them") {
  Plan plan = direct(Collective::all_reduce, 4, 64);
  plan.request.op = ReduceOp::premul_sum;
  plan.sum_order = SumOrder::tree_rounded;
  for (const int lane : {0, 1, 2, 3}) {  // each rank pushes the scaled input, and sums it
    Lane& main = plan.lanes[static_cast<std::size_t>(lane)];
    Op scale = op(plan, lane, OpKind::reduce);
    scale.finish = false;
    scale.srcs = {{Space::input, main.rank, 0, 256}};
    scale.dst = {Space::output, main.rank, 0, 256};
    for (Op& each : main.ops)
      for (Region& src : each.srcs)
        if (src.space == Space::input) src.space = Space::output;
    main.ops.insert(main.ops.begin(), scale);
  }
  CHECK(verify(plan).proved());  // fp32 holds the same factor times input
  plan.request.type = DataType::bf16;
  plan.request.count = 128;
  expect(plan, "contract", 4, "where the order tree_rounded is ((0+1)+(2+3))+...");
}

TEST_CASE("contract: an input that is scaled twice in place") {
  Plan plan = direct(Collective::all_reduce, 1, 64);
  plan.request.op = ReduceOp::premul_sum;
  CHECK(verify(plan).proved());
  plan.lanes[0].ops.push_back(op(plan, 0, OpKind::reduce));  // harmless out of place
  op(plan, 0, OpKind::reduce).finish = false;
  expect(plan, "contract", 1, "scaled once, found that r0.main#1 reads input[0]+0x0:256");
  plan.request.op = ReduceOp::sum;
  CHECK(verify(plan).proved());
}

TEST_CASE("contract: an element's sum by several library calls") {
  // A call for each rank sums all inputs at that rank: a root's order of summation is the root's.
  const auto by_calls = [](int ranks) {
    Plan plan = direct(Collective::all_reduce, ranks, 64);
    plan.sum_order = SumOrder::algorithm_order;
    std::vector<int> all;
    for (int rank = 0; rank < ranks; ++rank) all.push_back(rank);
    plan.calls.clear();
    plan.lanes.clear();
    plan.paths.clear();
    for (int root = 0; root < ranks; ++root)
      plan.calls.push_back({Library::nccl, Collective::reduce, 64, all, root, 0});
    plan.scratch_bytes.assign(all.size(), 256);
    for (const int rank : all) {
      Lane& lane = plan.lanes.emplace_back(Lane{rank, LaneKind::kernel, "calls", {}});
      for (int call = 0; call < ranks; ++call) {
        Op join;
        join.kind = OpKind::join;
        join.call = call;
        join.finish = true;
        join.srcs = {{Space::input, rank, 0, 256}};
        join.dst = {Space::scratch, rank, 0, call == rank ? 256ULL : 0ULL};
        lane.ops.push_back(join);
      }
      Op copy;
      copy.dst = {Space::output, rank, 0, 256};
      copy.srcs = {{Space::scratch, rank, 0, 256}};
      lane.ops.push_back(copy);
    }
    return plan;
  };
  expect(by_calls(3), "contract", 2,
         "found {0, 1, 2} where another rank has {0, 1, 2} from another library call");
  CHECK(verify(by_calls(2)).proved());  // two terms have a single sum
}

TEST_CASE("many findings of one rule are counted, not listed") {
  Plan plan = direct(Collective::all_reduce, 16, 64);
  for (Lane& lane : plan.lanes)
    for (Op& each : lane.ops)
      if (each.kind == OpKind::copy) each.hop = 9;
  expect(plan, "path", 65, "and 176 more");
}

}  // namespace plait
