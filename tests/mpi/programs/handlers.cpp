// handlers CASE: error handlers and reduction operations of the program that throw or return, in
// calls that plait takes part in. Host memory, or an emulated GPU (TEST_LIBCUDA). Prints a line of
// JSON a rank.
#include <chrono>
#include <cstdio>
#include <map>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "expect.hpp"
#include "handled_comm.hpp"
#include "host_or_gpu.hpp"

namespace {

constexpr int kMany = 50000;

int me() { return rank_in(MPI_COMM_WORLD); }

int calls_of_handler = 0;

int class_of(int code) {
  int found = code;
  if (code != MPI_SUCCESS) MPI_Error_class(code, &found);
  return found;
}

struct ProgramError : std::runtime_error {
  explicit ProgramError(int of) : std::runtime_error("of the program"), code(of) {}
  int code;
};

void throw_error(MPI_Comm*, int* code, ...) {
  ++calls_of_handler;
  throw ProgramError(*code);
}

/// A handler throws a C++ exception in a completion of a receive that is too small, and the program
/// catches the exception around the call.
void thrown() {
  for (const bool waits : {true, false}) {
    MPI_Comm comm = handled_comm(throw_error);
    calls_of_handler = 0;
    HostOrGpuVector<int> data(100, 7);
    if (me() == 0) MPI_Send(data.data(), 100, MPI_INT, 1, 0, comm);
    if (me() == 1) {
      MPI_Request request;
      int flag = 0, caught = 0;
      MPI_Irecv(data.data(), 50, MPI_INT, 0, 0, comm, &request);
      try {
        if (waits) MPI_Wait(&request, MPI_STATUS_IGNORE);
        while (flag == 0) MPI_Test(&request, &flag, MPI_STATUS_IGNORE);
      } catch (const ProgramError& error) {
        caught = class_of(error.code);
      }
      expect_equal(caught, MPI_ERR_TRUNCATE, "class of the exception");
      expect_equal(calls_of_handler, 1, "calls of the handler");
    }
    MPI_Barrier(MPI_COMM_WORLD);
  }
}

/// The handler throws in one of several receives that end at once. The program gets the exception
/// where it completes that receive: all other calls end as usual, also those that poll the receive.
void thrown_among_others() {
  constexpr int kReceives = 4, kSmall = 2000, kFailed = 2;
  MPI_Comm comm = handled_comm(throw_error);
  std::vector<std::vector<int>> data(kReceives, std::vector<int>(kSmall, me() == 0 ? 5 : -1));
  if (me() == 0) {
    MPI_Recv(nullptr, 0, MPI_INT, 1, 9, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    for (int at = 0; at < kReceives; ++at)
      MPI_Send(data[at].data(), at == kFailed ? kSmall : kSmall / 2, MPI_INT, 1, at, comm);
    MPI_Send(nullptr, 0, MPI_INT, 1, 8, MPI_COMM_WORLD);
  } else {
    MPI_Request requests[kReceives];
    for (int at = 0; at < kReceives; ++at)
      MPI_Irecv(data[at].data(), kSmall / 2, MPI_INT, 0, at, comm, &requests[at]);
    MPI_Send(nullptr, 0, MPI_INT, 0, 9, MPI_COMM_WORLD);
    const auto throws = [&](const auto& function) {
      try {
        function();
      } catch (const ProgramError&) {
        return true;
      }
      return false;
    };
    const auto receive = [] {
      MPI_Recv(nullptr, 0, MPI_INT, 0, 8, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    };
    expect(!throws(receive), "another receive");
    for (int at = 0; at < kReceives; ++at)
      expect_equal(throws([&] { MPI_Wait(&requests[at], MPI_STATUS_IGNORE); }), at == kFailed,
                   "an exception in the receive's own wait");
    for (int at = 0; at < kReceives; ++at)
      expect(at == kFailed || (data[at][0] == 5 && data[at][kSmall / 2 - 1] == 5),
             "data of the other receives");
  }
  MPI_Barrier(MPI_COMM_WORLD);
}

/// The handler throws for the first of two requests that MPI_Waitall completes. The second, a
/// persistent receive, is complete too.
void thrown_in_waitall() {
  constexpr int kSmall = 500;  // an eager message, which the MPI truncates
  MPI_Comm comm = handled_comm(throw_error);
  HostOrGpuVector<int> data(kSmall, me() == 0 ? 5 : -1), kept(kSmall, -1);
  if (me() == 0) {
    MPI_Recv(nullptr, 0, MPI_INT, 1, 9, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    for (const int tag : {1, 2}) MPI_Send(device_ptr(data.data()), kSmall, MPI_INT, 1, tag, comm);
  } else {
    MPI_Request requests[2];
    MPI_Irecv(device_ptr(data.data()), kSmall / 2, MPI_INT, 0, 1, comm, &requests[0]);
    MPI_Recv_init(device_ptr(kept.data()), kSmall, MPI_INT, 0, 2, comm, &requests[1]);
    MPI_Start(&requests[1]);
    MPI_Send(nullptr, 0, MPI_INT, 0, 9, MPI_COMM_WORLD);
    bool throws = false;
    MPI_Status statuses[2];
    try {
      MPI_Waitall(2, requests, statuses);
    } catch (const ProgramError&) {
      throws = true;
    }
    expect(throws, "an exception in MPI_Waitall");
    MPI_Wait(&requests[1], MPI_STATUS_IGNORE);
    expect(kept[0] == 5 && kept[kSmall - 1] == 5, "data of the persistent receive");
    MPI_Request_free(&requests[1]);
  }
  MPI_Barrier(MPI_COMM_WORLD);
}

/// The receive of an MPI_Sendrecv throws while the send is under way. The send arrives whole.
void thrown_in_sendrecv() {
  constexpr int kLarge = 1 << 16, kSmall = 2000;
  MPI_Comm comm = handled_comm(throw_error);
  std::vector<int> out(kLarge, 7), in(kLarge, -1);
  if (me() == 0) {
    MPI_Send(out.data(), kSmall, MPI_INT, 1, 2, comm);
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    MPI_Recv(in.data(), kLarge, MPI_INT, 1, 1, comm, MPI_STATUS_IGNORE);
    expect(in[0] == 7 && in[kLarge - 1] == 7, "data of the send");
  } else {
    bool throws = false;
    try {
      MPI_Sendrecv(out.data(), kLarge, MPI_INT, 0, 1, in.data(), kSmall / 2, MPI_INT, 0, 2, comm,
                   MPI_STATUS_IGNORE);
    } catch (const ProgramError&) {
      throws = true;
    }
    expect(throws, "an exception of the receive");
  }
  MPI_Barrier(MPI_COMM_WORLD);
}

void throw_in_reduction(void*, void*, int*, MPI_Datatype*) {
  throw std::runtime_error("of the operation");
}

/// A reduction operation of the program throws on the root, which has all data then.
void thrown_operation() {
  MPI_Op operation;
  MPI_Op_create(throw_in_reduction, 1, &operation);
  const int mine = 1;
  int all = 0, caught = 0;
  try {
    MPI_Reduce_local(&mine, &all, 1, MPI_INT, operation);
  } catch (const std::runtime_error& error) {
    caught = error.what() == std::string("of the operation") ? 1 : 0;
  }
  expect_equal(caught, 1, "an exception of MPI_Reduce_local");
  caught = 0;
  try {
    MPI_Reduce(&mine, &all, 1, MPI_INT, operation, 0, MPI_COMM_WORLD);
  } catch (const std::runtime_error& error) {
    caught = error.what() == std::string("of the operation") ? 1 : 0;
  }
  expect_equal(caught, me() == 0 ? 1 : 0, "exceptions of MPI_Reduce");
}

void count_call(MPI_Comm*, int*, ...) { ++calls_of_handler; }

/// Calls with a wrong argument, whose handler returns: the handler is called once, and a request
/// completes at once. MPICH then returns MPI_SUCCESS and stores no request.
void refused() {
  MPI_Comm comm = handled_comm(count_call);
  int *upper_bound = nullptr, flag = 0;
  MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &upper_bound, &flag);
  const int wrong_tag = *upper_bound == 2147483647 ? -7 : *upper_bound + 1;
  std::vector<HostOrGpuVector<int>> data(3, HostOrGpuVector<int>(kMany, 7));
  for (HostOrGpuVector<int>& one : data) {
    int *const buffer = device_ptr(one.data()), *const other = device_ptr(data[0].data());
    MPI_Request request = MPI_REQUEST_NULL;
    const auto expect_refused = [&](const char* what) {
      expect_equal(calls_of_handler, 1, what);
      calls_of_handler = 0;
      expect_equal(MPI_Wait(&request, MPI_STATUS_IGNORE), MPI_SUCCESS, "a wait for no request");
      expect(request == MPI_REQUEST_NULL, "no request");
      expect_equal(calls_of_handler, 0, "calls of the handler by a wait");
    };
    MPI_Send(buffer, kMany, MPI_INT, 1 - me(), wrong_tag, comm);
    expect_refused("calls of the handler by MPI_Send");
    MPI_Isend(buffer, kMany, MPI_INT, 1 - me(), wrong_tag, comm, &request);
    expect_refused("calls of the handler by MPI_Isend");
    MPI_Isend(buffer, kMany, MPI_INT, 7, 0, comm, &request);
    expect_refused("calls of the handler by MPI_Isend to no rank");
    MPI_Irecv(buffer, kMany, MPI_INT, 7, 0, comm, &request);
    expect_refused("calls of the handler by MPI_Irecv");
    MPI_Recv(buffer, kMany, MPI_INT, 7, 0, comm, MPI_STATUS_IGNORE);
    expect_refused("calls of the handler by MPI_Recv");
    MPI_Sendrecv(buffer, kMany, MPI_INT, 7, 0, other, kMany, MPI_INT, 7, 0, comm,
                 MPI_STATUS_IGNORE);
    expect_refused("calls of the handler by MPI_Sendrecv");
    MPI_Sendrecv_replace(buffer, kMany, MPI_INT, 1 - me(), wrong_tag, 1 - me(), 5, comm,
                         MPI_STATUS_IGNORE);
    expect_refused("calls of the handler by MPI_Sendrecv_replace");
    MPI_Ibcast(buffer, kMany, MPI_INT, 7, comm, &request);
    expect_refused("calls of the handler by MPI_Ibcast");
    MPI_Send_init(buffer, kMany, MPI_INT, 1 - me(), wrong_tag, comm, &request);
    expect_refused("calls of the handler by MPI_Send_init");
    MPI_Recv_init(buffer, kMany, MPI_INT, 7, 0, comm, &request);
    expect_refused("calls of the handler by MPI_Recv_init");
  }
  MPI_Comm_free(&comm);
}

HostOrGpuVector<int> note;
MPI_Request note_request = MPI_REQUEST_NULL;

/// Tells rank 0 of the error by a large message.
void send_note(MPI_Comm*, int*, ...) {
  ++calls_of_handler;
  MPI_Isend(device_ptr(note.data()), kMany, MPI_INT, 0, 9, MPI_COMM_WORLD, &note_request);
}

/// The handler of a receive that is too small starts a request, which plait takes part in. The
/// message is short: Open MPI's own long messages overrun a receive that is too small.
void reentrant() {
  MPI_Comm comm = handled_comm(send_note);
  note = HostOrGpuVector<int>(kMany, 3);
  HostOrGpuVector<int> data(900, 7);
  if (me() == 0) {
    MPI_Send(device_ptr(data.data()), 900, MPI_INT, 1, 0, comm);
    for (int& one : note) one = -1;
    MPI_Recv(device_ptr(note.data()), kMany, MPI_INT, 1, 9, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    expect(note[0] == 3 && note[kMany - 1] == 3, "data of the note");
  } else {
    MPI_Request request;
    MPI_Irecv(device_ptr(data.data()), 450, MPI_INT, 0, 0, comm, &request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    expect_equal(calls_of_handler, 1, "calls of the handler");
    MPI_Wait(&note_request, MPI_STATUS_IGNORE);
  }
  MPI_Barrier(MPI_COMM_WORLD);
  note = HostOrGpuVector<int>();
}

/// A message that is too long for MPI_Mrecv or MPI_Imrecv is an error of the communicator that
/// MPI_Mprobe named. The handler of MPI_COMM_WORLD would end the job.
void matched() {
  MPI_Comm comm;
  MPI_Comm_dup(MPI_COMM_WORLD, &comm);
  MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
  HostOrGpuVector<int> data(kMany, 7);
  for (const bool waits : {false, true}) {
    if (me() == 0) MPI_Send(device_ptr(data.data()), kMany, MPI_INT, 1, 5, comm);
    if (me() == 1) {
      MPI_Message message;
      MPI_Mprobe(0, 5, comm, &message, MPI_STATUS_IGNORE);
      int code = 0;
      if (waits) {
        MPI_Request request;
        MPI_Imrecv(device_ptr(data.data()), kMany / 2, MPI_INT, &message, &request);
        code = MPI_Wait(&request, MPI_STATUS_IGNORE);
      } else {
        code = MPI_Mrecv(device_ptr(data.data()), kMany / 2, MPI_INT, &message, MPI_STATUS_IGNORE);
      }
      expect_equal(class_of(code), MPI_ERR_TRUNCATE, "class of the error");
    }
    MPI_Barrier(MPI_COMM_WORLD);
  }
  MPI_Comm_free(&comm);
}

const std::map<std::string, void (*)()> kCases = {
    {"thrown", thrown},
    {"thrown_among_others", thrown_among_others},
    {"thrown_in_waitall", thrown_in_waitall},
    {"thrown_in_sendrecv", thrown_in_sendrecv},
    {"thrown_operation", thrown_operation},
    {"refused", refused},
    {"reentrant", reentrant},
    {"matched", matched},
};

}  // namespace

int main(int argc, char** argv) {
  EmulatedCuda::now().begin(1);
  MPI_Init(&argc, &argv);
  kCases.at(argc > 1 ? argv[1] : "")();
  std::printf("{\"rank\": %d, \"wrong\": %ld, \"served\": %ld}\n", me(), wrong, calls_served());
  std::fflush(stdout);
  MPI_Finalize();
  return wrong == 0 ? 0 : 1;
}
