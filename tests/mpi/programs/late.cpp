// late FOLDER: a barrier and small sums that the MPI serves, then a sum to which rank 1 comes once
// FOLDER/go exists. Each rank writes its PID to FOLDER/pid-RANK before. Prints a line of JSON a
// rank.
#include <mpi.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <string>

int main(int argc, char** argv) {
  ::alarm(60);  // ends a job that hangs
  MPI_Init(&argc, &argv);
  int rank = 0, ranks = 0, in = 0, out = 0, wrong = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  const std::string folder = argv[1];
  const auto sum = [&] {
    in = rank + 1;
    MPI_Allreduce(&in, &out, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    wrong += out != ranks * (ranks + 1) / 2 ? 1 : 0;
  };
  MPI_Barrier(MPI_COMM_WORLD);
  for (int i = 0; i < 3; ++i) sum();
  MPI_Request request;
  MPI_Ibarrier(MPI_COMM_WORLD, &request);
  MPI_Wait(&request, MPI_STATUS_IGNORE);
  std::ofstream(folder + "/pid-" + std::to_string(rank)) << ::getpid() << std::endl;
  while (rank == 1 && ::access((folder + "/go").c_str(), F_OK) != 0) ::usleep(1000);
  sum();
  std::printf("{\"rank\": %d, \"wrong\": %d}\n", rank, wrong);
  std::fflush(stdout);
  MPI_Finalize();
}
