// Call descriptors -> one verdict, whatever a peer wrote into its page.
#include <doctest/doctest.h>

#include <cstring>

#include "comm/descriptor.hpp"

using namespace plait;

TEST_CASE("equal descriptors pass, the first difference is named with both values") {
  Request request;
  request.count = 8;
  request.ranks = 2;
  const CallDescriptor a = describe(CallKind::collective, request, "");
  CHECK(!verdict({a, a}));
  CHECK(!verdict({a}));
  CallDescriptor b = a;
  b.scalar = 5;  // each rank's own
  CHECK(!verdict({a, b}));
  request.root = 1;
  const auto found = verdict({a, describe(CallKind::collective, request, "")});
  REQUIRE(found);
  CHECK(found->code() == ErrorCode::mismatch);
  CHECK(std::string(found->what()).find("root: rank 0 asks for 0, rank 1 for 1") !=
        std::string::npos);
  b = a;
  b.plan_hash = 1;
  CHECK(verdict({a, b}));
}

TEST_CASE("an error comes before any difference, the lowest rank's first") {
  const CallDescriptor good = describe(CallKind::barrier, {}, "");
  CallDescriptor bad = describe(CallKind::exchange, {}, "");
  set_error(bad, Error(ErrorCode::invalid_argument, "wanted this, found that"));
  const auto found = verdict({good, bad});
  REQUIRE(found);
  CHECK(found->code() == ErrorCode::invalid_argument);
  CHECK(std::string(found->what()) == "invalid argument: rank 1: wanted this, found that");
}

TEST_CASE("nonsense in a peer's page is printed, not believed") {
  CallDescriptor noise;
  std::memset(static_cast<void*>(&noise), 0xee, sizeof(noise));
  CHECK(verdict({noise, noise})->code() == ErrorCode::internal);
  noise.error = 0;
  CHECK(!print(noise).empty());
  CHECK(verdict({describe(CallKind::collective, {}, ""), noise}));
  CHECK(!verdict({noise, noise}));
}

TEST_CASE("long texts are cut, not written past their field") {
  CallDescriptor one;
  set_error(one, Error(ErrorCode::io_error, std::string(5000, 'x')));
  CHECK(std::strlen(one.error_text) == sizeof(one.error_text) - 1);
  CHECK(std::strlen(describe(CallKind::collective, {}, std::string(500, 's')).strategy) == 159);
}
