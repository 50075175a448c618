// Answers `plait status`: a private socket per process, and the state of its communicators as JSON.
#pragma once
#include <string>

#include "comm/bootstrap/socket.hpp"

namespace plait {

/// Whose last 64 calls a status has.
enum class StatusCalls { own, all_ranks };
/// Returns the process's communicators, their ranks and last calls, and who waits for whom
/// (schema plait.status/1, docs/hangs.md). Reads memory alone: waits for no rank and no driver.
std::string status_json(StatusCalls calls = StatusCalls::own);
/// Writes the status with all ranks' calls to calls-PID-NAMESPACE.json in the folder of rendezvous
/// sockets, with mode 0600, when a hang ends by an abort or a death. Keeps the newest 16 files of
/// all processes. Returns "; last calls of all ranks:
/// PATH" for messages; empty if the file cannot be written.
std::string write_last_calls() noexcept;

/// The socket at which this process answers: status-PID-NAMESPACE in the folder of rendezvous
/// sockets (0700), with mode 0600. NAMESPACE: number of the PID namespace, since containers may
/// share the folder. A process with several libraries of plait has status-PID-NAMESPACE-2 too.
class StatusSocket {
 public:
  /// Makes the socket in the calling thread, unless another thread has begun to. Logs a failure.
  static void open() noexcept;
  /// Descriptor that becomes readable when someone asks; -1 = no socket, or it rests.
  static int file() noexcept;
  /// Milliseconds until a socket that rests answers again, since the process had no descriptor
  /// left; -1 = does not rest.
  static int rest_ms() noexcept;
  /// Answers those who ask, each in a thread, so that the caller waits for none. Processes of other
  /// users get no answer.
  static void answer() noexcept;
};

}  // namespace plait
