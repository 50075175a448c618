// Damaged JSON of every shipped topology is read as a valid topology or refused with
// Error(parse_error); nothing else leaves the reader.
#include <doctest/doctest.h>

#include <algorithm>
#include <random>

#include "plait/error.hpp"
#include "plait/topology.hpp"
#include "unit/damage.hpp"
#include "unit/scale.hpp"

using namespace plait;

namespace {

/// Returns true if the text was read.
bool survives(const std::string& json) {
  return plait_test::is_read([&json] {
    const Topology read = topology_from_json(json);
    CHECK(problems(read).empty());
    CHECK(topology_from_json(to_json(read)) == read);
    CHECK_FALSE(fingerprint(read).empty());
  });
}

}  // namespace

TEST_CASE("damaged topologies are read as valid ones or refused") {
  std::mt19937_64 random(20261121);
  int read = 0, refused = 0;
  for (const std::string& name : shipped_topologies()) {
    const std::string good = to_json(load_topology(name));
    const bool is_long = good.size() > 100'000;  // a whole cluster
    for (int round = 0; round < plait_test::rounds(is_long ? 60 : 400); ++round) {
      CAPTURE(name);
      CAPTURE(round);
      ++(survives(plait_test::damaged(good, random)) ? read : refused);
    }
  }
  MESSAGE("damaged topologies: ", read, " read, ", refused, " refused");
  CHECK(read > 0);
  CHECK(refused > read);
}
