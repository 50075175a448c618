// A rank keeps the file open until all ranks have mapped the memory.
#include "comm/shm/shown_memory.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "base/text.hpp"
#include "plait/error.hpp"

namespace plait {
namespace {

std::string shown(const Fd& file) {
  return file.valid() ? text("{} {}", ::getpid(), file.get()) : std::string();
}

Mapping opened(const std::string& shown, std::uint64_t bytes) {
  int process = 0, file = -1;
  if (std::sscanf(shown.c_str(), "%d %d", &process, &file) != 2)
    throw Error(ErrorCode::mismatch, text("a rank shows '{}' for memory", shown.substr(0, 40)));
  const Fd there = open_of_process(process, file, MapAccess::write);
  if (!there.valid())
    throw Error(ErrorCode::mismatch, text("memory of process {} cannot be opened: ranks must be of "
                                          "one user and one PID namespace",
                                          process));
  return map_shared_memory(there, bytes);
}

}  // namespace

std::vector<Mapping> show_memory(const cuda::Exchange& exchange, int rank, int ranks,
                                 std::uint64_t bytes) {
  const Fd mine = make_shared_memory(bytes, ranks - 1);
  const std::vector<std::string> all = exchange(shown(mine));
  std::vector<Mapping> mappings;
  for (int peer = 0; peer < ranks; ++peer)
    mappings.push_back(peer == rank ? map_shared_memory(mine, bytes)
                                    : opened(all[static_cast<std::size_t>(peer)], bytes));
  exchange("mapped");
  return mappings;
}

Mapping memory_of_rank_0(const cuda::Exchange& exchange, int rank, std::uint64_t bytes) {
  Fd mine;
  Mapping memory;
  try {
    if (rank == 0) mine = make_shared_memory(bytes, 0);
  } catch (const Error&) {  // then this rank publishes nothing
  }
  const std::string where = exchange(shown(mine))[0];
  try {
    memory = opened(where, bytes);
  } catch (const Error&) {  // then this rank has not mapped the piece
  }
  const std::vector<std::string> all = exchange(memory.base() == nullptr ? "" : "mapped");
  if (std::count(all.begin(), all.end(), "mapped") != static_cast<std::ptrdiff_t>(all.size()))
    return {};
  return memory;
}

}  // namespace plait
