// messages SEED ROUNDS: random messages between pairs of ranks, and halo exchanges, in host memory
// and on an emulated GPU. Prints a line of JSON a rank.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>

#include "expect.hpp"
#include "host_or_gpu.hpp"

namespace {

constexpr int kTag = 11;
/// Messages of this count go by rendezvous. Each rank ends with one, however few rounds run.
constexpr int kServed = 100000;

int word(std::uint64_t seed, int from, int at) {
  return static_cast<int>(
      mixed(seed, static_cast<std::uint64_t>(from), static_cast<std::uint64_t>(at)));
}

HostOrGpuVector<int> filled(std::uint64_t seed, int from, int count) {
  HostOrGpuVector<int> made(static_cast<std::size_t>(count));
  for (int at = 0; at < count; ++at) made[static_cast<std::size_t>(at)] = word(seed, from, at);
  return made;
}

bool holds(const HostOrGpuVector<int>& memory, std::uint64_t seed, int from, int count) {
  for (int at = 0; at < count; ++at)
    if (memory[static_cast<std::size_t>(at)] != word(seed, from, at)) return false;
  return true;
}

void check_status(const MPI_Status& status, int from, int tag, int count) {
  int got = -1;
  MPI_Get_count(&status, MPI_INT, &got);
  expect(status.MPI_SOURCE == from && status.MPI_TAG == tag && got == count, "a status");
}

/// A single direction, by each send and receive function; the receive buffer is larger.
void one_way(int round, std::uint64_t seed, Dice& all, Dice& own) {
  const int ranks = ranks_of(MPI_COMM_WORLD), rank = rank_in(MPI_COMM_WORLD);
  const int from = all.below(ranks), to = (from + 1 + all.below(ranks - 1)) % ranks;
  const int count = all.below(all.one_in(8) ? 100000 : 3000),
            tag = 100 + round;  // unique to this message
  const int how = all.below(6);
  if (rank == from) {
    const HostOrGpuVector<int> in = filled(seed, from, count + 1);
    const int* const data = device_ptr(in.data());
    MPI_Request request = MPI_REQUEST_NULL;
    switch (how) {
      case 0: MPI_Send(data, count, MPI_INT, to, tag, MPI_COMM_WORLD); break;
      case 1: MPI_Ssend(data, count, MPI_INT, to, tag, MPI_COMM_WORLD); break;
      case 2: MPI_Issend(data, count, MPI_INT, to, tag, MPI_COMM_WORLD, &request); break;
      default: MPI_Isend(data, count, MPI_INT, to, tag, MPI_COMM_WORLD, &request);
    }
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    expect(holds(in, seed, from, count + 1), "a send leaves its buffer unchanged");
  }
  if (rank != to) return;
  constexpr int kRoom = 100;
  HostOrGpuVector<int> out(static_cast<std::size_t>(count + kRoom), -1);
  const int source = own.one_in(2) ? MPI_ANY_SOURCE : from;
  const int any_tag = source == from && own.one_in(2) ? MPI_ANY_TAG : tag;
  MPI_Status status;
  if (own.one_in(2)) {
    MPI_Recv(device_ptr(out.data()), count + kRoom, MPI_INT, source, any_tag, MPI_COMM_WORLD,
             &status);
  } else {
    MPI_Request request;
    MPI_Irecv(device_ptr(out.data()), count + kRoom, MPI_INT, source, any_tag, MPI_COMM_WORLD,
              &request);
    int flag = 0;
    while (own.one_in(2) && flag == 0) MPI_Test(&request, &flag, &status);
    if (flag == 0) MPI_Wait(&request, &status);
  }
  check_status(status, from, tag, count);
  expect(holds(out, seed, from, count), "received data");
  for (int at = count; at < count + kRoom; ++at)
    expect(out[static_cast<std::size_t>(at)] == -1, "unused buffer bytes stay unchanged");
}

/// All ranks in a ring, by a single sendrecv.
void ring(std::uint64_t seed, int count, Dice& all) {
  const int ranks = ranks_of(MPI_COMM_WORLD), rank = rank_in(MPI_COMM_WORLD);
  const int next = (rank + 1) % ranks, last = (rank + ranks - 1) % ranks;
  HostOrGpuVector<int> data = filled(seed, rank, count);
  HostOrGpuVector<int> out(static_cast<std::size_t>(count));
  MPI_Status status;
  if (all.one_in(2)) {
    MPI_Sendrecv_replace(device_ptr(data.data()), count, MPI_INT, next, kTag, last, kTag,
                         MPI_COMM_WORLD, &status);
    expect(holds(data, seed, last, count), "data from the ring, in place");
  } else {
    MPI_Sendrecv(device_ptr(data.data()), count, MPI_INT, next, kTag, device_ptr(out.data()), count,
                 MPI_INT, last, kTag, MPI_COMM_WORLD, &status);
    expect(holds(out, seed, last, count), "data from the ring");
  }
  check_status(status, last, kTag, count);
}

/// Interleaved columns, each from another rank, all at once; the program owns the gaps meanwhile.
void halo(std::uint64_t seed, Dice& all) {
  const int ranks = ranks_of(MPI_COMM_WORLD), rank = rank_in(MPI_COMM_WORLD);
  const int rows = 1 + all.below(300), width = ranks + 1;
  MPI_Datatype column;
  MPI_Type_vector(rows, 1, width, MPI_INT, &column);
  MPI_Type_commit(&column);
  HostOrGpuVector<int> grid(static_cast<std::size_t>(rows * width), -7);
  const HostOrGpuVector<int> mine = filled(seed, rank, rows);
  std::vector<MPI_Request> requests;
  for (int from = 0; from < ranks; ++from)
    MPI_Irecv(device_ptr(grid.data() + from), 1, column, from, kTag, MPI_COMM_WORLD,
              &requests.emplace_back());
  for (int row = 0; row < rows; ++row) grid[static_cast<std::size_t>(row * width + ranks)] = row;
  for (int to = 0; to < ranks; ++to)
    MPI_Isend(device_ptr(mine.data()), rows, MPI_INT, to, kTag, MPI_COMM_WORLD,
              &requests.emplace_back());
  MPI_Type_free(&column);
  MPI_Waitall(static_cast<int>(requests.size()), requests.data(), MPI_STATUSES_IGNORE);
  bool right = true;
  for (int row = 0; row < rows; ++row) {
    const int* const line = &grid[static_cast<std::size_t>(row * width)];
    for (int from = 0; from < ranks; ++from) right = right && line[from] == word(seed, from, row);
    right = right && line[ranks] == row;
  }
  expect(right, "halos and the gaps between them");
}

/// Persistent messages: buffers are fixed, the content changes.
void persistent(std::uint64_t seed, Dice& all, Dice& own) {
  const int ranks = ranks_of(MPI_COMM_WORLD), rank = rank_in(MPI_COMM_WORLD);
  const int count = 1 + all.below(9000), next = (rank + 1) % ranks,
            last = (rank + ranks - 1) % ranks;
  HostOrGpuVector<int> in(static_cast<std::size_t>(count)), out(static_cast<std::size_t>(count));
  MPI_Request requests[2];
  MPI_Recv_init(device_ptr(out.data()), count, MPI_INT, last, kTag, MPI_COMM_WORLD, &requests[0]);
  MPI_Send_init(device_ptr(in.data()), count, MPI_INT, next, kTag, MPI_COMM_WORLD, &requests[1]);
  for (std::uint64_t turn = 0; turn < 4; ++turn) {
    for (int at = 0; at < count; ++at) {
      in[static_cast<std::size_t>(at)] = word(seed + turn, rank, at);
      out[static_cast<std::size_t>(at)] = -1;
    }
    if (own.one_in(2)) {
      MPI_Startall(2, requests);
    } else {
      MPI_Start(&requests[1]);
      MPI_Start(&requests[0]);
    }
    int flag = 0, index = 0, some = 0, indices[2];
    switch (own.below(5)) {
      case 0: MPI_Waitall(2, requests, MPI_STATUSES_IGNORE); break;
      case 1:
        for (MPI_Request& one : requests) MPI_Wait(&one, MPI_STATUS_IGNORE);
        break;
      case 2:
        for (int ended = 0; ended < 2; ++ended) MPI_Waitany(2, requests, &index, MPI_STATUS_IGNORE);
        break;
      case 3:
        for (int ended = 0; ended < 2; ended += some)
          MPI_Waitsome(2, requests, &some, indices, MPI_STATUSES_IGNORE);
        break;
      default:
        while (flag == 0) MPI_Testall(2, requests, &flag, MPI_STATUSES_IGNORE);
    }
    expect(holds(out, seed + turn, last, count), "data of a persistent request");
  }
  for (MPI_Request& one : requests) MPI_Request_free(&one);
}

void scan(std::uint64_t seed, Dice& all) {
  const int rank = rank_in(MPI_COMM_WORLD), count = 1 + all.below(3000);
  const bool in_place = all.one_in(3), blocking = all.one_in(2);
  HostOrGpuVector<int> in = filled(seed, rank, count), out(static_cast<std::size_t>(count));
  if (in_place) std::copy(in.begin(), in.end(), out.begin());
  const void* const from = in_place ? MPI_IN_PLACE : device_ptr(in.data());
  MPI_Request request = MPI_REQUEST_NULL;
  if (blocking)
    MPI_Scan(from, device_ptr(out.data()), count, MPI_INT, MPI_BXOR, MPI_COMM_WORLD);
  else
    MPI_Iscan(from, device_ptr(out.data()), count, MPI_INT, MPI_BXOR, MPI_COMM_WORLD, &request);
  MPI_Wait(&request, MPI_STATUS_IGNORE);
  bool right = true;
  for (int at = 0; at < count; ++at) {
    int wanted = 0;
    for (int before = 0; before <= rank; ++before) wanted ^= word(seed, before, at);
    right = right && out[static_cast<std::size_t>(at)] == wanted;
  }
  expect(right, "a scan");
}

/// A message is received after a probe, by each probe function.
void take_probed(int from, int tag, std::uint64_t seed, int count, Dice& own) {
  MPI_Message message;
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_Status status;
  const int variant = own.below(4), source = own.one_in(2) ? MPI_ANY_SOURCE : from;
  int flag = 0;
  if (variant == 0) MPI_Probe(source, tag, MPI_COMM_WORLD, &status);
  while (variant == 1 && flag == 0) MPI_Iprobe(source, tag, MPI_COMM_WORLD, &flag, &status);
  if (variant == 2) MPI_Mprobe(source, tag, MPI_COMM_WORLD, &message, &status);
  while (variant == 3 && flag == 0)
    MPI_Improbe(source, tag, MPI_COMM_WORLD, &flag, &message, &status);
  check_status(status, from, tag, count);
  HostOrGpuVector<int> out(static_cast<std::size_t>(count + 1));
  if (variant < 2)
    MPI_Irecv(device_ptr(out.data()), count, MPI_INT, from, tag, MPI_COMM_WORLD, &request);
  else if (own.one_in(2))
    MPI_Imrecv(device_ptr(out.data()), count, MPI_INT, &message, &request);
  else
    MPI_Mrecv(device_ptr(out.data()), count, MPI_INT, &message, &status);
  if (request != MPI_REQUEST_NULL) MPI_Wait(&request, &status);
  check_status(status, from, tag, count);
  expect(holds(out, seed, from, count), "data of a probed message");
}

void probed(int round, std::uint64_t seed, Dice& all, Dice& own) {
  const int ranks = ranks_of(MPI_COMM_WORLD), rank = rank_in(MPI_COMM_WORLD);
  const int from = all.below(ranks), to = (from + 1) % ranks, count = all.below(2000);
  const HostOrGpuVector<int> in = filled(seed, from, count + 1);
  if (rank == from)
    MPI_Send(device_ptr(in.data()), count, MPI_INT, to, 100 + round, MPI_COMM_WORLD);
  if (rank == to) take_probed(from, 100 + round, seed, count, own);
}

/// Messages of the same tag in sequence: large messages, and short messages of RTS lengths. A probe
/// returns the size of each, in the order of the sends.
void lengths(int round, Dice& all) {
  const int ranks = ranks_of(MPI_COMM_WORLD), rank = rank_in(MPI_COMM_WORLD);
  const int from = all.below(ranks), to = (from + 1) % ranks, tag = 100 + round;
  std::vector<int> sizes(6);
  for (int& size : sizes) size = all.one_in(2) ? 96 * (9 + all.below(70)) : 8000 + all.below(9000);
  std::vector<HostOrGpuVector<char>> in;
  std::vector<MPI_Request> requests;
  for (const int size : sizes) {
    if (rank != from) break;
    in.emplace_back(static_cast<std::size_t>(size), static_cast<char>(size));
    MPI_Isend(device_ptr(in.back().data()), size, MPI_CHAR, to, tag, MPI_COMM_WORLD,
              &requests.emplace_back());
  }
  for (const int size : sizes) {
    if (rank != to) break;
    MPI_Status status;
    int count = 0;
    MPI_Probe(from, tag, MPI_COMM_WORLD, &status);
    MPI_Get_count(&status, MPI_CHAR, &count);
    expect(count == size, "a length from a probe");
    HostOrGpuVector<char> out(static_cast<std::size_t>(size));
    MPI_Recv(device_ptr(out.data()), size, MPI_CHAR, from, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    const auto right = [&](char one) { return one == static_cast<char>(size); };
    expect(std::all_of(out.begin(), out.end(), right), "messages of many lengths");
  }
  MPI_Waitall(static_cast<int>(requests.size()), requests.data(), MPI_STATUSES_IGNORE);
}

/// Every rank sends several messages of the same tag to every rank and receives as many, in any
/// order of calls; messages between two ranks stay in order.
void crowd(std::uint64_t seed, Dice& all, Dice& own) {
  const int ranks = ranks_of(MPI_COMM_WORLD), rank = rank_in(MPI_COMM_WORLD);
  const int each = 1 + all.below(5);
  std::vector<int> counts(static_cast<std::size_t>(each));
  for (int& count : counts) count = all.below(all.one_in(4) ? 60000 : 2000);
  struct ExchangePeer {
    bool sends;
    int peer;
  };
  std::vector<ExchangePeer> ends;
  for (int at = 0; at < each * ranks; ++at) ends.push_back({true, at % ranks});
  for (int at = 0; at < each * ranks; ++at) ends.push_back({false, at % ranks});
  for (std::size_t at = ends.size() - 1; at > 0; --at)
    std::swap(ends[at], ends[static_cast<std::size_t>(own.below(static_cast<int>(at) + 1))]);
  std::vector<int> sent(static_cast<std::size_t>(ranks)), got(sent);
  std::vector<HostOrGpuVector<int>> memory;
  memory.reserve(ends.size());
  std::vector<MPI_Request> requests;
  struct ExpectedMessage {
    std::size_t at;
    std::uint64_t seed;
    int from;
  };
  std::vector<ExpectedMessage> wanted;
  for (const ExchangePeer& end : ends) {
    int& turn = (end.sends ? sent : got)[static_cast<std::size_t>(end.peer)];
    const int count = counts[static_cast<std::size_t>(turn)];
    const std::uint64_t salt = seed + static_cast<std::uint64_t>(turn++);
    if (end.sends) {
      memory.push_back(filled(salt, rank, count + 1));
      MPI_Isend(device_ptr(memory.back().data()), count, MPI_INT, end.peer, kTag, MPI_COMM_WORLD,
                &requests.emplace_back());
    } else {
      wanted.push_back({memory.size(), salt, end.peer});
      memory.emplace_back(static_cast<std::size_t>(count + 1), -1);
      MPI_Irecv(device_ptr(memory.back().data()), count, MPI_INT, end.peer, kTag, MPI_COMM_WORLD,
                &requests.emplace_back());
    }
  }
  if (all.one_in(3)) MPI_Barrier(MPI_COMM_WORLD);
  int index = 0;
  if (own.one_in(2))
    MPI_Waitall(static_cast<int>(requests.size()), requests.data(), MPI_STATUSES_IGNORE);
  while (index != MPI_UNDEFINED)
    MPI_Waitany(static_cast<int>(requests.size()), requests.data(), &index, MPI_STATUS_IGNORE);
  for (const ExpectedMessage& one : wanted) {
    const HostOrGpuVector<int>& out = memory[one.at];
    const auto count = static_cast<int>(out.size()) - 1;
    expect(out.back() == -1 && holds(out, one.seed, one.from, count),
           "data of one of many messages");
  }
}

/// A pending receive makes progress while the rank is in another MPI function.
void alongside_others(std::uint64_t seed, Dice& all) {
  const int ranks = ranks_of(MPI_COMM_WORLD), rank = rank_in(MPI_COMM_WORLD);
  const int from = all.below(ranks), to = (from + 1) % ranks, count = 30000 + all.below(50000);
  const bool by_message = all.one_in(2);
  HostOrGpuVector<int> out(static_cast<std::size_t>(count));
  MPI_Request request = MPI_REQUEST_NULL;
  int token = 0;
  const bool is_persistent = all.one_in(2);
  if (rank == to && is_persistent) {
    MPI_Recv_init(device_ptr(out.data()), count, MPI_INT, from, kTag, MPI_COMM_WORLD, &request);
    MPI_Start(&request);
  } else if (rank == to) {
    MPI_Irecv(device_ptr(out.data()), count, MPI_INT, from, kTag, MPI_COMM_WORLD, &request);
  }
  if (rank == to && by_message)
    MPI_Recv(&token, 1, MPI_INT, from, kTag + 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  if (rank == from) {
    const HostOrGpuVector<int> in = filled(seed, from, count);
    MPI_Send(device_ptr(in.data()), count, MPI_INT, to, kTag, MPI_COMM_WORLD);
    if (by_message) MPI_Send(&token, 1, MPI_INT, to, kTag + 1, MPI_COMM_WORLD);
  }
  MPI_Barrier(MPI_COMM_WORLD);
  MPI_Wait(&request, MPI_STATUS_IGNORE);
  if (rank == to) expect(holds(out, seed, from, count), "data received during other calls");
  if (rank == to && is_persistent) MPI_Request_free(&request);
}

/// A receive without a sender is cancelled.
void cancelled() {
  HostOrGpuVector<int> out(10, 3);
  MPI_Request request;
  MPI_Irecv(device_ptr(out.data()), 10, MPI_INT, MPI_ANY_SOURCE, kTag + 1, MPI_COMM_WORLD,
            &request);
  MPI_Cancel(&request);
  MPI_Status status;
  MPI_Wait(&request, &status);
  int flag = 0;
  MPI_Test_cancelled(&status, &flag);
  expect(flag != 0 && out[9] == 3, "a receive was cancelled");
}

}  // namespace

int main(int argc, char** argv) {
  EmulatedCuda::now().begin(static_cast<std::uint64_t>(::getpid()));
  MPI_Init(&argc, &argv);
  const std::uint64_t seed = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 1;
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 100;
  const int rank = rank_in(MPI_COMM_WORLD);
  Dice all(seed), own(mixed(seed, static_cast<std::uint64_t>(rank), 5));
  for (int round = 0; round < rounds; ++round) {
    const std::uint64_t salt = mixed(seed, static_cast<std::uint64_t>(round), 17);
    switch (all.below(10)) {
      case 3: scan(salt, all); break;
      case 4: probed(round, salt, all, own); break;
      case 5: lengths(round, all); break;
      case 6: crowd(salt, all, own); break;
      case 7: alongside_others(salt, all); break;
      case 0: ring(salt, 1 + all.below(5000), all); break;
      case 2: persistent(salt, all, own); break;
      case 1: halo(salt, all); break;
      default: one_way(round, salt, all, own);
    }
  }
  ring(seed, kServed, all);
  cancelled();
  std::printf("{\"rank\": %d, \"wrong\": %ld, \"served\": %ld}\n", rank, wrong, calls_served());
  std::fflush(stdout);
  MPI_Finalize();
  return wrong == 0 ? 0 : 1;
}
