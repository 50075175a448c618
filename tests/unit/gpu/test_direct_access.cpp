// NCCL_P2P_DISABLE and NCCL_P2P_LEVEL as NCCL reads them, and the forbidden pairs of ranks.
#include <doctest/doctest.h>

#include "gpu/device/direct_access.hpp"

using namespace plait;
using namespace plait::cuda;

namespace {

/// Returns why GPUs "a", "b" (same switch) and "c" (elsewhere) may not access each other. The
/// driver grants no access to "d".
std::string refusal(const DirectAccess& allowed, int rank, const std::vector<std::string>& uuids) {
  return why_no_direct_access(
      allowed, rank, uuids,
      [](const std::string& one, const std::string& other) {
        return one == "c" || other == "c" ? Distance::phb : Distance::pix;
      },
      [](const std::string& one, const std::string& other) { return one != "d" && other != "d"; });
}

}  // namespace

TEST_CASE("levels by name, by old number, and unset") {
  CHECK(direct_access(nullptr, nullptr).most == Distance::sys);
  CHECK(direct_access("1", "SYS").most == Distance::loc);
  CHECK(direct_access("1", nullptr).said == "NCCL_P2P_DISABLE=1");
  for (const char* other : {"0", "2", "", "yes"})
    CHECK(direct_access(other, nullptr).most == Distance::sys);
  CHECK(direct_access("0", "LOC").most == Distance::loc);
  for (const Distance one :
       {Distance::loc, Distance::nvl, Distance::pix, Distance::pxb, Distance::phb, Distance::sys})
    CHECK(direct_access(nullptr, name_of(one).c_str()).most == one);
  const Distance old[] = {Distance::loc, Distance::pix, Distance::pxb,
                          Distance::phb, Distance::sys, Distance::sys};
  for (int number = 0; number < 6; ++number)
    CHECK(direct_access(nullptr, std::to_string(number).c_str()).most == old[number]);
  CHECK(direct_access(nullptr, "99").most == Distance::sys);
  for (const char* other : {"", "nvl", "-1", "PHB "}) {
    CHECK(direct_access(nullptr, other).most == Distance::sys);
    CHECK(direct_access(nullptr, other).said.empty());
  }
}

TEST_CASE("both ranks refuse a pair farther apart than the level") {
  const std::vector<std::string> all = {"a", "b", "c"};
  CHECK(refusal(direct_access(nullptr, "PIX"), 0, {"a", "b"}).empty());
  CHECK(refusal(direct_access(nullptr, "PHB"), 0, all).empty());
  for (int rank = 0; rank < 3; ++rank) {
    const std::string said = refusal(direct_access(nullptr, "PXB"), rank, all);
    CHECK(said.find("NCCL_P2P_LEVEL=PXB") != std::string::npos);
    CHECK(said.find("PHB apart") != std::string::npos);
  }
  CHECK(refusal(direct_access(nullptr, "NVL"), 0, {"a", "b"}) != "");
  CHECK(refusal(direct_access("1", nullptr), 0, {"a"}).empty());  // no peer
}

TEST_CASE("a pair to which the driver grants no access is named, whatever NCCL was told") {
  for (const char* level : {static_cast<const char*>(nullptr), "SYS", "PIX"}) {
    CHECK(refusal(direct_access(nullptr, level), 0, {"a", "d"}) ==
          "the driver grants no direct access between the GPUs of ranks 0 and 1");
    CHECK(refusal(direct_access(nullptr, level), 1, {"a", "b"}).empty());
  }
}
