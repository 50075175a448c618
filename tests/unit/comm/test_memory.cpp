// Tests shared memory while signals end fallocate(), as on older kernels.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

#include "comm/shm/memory.hpp"

using namespace plait;

namespace {

std::atomic<off_t> most_bytes{0};  // a longer call is interrupted; 0 = none is
std::atomic<int> interrupted{0};   // calls

}  // namespace

/// Replaces the C library's in this program.
extern "C" int fallocate(int fd, int mode, off_t at, off_t bytes) {
  const off_t most = most_bytes.load();
  if (most == 0 || bytes <= most)
    return static_cast<int>(syscall(SYS_fallocate, fd, mode, at, bytes));
  ++interrupted;
  errno = EINTR;
  return -1;
}

TEST_CASE("shared memory is committed in full while signals interrupt") {
  constexpr std::uint64_t kBytes = (33 << 20) + 4096;
  for (const off_t most : {off_t{0}, off_t{1} << 20}) {
    most_bytes = most;
    interrupted = 0;
    const Fd memory = make_shared_memory(kBytes, 0);
    most_bytes = 0;
    struct stat status{};
    REQUIRE(fstat(memory.get(), &status) == 0);
    CHECK((interrupted > 0) == (most != 0));
    CHECK(static_cast<std::uint64_t>(status.st_blocks) * 512 >= kBytes);  // huge pages round up
    CHECK(map_shared_memory(memory, kBytes).bytes() == kBytes);
  }
}
