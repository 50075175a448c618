// Rendezvous as a star over rank 0: each peer holds a socket to rank 0. Rank 0 gathers and hands
// out all contributions: an allgather costs a round trip. Rank 0 sends the reason of any failure to
// all ranks.
#include "comm/bootstrap/rendezvous.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>

#include "base/error_reason.hpp"
#include "base/log.hpp"
#include "base/system_call.hpp"
#include "base/text.hpp"
#include "comm/bootstrap/launch_page.hpp"
#include "comm/bootstrap/process_file.hpp"
#include "comm/bootstrap/vote.hpp"
#include "plait/error.hpp"

namespace plait {
namespace {

constexpr const char* kProtocol = "plait-join-1";
constexpr std::int64_t kGraceNs =
    500'000'000;  // members wait longer than rank 0, to get rank 0's reason

constexpr std::int64_t kFolderNs = 5'000'000'000;  // wait for a program that makes the folder

std::string rank_name(int rank) { return text("rank {}", rank); }

Deadline extended(const Deadline& deadline, std::int64_t extra_ns) {
  return {deadline.at_ns + extra_ns, deadline.check};
}

/// Returns the same deadline with a check that warns once when the wait lasts long.
Deadline with_warning(const Deadline& deadline, WaitWarning& warning, int rank,
                      std::function<std::string()> sentence) {
  return {deadline.at_ns, [check = deadline.check, &warning, rank, sentence = std::move(sentence)] {
            if (check) check();
            warning.look(rank, sentence);
          }};
}

void send_failure(int socket, const Error& error, const std::string& peer) {
  const std::string bytes = pack({std::to_string(static_cast<int>(error.code())), error.what()});
  try {
    send_frame(socket, FrameKind::failure, bytes, {}, {now_ns() + 200'000'000, {}}, peer);
  } catch (const Error&) {  // that rank is lost or stuck too; the peers must still get the failure
  }
}

/// Receives a data frame, or throws the failure that the frame reports.
Frame receive_good(int socket, std::uint64_t max_bytes, std::size_t max_fds,
                   const Deadline& deadline, const std::string& peer) {
  Frame frame = receive_frame(socket, max_bytes, max_fds, deadline, peer);
  if (frame.kind == FrameKind::data) return frame;
  const std::vector<std::string> parts = unpack(frame.bytes);
  if (parts.size() != 2)
    throw Error(ErrorCode::parse_error, text("{} sent a malformed failure", peer));
  const auto code = static_cast<ErrorCode>(parse_integer("error code", parts[0], 1, 13));
  throw Error(code, text("{} reports: {}", peer, parts[1].substr(0, 4096)));
}

class Solo : public Rendezvous {
 public:
  std::vector<Contribution> allgather(const std::string& bytes, const std::vector<int>& fds,
                                      const Deadline&) override {
    std::vector<Contribution> all(1);
    all[0].bytes = bytes;
    for (int fd : fds) all[0].fds.emplace_back(fcntl(fd, F_DUPFD_CLOEXEC, 3));
    return all;
  }
};

class Star : public Rendezvous {
 public:
  /// links: on rank 0 a socket per rank (rank 0's is invalid); on peers a socket to rank 0.
  Star(int rank, int ranks, std::vector<Fd> links, double warn_after_s)
      : rank_(rank), ranks_(ranks), links_(std::move(links)), warning_(warn_after_s) {}

  std::vector<Contribution> allgather(const std::string& bytes, const std::vector<int>& fds,
                                      const Deadline& deadline) override {
    if (ended_by_) throw Error(*ended_by_);
    try {
      if (rank_ != 0) return ask(bytes, fds, deadline);
      std::vector<Contribution> all = gather(bytes, fds, deadline);
      hand_out(all, deadline);
      return all;
    } catch (const std::exception& caught) {
      end(as_error(caught));
      throw;
    }
  }

 private:
  /// Tells the peers of an exception. No step may follow: frames of the failed step may be unread
  /// or on their way, and would be taken for the next step's.
  void end(const Error& error) {
    ended_by_ = error;
    for (std::size_t i = 0; i < links_.size(); ++i)
      if (links_[i].valid())
        send_failure(links_[i].get(), error, rank_name(rank_ == 0 ? static_cast<int>(i) : 0));
  }

