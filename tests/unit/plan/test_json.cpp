// Tests that plans survive JSON and back, and that JSON without a plan is refused.
#include <functional>

#include "plait/error.hpp"
#include "unit/verify/example.hpp"

namespace plait {
namespace {

std::string refusal(const std::string& json) {
  try {
    plan_from_json(json);
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::parse_error);
    return error.what();
  }
  return "";
}

std::string replaced(std::string in, const std::string& what, const std::string& with) {
  const std::size_t at = in.find(what);
  REQUIRE(at != std::string::npos);
  return in.replace(at, what.size(), with);
}

Plan sample() {
  Plan plan = example::direct(Collective::all_reduce, 3, 64);
  plan.params = {{"pieces", 2}, {"throttle", -1}};
  plan.kernel = "two_shot";
  plan.symmetric = true;
  plan.stripes = {{"nvlink", 0, 128}, {"host", 128, 128}};
  plan.relay_devices = {7};
  plan.scratch_bytes.push_back(~0ULL);
  plan.lanes[0].name = "quo\"te\n";
  return plan;
}

}  // namespace

TEST_CASE("a plan goes through JSON unchanged") {
  for (const Plan& plan : {sample(), Plan{}, example::direct(Collective::all_gather, 5, 33),
                           example::direct(Collective::all_reduce, 1, 0)}) {
    CHECK(plan_from_json(to_json(plan)) == plan);
  }
}

TEST_CASE("the former name of the algorithm order is read") {
  Plan plan = sample();
  plan.sum_order = SumOrder::algorithm_order;
  const std::string former = replaced(to_json(plan), "\"algorithm_order\"", "\"stated\"");
  CHECK(plan_from_json(former) == plan);
}

TEST_CASE("JSON without a plan is refused with its place") {
  const std::string good = to_json(sample());
  const struct {
    const char *what, *with, *place;
  } kCases[] = {
      {"plait.plan/1", "plait.plan/2", "schema: wanted \"plait.plan/1\""},
      {"\"strategy\"", "\"stratagem\"", "the key \"stratagem\""},
      {"\"count\":64", "\"count\":-64", "request.count: wanted a whole number >= 0"},
      {"\"count\":64", "\"count\":6.4", "request.count"},
      {"\"count\":64", "\"count\":\"64\"", "request.count"},
      {"\"count\":64", "\"count\":64,\"count\":64", "\"count\" twice"},
      {"\"ranks\":3", "\"ranks\":65", "request.ranks: wanted a whole number in 1..64, found 65"},
      {"\"ranks\":3", "\"ranks\":99999999999999999999", "request.ranks"},
      {"\"type\":\"fp32\"", "\"type\":\"fp31\"", "request.type: wanted one of int8"},
      {"\"throttle\":-1", "\"throttle\":null", "params.throttle"},
      {"\"symmetric\":true", "\"symmetric\":1", "symmetric: wanted true or false"},
      {"\"relay_devices\":[7]", "\"relay_devices\":[-7]", "relay_devices[0]"},
      {"\"relay_devices\":[7]", "\"relay_devices\":7", "relay_devices: wanted an array"},
      {"[\"scratch\",1,", "[\"attic\",1,", "wanted one of input, output, scratch, inbox, ring"},
      {"[\"scratch\",1,", "[\"scratch\",", "[space, place, offset, bytes]"},
      {"\"flag\":[1,0,0]", "\"flag\":[1,0]", "lanes[0].ops[0].flag: wanted [owner, writer, index]"},
      {"\"value\":1", "\"value\":4294967296", "lanes[0].ops[0].value"},
      {"\"path\":0", "\"path\":-2", ".path: wanted a whole number in -1"},
      {"\"hop\":0", "\"jump\":0", "the key \"jump\""},
      {",\"hop\":0", "", ".hop: wanted a value, found none"},
  };
  for (const auto& each : kCases) {
    const std::string said = refusal(replaced(good, each.what, each.with));
    CAPTURE(each.with);
    INFO(said);
    CHECK(said.find(each.place) != std::string::npos);
  }
}

TEST_CASE("relay_devices is read under its former name guests") {
  const std::string former = replaced(to_json(sample()), "\"relay_devices\"", "\"guests\"");
  CHECK(plan_from_json(former).relay_devices == sample().relay_devices);
}

TEST_CASE("malformed, deep and huge texts are refused") {
  CHECK(refusal("") != "");
  CHECK(refusal("{\"schema\":") != "");
  CHECK(refusal("[]").find("wanted an object") != std::string::npos);
  CHECK(refusal(std::string(100000, '[')).find("nesting of at most 64") != std::string::npos);
  CHECK(refusal(std::string((64U << 20) + 1, ' ')).find("at most") != std::string::npos);
  const std::string good = to_json(sample());
  for (std::size_t cut = 0; cut + 2 < good.size(); cut += 97)
    CHECK(refusal(good.substr(0, cut)) != "");
}

}  // namespace plait
