// spawned CHILDREN [NAME=VALUE]: ranks spawn more ranks, optionally with a different variable, and
// merge into a single communicator, as managers and workers do. Sums on this communicator, and on
// communicators of a single MPI_COMM_WORLD, must be right. Prints a line of JSON a rank.
#include <unistd.h>

#include <string>
#include <vector>

#include "host_or_gpu.hpp"

namespace {

constexpr int kMany = 1 << 16;

int mistakes_of_sum(MPI_Comm comm) {
  const int ranks = ranks_of(comm);
  std::vector<int> in(kMany, rank_in(comm) + 1), out(in.size());
  MPI_Allreduce(in.data(), out.data(), kMany, MPI_INT, MPI_SUM, comm);
  int wrong = 0;
  for (const int one : out) wrong += one != ranks * (ranks + 1) / 2 ? 1 : 0;
  return wrong;
}

/// Spawns through env, which sets the child's variables.
MPI_Comm spawn(char** argv) {
  std::vector<char*> words;
  if (argv[2] != nullptr) words.push_back(argv[2]);
  for (char* const word : {argv[0], argv[1]}) words.push_back(word);
  words.push_back(nullptr);
  MPI_Comm both = MPI_COMM_NULL;
  MPI_Comm_spawn("/usr/bin/env", words.data(), std::atoi(argv[1]), MPI_INFO_NULL, 0, MPI_COMM_WORLD,
                 &both, MPI_ERRCODES_IGNORE);
  return both;
}

}  // namespace

int main(int argc, char** argv) {
  ::alarm(30);  // ends a job that hangs
  EmulatedCuda::now().begin(1);
  MPI_Init(&argc, &argv);
  MPI_Comm both = MPI_COMM_NULL, all = MPI_COMM_NULL, own = MPI_COMM_NULL;
  MPI_Comm_get_parent(&both);
  const bool is_child = both != MPI_COMM_NULL;
  if (!is_child) both = spawn(argv);
  MPI_Intercomm_merge(both, is_child ? 1 : 0, &all);
  MPI_Comm_split(all, is_child ? 1 : 0, 0, &own);
  int wrong = 0;
  for (int round = 0; round < 2; ++round) {
    wrong += mistakes_of_sum(all);
    wrong += mistakes_of_sum(own);
    wrong += mistakes_of_sum(MPI_COMM_WORLD);
  }
  std::printf("{\"rank\": %d, \"wrong\": %d, \"served\": %ld, \"child\": %d}\n", rank_in(all),
              wrong, calls_served(), is_child ? 1 : 0);
  std::fflush(stdout);
  MPI_Comm_free(&own);
  MPI_Comm_free(&all);
  MPI_Comm_disconnect(&both);
  MPI_Finalize();
  return wrong == 0 ? 0 : 1;
}
