// Tests that NCCL's variables are found and parsed as in NCCL.
#include <doctest/doctest.h>
#include <stdlib.h>

#include <fstream>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

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

TEST_CASE("a filter of NICs names prefixes, exact names and ports, or leaves them out") {
  struct Case {
    std::string filter, used;  ///< used: NICs and ports out of those below
  };
  const std::vector<std::pair<std::string, int>> ports{
      {"mlx5_0", 1}, {"mlx5_1", 1}, {"mlx5_1", 2}, {"mlx5_10", 1}, {"bnxt_re0", 1}};
  for (const Case& one :
       std::initializer_list<Case>{{"", "mlx5_0:1 mlx5_1:1 mlx5_1:2 mlx5_10:1 bnxt_re0:1 "},
                                   {"mlx5", "mlx5_0:1 mlx5_1:1 mlx5_1:2 mlx5_10:1 "},
                                   {"mlx5_1", "mlx5_1:1 mlx5_1:2 mlx5_10:1 "},
                                   {"mlx5_1:2", "mlx5_1:2 "},
                                   {"=mlx5_1", "mlx5_1:1 mlx5_1:2 "},
                                   {"=mlx5_1:1,bnxt", "mlx5_1:1 "},
                                   {"mlx5_1:1,bnxt", "mlx5_1:1 mlx5_10:1 bnxt_re0:1 "},
                                   {"^mlx5_1", "mlx5_0:1 bnxt_re0:1 "},
                                   {"^=mlx5_1", "mlx5_0:1 mlx5_10:1 bnxt_re0:1 "},
                                   {"^=mlx5_1:2,mlx5_0", "mlx5_1:1 mlx5_10:1 bnxt_re0:1 "},
                                   {"=,", "mlx5_0:1 mlx5_1:1 mlx5_1:2 mlx5_10:1 bnxt_re0:1 "},
                                   {"none", ""},
                                   {"^", ""}}) {
    CAPTURE(one.filter);
    std::string used;
    for (const auto& [nic, port] : ports)
      if (nccl_uses_nic(one.filter, nic, port)) used += nic + ":" + std::to_string(port) + " ";
    CHECK(used == one.used);
  }
}
