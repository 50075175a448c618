// The error type of plait; errors.def lists every code, Python class and exit status. A code is a
// refusal (bad input, missing hardware, peer gone) or a bug (an invariant of plait broke).
#pragma once
#include <stdexcept>
#include <string>

namespace plait {

enum class ErrorCode : int {
#define PLAIT_ERROR(name, number, kind, exit_code, python_class, nccl_result, mpi_class, text) \
  name = number,
#include "plait/errors.def"
#undef PLAIT_ERROR
};

/// The enum name of a code, e.g. "peer_lost".
const char* error_name(ErrorCode code) noexcept;
/// The short fixed text of a code, e.g. "peer lost".
const char* error_text(ErrorCode code) noexcept;
/// The status a command line program ends with on this code.
int error_exit_code(ErrorCode code) noexcept;
/// True if the code means that an invariant of plait broke.
bool error_is_bug(ErrorCode code) noexcept;

/// The exception that plait throws. The message says what was wanted, what was found, and what to
/// do.
class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message);
  ErrorCode code() const noexcept { return code_; }

 private:
  ErrorCode code_;
};

}  // namespace plait
