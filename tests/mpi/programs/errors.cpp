// errors CASE: the errors that a program gets from failed calls of plait's: codes, handlers and
// statuses; and with ULFM (mpiexec --with-ft ulfm) revoked communicators and lost ranks. Prints a
// line of JSON a rank.
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "expect.hpp"
#include "program.hpp"

namespace {

constexpr int kMany = 50000;

int sum_of_ranks(MPI_Comm comm) {
  const int mine = rank_in(comm) + 1;
  int all = 0;
  const int code = MPI_Allreduce(&mine, &all, 1, MPI_INT, MPI_SUM, comm);
  return code == MPI_SUCCESS ? all : -1;
}

int expected_sum(MPI_Comm comm) {
  const int ranks = ranks_of(comm);
  return ranks * (ranks + 1) / 2;
}

int calls_of_handler = 0;

void count_call(MPI_Comm*, int*, ...) { ++calls_of_handler; }

/// A communicator that plait has attached, with a handler that counts calls.
MPI_Comm counted_comm() {
  MPI_Comm comm;
  MPI_Comm_dup(MPI_COMM_WORLD, &comm);
  MPI_Errhandler handler;
  MPI_Comm_create_errhandler(count_call, &handler);
  MPI_Comm_set_errhandler(comm, handler);
  MPI_Errhandler_free(&handler);
  expect(sum_of_ranks(comm) == expected_sum(comm), "the first sum");
  calls_of_handler = 0;
  return comm;
}

bool is_mismatch_code(int code) {
  char words[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  if (code != MPI_SUCCESS) MPI_Error_string(code, words, &length);
  return std::strstr(words, "plait: ranks disagree") != nullptr;
}

std::vector<int> in(kMany, 1), out(kMany), more_out(kMany);

/// A sum with different arguments on the ranks, after a correct sum.
void begin_two(MPI_Comm comm, MPI_Request* requests) {
  MPI_Iallreduce(in.data(), out.data(), 10, MPI_INT, MPI_SUM, comm, &requests[0]);
  const int count = rank_in(comm) == 0 ? 10 : 20;
  MPI_Iallreduce(in.data(), more_out.data(), count, MPI_INT, MPI_SUM, comm, &requests[1]);
}

/// Each completion function reports the error of a non-blocking call once, to the handler of the
/// call's own communicator, and returns the error's code. MPI_COMM_WORLD's handler would end the
/// job.
void own_handler() {
  MPI_Comm comm = counted_comm();
  MPI_Request requests[2];
  MPI_Status statuses[2];
  int code = 0, flag = 0, index = 0, some = 0, indices[2], ended = 0;
  const auto expect_reported_once = [&](const char* what, bool right) {
    expect(right, what);
    expect(calls_of_handler == 1, "the handler is called once");
    calls_of_handler = 0;
    expect(requests[0] == MPI_REQUEST_NULL && requests[1] == MPI_REQUEST_NULL, "both ended");
  };
  begin_two(comm, requests);
  MPI_Wait(&requests[0], MPI_STATUS_IGNORE);
  code = MPI_Wait(&requests[1], MPI_STATUS_IGNORE);
  expect_reported_once("the code of MPI_Wait", is_mismatch_code(code));

  begin_two(comm, requests);
  MPI_Wait(&requests[0], MPI_STATUS_IGNORE);
  for (flag = 0, code = 0; flag == 0 && code == 0;)
    code = MPI_Test(&requests[1], &flag, &statuses[1]);
  expect_reported_once("the code of MPI_Test", is_mismatch_code(code));

  for (const bool tests : {false, true}) {
    begin_two(comm, requests);
    if (!tests) code = MPI_Waitall(2, requests, statuses);
    for (flag = 0; tests && flag == 0;) code = MPI_Testall(2, requests, &flag, statuses);
    expect_reported_once("the code of MPI_Waitall and MPI_Testall",
                         code == MPI_ERR_IN_STATUS && statuses[0].MPI_ERROR == MPI_SUCCESS &&
                             is_mismatch_code(statuses[1].MPI_ERROR));
  }
  begin_two(comm, requests);
  code = MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
  expect_reported_once("the code of MPI_Waitall without statuses", code == MPI_ERR_IN_STATUS);

  for (const bool tests : {false, true}) {
    begin_two(comm, requests);
    int failed = -1;
    for (ended = 0; ended < 2;) {
      flag = 1;
      code = tests ? MPI_Testany(2, requests, &index, &flag, statuses)
                   : MPI_Waitany(2, requests, &index, statuses);
      if (flag == 0 && code == 0) continue;
      ++ended;
      if (is_mismatch_code(code)) failed = index;
    }
    expect_reported_once("the code of MPI_Waitany and MPI_Testany", failed == 1);
  }
  for (const bool tests : {false, true}) {
    begin_two(comm, requests);
    bool is_reported = false;
    for (ended = 0; ended < 2; ended += some) {
      code = (tests ? MPI_Testsome : MPI_Waitsome)(2, requests, &some, indices, statuses);
      for (int at = 0; at < some; ++at)
        is_reported = is_reported || (code == MPI_ERR_IN_STATUS && indices[at] == 1 &&
                                      is_mismatch_code(statuses[at].MPI_ERROR));
    }
    expect_reported_once("the code of MPI_Waitsome and MPI_Testsome", is_reported);
  }
  // The program has freed the communicator: the handler is still called.
  MPI_Request request;
  const int count = rank_in(comm) == 0 ? 10 : 20;
  MPI_Iallreduce(in.data(), out.data(), count, MPI_INT, MPI_SUM, comm, &request);
  MPI_Comm_free(&comm);
  MPI_Comm next;  // may get the freed handle
  MPI_Comm_dup(MPI_COMM_SELF, &next);
  code = MPI_Wait(&request, MPI_STATUS_IGNORE);
  requests[0] = requests[1] = request;
  expect_reported_once("the code of a freed communicator's call", is_mismatch_code(code));
  MPI_Comm_free(&next);
}

/// The same for a persistent call on a communicator freed before the call starts.
void persistent_handler() {
  MPI_Comm comm = counted_comm();
  MPI_Request request;
  const int count = rank_in(comm) == 0 ? 10 : 20;
  make("MPI_Allreduce_init", &request, static_cast<const void*>(in.data()),
       static_cast<void*>(out.data()), count, MPI_INT, MPI_SUM, comm);
  MPI_Comm_free(&comm);
  MPI_Comm next;
  MPI_Comm_dup(MPI_COMM_SELF, &next);
  for (int round = 0; round < 2; ++round) {
    MPI_Start(&request);
    expect(is_mismatch_code(MPI_Wait(&request, MPI_STATUS_IGNORE)), "a persistent code");
    expect(calls_of_handler == 1, "the handler is called once a start");
    calls_of_handler = 0;
  }
  MPI_Request_free(&request);
  MPI_Comm_free(&next);
}

bool is_empty(const MPI_Status& status, int error) {
  int count = -1, cancelled = -1;
  MPI_Get_count(&status, MPI_INT, &count);
  MPI_Test_cancelled(&status, &cancelled);
  return status.MPI_SOURCE == MPI_ANY_SOURCE && status.MPI_TAG == MPI_ANY_TAG && count == 0 &&
         cancelled == 0 && status.MPI_ERROR == error;
}

/// The status of a completed collective is empty. Functions for several requests alone set
/// MPI_ERROR.
void status() {
  MPI_Comm comm = counted_comm();
  MPI_Request request;
  const auto begin = [&] {
    MPI_Iallreduce(in.data(), out.data(), kMany, MPI_INT, MPI_SUM, comm, &request);
  };
  MPI_Status found;
  const auto mark = [&] {
    std::memset(&found, 7, sizeof found);
    found.MPI_ERROR = 12345;
  };
  int flag = 0;
  mark(), begin();
  MPI_Wait(&request, &found);
  expect(is_empty(found, 12345), "an empty status by MPI_Wait");
  mark(), begin();
  for (flag = 0; flag == 0;) MPI_Test(&request, &flag, &found);
  expect(is_empty(found, 12345), "an empty status by MPI_Test");
  mark(), begin();
  for (flag = 0; flag == 0;) MPI_Request_get_status(request, &flag, &found);
  expect(is_empty(found, 12345), "an empty status by MPI_Request_get_status");
  mark();
  MPI_Waitall(1, &request, &found);
  expect(is_empty(found, found.MPI_ERROR == 12345 ? 12345 : 0), "an empty status by MPI_Waitall");
  make("MPI_Allreduce_init", &request, static_cast<const void*>(in.data()),
       static_cast<void*>(out.data()), static_cast<int>(kMany), MPI_INT, MPI_SUM, comm);
  for (int round = 0; round < 2; ++round) {
    mark();
    MPI_Start(&request);
    MPI_Wait(&request, &found);
    expect(is_empty(found, 12345), "an empty status of a persistent call");
  }
  MPI_Request_free(&request);
  MPI_Comm_free(&comm);
}

/// An MPI without _c functions: plait reports a count larger than an int to the handler of the
/// call's communicator, or of MPI_COMM_WORLD if the call has none.
void wide_counts() {
  using Send = int(const void*, MPI_Count, MPI_Datatype, int, int, MPI_Comm);
  using Reduce = int(const void*, void*, MPI_Count, MPI_Datatype, MPI_Op);
  auto* const send = reinterpret_cast<Send*>(dlsym(RTLD_DEFAULT, "MPI_Send_c"));
  auto* const reduce = reinterpret_cast<Reduce*>(dlsym(RTLD_DEFAULT, "MPI_Reduce_local_c"));
  MPI_Comm comm = counted_comm();
  const MPI_Count wide = MPI_Count{1} << 32;
  expect(send(in.data(), wide, MPI_INT, MPI_PROC_NULL, 0, comm) != MPI_SUCCESS,
         "the code of a send");
  expect(calls_of_handler == 1, "the communicator's handler is called");
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_ARE_FATAL);
  expect(reduce(in.data(), out.data(), wide, MPI_INT, MPI_SUM) != MPI_SUCCESS,
         "the code of a call without a communicator");
  MPI_Comm_free(&comm);
}

// Open MPI's numbers; the functions are looked up, since not every header declares them.
constexpr int kProcFailed = 75, kRevoked = 77;

template <class... Arguments>
int ulfm(const char* name, Arguments... arguments) {
  auto* const found = reinterpret_cast<int (*)(Arguments...)>(dlsym(RTLD_DEFAULT, name));
  if (found == nullptr) std::abort();
  return found(arguments...);
}

int class_of(int code) {
  int found = code;
  MPI_Error_class(code, &found);
  return found;
}

/// Runs a sum of the survivors on their communicator, served by plait or by the MPI. Returns
/// whether the sum has ended without an error on all survivors.
bool sum_of_survivors(MPI_Comm comm, bool is_served) {
  const long before = calls_served();
  const int mine = rank_in(comm) + 1;
  int all = 0, code = MPI_Allreduce(&mine, &all, 1, MPI_INT, MPI_SUM, comm);
  int is_right = code == MPI_SUCCESS ? 1 : 0;
  if (is_right != 0)
    expect_equal(all, expected_sum(comm), "the sum of those left");
  else
    expect_equal(class_of(code), kProcFailed, "the class of an error of those left");
  if (is_right == 0) ulfm("MPIX_Comm_revoke", comm);  // peers may wait for this rank
  ulfm("MPIX_Comm_agree", comm, &is_right);
  if (is_right != 0)
    expect_equal(calls_served() - before, is_served ? 1 : 0, "calls of the survivors by plait");
  return is_right != 0;
}

/// The survivors continue on a new communicator. Open MPI 5.0.11, also without plait, in 1 of 200
/// runs ends a survivor's first calls on a shrunk communicator with MPI_ERR_PROC_FAILED, though all
/// ranks of that communicator run. As ULFM has programs do, the survivors then revoke, agree and
/// shrink again. A wrong sum with MPI_SUCCESS fails the test at once.
void recover(MPI_Comm comm, int ranks, bool is_served) {
  for (int turn = 0; turn < 5; ++turn) {
    MPI_Comm next = MPI_COMM_NULL;
    expect_equal(ulfm("MPIX_Comm_shrink", comm, &next), MPI_SUCCESS, "the code of a shrink");
    expect_equal(ranks_of(next), ranks, "the number of those left");
    const bool is_right = sum_of_survivors(next, is_served);
    MPI_Comm_free(&next);
    if (is_right) return;
  }
  expect(false, "a sum of those left without an error");
}

MPI_Comm returning_comm() {
  MPI_Comm comm;
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  MPI_Comm_dup(MPI_COMM_WORLD, &comm);
  MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
  expect(sum_of_ranks(comm) == expected_sum(comm), "the first sum");
  return comm;
}

/// Called by all ranks.
MPI_Request make_request(MPI_Comm comm) {
  MPI_Request request;
  make("MPI_Allreduce_init", &request, static_cast<const void*>(in.data()),
       static_cast<void*>(out.data()), static_cast<int>(kMany), MPI_INT, MPI_SUM, comm);
  return request;
}

/// The call in which a rank waits for a rank that does not come.
int waited_for(const std::string& how, MPI_Comm comm) {
  MPI_Request request;
  const int last = ranks_of(comm) - 1;
  if (how == "blocking") return MPI_Allreduce(in.data(), out.data(), kMany, MPI_INT, MPI_SUM, comm);
  if (how == "nonblocking")
    MPI_Iallreduce(in.data(), out.data(), kMany, MPI_INT, MPI_SUM, comm, &request);
  if (how == "sent") MPI_Isend(in.data(), kMany, MPI_INT, last, 5, comm, &request);
  if (how == "persistent") {
    request = make_request(comm);
    MPI_Start(&request);
  }
  return MPI_Wait(&request, MPI_STATUS_IGNORE);
}

/// The last rank revokes the communicator while the peers wait for that rank.
void revoked(const std::string& how) {
  MPI_Comm comm = returning_comm();
  const bool revokes = rank_in(comm) == ranks_of(comm) - 1;
  if (revokes) {
    if (how == "persistent") make_request(comm);
    ::usleep(200000);
    ulfm("MPIX_Comm_revoke", comm);
  } else {
    expect(class_of(waited_for(how, comm)) == kRevoked,
           "a waiting rank gets the error of a revocation");
  }
  const auto before = std::chrono::steady_clock::now();
  expect(class_of(MPI_Allreduce(in.data(), out.data(), kMany, MPI_INT, MPI_SUM, comm)) == kRevoked,
         "the next call fails");
  expect(std::chrono::steady_clock::now() - before < std::chrono::seconds(5), "it fails soon");
  recover(comm, ranks_of(comm), true);
}

/// The last rank is killed while the peers wait for that rank.
void killed(const std::string& how) {
  MPI_Comm comm = returning_comm();
  const int last = ranks_of(comm) - 1;
  if (rank_in(comm) == last) {
    if (how == "persistent") make_request(comm);
    ::usleep(200000);
    ::raise(SIGKILL);
  }
  const auto before = std::chrono::steady_clock::now();
  expect_equal(class_of(waited_for(how, comm)), kProcFailed,
               "the class of the error of a lost rank");
  const bool is_late = std::chrono::steady_clock::now() - before > std::chrono::seconds(1);
  MPI_Group failed;
  int lost = 0;
  ulfm("MPIX_Comm_get_failed", comm, &failed);
  MPI_Group_size(failed, &lost);
  // plait waits a second for the MPI to learn of the lost rank, which takes longer under load.
  expect(lost == 1 || is_late, "the MPI names the lost rank");
  MPI_Group_free(&failed);
  recover(comm, last, std::getenv("PLAIT_NODE_SIZE") == nullptr);
}

/// The program revokes a communicator before its first call: plait attaches none, and the program
/// gets the MPI's error once.
void unattached() {
  MPI_Comm comm;
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  MPI_Comm_dup(MPI_COMM_WORLD, &comm);
  MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
  // Open MPI crashes if the revocation comes before a rank has the communicator. The revocation may
  // end the barrier of other ranks.
  MPI_Barrier(comm);
  MPI_Errhandler handler;
  MPI_Comm_create_errhandler(count_call, &handler);
  MPI_Comm_set_errhandler(comm, handler);
  MPI_Errhandler_free(&handler);
  if (rank_in(comm) == 0) ulfm("MPIX_Comm_revoke", comm);
  for (int is_revoked = 0, flag = 0; is_revoked == 0;) {
    MPI_Iprobe(MPI_ANY_SOURCE, 0, MPI_COMM_SELF, &flag, MPI_STATUS_IGNORE);  // makes progress
    ulfm("MPIX_Comm_is_revoked", comm, &is_revoked);
  }
  for (int turn = 1; turn <= 3; ++turn) {
    const int code = MPI_Allreduce(in.data(), out.data(), kMany, MPI_INT, MPI_SUM, comm);
    expect_equal(class_of(code), kRevoked, "the class of the first call's error");
    expect_equal(calls_of_handler, turn, "calls of the handler");
  }
  recover(comm, ranks_of(comm), true);
}

int calls_of_other_handlers = 0;

void count_other_call(MPI_Comm*, int*, ...) { ++calls_of_other_handlers; }

int class_of_error(int code) {
  int kind = MPI_SUCCESS;
  if (code != MPI_SUCCESS) MPI_Error_class(code, &kind);
  return kind;
}

/// A datatype that the program has not committed: the MPI's error class, the handler of the call's
/// own communicator, and an error on all ranks.
void uncommitted() {
  MPI_Comm comm;
  MPI_Comm_dup(MPI_COMM_WORLD, &comm);
  expect(sum_of_ranks(comm) == expected_sum(comm), "the first sum");
  MPI_Errhandler own, other;
  MPI_Comm_create_errhandler(count_call, &own);
  MPI_Comm_create_errhandler(count_other_call, &other);
  MPI_Comm_set_errhandler(comm, own);
  for (const MPI_Comm one : {MPI_COMM_WORLD, MPI_COMM_SELF}) MPI_Comm_set_errhandler(one, other);
  MPI_Datatype bad, good;
  MPI_Type_vector(1000, 1, 2, MPI_INT, &bad);
  MPI_Type_vector(1000, 1, 2, MPI_INT, &good);
  MPI_Type_commit(&good);
  std::vector<int> all(static_cast<std::size_t>(2000 * ranks_of(comm)), -1);
  const auto expect_type_error = [&](int code, const char* what) {
    expect(class_of_error(code) == MPI_ERR_TYPE, what);
    expect(calls_of_handler == 1, "the handler is called once");
    calls_of_handler = 0;
  };
  expect_type_error(MPI_Allgather(in.data(), 1000, MPI_INT, all.data(), 1, bad, comm),
                    "the class of an output's error");
  expect_type_error(MPI_Allgather(in.data(), 1, bad, all.data(), 1000, MPI_INT, comm),
                    "the class of an input's error");
  MPI_Request request;
  const int started = MPI_Ibcast(all.data(), 1, bad, 0, comm, &request);
  expect_type_error(started != 0 ? started : MPI_Wait(&request, MPI_STATUS_IGNORE),
                    "the class of a non-blocking call's error");
  const bool is_wrong = rank_in(comm) == 1;
  const int code = MPI_Bcast(all.data(), 1, is_wrong ? bad : good, 0, comm);
  if (is_wrong)
    expect_type_error(code, "the class of an error of a single rank");
  else
    expect(code != MPI_SUCCESS, "an error of another rank");
  calls_of_handler = 0;
  expect(calls_of_other_handlers == 0, "no other communicator's handler is called");
  MPI_Allgather(in.data(), 1000, MPI_INT, all.data(), 1, good, comm);
  expect(all[0] == 1 && all[1] == -1 && all[1998] == 1, "a call after the errors");
  for (MPI_Datatype* one : {&bad, &good}) MPI_Type_free(one);
  for (MPI_Errhandler* one : {&own, &other}) MPI_Errhandler_free(one);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string name = argc > 1 ? argv[1] : "", how = argc > 2 ? argv[2] : "";
  MPI_Init(&argc, &argv);
  if (name == "own_handler")
    own_handler();
  else if (name == "persistent_handler")
    persistent_handler();
  else if (name == "status")
    status();
  else if (name == "wide_counts")
    wide_counts();
  else if (name == "revoked")
    revoked(how);
  else if (name == "killed")
    killed(how);
  else if (name == "uncommitted")
    uncommitted();
  else if (name == "unattached")
    unattached();
  else
    ++wrong;
  std::printf("{\"rank\": %d, \"wrong\": %ld, \"served\": %ld}\n", rank_in(MPI_COMM_WORLD), wrong,
              calls_served());
  std::fflush(stdout);
  if (name == "killed") ::_exit(0);  // Open MPI's MPI_Finalize may wait for the lost rank
  MPI_Finalize();
  return wrong == 0 ? 0 : 1;
}
