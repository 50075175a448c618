// Tests the LRU cache: entries that go, entries that stay, and that no operation scans all entries.
#include <doctest/doctest.h>

#include <memory>
#include <string>

#include "base/lru_cache.hpp"
#include "unit/cpu_time.hpp"

using namespace plait;

namespace {

using Key = std::tuple<int, std::string, std::map<std::string, std::int64_t>, std::vector<int>>;
Key key_of(int number) { return {number, "strategy", {{"chunks", number}}, {number, 1}}; }

using Table = LruCache<Key, std::unique_ptr<int>>;
std::unique_ptr<int> value(int number) { return std::make_unique<int>(number); }

}  // namespace

TEST_CASE("the entry that was not used for the longest time goes, and is told of first") {
  Table table(3);
  std::vector<int> dropped;
  const auto dropping = [&](const std::unique_ptr<int>& one) { dropped.push_back(*one); };
  for (int i = 0; i < 3; ++i) table.add(key_of(i), value(i), dropping);
  REQUIRE(table.find(key_of(0)) != nullptr);  // used again
  table.add(key_of(3), value(3), dropping);
  table.add(key_of(4), value(4), dropping);
  CHECK(dropped == std::vector<int>{1, 2});
  CHECK(table.find(key_of(1)) == nullptr);
  CHECK(**table.find(key_of(0)) == 0);
  CHECK(table.size() == 3);
}

TEST_CASE("what is kept stays for good, whatever comes, and leaves room for as many others") {
  Table table(2);
  int drops = 0;
  const auto dropping = [&](const std::unique_ptr<int>&) { ++drops; };
  for (int i = 0; i < 10; ++i) {
    table.add(key_of(i), value(i), dropping);
    table.pin(key_of(i));
    table.pin(key_of(i));
  }
  for (int i = 10; i < 30; ++i) table.add(key_of(i), value(i), dropping);
  CHECK(drops == 18);
  CHECK(table.size() == 12);
  for (int i = 0; i < 10; ++i) CHECK(**table.find(key_of(i)) == i);
  int seen = 0;
  table.for_each([&](const std::unique_ptr<int>&) { ++seen; });
  CHECK(seen == 12);
  table.clear();
  CHECK(table.size() == 0);
  CHECK(table.find(key_of(3)) == nullptr);
}

TEST_CASE("a full table of kept entries takes new ones as fast as an empty one") {
  const auto seconds = [](int kept) {
    Table table(64);
    const auto dropping = [](const std::unique_ptr<int>&) {};
    for (int i = 0; i < kept; ++i) {
      table.add(key_of(i), value(i), dropping);
      table.pin(key_of(i));
    }
    const double begin_s = plait_test::cpu_s();
    for (int i = 0; i < 4000; ++i) table.add(key_of(kept + i), value(i), dropping);
    return plait_test::cpu_s() - begin_s;
  };
  double few = 1e9, many = 1e9;
  for (int turn = 0; turn < 5; ++turn) {
    few = std::min(few, seconds(1));
    many = std::min(many, seconds(8192));
  }
  CHECK(many < 10 * few);  // a scan of all entries takes some hundred times as long
}
