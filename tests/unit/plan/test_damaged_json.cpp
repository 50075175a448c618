// Damaged JSON of plans is read or refused with Error(parse_error); nothing else leaves the reader.
// A plan that is read can be printed and written again, correct or not.
#include <limits>
#include <random>

#include "plait/error.hpp"
#include "unit/damage.hpp"
#include "unit/scale.hpp"
#include "unit/verify/example.hpp"

namespace plait {
namespace {

/// Returns true if the text was read.
bool survives(const std::string& json) {
  return plait_test::is_read([&json] {
    const Plan read = plan_from_json(json);
    CHECK(plan_from_json(to_json(read)) == read);
    CHECK_FALSE(print(read).empty());
    CHECK(flags_per_pair(read) >= 0);
  });
}

}  // namespace

TEST_CASE("damaged plans are read or refused") {
  std::mt19937_64 random(20261121);
  Plan rich = example::direct(Collective::all_reduce, 3, 64);
  rich.params = {{"pieces", 2}, {"throttle", -1}};
  rich.relay_devices = {7};
  rich.stripes = {{"nvlink", 0, 128}, {"host", 128, 128}};
  rich.lanes[0].name = "quo\"te\n\xc3\xa9";
  int read = 0, refused = 0;
  for (const Plan& plan : {rich, example::direct(Collective::all_gather, 5, 33),
                           example::direct(Collective::all_reduce, 2, 64, Space::inbox), Plan{}}) {
    const std::string good = to_json(plan);
    for (int round = 0; round < plait_test::rounds(1500); ++round) {
      CAPTURE(round);
      ++(survives(plait_test::damaged(good, random)) ? read : refused);
    }
  }
  MESSAGE("damaged plans: ", read, " read, ", refused, " refused");
  CHECK(read > 0);
  CHECK(refused > read);
}

TEST_CASE("the largest index is no overflow") {
  Plan plan = example::direct(Collective::all_reduce, 2, 64);
  example::op(plan, 0, OpKind::signal).flag.index = std::numeric_limits<int>::max();
  CHECK(flags_per_pair(plan_from_json(to_json(plan))) == std::numeric_limits<int>::max());
}

}  // namespace plait
