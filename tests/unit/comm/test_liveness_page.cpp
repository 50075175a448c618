// Tests slots of a liveness page: reused without mistaking a rank for another. Other memory is
// refused, not touched.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <set>

#include "base/text.hpp"
#include "comm/liveness/liveness_page.hpp"
#include "plait/error.hpp"

using namespace plait;

namespace {

/// Text of show() for any descriptor of this process.
std::string shown_as(int file, int place = 0) { return text("{} {} {} 0", getpid(), file, place); }

}  // namespace

TEST_CASE("a place is one rank's until it has left, however often it is given out") {
  LivenessPage page;
  int place = -1;
  std::optional<PeerLiveness> earlier;
  for (int round = 0; round < 3 * LivenessPage::kSlots; ++round) {
    const std::string shown = page.show(place);
    REQUIRE(!shown.empty());
    CHECK(place == 0);
    if (round % 1000 != 0) {
      page.leave(place, DetachStage::unmapped);
      continue;
    }
    const std::optional<PeerLiveness> liveness = PeerLiveness::open(shown);
    REQUIRE(liveness);
    CHECK(liveness->process() == getpid());
    CHECK(!liveness->has_reached(DetachStage::work_ended));
    page.leave(place, DetachStage::work_ended);
    CHECK(liveness->has_reached(DetachStage::work_ended));
    CHECK(!liveness->has_reached(DetachStage::unmapped));
    page.leave(place, DetachStage::unmapped);
    CHECK(liveness->has_reached(DetachStage::unmapped));
    if (earlier) CHECK(earlier->has_reached(DetachStage::unmapped));
    earlier = PeerLiveness::open(shown);
  }
}

TEST_CASE("as many ranks as there are places have one each, and no more") {
  LivenessPage page;
  std::set<int> places;
  int place = -1;
  for (int i = 0; i < LivenessPage::kSlots; ++i) {
    REQUIRE(!page.show(place).empty());
    places.insert(place);
  }
  CHECK(places.size() == LivenessPage::kSlots);
  CHECK(page.show(place).empty());
  CHECK(place == -1);
  page.leave(7, DetachStage::unmapped);
  CHECK(!page.show(place).empty());
  CHECK(place == 7);
}

TEST_CASE("what is no page of full size, sealed, is refused") {
  const int grows = memfd_create("no seals", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  const int little = memfd_create("little", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  REQUIRE(ftruncate(grows, 1 << 20) == 0);
  REQUIRE(ftruncate(little, 100) == 0);
  REQUIRE(fcntl(little, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0);
  const Fd zeros = make_shared_memory(20480, 0);
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  for (const int file : {grows, little, zeros.get(), ends[0], ends[1], 1 << 20})
    CHECK(!PeerLiveness::open(shown_as(file)));
  for (const char* shown : {"", "1", "1 2 3", "x y z w"}) CHECK(!PeerLiveness::open(shown));
  for (const int file : {grows, little, ends[0], ends[1]}) close(file);
  LivenessPage page;
  int place = -1;
  int process = 0, file = 0;
  REQUIRE(std::sscanf(page.show(place).c_str(), "%d %d", &process, &file) == 2);
  CHECK(PeerLiveness::open(shown_as(file)));
  CHECK(!PeerLiveness::open(shown_as(file, -1)));
  CHECK(!PeerLiveness::open(shown_as(file, LivenessPage::kSlots)));
  CHECK(ftruncate(file, 0) != 0);  // the file cannot shrink under a process that maps it
}

#if !defined(__SANITIZE_THREAD__)
TEST_CASE("a child made by fork shows nothing and leaves nothing of its parent's") {
  LivenessPage page;
  int place = -1;
  const std::optional<PeerLiveness> liveness = PeerLiveness::open(page.show(place));
  REQUIRE(liveness);
  const pid_t child = fork();
  if (child == 0) {
    int mine = -1;
    const bool shows = !page.show(mine).empty();
    page.leave(place, DetachStage::unmapped);
    page.end();
    _exit(shows ? 1 : 0);
  }
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  CHECK(!liveness->has_reached(DetachStage::work_ended));
  CHECK(!liveness->ended_by_itself());
  page.end();
  CHECK(liveness->ended_by_itself());
}
#endif
