// Non-blocking calls: each is a generalized request of the MPI's own, so any function takes it.
// Who asks for its end, through any of MPI's functions for that, completes it first; plait's part
// runs in a thread that calls no MPI, so the program's thread level stays what it asked for.
#pragma once
#include <optional>

#include "plait/error.hpp"
#include "shims/mpi/serve.hpp"

namespace plait::mpi {

struct Operation {
  Operation(std::shared_ptr<State> in, Job what) : state(std::move(in)), job(std::move(what)) {}
  std::shared_ptr<State> state;
  Job job;
  Handle request = 0;
  std::optional<Error> error;  ///< written before `ended`
  int code = 0;                ///< of the error, for the status
  std::atomic<bool> ended{false};
};

/// Requests that have begun and that the MPI has not been told the end of.
extern constinit std::atomic<int> pending;

int begin_served(const Served& call, const Asked& asked, void* request);
/// Tells the MPI of all that have ended.
void complete_ended();
/// plait's thread has ended one.
void operation_ended(Operation& operation);
/// A short sleep, or until one ends.
void nap(int round);

/// In the program's thread, while it waits for plait: lets the MPI move what else is under way.
/// False in plait's own threads, which call no MPI.
bool let_mpi_progress();
/// Before the first of these, and after the last.
void begin_progress();
void end_progress();

/// The program's thread, while a wrapped call runs.
class InProgram {
 public:
  InProgram() { ++depth; }
  ~InProgram() { --depth; }
  InProgram(const InProgram&) = delete;
  InProgram& operator=(const InProgram&) = delete;
  static constinit thread_local int depth;
};

/// A blocking completion function, as its testing twin in a loop while requests of plait's are
/// pending: test(&flag), and wait() once there are none.
template <class Test, class Wait>
int until(const Test& test, const Wait& wait) {
  for (int round = 0; pending.load(std::memory_order_acquire) != 0; ++round) {
    complete_ended();
    int flag = 0;
    const int code = test(&flag);
    if (code != 0 || flag != 0) return code;
    nap(round);
  }
  return wait();
}

}  // namespace plait::mpi
