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

TEST_CASE("a report goes through JSON unchanged") {
  Plan plan = direct(Collective::all_reduce, 3, 10);
  CHECK(report_from_json(to_json(verify(plan))) == verify(plan));
  example::drop(plan, 0, OpKind::copy);
  CHECK_FALSE(verify(plan).proved());
  CHECK(report_from_json(to_json(verify(plan))) == verify(plan));
}

}  // namespace plait
