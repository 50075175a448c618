// The answer is one JSON document, after which the connection is closed: whoever asks sends
// nothing.
#include "comm/trace/status.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <new>
#include <utility>

#include "base/log.hpp"
#include "base/system_call.hpp"
#include "base/text.hpp"
#include "base/threads.hpp"
#include "comm/bootstrap/rendezvous.hpp"
#include "comm/bootstrap/vote.hpp"
#include "comm/bootstrap/wait_warning.hpp"
#include "comm/trace/hang.hpp"
#include "comm/trace/open_calls.hpp"
#include "plait/error.hpp"

namespace plait {
namespace {

constexpr double kAnswerS = 5;          ///< for a reader that does not read
constexpr double kRestS = 1;            ///< after an accept without a free descriptor
constexpr std::size_t kKeptFiles = 16;  ///< of last calls, of all processes in the folder

std::string quoted(const std::string& word) {
  std::string made = "\"";
  for (const char letter : word) {
    if (letter == '"' || letter == '\\') made += '\\';
    made += static_cast<unsigned char>(letter) < ' ' ? ' ' : letter;
  }
  return made + '"';
}

/// Joins the items that `print` makes of a list, by commas.
template <class List, class Print>
std::string each(const List& list, const Print& print) {
  std::string made;
  for (const auto& one : list) made += (made.empty() ? "" : ",") + print(one);
  return made;
}

const char* name_of(ProcessState state) {
  switch (state) {
    case ProcessState::runs: return "runs";
    case ProcessState::stopped: return "stopped";
    case ProcessState::dead: return "dead";
  }
  return "?";
}

double seconds_since(std::int64_t then_ns, std::int64_t now) {
  return static_cast<double>(now - then_ns) * 1e-9;
}

/// why: FlightInfo::why.
std::string call_json(const FlightCall& call, std::uint64_t ended, std::int64_t now,
                      std::string (*why)(std::uint8_t)) {
  return text("{{\"index\":{},\"number\":{},\"call\":{},\"seconds_ago\":{},\"ended\":{}{}}}",
              call.index, call.number, quoted(call_text(call)), seconds_since(call.entered_ns, now),
              call.index <= ended ? "true" : "false",
              why == nullptr || call.reason == 0 ? "" : ",\"why\":" + quoted(why(call.reason)));
}

std::string calls_json(const RankFlight& rank, std::int64_t now, std::string (*why)(std::uint8_t)) {
  return "[" +
         each(rank.calls,
              [&](const FlightCall& call) { return call_json(call, rank.ended, now, why); }) +
         "]";
}

std::string rank_json(const RankFlight& rank, StatusCalls calls, std::int64_t now,
                      std::string (*why)(std::uint8_t)) {
  return text("{{\"rank\":{},\"pid\":{},\"state\":\"{}\",\"number\":{},\"last\":{}{}}}", rank.rank,
              rank.pid, name_of(rank.state), rank.numbered,
              rank.calls.empty() ? "null" : call_json(rank.calls.back(), rank.ended, now, why),
              calls == StatusCalls::own ? "" : ",\"calls\":" + calls_json(rank, now, why));
}

/// A call on GPU memory may have ended unseen, so there only a visible cause counts as a wait.
std::string wait_json(const FlightInfo& info, const std::vector<RankFlight>& ranks,
                      std::int64_t now) {
  const Hang hang = explain_hang(ranks, info.rank, info.ranks, now);
  const bool is_of_other = info.why != nullptr;
  if (hang.call.empty() || (!hang.has_cause && info.memory != "host" && !is_of_other))
    return "null";
  const std::string reason =
      is_of_other ? "the MPI serves the call, so the other ranks are not known" : hang.reason;
  return text("{{\"in\":{},\"reason\":{},\"seconds\":{}}}", quoted(hang.call), quoted(reason),
              seconds_since(info.mine->last_entered_ns(), now));
}

std::string communicator_json(const FlightInfo& info, StatusCalls whose) {
  const std::int64_t now = now_ns();
  const std::vector<RankFlight> ranks = flights_of(info);
  const std::vector<FlightMemory> held = info.held ? info.held() : std::vector<FlightMemory>();
  std::string calls = "[]";
  for (const RankFlight& one : ranks)
    if (one.rank == info.rank) calls = calls_json(one, now, info.why);
  return text(
      "{{\"door\":{},\"id\":{},\"name\":{},\"memory\":{},\"rank\":{},\"ranks\":{},\"number\":{},"
      "\"waits\":{},\"here\":[{}],\"calls\":{},\"bytes\":{{{}}}}}",
      quoted(info.door), quoted(info.id), quoted(info.name), quoted(info.memory), info.rank,
      info.ranks, info.mine->numbered(), wait_json(info, ranks, now),
      each(ranks,
           [&](const RankFlight& one) { return rank_json(one, whose, now, info.why); }),
      calls,
      each(held,
           [](const FlightMemory& one) { return text("{}:{}", quoted(one.part), one.bytes); }));
}

/// Returns the calls of another library that the program's threads are in.
std::string now_json() {
  const OpenCallsInfo* const info = open_calls_info();
  if (info == nullptr) return "";
  return each(open_calls(), [&](const ThreadCall& one) {
    return text(
        "{{\"door\":{},\"rank\":{},\"ranks\":{},\"thread\":{},\"in\":{},\"seconds\":{}}}",
        quoted(info->door), info->rank, info->ranks, one.thread, quoted(one.call), one.seconds);
  });
}

/// Of a process. Never destroyed; a forked child makes a new one.
struct OpenSocket {
  std::string path;
  Fd listener;
  const pid_t owner = ::getpid();
};

std::atomic<OpenSocket*> open_socket{nullptr};

OpenSocket* mine() noexcept {
  OpenSocket* const found = open_socket.load();
  return found != nullptr && found->owner == ::getpid() ? found : nullptr;
}

std::atomic<std::int64_t> rests_until_ns{0};

/// Returns the path of this process's file of a kind.
std::string path_of(const char* kind) {
  return text("{}/{}-{}-{}", rendezvous_folder(), kind, ::getpid(), pid_namespace());
}

/// Removes old files of last calls but the newest, which may be of processes that have ended.
void remove_old_calls() {
  using Entry = std::pair<std::filesystem::file_time_type, std::filesystem::path>;
  std::vector<Entry> found;
  std::error_code failure;
  std::filesystem::directory_iterator files(rendezvous_folder(), failure), end;
  for (; !failure && files != end; files.increment(failure)) {
    if (!files->path().filename().string().starts_with("calls-")) continue;
    std::error_code gone;
    const auto written = files->last_write_time(gone);
    if (!gone) found.emplace_back(written, files->path());
  }
  std::sort(found.begin(), found.end(), std::greater<>());
  for (std::size_t i = kKeptFiles; i < found.size(); ++i)
    std::filesystem::remove(found[i].second, failure);
}

/// Writes a whole file or none.
void write_file(const std::string& path, const std::string& body) {
  const std::string part = text("{}.{}", path, ::gettid());
  const Fd file(::open(part.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600));
  int failure = file.valid() ? 0 : errno;
  for (std::size_t done = 0; failure == 0 && done < body.size();) {
    const ssize_t one = ::write(file.get(), body.data() + done, body.size() - done);
    if (one > 0) done += static_cast<std::size_t>(one);
    if (one <= 0 && errno != EINTR) failure = one == 0 ? ENOSPC : errno;
  }
  if (failure == 0 && ::rename(part.c_str(), path.c_str()) != 0) failure = errno;
  if (failure == 0) return;
  if (file.valid()) ::unlink(part.c_str());
  throw call_failed(ErrorCode::io_error, "write", failure, path);
}

void listen_in(OpenSocket& made) {
  const std::string usual = path_of("status");
  for (const char* const suffix : {"", "-2", "-3"}) {
    made.path = usual + suffix;
    made.listener = listen_at(made.path, 8);
    if (!made.listener.valid()) continue;
    ::chmod(made.path.c_str(), 0600);  // the folder admits no other user meanwhile
    return;
  }
}

void send_status(const Fd& asker) {
  check_peer_uid(asker.get(), ::geteuid());
  const std::string answer = status_json();
  const Deadline deadline{deadline_in(kAnswerS), nullptr};
  for (std::size_t sent = 0; sent < answer.size();) {
    if (!wait_socket(asker.get(), POLLOUT, deadline)) return;
    const ssize_t one =
        ::send(asker.get(), answer.data() + sent, answer.size() - sent, MSG_NOSIGNAL);
    if (one > 0) sent += static_cast<std::size_t>(one);
    if (one < 0 && errno != EAGAIN && errno != EINTR) return;
  }
}

[[gnu::destructor]] void remove_socket() {
  if (const OpenSocket* const made = mine()) ::unlink(made->path.c_str());
}

}  // namespace

std::string status_json(StatusCalls calls) {
  std::string communicators;
  for_each_flight([&](const FlightInfo& info) {
    communicators += (communicators.empty() ? "\n" : ",\n") + communicator_json(info, calls);
  });
  return text(
      "{{\"schema\":\"plait.status/1\",\"pid\":{},\"version\":{},\"warn_s\":{},\"communicators\":"
      "[{}],\"now\":[{}]}}\n",
      ::getpid(), quoted(PLAIT_VERSION), wait_warning_s(), communicators, now_json());
}

std::string write_last_calls() noexcept {
  std::string said;
  const std::optional<Error> failure = attempt([&] {
    const std::string body = status_json(StatusCalls::all_ranks);
    const std::string path = path_of("calls") + ".json";
    write_file(path, body);
    remove_old_calls();
    said = "; last calls of all ranks: " + path;
  });
  if (failure) log(LogLevel::warn, -1, text("no file of last calls: {}", failure->what()));
  return said;
}

void StatusSocket::open() noexcept {
  static std::atomic<pid_t> opener{0};  // no lock, which a forked child might find held
  if (mine() != nullptr || opener.exchange(::getpid()) == ::getpid()) return;
  auto* const made = new (std::nothrow) OpenSocket;
  if (made == nullptr) return;
  const std::optional<Error> failure = attempt([&] { listen_in(*made); });
  if (failure) log(LogLevel::info, -1, text("no `plait status`: {}", failure->what()));
  open_socket.store(made);
}

int StatusSocket::file() noexcept {
  const OpenSocket* const made = mine();
  return made == nullptr || rest_ms() >= 0 ? -1 : made->listener.get();
}

int StatusSocket::rest_ms() noexcept {
  const std::int64_t left_ns = rests_until_ns.load() - now_ns();
  return left_ns < 0 ? -1 : static_cast<int>(left_ns / 1'000'000) + 1;
}

void StatusSocket::answer() noexcept {
  const int listener = file();
  if (listener < 0) return;
  for (;;) {
    const int asker = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (asker < 0) {  // without a free descriptor the listener stays readable
      if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
        rests_until_ns.store(deadline_in(kRestS));
      return;
    }
    static_cast<void>(attempt([&] {
      auto held = std::make_shared<Fd>(asker);
      quiet_thread([held] { static_cast<void>(attempt([&] { send_status(*held); })); }).detach();
    }));
  }
}

}  // namespace plait
