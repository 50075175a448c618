// Tests the parsing of environment entries: every kind, the limits, and unknown names.
#include <doctest/doctest.h>

#include <atomic>
#include <cstdlib>
#include <set>
#include <thread>
#include <vector>

#include "base/env.hpp"
#include "base/text.hpp"
#include "plait/error.hpp"

using namespace plait;

namespace {
Env parse(std::vector<const char*> entries) {
  entries.push_back(nullptr);
  return parse_env(entries.data());
}

std::string refusal(std::vector<const char*> entries) {
  try {
    parse(entries);
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::invalid_argument);
    return error.what();
  }
  return "";
}
}  // namespace

TEST_CASE("values of every kind are read") {
  const Env env =
      parse({"HOME=/root", "PLAIT_RANK=3", "PLAIT_RANKS=4", "PLAIT_BITWISE=1",
             "PLAIT_DEADLINE_S=0.25", "PLAIT_MIN_BYTES=64K", "PLAIT_ALGO=ring:chunks=2"});
  CHECK(env.rank == 3);
  CHECK(env.ranks == 4);
  CHECK(env.bitwise);
  CHECK(env.deadline_s == 0.25);
  CHECK(env.min_bytes == 65536);
  CHECK(env.algo == "ring:chunks=2");
  CHECK(env.has("PLAIT_RANK"));
  CHECK(!env.has("PLAIT_TOPOLOGY"));
  CHECK(parse({}) == Env{});
}

TEST_CASE("an empty value is as good as none") {
  CHECK(parse({"PLAIT_RANK="}).rank == -1);
  CHECK(parse({"PLAIT_NO_SUCH="}).given.empty());
}

TEST_CASE("another tool's variable is set once, while other threads read") {
  const auto name = [](int number) { return text("TEST_ENV_{}", number); };
  std::atomic<int> reads{0};
  std::atomic<bool> are_set{false};
  std::thread reader([&] {
    while (!are_set) {
      read_env();
      foreign_env("TEST_ENV_0");
      ++reads;
    }
  });
  while (reads == 0) std::this_thread::yield();
  for (int number = 0; number < 100; ++number) set_foreign_env(name(number).c_str(), "first");
  are_set = true;
  reader.join();
  set_foreign_env("TEST_ENV_0", "second");
  CHECK(foreign_env("TEST_ENV_0") == "first");
  CHECK(foreign_env("TEST_ENV_99") == "first");
  for (int number = 0; number < 100; ++number) unsetenv(name(number).c_str());
}

TEST_CASE("unknown names are refused with the nearest known one") {
  const std::string message = refusal({"PLAIT_TOPOLOGIE=dgx1v"});
  CHECK(message.find("PLAIT_TOPOLOGIE") != std::string::npos);
  CHECK(message.find("PLAIT_TOPOLOGY") != std::string::npos);
}

TEST_CASE("malformed and out of range values are refused") {
  for (const char* entry :
       {"PLAIT_RANK=two", "PLAIT_RANK=-1", "PLAIT_RANK=64", "PLAIT_RANK=3x", "PLAIT_RANK= 3",
        "PLAIT_BITWISE=yes", "PLAIT_BITWISE=2", "PLAIT_DEADLINE_S=0", "PLAIT_DEADLINE_S=inf",
        "PLAIT_DEADLINE_S=nan", "PLAIT_MIN_BYTES=-1", "PLAIT_MIN_BYTES=99999999999999999999",
        "PLAIT_MIN_BYTES=18014398509481984K", "PLAIT_MIN_BYTES=K", "PLAIT_DEVICE_SCRATCH=0",
        "PLAIT_DEVICE_SCRATCH=1023K", "PLAIT_ALGO=a\nb"}) {
    CAPTURE(entry);
    const std::string name = std::string(entry).substr(0, std::string(entry).find('='));
    CHECK(refusal({entry}).find(name + ": wanted") != std::string::npos);
  }
}

TEST_CASE("the table has no name twice and a meaning for each") {
  std::set<std::string> names;
  for (const EnvRow& row : env_rows()) {
    CHECK(names.insert(row.name).second);
    CHECK(std::string(row.name).rfind("PLAIT_", 0) == 0);
    CHECK(std::string(row.meaning).size() > 10);
  }
  CHECK(names.size() >= 15);
}

TEST_CASE("numbers and lists") {
  CHECK(parse_bytes("x", "3", 0, 10) == 3);
  CHECK(parse_bytes("x", "1G", 0, 1ull << 40) == 1ull << 30);
  CHECK(parse_integer("x", "-5", -9, 9) == -5);
  CHECK_THROWS_AS(parse_integer("x", "", 0, 9), Error);
  CHECK(split("a,b,,c", ',') == std::vector<std::string>{"a", "b", "c"});
  CHECK(split("", ',').empty());
}
