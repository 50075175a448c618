// C API on device memory (gpu_calls.c), a process per GPU; skipped with fewer than two GPUs.
// Processes are forked before CUDA starts, because CUDA does not survive a fork.
#include <doctest/doctest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <vector>

#include "gpu_calls.h"
#include "unit/folder.hpp"

using namespace plait;

namespace {

constexpr int kMostRanks = 8;
constexpr unsigned kPatienceS = 120;
constexpr unsigned long kSentenceBytes = 1000;

pid_t child(const std::function<int()>& body) {
  const pid_t made = fork();
  if (made != 0) return made;
  alarm(kPatienceS);
  _exit(body());
}

int status_of(pid_t pid) {
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace

TEST_CASE("a C program calls every collective on device memory, with streams and in graphs") {
  const int gpus = status_of(child([] { return std::min(gpu_count(), kMostRanks); }));
  if (gpus < 2) {
    MESSAGE("left out: wants two GPUs, found ", gpus);
    return;
  }
  void* page = mmap(nullptr, kMostRanks * kSentenceBytes, PROT_READ | PROT_WRITE,
                    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  REQUIRE(page != MAP_FAILED);
  char* const sentences = static_cast<char*>(page);
  for (const int ranks : {2, gpus}) {
    TestFolder folder;
    const std::string where = "unix:" + folder.socket();
    std::memset(sentences, 0, kMostRanks * kSentenceBytes);
    std::vector<pid_t> pids;
    for (int rank = 0; rank < ranks; ++rank)
      pids.push_back(child([&] {
        char* const sentence = sentences + static_cast<unsigned long>(rank) * kSentenceBytes;
        return gpu_c_api_calls(where.c_str(), rank, ranks, sentence, kSentenceBytes);
      }));
    for (int rank = 0; rank < ranks; ++rank) {
      const int status = status_of(pids[static_cast<std::size_t>(rank)]);
      const std::string said(sentences + static_cast<unsigned long>(rank) * kSentenceBytes);
      CHECK_MESSAGE(status == 0, "rank ", rank, " of ", ranks, ": status ", status, ": ", said);
    }
    if (gpus == 2) break;
  }
}
