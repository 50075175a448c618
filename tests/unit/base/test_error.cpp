// Tests error texts that quote another error.
#include <doctest/doctest.h>

#include <string>

#include "plait/error.hpp"

using plait::Error;
using plait::ErrorCode;

TEST_CASE("an error that quotes another says what kind they are once") {
  const Error inner(ErrorCode::parse_error, "links[3]: wanted a name");
  CHECK(std::string(inner.what()) == "malformed input: links[3]: wanted a name");
  const Error outer(inner.code(), std::string("box.json: ") + inner.what());
  CHECK(std::string(outer.what()) == "malformed input: box.json: links[3]: wanted a name");
  const Error other(ErrorCode::unsupported, inner.what());
  CHECK(std::string(other.what()) == "unsupported: malformed input: links[3]: wanted a name");
}
