// A vote is encoded as an error code, a reason, and bytes.
#include "comm/bootstrap/vote.hpp"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <new>
#include <system_error>

#include "base/env.hpp"
#include "base/error_reason.hpp"
#include "base/system_call.hpp"
#include "base/text.hpp"
#include "comm/bootstrap/socket.hpp"

namespace plait {
namespace {

constexpr std::size_t kReasonBytes = 2048;
constexpr const char* kReports = " reports: ";

}  // namespace

Error as_error(const std::exception& caught) {
  if (const auto* const error = dynamic_cast<const Error*>(&caught)) return *error;
  if (dynamic_cast<const std::bad_alloc*>(&caught) != nullptr)
    return Error(ErrorCode::out_of_memory, "this process has no memory left");
  if (const auto* const error = dynamic_cast<const std::system_error*>(&caught))
    // In plait's set-up, only thread creation throws system_error.
    return call_failed(ErrorCode::out_of_memory, "pthread_create", error->code().value(),
                       "a thread of plait's own");
  return Error(ErrorCode::internal, caught.what());
}

std::optional<Error> attempt(const std::function<void()>& step) {
  try {
    step();
  } catch (const std::exception& caught) {
    return as_error(caught);
  }
  return std::nullopt;
}

std::string encode_vote(const std::optional<Error>& failure, const std::string& bytes) {
  return pack({text("{}", failure ? static_cast<int>(failure->code()) : 0),
               failure ? reason_of(*failure).substr(0, kReasonBytes) : "", bytes});
}

std::string decode_vote(const std::string& record, const std::string& rank) {
  std::vector<std::string> parts = unpack(record);
  if (parts.size() != 3)
    throw Error(ErrorCode::parse_error, text("{} sent a malformed vote", rank));
  const auto number = parse_integer("error code", parts[0], 0, 13);
  if (number != 0)
    throw AgreedError(static_cast<ErrorCode>(number),
                      parts[1].starts_with("rank ") ? parts[1] : text("{}: {}", rank, parts[1]));
  return std::move(parts[2]);
}

std::vector<std::string> vote(const Allgather& carry, const std::optional<Error>& failure,
                              const std::string& bytes) {
  std::vector<std::string> all = carry(encode_vote(failure, bytes));
  for (std::size_t rank = 0; rank < all.size(); ++rank)
    all[rank] = decode_vote(all[rank], text("rank {}", rank));
  return all;
}

bool names_reporter(const std::string& reason) {
  return reason.find(kReports) != std::string::npos;
}

Error reported_by(const std::string& rank, ErrorCode code, const std::string& reason) {
  return Error(code, names_reporter(reason) ? reason : text("{}{}{}", rank, kReports, reason));
}

std::string unique_token() {
  static std::atomic<unsigned> made{0};
  return text("{}-{}-{}", getpid(), std::chrono::steady_clock::now().time_since_epoch().count(),
              made++);
}

}  // namespace plait
