// Tests that NCCL's variables are found and parsed as in NCCL.
#include <doctest/doctest.h>
#include <stdlib.h>

#include <fstream>

#include "base/nccl_settings.hpp"

using namespace plait;

TEST_CASE("the first line that names a variable counts; comments and other names do not") {
  const std::string file = "#NCCL_X=0\nNCCL_XY=1\r\n NCCL_X=2\nNCCL_X\nNCCL_X==3=\r\nNCCL_X=4";
  CHECK(nccl_setting_in(file, "NCCL_X") == "=3=");
  CHECK(nccl_setting_in(file, "NCCL_XY") == "1");
  CHECK(nccl_setting_in(file, "NCCL_XYZ") == std::nullopt);
  CHECK(nccl_setting_in("", "NCCL_X") == std::nullopt);
}

TEST_CASE("the environment counts more than the user's file") {
  char name[] = "/tmp/plait-nccl-XXXXXX";
  const int made = mkstemp(name);
  REQUIRE(made >= 0);
  std::ofstream(name) << "NCCL_PLAIT_TEST=file\n";
  setenv("NCCL_CONF_FILE", name, 1);
  CHECK(nccl_setting("NCCL_PLAIT_TEST") == "file");
  setenv("NCCL_PLAIT_TEST", "", 1);
  CHECK(nccl_setting("NCCL_PLAIT_TEST") == "");
  unsetenv("NCCL_PLAIT_TEST");
  remove(name);
  CHECK(nccl_setting("NCCL_PLAIT_TEST") == std::nullopt);
  unsetenv("NCCL_CONF_FILE");
}

TEST_CASE("numbers are read as far as they go") {
  CHECK(nccl_number("12") == 12);
  CHECK(nccl_number("0x10 blocks") == 16);
  CHECK(nccl_number("-3") == -3);
  CHECK(nccl_number("many") == std::nullopt);
  CHECK(nccl_number("") == std::nullopt);
  CHECK(nccl_number("99999999999999999999") == std::nullopt);
}
