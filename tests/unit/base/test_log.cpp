// Tests log lines, levels and file names. The file is private, and links are not followed.
#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <regex>
#include <sstream>

#include "base/log.hpp"
#include "base/text.hpp"
#include "plait/error.hpp"

using namespace plait;

TEST_CASE("levels are ordered words") {
  CHECK(parse_log_level("") == LogLevel::none);
  CHECK(parse_log_level("info") == LogLevel::info);
  CHECK(parse_log_level("EXPLAIN") == LogLevel::explain);
  CHECK_THROWS_AS(parse_log_level("LOUD"), Error);
}

TEST_CASE("file patterns") {
  CHECK(expand_log_file("/x/%h.%p.log", "node1", 42) == "/x/node1.42.log");
  CHECK(expand_log_file("100%%", "n", 1) == "100%");
  CHECK_THROWS_AS(expand_log_file("%q", "n", 1), Error);
  CHECK_THROWS_AS(expand_log_file("x%", "n", 1), Error);
}

TEST_CASE("lines have the form host:pid:tid [rank] PLAIT LEVEL text") {
  const std::regex form(R"([^ :]+:\d+:\d+ \[3\] PLAIT WARN hello)");
  CHECK(std::regex_match(log_line(LogLevel::warn, 3, "hello"), form));
  CHECK(log_line(LogLevel::info, -1, "x").find("[-] PLAIT INFO x") != std::string::npos);
}

TEST_CASE("lines go to a private file, up to the level asked for") {
  char folder[] = "/tmp/plait-test-log-XXXXXX";
  REQUIRE(mkdtemp(folder) != nullptr);
  const std::string path = text("{}/log.{}", folder, getpid());
  set_log("INFO", text("{}/log.%p", folder));
  CHECK(log_enabled(LogLevel::info));
  CHECK(!log_enabled(LogLevel::explain));
  log(LogLevel::info, 1, "first");
  log(LogLevel::explain, 1, "not this");
  log(LogLevel::warn, 1, "second");
  set_log("", "");
  log(LogLevel::warn, 1, "off again");
  std::ifstream file(path);
  std::stringstream all;
  all << file.rdbuf();
  CHECK(all.str().find("PLAIT INFO first\n") != std::string::npos);
  CHECK(all.str().find("PLAIT WARN second\n") != std::string::npos);
  CHECK(all.str().find("not this") == std::string::npos);
  CHECK(all.str().find("off again") == std::string::npos);
  struct stat status{};
  REQUIRE(stat(path.c_str(), &status) == 0);
  CHECK((status.st_mode & 0777) == 0600);
  const std::string link = text("{}/link", folder);
  REQUIRE(symlink(path.c_str(), link.c_str()) == 0);
  CHECK_THROWS_AS(set_log("INFO", link), Error);
  unlink(link.c_str());
  unlink(path.c_str());
  rmdir(folder);
}

TEST_CASE("warnings that come unasked are on stderr, but for NONE") {
  char path[] = "/tmp/plait-test-log-XXXXXX";
  const int file = mkstemp(path), before = dup(STDERR_FILENO);
  REQUIRE(file >= 0);
  dup2(file, STDERR_FILENO);
  for (const char* level : {"", "NONE", "VERSION", "WARN"}) {
    set_log(level, "");
    warn_unasked(2, text("with '{}'", level));
  }
  set_log("", "");
  dup2(before, STDERR_FILENO);
  close(before), close(file);
  std::ifstream lines(path);
  std::stringstream all;
  all << lines.rdbuf();
  unlink(path);
  CHECK(all.str().find("[2] PLAIT WARN with ''\n") != std::string::npos);
  CHECK(all.str().find("[2] PLAIT WARN with 'WARN'\n") != std::string::npos);
  CHECK(all.str().find("NONE") == std::string::npos);
  CHECK(all.str().find("VERSION") == std::string::npos);
}