  /// Sends a frame as a whole, or nothing more: the peer must not take a later frame for the rest.
  static void send_whole(int socket, const std::string& bytes, const std::vector<int>& fds,
                         const Deadline& deadline, int to) {
    try {
      send_frame(socket, FrameKind::data, bytes, fds, deadline, rank_name(to));
    } catch (...) {
      shutdown(socket, SHUT_WR);
      throw;
    }
  }

  std::vector<Contribution> gather(const std::string& bytes, const std::vector<int>& fds,
                                   const Deadline& deadline) {
    std::vector<Contribution> all(ranks_);
    all[0].bytes = bytes;
    for (int fd : fds) all[0].fds.emplace_back(fcntl(fd, F_DUPFD_CLOEXEC, 3));
    for (int rank = 1; rank < ranks_; ++rank) {
      warning_.begin();
      const Deadline warned = with_warning(deadline, warning_, 0, [rank] {
        return text("rank 0 waits for {} to send its part of an exchange", rank_name(rank));
      });
      Frame frame = receive_good(links_[rank].get(), kMaxContributionBytes, kMaxContributionFds,
                                 warned, rank_name(rank));
      all[rank] = {std::move(frame.bytes), std::move(frame.fds)};
    }
    return all;
  }

  /// Sends to every rank all bytes, each rank's number of descriptors, and all descriptors.
  void hand_out(const std::vector<Contribution>& all, const Deadline& deadline) {
    std::vector<std::string> parts;
    std::vector<int> fds;
    for (const Contribution& one : all) {
      parts.push_back(one.bytes);
      parts.push_back(std::to_string(one.fds.size()));
      for (const Fd& fd : one.fds) fds.push_back(fd.get());
    }
    const std::string bytes = pack(parts);
    for (int rank = 1; rank < ranks_; ++rank) {
      try {
        send_whole(links_[rank].get(), bytes, fds, deadline, rank);
      } catch (const Error& error) {
        // Some ranks have their answer already, so this step stands. The next step finds the rank
        // lost.
        if (error.code() != ErrorCode::peer_lost) throw;
      }
    }
  }

  /// A peer that got the answer, and ended, is lost to this rank's check before the answer is here.
  Frame receive_answer(const Deadline& deadline) {
    const auto receive = [&](const Deadline& until) {
      return receive_good(links_[0].get(), kMaxFrameBytes, kMaxFrameFds, until, rank_name(0));
    };
    try {
      return receive(extended(deadline, kGraceNs));
    } catch (const Error& error) {
      if (error.code() != ErrorCode::peer_lost || names_reporter(error.what())) throw;
      try {
        return receive({now_ns() + kGraceNs, {}});
      } catch (const Error& later) {
        if (names_reporter(later.what())) throw;
      }
      throw;
    }
  }

  std::vector<Contribution> ask(const std::string& bytes, const std::vector<int>& fds,
                                const Deadline& deadline) {
    try {
      send_whole(links_[0].get(), bytes, fds, deadline, 0);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::peer_lost) throw;
      // Rank 0 is lost. The read below returns rank 0's reason if the socket still holds it.
    }
    Frame frame = receive_answer(deadline);
    const std::vector<std::string> parts = unpack(frame.bytes);
    if (parts.size() != 2 * static_cast<std::size_t>(ranks_))
      throw Error(ErrorCode::parse_error, "rank 0 handed out a malformed allgather");
    std::vector<Contribution> all(ranks_);
    std::size_t next = 0;
    for (int rank = 0; rank < ranks_; ++rank) {
      all[rank].bytes = parts[2 * rank];
      const auto count = static_cast<std::size_t>(
          parse_integer("descriptors", parts[2 * rank + 1], 0, kMaxContributionFds));
      if (count > frame.fds.size() - next)
        throw Error(ErrorCode::parse_error, "rank 0 handed out too few descriptors");
      for (std::size_t i = 0; i < count; ++i) all[rank].fds.push_back(std::move(frame.fds[next++]));
    }
    return all;
  }

