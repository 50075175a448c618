// Parameters that each engine takes, and refusals of others.
#include <doctest/doctest.h>

#include "base/text.hpp"
#include "gpu/select/engines.hpp"
#include "plait/error.hpp"

using namespace plait;
using cuda::Tuning;
using cuda::tuning_from;

namespace {

std::string refusal(const std::string& engine, const std::map<std::string, std::int64_t>& params) {
  try {
    tuning_from(engine, params);
  } catch (const Error& error) {
    return error.what();
  }
  return "taken";
}

}  // namespace

TEST_CASE("parameters reach the engines that use them") {
  const Tuning lines =
      tuning_from("two_shot", {{"blocks", 8}, {"threads", 64}, {"ahead", 2}, {"bare", 0}});
  CHECK(lines.blocks == 8);
  CHECK(lines.threads == 64);
  CHECK(lines.ahead == 2);
  CHECK(lines.bare == 0);
  const Tuning engines =
      tuning_from("copy_exchange", {{"tile_units", 4096}, {"host_permille", 90}});
  CHECK(engines.tile_units == 4096);
  CHECK(engines.host_permille == 90);
  CHECK(tuning_from("tiled", {{"host_cpu_permille", 50}}).host_cpu_permille == 50);
  CHECK(tuning_from("tiled", {{"host_permille", 60}}).host_permille == 60);
  CHECK(tuning_from("direct_ll", {}).host_permille == -1);
  CHECK(tuning_from("direct_ll", {{"ahead", 2}}).ahead == 2);
}

TEST_CASE("a parameter that an engine does not use is refused, with the known ones") {
  CHECK(refusal("tiled", {{"threads", 64}})
            .find("blocks, tile_units, window, order, shift, piece_kib, send_gb_per_s, "
                  "host_permille, host_cpu_permille, found threads") != std::string::npos);
  for (const char* name : {"ahead", "bare"}) CHECK(refusal("tiled", {{name, 1}}) != "taken");
  CHECK(refusal("direct_ll", {{"bare", 1}}) != "taken");
  CHECK(refusal("one_shot", {{"tile_units", 64}}) != "taken");
  CHECK(refusal("copy_exchange", {{"block", 8}}).find("found block") != std::string::npos);
}

TEST_CASE("a removed schedule of tiled is refused with what to do") {
  for (const char* name : {"fold", "ring", "pull", "under_way_kib", "copied_results"}) {
    CAPTURE(name);
    CHECK(
        refusal("tiled", {{"shift", 1}, {name, 1}}) ==
        text("invalid argument: {}=1 of tiled: removed in 0.2.0, since no measured row chose this "
             "schedule: leave it out, and write a tuning table that has it anew by `plait tune`",
             name));
    CHECK(refusal("scatter_ring", {{name, 1}}).find("wanted one of") != std::string::npos);
  }
  for (const char* engine : {"tiled", "scatter_ring"}) {
    for (const int order : {1, 3})
      CHECK(refusal(engine, {{"order", order}}).find("removed in 0.2.0") != std::string::npos);
    CHECK(tuning_from(engine, {{"order", 2}}).order == 2);
    CHECK(refusal(engine, {{"order", 4}}).find("from 0 to 2, found 4") != std::string::npos);
  }
}

TEST_CASE("numbers out of range are refused") {
  CHECK(refusal("tiled", {{"blocks", -1}}).find("from 0 to 4096, found -1") != std::string::npos);
  CHECK(refusal("copy_exchange", {{"host_permille", 1001}}).find("1000") != std::string::npos);
  CHECK(refusal("direct_ll", {{"threads", 100}}).find("multiple of 32") != std::string::npos);
}

TEST_CASE("a tuning's set parameters are the given ones") {
  const std::map<std::string, std::int64_t> given{{"cuts", 3}, {"tile_units", 4096}};
  CHECK(cuda::params_of(tuning_from("copy_exchange", given)) == given);
  CHECK(cuda::params_of({}).empty());
}

TEST_CASE(
    "engines are found by name, by their former names, and by one name for the three of copies") {
  Request request;
  request.ranks = 4;
  for (const cuda::Engine* const engine : cuda::engines())
    CHECK(cuda::engine_named(engine->info().name, request) == engine);
  CHECK(cuda::engine_named("direct", request) == nullptr);
  CHECK(cuda::engine_named("hop", request) == &cuda::direct_ll_engine());
  CHECK(cuda::engine_named("line_chain", request) == &cuda::ll_chain_engine());
  CHECK(cuda::engine_named("rotation", request) == &cuda::copy_rotation_engine());
  request.collective = Collective::all_gather;
  CHECK(cuda::engine_named("rotation", request) == &cuda::copy_ring_engine());
  request.ranks = 2;
  CHECK(cuda::engine_named("rotation", request) == &cuda::copy_exchange_engine());
}
