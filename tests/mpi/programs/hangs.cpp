// hangs FOLDER CALL...: rank 0 makes calls of the MPI's own in turn. Rank 1 comes to its end of
// each once FOLDER/CALL exists. Each rank writes its PID to FOLDER/pid-RANK before. Prints a line
// of JSON a rank.
#include <mpi.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <fstream>
#include <functional>
#include <map>
#include <string>

namespace {

constexpr int kTag = 7, kFew = 4, kMany = 1 << 20;
std::array<int, kMany> in{}, out{};
int wrong = 0;

void expect(bool right) { wrong += right ? 0 : 1; }
void send(int count = kFew) { MPI_Send(in.data(), count, MPI_INT, 0, kTag, MPI_COMM_WORLD); }
void receive(int count = kFew) {
  MPI_Recv(out.data(), count, MPI_INT, 0, kTag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}
MPI_Request started_receive(int tag = kTag) {
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_Irecv(out.data(), kFew, MPI_INT, 1, tag, MPI_COMM_WORLD, &request);
  return request;
}

void swap() {
  const std::array<int, 2> counts{1, 1}, displs{0, sizeof(int)};
  const std::array<MPI_Datatype, 2> types{MPI_INT, MPI_INT};
  MPI_Alltoallw(in.data(), counts.data(), displs.data(), types.data(), out.data(), counts.data(),
                displs.data(), types.data(), MPI_COMM_WORLD);
}

struct Ends {
  std::function<void()> rank_0, rank_1;
};

const std::map<std::string, Ends> kMessages{
    {"MPI_Recv",
     {[] {
        MPI_Recv(out.data(), kFew, MPI_INT, 1, kTag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        expect(out[0] == 2);
      },
      [] { send(); }}},
    {"MPI_Recv-any",
     {[] {
        MPI_Recv(out.data(), kFew, MPI_INT, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD,
                 MPI_STATUS_IGNORE);
      },
      [] { send(); }}},
    {"MPI_Send",
     {[] { MPI_Send(in.data(), kMany, MPI_INT, 1, kTag, MPI_COMM_WORLD); },
      [] { receive(kMany); }}},
    {"MPI_Ssend",
     {[] { MPI_Ssend(in.data(), kFew, MPI_INT, 1, kTag, MPI_COMM_WORLD); }, [] { receive(); }}},
    {"MPI_Sendrecv",
     {[] {
        MPI_Sendrecv(in.data(), 1, MPI_INT, 1, kTag, out.data(), kFew, MPI_INT, 1, kTag + 1,
                     MPI_COMM_WORLD, MPI_STATUS_IGNORE);
      },
      [] {
        receive();
        MPI_Send(in.data(), kFew, MPI_INT, 0, kTag + 1, MPI_COMM_WORLD);
      }}},
    {"MPI_Probe",
     {[] {
        MPI_Probe(1, kTag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Recv(out.data(), kFew, MPI_INT, 1, kTag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
      },
      [] { send(); }}},
    {"MPI_Mprobe",
     {[] {
        MPI_Message message;
        MPI_Mprobe(1, kTag, MPI_COMM_WORLD, &message, MPI_STATUS_IGNORE);
        MPI_Mrecv(out.data(), kFew, MPI_INT, &message, MPI_STATUS_IGNORE);
      },
      [] { send(); }}}};

const std::map<std::string, Ends> kOthers{
    {"MPI_Wait",
     {[] {
        MPI_Request request = started_receive();
        MPI_Wait(&request, MPI_STATUS_IGNORE);
      },
      [] { send(); }}},
    {"MPI_Waitall",
     {[] {
        std::array<MPI_Request, 3> requests{started_receive(), MPI_REQUEST_NULL, started_receive()};
        MPI_Waitall(3, requests.data(), MPI_STATUSES_IGNORE);
      },
      [] {
        send();
        send();
      }}},
    {"MPI_Waitany",
     {[] {
        int index = 0;
        std::array<MPI_Request, 2> requests{MPI_REQUEST_NULL, started_receive()};
        MPI_Waitany(2, requests.data(), &index, MPI_STATUS_IGNORE);
        expect(index == 1);
      },
      [] { send(); }}},
    {"MPI_Waitsome",
     {[] {
        int count = 0;
        std::array<int, 2> indices{};
        std::array<MPI_Request, 2> requests{MPI_REQUEST_NULL, started_receive()};
        MPI_Waitsome(2, requests.data(), &count, indices.data(), MPI_STATUSES_IGNORE);
        expect(count == 1 && indices[0] == 1);
      },
      [] { send(); }}},
    {"MPI_Barrier", {[] { MPI_Barrier(MPI_COMM_WORLD); }, [] { MPI_Barrier(MPI_COMM_WORLD); }}},
    {"MPI_Bcast",
     {[] { MPI_Bcast(in.data(), kFew, MPI_INT, 1, MPI_COMM_WORLD); },
      [] { MPI_Bcast(in.data(), kFew, MPI_INT, 1, MPI_COMM_WORLD); }}},
    {"MPI_Alltoallw", {[] { swap(); }, [] { swap(); }}},
};

}  // namespace

int main(int argc, char** argv) {
  ::alarm(60);  // ends a job that hangs
  MPI_Init(&argc, &argv);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  in.fill(rank + 1);
  const std::string folder = argv[1];
  std::ofstream(folder + "/pid-" + std::to_string(rank)) << ::getpid() << std::endl;
  for (int at = 2; at < argc; ++at) {
    const Ends& ends = (kMessages.count(argv[at]) != 0 ? kMessages : kOthers).at(argv[at]);
    while (rank == 1 && ::access((folder + "/" + argv[at]).c_str(), F_OK) != 0) ::usleep(1000);
    (rank == 0 ? ends.rank_0 : ends.rank_1)();
    MPI_Allreduce(MPI_IN_PLACE, &wrong, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  }
  std::printf("{\"rank\": %d, \"wrong\": %d}\n", rank, wrong);
  std::fflush(stdout);
  MPI_Finalize();
}
