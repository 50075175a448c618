// Usage: CASE RANKS processes|threads [name or path of libnccl]. Runs a case on all ranks and
// prints a JSON line per rank. Exits 1 if a rank fails.
#include <dlfcn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <new>
#include <thread>
#include <vector>

#include "tests/shims/programs/nccl.hpp"

#ifdef PROGRAM_NCCL_LINKED
#define PROGRAM_DECLARE(name, arguments, names) extern "C" plait::nccl::Result name arguments;
namespace program {
PROGRAM_FUNCTIONS(PROGRAM_DECLARE)
}
#endif

namespace program {
namespace {

std::string library = "libnccl.so.2";

NcclTable load() {
  NcclTable table;
#ifdef PROGRAM_NCCL_LINKED
  // Direct calls, not addresses, so that the loader binds the names as in real programs.
#define PROGRAM_CALL(name, arguments, names) \
  table.name = [] arguments -> Result { return ::program::name names; };
  PROGRAM_FUNCTIONS(PROGRAM_CALL)
#undef PROGRAM_CALL
#else
  void* handle = ::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    std::fprintf(stderr, "no library: %s\n", ::dlerror());
    std::exit(2);
  }
#define PROGRAM_FIND(name, arguments, names) \
  table.name = reinterpret_cast<Result(*) arguments>(::dlsym(handle, #name));
  PROGRAM_FUNCTIONS(PROGRAM_FIND)
#undef PROGRAM_FIND
#endif
  return table;
}

int guarded(const TestJob& job, int rank) {
  try {
    const std::string said =
        job.name.starts_with("meet_") ? run_meeting(job, rank) : run_case(job, rank);
    const std::string line =
        "{\"rank\": " + std::to_string(rank) + (said.empty() ? "" : ", ") + said + "}\n";
    return ::write(1, line.data(), line.size()) > 0 ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
    return 1;
  }
}

int run_threads(const TestJob& job) {
  std::vector<std::thread> threads;
  std::vector<int> status(static_cast<std::size_t>(job.ranks));
  for (int rank = 0; rank < job.ranks; ++rank)
    threads.emplace_back(
        [&, rank] { status[static_cast<std::size_t>(rank)] = guarded(job, rank); });
  for (std::thread& thread : threads) thread.join();
  for (const int one : status)
    if (one != 0) return 1;
  return 0;
}

int run_processes(const TestJob& job) {
  std::vector<pid_t> children;
  for (int rank = 0; rank < job.ranks; ++rank) {
    const pid_t child = ::fork();
    if (child == 0) std::exit(guarded(job, rank));
    children.push_back(child);
  }
  int failed = 0;
  for (const pid_t child : children) {
    int status = 0;
    ::waitpid(child, &status, 0);
    const bool killed_itself = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    failed |= status != 0 && !killed_itself ? 1 : 0;  // case "dies"
  }
  return failed;
}

}  // namespace

const NcclTable& nccl() {
  static const NcclTable table = load();
  return table;
}

}  // namespace program

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  program::TestJob job{argv[1], std::atoi(argv[2]), std::string(argv[3]) == "threads", {}};
  void* shared = ::mmap(nullptr, sizeof(std::atomic<int>), PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) return 2;
  job.attached = new (shared) std::atomic<int>(0);
  if (argc > 4) program::library = argv[4];
  if (program::nccl().ncclGetUniqueId(&job.id) != 0) return 1;
  return job.threads ? program::run_threads(job) : program::run_processes(job);
}
