// Names, texts and exit codes of errors, from errors.def.
#include "plait/error.hpp"

#include "base/error_reason.hpp"
#include "base/text.hpp"

namespace plait {
namespace {

struct ErrorRow {
  ErrorCode code;
  const char* name;
  const char* text;
  int exit_code;
  bool is_bug;
};

enum ErrorKind { refusal, bug };

constexpr ErrorRow kErrors[] = {
#define PLAIT_ERROR(name, number, kind, exit_code, python_class, nccl_result, mpi_class, text) \
  {ErrorCode::name, #name, text, exit_code, (kind) == bug},
#include "plait/errors.def"
#undef PLAIT_ERROR
};

const ErrorRow& row(ErrorCode code) noexcept {
  for (const ErrorRow& candidate : kErrors)
    if (candidate.code == code) return candidate;
  return kErrors[std::size(kErrors) - 1];
}

/// Prefixes the code's text once: removes the text where the message quotes another error of this
/// code.
std::string worded(ErrorCode code, std::string message) {
  const std::string words = text("{}: ", error_text(code));
  for (std::size_t at = 0; (at = message.find(words, at)) != std::string::npos;)
    message.erase(at, words.size());
  return words + message;
}

}  // namespace

const char* error_name(ErrorCode code) noexcept { return row(code).name; }
const char* error_text(ErrorCode code) noexcept { return row(code).text; }
int error_exit_code(ErrorCode code) noexcept { return row(code).exit_code; }
bool error_is_bug(ErrorCode code) noexcept { return row(code).is_bug; }

Error::Error(ErrorCode code, const std::string& message)
    : std::runtime_error(worded(code, message)), code_(code) {}

std::string reason_of(const Error& error) {
  const std::string whole = error.what();
  const std::string prefix = text("{}: ", error_text(error.code()));
  return whole.rfind(prefix, 0) == 0 ? whole.substr(prefix.size()) : whole;
}

}  // namespace plait
