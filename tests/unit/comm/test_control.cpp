// Tests control pages: ranks find out from a cache line each whether all make the same call.
#include <doctest/doctest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <limits>

#include "base/forks.hpp"
#include "base/text.hpp"
#include "comm/liveness/control.hpp"
#include "comm/shm/buffers.hpp"
#include "comm/shm/memory.hpp"

using namespace plait;

namespace {

/// Control pages of two ranks in this process, as mapped by each rank.
struct Pages {
  Controls of[2];
  Pages() {
    for (int me = 0; me < 2; ++me) of[me] = Controls(me, mapped());
  }

 private:
  std::vector<Mapping> mapped() {
    std::vector<Mapping> pages;
    for (int rank = 0; rank < 2; ++rank) {
      if (!memory_[rank].valid()) memory_[rank] = make_shared_memory(kControlBytes, 1);
      pages.push_back(map_shared_memory(memory_[rank], kControlBytes));
      Controls::prepare(pages.back(), rank);
    }
    return pages;
  }
  Fd memory_[2];
};

CallDescriptor sum_of(std::uint64_t count) {
  Request request;
  request.ranks = 2;
  request.count = count;
  return describe(CallKind::collective, request, "");
}

}  // namespace

TEST_CASE("ranks that ask for the same are seen to, call after call, and those that do not") {
  const Pages pages;
  const std::pair<std::uint64_t, std::uint64_t> asked[] = {{8, 8}, {8, 8}, {8, 8}, {8, 9},
                                                           {9, 9}, {8, 9}, {8, 8}, {7, 7}};
  std::uint32_t call = 0;
  for (const auto& [first, second] : asked) {
    ++call;
    CAPTURE(call);
    pages.of[0].enter(call, sum_of(first));
    pages.of[1].enter(call, sum_of(second));
    for (const Controls& seen : pages.of) {
      CHECK(seen.all_same_call(call) == (first == second));
      CHECK(seen.of(0).calls[call % 2].count == first);  // also if nothing had to be written
      CHECK(seen.of(1).calls[call % 2].count == second);
    }
  }
}

TEST_CASE("ranks that all report the same error do not ask alike") {
  const Pages pages;
  CallDescriptor bad = sum_of(8);
  set_error(bad, Error(ErrorCode::invalid_argument, "wanted this, found that"));
  for (const Controls& one : pages.of) one.enter(1, bad);
  for (const Controls& one : pages.of) CHECK(!one.all_same_call(1));
}

TEST_CASE("each rank's factor is shown also where its descriptor stays the same") {
  const Pages pages;
  for (std::uint32_t call = 1; call < 6; ++call) {
    CallDescriptor mine = sum_of(8);
    mine.scalar = call * 0.5;
    for (const Controls& one : pages.of) one.enter(call, mine);
    CHECK(pages.of[1].all_same_call(call));
    CHECK(pages.of[1].scalar_of(0, call) == call * 0.5);
  }
}

TEST_CASE("memory that cannot be written is found, whatever was asked of before") {
  constexpr std::size_t kBytes = 1 << 20;
  const auto map = [](int protection) {
    void* const made = ::mmap(nullptr, kBytes, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(made != MAP_FAILED);
    return reinterpret_cast<std::uintptr_t>(made);
  };
  const std::uintptr_t open = map(PROT_READ | PROT_WRITE), closed = map(PROT_READ);
  WritablePages pages;
  for (int turn = 0; turn < 2; ++turn)  // pages of both share places in the table
    for (std::size_t at = 0; at < kBytes; at += 1000) {
      CHECK(pages.hold(open + at, 1));
      CHECK(!pages.hold(closed + at, 1));
    }
  ::munmap(reinterpret_cast<void*>(open), kBytes);
  ::munmap(reinterpret_cast<void*>(closed), kBytes);
}

TEST_CASE("long outputs that stop being writable are found") {
  constexpr std::size_t kBytes = 4 << 20;
  void* const made =
      ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(made != MAP_FAILED);
  const auto at = reinterpret_cast<std::uintptr_t>(made);
  WritablePages pages;
  CHECK(pages.hold(at, kBytes));
  REQUIRE(::mprotect(made, kBytes, PROT_READ) == 0);
  CHECK(!pages.hold(at, kBytes));
  REQUIRE(::munmap(made, kBytes) == 0);
  CHECK(!pages.hold(at, kBytes));
}

TEST_CASE("the limit of any group that this one lies in counts") {
  const std::string root = text("/tmp/plait-test-groups-{}", ::getpid());
  const auto group = [&](const std::string& name, const char* most, int used, int cache) {
    std::filesystem::create_directories(root + name);
    std::ofstream(root + name + "/memory.max") << most << '\n';
    std::ofstream(root + name + "/memory.current") << used << '\n';
    std::ofstream(root + name + "/memory.stat") << "anon 5\ninactive_file " << cache << '\n';
  };
  std::filesystem::create_directories(root);  // the first of all has no limit
  group("/job", "1000", 700, 100);
  group("/job/rank", "max", 300, 0);
  group("/job/rank/inner", "900", 300, 0);
  CHECK(available_in_groups(root, "/job") == 400);
  CHECK(available_in_groups(root, "/job/rank") == 400);
  CHECK(available_in_groups(root, "/job/rank/inner") == 400);
  group("/job/rank", "350", 300, 20);
  CHECK(available_in_groups(root, "/job/rank/inner") == 70);
  constexpr std::uint64_t kNoLimit = std::numeric_limits<std::uint64_t>::max();
  CHECK(available_in_groups(root, "/") == kNoLimit);  // a separate namespace
  CHECK(available_in_groups(root, "/other") == kNoLimit);
  group("", "60", 10, 0);
  CHECK(available_in_groups(root, "/job/rank") == 50);
  CHECK(available_in_groups(root, "") == 50);
  std::filesystem::remove_all(root);
}

TEST_CASE("a child made by fork is known to be one") {
  const std::uint32_t before = forks_so_far();
  const pid_t child = ::fork();
  if (child == 0) ::_exit(forks_so_far() == before ? 1 : 0);
  int status = -1;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  CHECK(forks_so_far() == before);
}
