// What each kernel takes, and what it says of the rest.
#include <doctest/doctest.h>

#include "comm/fused_params.hpp"
#include "plait/error.hpp"

using namespace plait;

namespace {

std::string refusal(const std::string& kernel, const std::map<std::string, std::int64_t>& params) {
  try {
    fused_tuning(kernel, params);
  } catch (const Error& error) {
    return error.what();
  }
  return "taken";
}

}  // namespace

TEST_CASE("parameters reach the kernels that they mean something to") {
  const cuda::FusedTuning lines =
      fused_tuning("two_shot", {{"blocks", 8}, {"threads", 64}, {"ahead", 2}, {"bare", 0}});
  CHECK(lines.blocks == 8);
  CHECK(lines.threads == 64);
  CHECK(lines.ahead == 2);
  CHECK(lines.bare == 0);
  const cuda::FusedTuning engines =
      fused_tuning("rotation", {{"tile_units", 4096}, {"host_permille", 90}});
  CHECK(engines.tile_units == 4096);
  CHECK(engines.host_permille == 90);
  CHECK(fused_tuning("tiled", {{"host_cpu_permille", 50}}).host_cpu_permille == 50);
  CHECK(fused_tuning("tiled", {{"host_permille", 60}}).host_permille == 60);
  CHECK(fused_tuning("hop", {}).host_permille == -1);
  CHECK(fused_tuning("hop", {{"ahead", 2}}).ahead == 2);
}

TEST_CASE("what a kernel would not look at is refused, with what it takes") {
  CHECK(refusal("tiled", {{"threads", 64}})
            .find("blocks, tile_units, host_permille, host_cpu_permille, "
                  "found threads") != std::string::npos);
  for (const char* name : {"ahead", "bare"}) CHECK(refusal("tiled", {{name, 1}}) != "taken");
  CHECK(refusal("hop", {{"bare", 1}}) != "taken");
  CHECK(refusal("one_shot", {{"tile_units", 64}}) != "taken");
  CHECK(refusal("rotation", {{"block", 8}}).find("found block") != std::string::npos);
}

TEST_CASE("numbers out of range are refused") {
  CHECK(refusal("tiled", {{"blocks", -1}}).find("from 0 to 4096, found -1") != std::string::npos);
  CHECK(refusal("rotation", {{"host_permille", 1001}}).find("1000") != std::string::npos);
  CHECK(refusal("hop", {{"threads", 100}}).find("multiple of 32") != std::string::npos);
  CHECK(is_fused("hop"));
  CHECK_FALSE(is_fused("direct"));
}
