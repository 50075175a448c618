// Tests that descriptors give the same error on all ranks, whatever a peer wrote into its page.
#include <doctest/doctest.h>

#include <cstring>
#include <functional>
#include <vector>

#include "comm/choose/descriptor.hpp"

using namespace plait;

TEST_CASE("equal descriptors pass, the first difference is named with both values") {
  Request request;
  request.count = 8;
  request.ranks = 2;
  const CallDescriptor a = describe(CallKind::collective, request, "");
  CHECK(!call_error({a, a}));
  CHECK(!call_error({a}));
  CallDescriptor b = a;
  b.scalar = 5;  // per rank
  CHECK(!call_error({a, b}));
  request.root = 1;
  const auto found = call_error({a, describe(CallKind::collective, request, "")});
  REQUIRE(found);
  CHECK(found->code() == ErrorCode::mismatch);
  CHECK(std::string(found->what()).find("root: rank 0 asks for 0, rank 1 for 1") !=
        std::string::npos);
  b = a;
  b.plan_hash = 1;
  CHECK(call_error({a, b}));
}

TEST_CASE("hashes are equal where descriptors are, and tell all that a verdict names") {
  Request request;
  request.count = 8;
  request.ranks = 2;
  const CallDescriptor a = describe(CallKind::collective, request, "ring");
  CallDescriptor own = a;
  own.scalar = 5;  // per rank
  CHECK(hash_of(own) == hash_of(a));
  const std::vector<std::function<void(CallDescriptor&)>> changes{
      [](CallDescriptor& d) { d.kind = CallKind::barrier; },
      [](CallDescriptor& d) { d.collective = 1; },
      [](CallDescriptor& d) { d.type = 1; },
      [](CallDescriptor& d) { d.op = 1; },
      [](CallDescriptor& d) { d.ranks = 3; },
      [](CallDescriptor& d) { d.root = 1; },
      [](CallDescriptor& d) { d.peer = 1; },
      [](CallDescriptor& d) { d.count = 9; },
      [](CallDescriptor& d) { d.counts_hash = 1; },
      [](CallDescriptor& d) { d.devices_hash ^= 1; },
      [](CallDescriptor& d) { d.plan_hash = 1; },
      [](CallDescriptor& d) { d.strategy[3] = 'k'; },
      [](CallDescriptor& d) { set_error(d, Error(ErrorCode::timeout, "late")); },
  };
  for (std::size_t i = 0; i < changes.size(); ++i) {
    CAPTURE(i);
    CallDescriptor b = a;
    changes[i](b);
    CHECK(call_error({a, b}));
    CHECK(hash_of(b) != hash_of(a));
  }
}

TEST_CASE("an error comes before any difference, the lowest rank's first") {
  const CallDescriptor good = describe(CallKind::barrier, {}, "");
  CallDescriptor bad = describe(CallKind::exchange, {}, "");
  set_error(bad, Error(ErrorCode::invalid_argument, "wanted this, found that"));
  const auto found = call_error({good, bad});
  REQUIRE(found);
  CHECK(found->code() == ErrorCode::invalid_argument);
  CHECK(std::string(found->what()) == "invalid argument: rank 1: wanted this, found that");
}

TEST_CASE("nonsense in a peer's page is printed, not believed") {
  CallDescriptor noise;
  std::memset(static_cast<void*>(&noise), 0xee, sizeof(noise));
  CHECK(call_error({noise, noise})->code() == ErrorCode::internal);
  noise.error = 0;
  CHECK(!print(noise).empty());
  CHECK(call_error({describe(CallKind::collective, {}, ""), noise}));
  CHECK(!call_error({noise, noise}));
}

TEST_CASE("long texts are cut, not written past their field") {
  CallDescriptor one;
  set_error(one, Error(ErrorCode::io_error, std::string(5000, 'x')));
  CHECK(std::strlen(one.error_text) == sizeof(one.error_text) - 1);
  CHECK(std::strlen(describe(CallKind::collective, {}, std::string(500, 's')).strategy) == 159);
}