  int rank_;
  int ranks_;
  std::vector<Fd> links_;
  std::optional<Error> ended_by_;
  WaitWarning warning_;
};

constexpr std::size_t kMostJobBytes = 16384, kMostJoinBytes = kMostJobBytes + 4096;

std::string join_bytes(int rank, int ranks, const std::string& job) {
  return pack({kProtocol, PLAIT_VERSION, std::to_string(rank), std::to_string(ranks),
               job.substr(0, kMostJobBytes)});
}

/// Returns the first line of `one` that `other` lacks.
std::string line_not_in(const std::string& one, const std::string& other) {
  const std::vector<std::string> lines = split(one, '\n'), others = split(other, '\n');
  for (const std::string& line : lines)
    if (std::find(others.begin(), others.end(), line) == others.end()) return line.substr(0, 200);
  return "no such variable";
}

/// Throws if the ranks belong to two launcher jobs that use the same rendezvous.
void check_job(const std::string& mine, int rank, const std::string& theirs) {
  if (mine.empty() || theirs.empty() || mine == theirs) return;
  throw Error(ErrorCode::mismatch,
              text("job: rank 0 belongs to the job with {}, rank {} to the one with {}; two jobs "
                   "use one rendezvous: give each a PLAIT_RENDEZVOUS of its own, or unset it",
                   line_not_in(mine, theirs), rank, line_not_in(theirs, mine)));
}

/// Rank 0's job, to be matched by joining ranks.
struct JobOf {
  int ranks = 1;
  std::string words;
};

/// Returns the rank of a join frame. Throws Error(parse_error) for another frame, Error(mismatch)
/// for a rank that does not fit this job.
int check_join(const std::string& bytes, const JobOf& job, const std::vector<Fd>& links) {
  const int ranks = job.ranks;
  const std::vector<std::string> parts = unpack(bytes);
  if (parts.size() < 4 || parts[0] != kProtocol)
    throw Error(ErrorCode::parse_error, "a connection does not speak plait's rendezvous protocol");
  const auto rank = static_cast<int>(parse_integer("rank", parts[2], -1'000'000, 1'000'000));
  if (parts[1] != PLAIT_VERSION)
    throw Error(ErrorCode::mismatch, text("version: rank 0 runs plait {}, rank {} runs {}",
                                          PLAIT_VERSION, rank, parts[1].substr(0, 40)));
  if (parts.size() != 5)
    throw Error(ErrorCode::parse_error, "a connection sent a malformed join frame");
  check_job(job.words, rank, parts[4]);
  const std::int64_t theirs = parse_integer("ranks", parts[3], -1'000'000, 1'000'000);
  if (theirs != ranks)
    throw Error(ErrorCode::mismatch,
                text("ranks: rank 0 was made with {}, rank {} with {}", ranks, rank, theirs));
  if (rank < 0 || rank >= ranks)
    throw Error(ErrorCode::mismatch, text("rank: wanted 0..{}, found {}", ranks - 1, rank));
  if (rank == 0 || links[rank].valid())
    throw Error(ErrorCode::mismatch,
                text("rank: two processes joined as rank {}; if they belong to two jobs without a "
                     "launcher, name each job: PLAIT_RENDEZVOUS=WORD",
                     rank));
  return rank;
}

/// The ranks that have joined until now, and the first error that fails the job.
struct Joining {
  JobOf job;
  std::vector<Fd> links;     // by rank
  std::vector<Fd> unplaced;  // connections without a valid rank
  std::unique_ptr<Error> failure;
  int told = 0;  // ranks that have got the failure
  int came() const {
    const auto placed =
        std::count_if(links.begin(), links.end(), [](const Fd& fd) { return fd.valid(); });
    return static_cast<int>(placed) + static_cast<int>(unplaced.size()) + told;
  }
  /// Returns no rank after a failure, since the failure is known.
  std::vector<int> awaited() const {
    std::vector<int> found;
    for (int rank = 1; rank < job.ranks; ++rank)
      if (!failure && !links[rank].valid()) found.push_back(rank);
    return found;
  }
  std::string missing() const {
    std::string list;
    for (int rank = 1; rank < job.ranks; ++rank)
      if (!links[rank].valid()) list += text("{}{}", list.empty() ? "" : ", ", rank);
    return list;
  }
};

/// Reads the join frame of a connection and stores the connection by rank. Drops connections of
/// other programs.
void place(Joining& joining, Fd connection) {
  try {
    check_peer_uid(connection.get(), geteuid());
    const Frame frame = receive_frame(connection.get(), kMostJoinBytes, 0,
                                      {now_ns() + 1'000'000'000, {}}, "a connection");
    const int rank = check_join(frame.bytes, joining.job, joining.links);
    joining.links[rank] = std::move(connection);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::mismatch) {
      log(LogLevel::warn, 0, text("rendezvous: dropped a connection: {}", error.what()));
      return;
    }
    joining.unplaced.push_back(std::move(connection));
    if (!joining.failure) joining.failure = std::make_unique<Error>(error);
  }
}

/// Returns a connection with data, taken out of `silent`; invalid at the deadline. New connections
/// go to `silent` first: a connection that never sends does not block ready connections.
Fd next_speaker(int listener, std::vector<Fd>& silent, const Deadline& deadline) {
  for (;;) {
    if (deadline.check) deadline.check();
    std::vector<pollfd> entries{{listener, POLLIN, 0}};
    for (const Fd& fd : silent) entries.push_back({fd.get(), POLLIN, 0});
    if (poll(entries.data(), entries.size(), 10) < 0 && errno != EINTR)
      throw call_failed(ErrorCode::io_error, "poll", errno);
    for (std::size_t i = 1; i < entries.size(); ++i) {
      if (entries[i].revents == 0) continue;
      Fd speaker = std::move(silent[i - 1]);
      silent.erase(silent.begin() + static_cast<std::ptrdiff_t>(i) - 1);
      return speaker;
    }
    constexpr std::size_t kMostSilent = 256;
    if (entries[0].revents != 0 && silent.size() < kMostSilent) {
      Fd fd = accept_from(listener, {now_ns(), {}});
      if (fd.valid()) silent.push_back(std::move(fd));
    }
    if (now_ns() >= deadline.at_ns) return Fd();
  }
}

struct Unlink {
  std::string path;
  ~Unlink() { unlink(path.c_str()); }
};

/// Reports the failure to all ranks that have come, and closes the connections.
void tell_failure(Joining& joining) {
  joining.told = joining.came();
  for (int rank = 1; rank < joining.job.ranks; ++rank) {
    const Fd link = std::move(joining.links[rank]);
    if (link.valid()) send_failure(link.get(), *joining.failure, rank_name(rank));
  }
  for (const Fd& fd : joining.unplaced) send_failure(fd.get(), *joining.failure, "a rank");
  joining.unplaced.clear();
}

/// Returns the same deadline with a check of the ranks that have joined. A rank sends nothing until
/// rank 0 answers, so an event on the connection is the rank's failure or end.
Deadline while_joined(const Deadline& deadline, const Joining& joining) {
  return {deadline.at_ns, [check = deadline.check, &joining] {
            if (check) check();
            if (joining.failure) return;
            std::vector<pollfd> entries;
            for (const Fd& link : joining.links) entries.push_back({link.get(), POLLIN, 0});
            if (poll(entries.data(), entries.size(), 0) <= 0) return;
            for (int rank = 1; rank < joining.job.ranks; ++rank) {
              if (entries[rank].revents == 0) continue;
              try {
                receive_good(joining.links[rank].get(), kMostJoinBytes, 0,
                             {now_ns() + 200'000'000, {}}, rank_name(rank));
              } catch (const Error& error) {
                throw Error(error.code(), text("{}; rank {} had not joined yet", reason_of(error),
                                               joining.missing()));
              }
            }
          }};
}

/// Rank 0 reports the outcome to every joined rank, and throws if the job failed.
void pronounce(Joining& joining) {
  if (!joining.failure) {
    for (int rank = 1; rank < joining.job.ranks; ++rank) {
      try {
        send_frame(joining.links[rank].get(), FrameKind::data, "ok", {},
                   {now_ns() + 1'000'000'000, {}}, rank_name(rank));
      } catch (const Error& error) {
        // Peers have got "ok" already: the first allgather finds this rank lost and reports the
        // loss to all.
        if (error.code() != ErrorCode::peer_lost) throw;
      }
    }
    return;
  }
  tell_failure(joining);
  throw Error(*joining.failure);
}

std::string sentence_about_wait(const std::string& who, const std::string& whom, int ranks,
                                const std::string& place) {
  return text("{} waits for {} of {} to join rendezvous '{}'", who, whom, ranks, place);
}

std::unique_ptr<Rendezvous> host_at(const std::string& path, Fd listener, const JobOf& job,
                                    const Deadline& deadline, double warn_after_s) {
  const Unlink unlink_after{path};
  const int ranks = job.ranks;
  Joining joining{job, std::vector<Fd>(ranks), {}, nullptr};
  std::vector<Fd> silent;
  WaitWarning warning(warn_after_s);
  const Deadline warned = with_warning(deadline, warning, 0, [&] {
    return sentence_about_wait(rank_name(0), text("rank {}", joining.missing()), ranks, path);
  });
  Deadline until =
      while_joined(while_launched(warned, 0, ranks, [&] { return joining.awaited(); }), joining);
  while (joining.came() < ranks - 1) {
    // After a failure, ranks that still come are awaited for 2 s, to get the error too.
    if (joining.failure) until.at_ns = std::min(until.at_ns, now_ns() + 2'000'000'000);
    Fd speaker;
    try {
      speaker = next_speaker(listener.get(), silent, until);
    } catch (const Error& error) {
      // The caller's own check throws again, and ends the wait for late ranks.
      const bool is_again = joining.failure != nullptr;
      if (!is_again) joining.failure = std::make_unique<Error>(error);
      const bool is_own = !names_reporter(error.what());
      if (is_again || (is_own && error.code() == ErrorCode::aborted)) break;
      // No descriptor is left for the next rank: closes the connections of ranks that have come.
      if (error.code() == ErrorCode::io_error) tell_failure(joining);
      continue;
    }
    if (!speaker.valid()) {
      if (!joining.failure)
        joining.failure = std::make_unique<Error>(
            ErrorCode::timeout,
            text("rendezvous '{}': rank {} of {} did not join before the deadline{}", path,
                 joining.missing(), ranks, why_elsewhere()));
      break;
    }
    place(joining, std::move(speaker));
  }
  pronounce(joining);
  return std::make_unique<Star>(0, ranks, std::move(joining.links), warn_after_s);
}

/// Returns whether the other end was closed before rank 0 had read the join frame.
bool is_closed_unread(int socket, const Deadline& deadline) {
  if (!wait_socket(socket, POLLIN, deadline)) return false;
  char first = 0;
  return recv(socket, &first, 1, MSG_PEEK | MSG_DONTWAIT) < 0 && errno == ECONNRESET;
}

/// The process that listens behind a connection; none if another PID namespace has the process.
class ListeningProcess {
 public:
  ListeningProcess() = default;
  explicit ListeningProcess(int socket) {
    ucred peer{};
    socklen_t size = sizeof(peer);
    if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 || peer.pid <= 0) return;
    process_ = open_process(peer.pid);
    is_gone_ = !process_.valid() && errno == ESRCH;
  }
  bool has_ended() const { return is_gone_ || plait::has_ended(process_); }

 private:
  Fd process_;
  bool is_gone_ = false;
};

/// Returns null if rank 0 has closed its end without reading the join frame.
std::unique_ptr<Rendezvous> join_rank_0(Fd link, int rank, const JobOf& job,
                                        const Deadline& deadline, double warn_after_s) {
  const Deadline until = extended(deadline, kGraceNs);
  const std::optional<Error> unsent = attempt([&] {
    send_frame(link.get(), FrameKind::data, join_bytes(rank, job.ranks, job.words), {}, deadline,
               rank_name(0));
  });
  if (unsent && unsent->code() == ErrorCode::peer_lost) return nullptr;
  if (unsent) throw Error(*unsent);
  try {
    if (is_closed_unread(link.get(), until)) return nullptr;
    receive_good(link.get(), 4096, 0, until, rank_name(0));
  } catch (const std::exception& caught) {  // rank 0 may wait for other ranks for long
    const Error error = as_error(caught);
    if (!names_reporter(error.what())) send_failure(link.get(), error, rank_name(0));
    throw;
  }
  std::vector<Fd> links;
  links.push_back(std::move(link));
  return std::make_unique<Star>(rank, job.ranks, std::move(links), warn_after_s);
}

std::unique_ptr<Rendezvous> bootstrap_at_path(const std::string& path, int rank, const JobOf& job,
                                              const Deadline& deadline, double warn_after_s) {
  // On every rank: for a wrong folder rank 0 has no socket to tell the peers of the error.
  check_folder_of(path, {std::min(deadline.at_ns, now_ns() + kFolderNs), deadline.check});
  WaitWarning warning(warn_after_s);
  const Deadline warned = with_warning(deadline, warning, rank, [&] {
    return sentence_about_wait(rank_name(rank), rank_name(0), job.ranks, path);
  });
  const Deadline launched =
      while_launched(warned, rank, job.ranks, [] { return std::vector<int>{0}; });
  ListeningProcess closed;  // has closed this rank's last connection unread; may listen again
  const Deadline until{launched.at_ns, [&] {
                         if (launched.check) launched.check();
                         if (closed.has_ended())
                           throw Error(ErrorCode::peer_lost, "rank 0 closed its socket");
                       }};
  // A second rank 0 listens once the first rank 0 has closed the socket.
  const auto until_listening = [&] {
    return Deadline{rank == 0 ? std::min(until.at_ns, now_ns() + 20'000'000) : until.at_ns,
                    until.check};
  };
  for (;; poll(nullptr, 0, 2)) {
    if (rank == 0) {
      Fd listener = listen_at(path, job.ranks + 16);
      if (listener.valid()) return host_at(path, std::move(listener), job, deadline, warn_after_s);
      // Another process is rank 0 at this path already: join as a member and be refused, so that
      // all get the error.
    }
    Fd link;
    try {
      link = connect_to(path, until_listening());
    } catch (const Error& error) {
      if (rank == 0 && error.code() == ErrorCode::timeout && now_ns() < until.at_ns) continue;
      throw;
    }
    ListeningProcess process(link.get());
    auto joined = join_rank_0(std::move(link), rank, job, deadline, warn_after_s);
    if (joined != nullptr) return joined;
    closed = std::move(process);
  }
}

/// Duplicates the inherited sockets, so that a later communicator can use them again.
std::vector<Fd> inherited(const std::string& list) {
  std::vector<Fd> links;
  for (const std::string& word : split(list, ',')) {
    const auto fd = static_cast<int>(parse_integer("rendezvous fd", word, 0, 1 << 20));
    check_stream_socket(fd);
    check_peer_uid(fd, geteuid());
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    links.emplace_back(fcntl(fd, F_DUPFD_CLOEXEC, 3));
  }
  return links;
}

std::unique_ptr<Rendezvous> bootstrap_over_sockets(const std::string& list, int rank,
                                                   const JobOf& job, const Deadline& deadline,
                                                   double warn_after_s) {
  const int ranks = job.ranks;
  std::vector<Fd> sockets = inherited(list);
  const std::size_t wanted = rank == 0 ? static_cast<std::size_t>(ranks) - 1 : 1;
  if (sockets.size() != wanted)
    throw Error(ErrorCode::invalid_argument,
                text("rendezvous fd:{}: wanted {} sockets for rank {} of {}, found {}", list,
                     wanted, rank, ranks, sockets.size()));
  if (rank != 0) {
    auto joined = join_rank_0(std::move(sockets[0]), rank, job, deadline, warn_after_s);
    if (joined == nullptr) throw Error(ErrorCode::peer_lost, "rank 0 closed its socket");
    return joined;
  }
  WaitWarning warning(warn_after_s);
  Joining joining{job, std::vector<Fd>(ranks), {}, nullptr};
  for (int peer = 1; peer < ranks; ++peer) {
    Fd& socket = sockets[peer - 1];
    warning.begin();
    const Deadline warned = with_warning(deadline, warning, 0, [&] {
      return sentence_about_wait(rank_name(0), rank_name(peer), ranks, "fd:" + list);
    });
    try {
      const Frame frame = receive_frame(socket.get(), kMostJoinBytes, 0, warned, rank_name(peer));
      const int named = check_join(frame.bytes, job, joining.links);
      joining.links[named] = std::move(socket);
    } catch (const Error& error) {
      joining.unplaced.push_back(std::move(socket));
      if (!joining.failure) joining.failure = std::make_unique<Error>(error);
    }
  }
  pronounce(joining);
  return std::make_unique<Star>(0, ranks, std::move(joining.links), warn_after_s);
}

}  // namespace

std::unique_ptr<Rendezvous> bootstrap(const std::string& where, int rank, int ranks,
                                      const Deadline& deadline, double warn_after_s,
                                      const std::string& job) {
  if (ranks == 1 && rank == 0) return std::make_unique<Solo>();
  if (where.rfind("unix:", 0) == 0)
    return bootstrap_at_path(where.substr(5), rank, {ranks, job}, deadline, warn_after_s);
  if (where.rfind("fd:", 0) == 0)
    return bootstrap_over_sockets(where.substr(3), rank, {ranks, job}, deadline, warn_after_s);
  throw Error(ErrorCode::invalid_argument,
              text("rendezvous: wanted unix:PATH or fd:N[,N...], found '{}'", where));
}

}  // namespace plait
