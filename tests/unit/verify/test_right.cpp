// Correct plans are proved, and reports have the orders of summation.
#include "unit/verify/example.hpp"

namespace plait {
using example::direct;

TEST_CASE("direct plans are proved on any rank count") {
  for (const int ranks : {1, 2, 3, 5, 8})
    for (const std::uint64_t count : {0, 1, 31, 1000})
      for (const Collective collective : {Collective::all_reduce, Collective::all_gather}) {
        const Report report = verify(direct(collective, ranks, count));
        INFO(print(report));
        CHECK(report.proved());
      }
}

TEST_CASE("an inbox plan needs no opening barrier") {
  const Report report = verify(direct(Collective::all_reduce, 4, 100, Space::inbox));
  INFO(print(report));
  CHECK(report.proved());
}

TEST_CASE("a report has the orders of summation") {
  const Report report = verify(direct(Collective::all_reduce, 3, 10));
  CHECK(report.orders == std::vector<std::string>{"0+1+2"});
  CHECK(report.plan == "example");
  CHECK(report.ops > 0);
}

TEST_CASE("an op over a power of two of ranks is a tree, in both kinds and of every type") {
  for (const SumOrder order : {SumOrder::tree, SumOrder::tree_rounded})
    for (const int ranks : {1, 2, 4, 8, 16})
      for (const DataType type : {DataType::fp32, DataType::bf16, DataType::int32}) {
        Plan plan = direct(Collective::all_reduce, ranks, 64);
        plan.request.type = type;
        if (type == DataType::bf16) plan.request.count *= 2;
        plan.sum_order = order;
        const Report report = verify(plan);
        INFO(print(report));
        CHECK(report.proved());
        CHECK(plan_from_json(to_json(plan)) == plan);
      }
}

TEST_CASE("a report goes through JSON unchanged") {
  Plan plan = direct(Collective::all_reduce, 3, 10);
  CHECK(report_from_json(to_json(verify(plan))) == verify(plan));
  example::drop(plan, 0, OpKind::copy);
  CHECK_FALSE(verify(plan).proved());
  CHECK(report_from_json(to_json(verify(plan))) == verify(plan));
}

}  // namespace plait
