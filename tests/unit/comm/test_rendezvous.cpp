// Tests the rendezvous over Unix sockets: every rank gets all contributions, and ranks that do not
// fit together fail on every rank.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <optional>
#include <system_error>
#include <thread>

#include "base/log.hpp"
#include "base/system_call.hpp"
#include "base/text.hpp"
#include "comm/bootstrap/rendezvous.hpp"
#include "comm/bootstrap/vote.hpp"
#include "plait/error.hpp"
#include "unit/folder.hpp"
#include "unit/scale.hpp"

using namespace plait;

namespace {

Deadline seconds(double s) { return {deadline_in(s), {}}; }

void allgather_twice(Rendezvous& rendezvous, int rank, int ranks) {
  for (int round = 0; round < 2; ++round) {
    const std::string mine(static_cast<std::size_t>(rank) * 40000,
                           static_cast<char>('a' + rank + round));
    Fd zero(open("/dev/zero", O_RDONLY | O_CLOEXEC));
    const auto all = rendezvous.allgather(mine, {zero.get()}, seconds(10));
    if (all.size() != static_cast<std::size_t>(ranks)) throw std::runtime_error("wrong number");
    for (int peer = 0; peer < ranks; ++peer) {
      if (all[peer].bytes != std::string(static_cast<std::size_t>(peer) * 40000,
                                         static_cast<char>('a' + peer + round)))
        throw std::runtime_error(text("wrong bytes of rank {}", peer));
      if (all[peer].fds.size() != 1 || (fcntl(all[peer].fds[0].get(), F_GETFD) & FD_CLOEXEC) == 0)
        throw std::runtime_error("descriptor missing or not close-on-exec");
    }
  }
}

bool all_contain(const std::vector<std::string>& thrown, const std::string& words) {
  for (const std::string& one : thrown) {
    CAPTURE(one);
    CHECK(one.find(words) != std::string::npos);
    if (one.find(words) == std::string::npos) return false;
  }
  return true;
}

}  // namespace

TEST_CASE("ranks join at a path, exchange bytes and descriptors, and leave nothing") {
  const int before = open_descriptors();
  for (int ranks : {1, 2, 3, 8}) {
    TestFolder folder;
    const auto thrown = as_threads(ranks, [&](int rank) {
      const auto rendezvous = bootstrap("unix:" + folder.socket(), rank, ranks, seconds(10));
      allgather_twice(*rendezvous, rank, ranks);
    });
    for (const std::string& one : thrown) CHECK(one == "");
    CHECK(entries_of(folder.path()) == 0);
  }
  CHECK(open_descriptors() == before);
}

TEST_CASE("ranks join over inherited socket pairs, again and again") {
  int pairs[2][2];
  for (auto& pair : pairs) REQUIRE(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
  for (int round = 0; round < 2; ++round) {
    const auto thrown = as_threads(3, [&](int rank) {
      const std::string where = rank == 0 ? text("fd:{},{}", pairs[0][0], pairs[1][0])
                                          : text("fd:{}", pairs[rank - 1][1]);
      const auto rendezvous = bootstrap(where, rank, 3, seconds(10));
      allgather_twice(*rendezvous, rank, 3);
    });
    for (const std::string& one : thrown) CHECK(one == "");
  }
  for (auto& pair : pairs) close(pair[0]), close(pair[1]);
}

TEST_CASE("two processes of one rank, a rank out of range, other ranks: an error for everyone") {
  SUBCASE("duplicate member") {
    TestFolder folder;
    const std::vector<int> as = {0, 1, 1};
    CHECK(all_contain(
        as_threads(3, [&](int i) { bootstrap("unix:" + folder.socket(), as[i], 3, seconds(10)); }),
        "two processes joined as rank 1"));
  }
  SUBCASE("two roots") {
    TestFolder folder;
    const std::vector<int> as = {0, 0, 1};
    CHECK(all_contain(
        as_threads(3, [&](int i) { bootstrap("unix:" + folder.socket(), as[i], 3, seconds(10)); }),
        "two processes joined as rank 0"));
  }
  SUBCASE("out of range") {
    TestFolder folder;
    const std::vector<int> as = {0, 1, 7};
    CHECK(all_contain(
        as_threads(3, [&](int i) { bootstrap("unix:" + folder.socket(), as[i], 3, seconds(10)); }),
        "rank: wanted 0..2, found 7"));
  }
  SUBCASE("another number of ranks") {
    TestFolder folder;
    const std::vector<int> of = {3, 3, 4};
    CHECK(all_contain(
        as_threads(3, [&](int i) { bootstrap("unix:" + folder.socket(), i, of[i], seconds(10)); }),
        "ranks: rank 0 was made with 3, rank 2 with 4"));
  }
}

TEST_CASE("ranks of two launchers' jobs at one rendezvous get an error that names both jobs") {
  const std::vector<std::string> jobs = {"MASTER_ADDR=a\nMASTER_PORT=29500\n", "",
                                         "MASTER_ADDR=a\nMASTER_PORT=29501\n"};
  {
    TestFolder folder;
    CHECK(
        all_contain(as_threads(3,
                               [&](int rank) {
                                 bootstrap("unix:" + folder.socket(), rank, 3, seconds(10), 10,
                                           jobs[static_cast<std::size_t>(rank)]);
                               }),
                    "job: rank 0 belongs to the job with MASTER_PORT=29500, rank 2 to the one with "
                    "MASTER_PORT=29501"));
  }
  TestFolder folder;
  for (const std::string& one : as_threads(2, [&](int rank) {
         bootstrap("unix:" + folder.socket(), rank, 2, seconds(10), 10, jobs[0]);
       }))
    CHECK(one == "");
}

TEST_CASE("an error of a limit or a sandbox names the call and the remedy") {
  const auto said = [](int error, const char* call) {
    return std::string(call_failed(ErrorCode::io_error, call, error, "an arena").what());
  };
  CHECK(call_failed(ErrorCode::io_error, "memfd_create", ENOSYS).code() == ErrorCode::unsupported);
  CHECK(said(EPERM, "fallocate").find("an arena: fallocate: Operation not permitted; ") !=
        std::string::npos);
  CHECK(said(EPERM, "fallocate").find("seccomp profile that allows fallocate") !=
        std::string::npos);
  CHECK(said(EMFILE, "socket").find("ulimit -n") != std::string::npos);
  CHECK(said(ENOSPC, "fallocate").find("seccomp") == std::string::npos);
  const std::optional<Error> no_thread = attempt(
      [] { throw std::system_error(EAGAIN, std::generic_category(), "cannot make a thread"); });
  REQUIRE(no_thread.has_value());
  CHECK(no_thread->code() == ErrorCode::out_of_memory);
  CHECK(std::string(no_thread->what()).find("pthread_create: ") != std::string::npos);
  CHECK(std::string(no_thread->what()).find("ulimit -u") != std::string::npos);
}

TEST_CASE("a rank that does not come is named on the other ranks") {
  TestFolder folder;
  const auto thrown =
      as_threads(2, [&](int rank) { bootstrap("unix:" + folder.socket(), rank, 3, seconds(0.2)); });
  CHECK(all_contain(thrown, "rank 2 of 3 did not join"));
  CHECK(entries_of(folder.path()) == 0);
  const auto alone =
      as_threads(1, [&](int) { bootstrap("unix:" + folder.socket(), 1, 2, seconds(0.1)); });
  CHECK(all_contain(alone, "rank 0 did not come"));
  CHECK(all_contain(alone, "PLAIT_NODE_SIZE (here unset) must be the same on all ranks"));
}

/// Waits until a rank has connected.
static void await_connection(const Fd& listener) {
  pollfd entry{listener.get(), POLLIN, 0};
  poll(&entry, 1, 10'000);
}

TEST_CASE("a rank that leaves while others have not joined is an error for the rest at once") {
  TestFolder folder;
  const std::int64_t began_ns = now_ns();
  for (const bool says_why : {false, true}) {
    std::atomic<bool> has_left{false};
    const auto thrown = as_threads(3, [&](int rank) {
      const std::string place = "unix:" + folder.socket();
      if (rank == 2) {  // comes once rank 0 has failed, and gets the failure too
        while (!has_left) poll(nullptr, 0, 1);
        poll(nullptr, 0, 300);
        bootstrap(place, rank, 3, seconds(20));
      } else if (rank == 1 && !says_why) {  // a process that ends
        const Fd link = connect_to(folder.socket(), seconds(20));
        send_frame(link.get(), FrameKind::data, pack({"plait-join-1", PLAIT_VERSION, "1", "3", ""}),
                   {}, seconds(1), "rank 0");
        poll(nullptr, 0, 100);
        has_left = true;
      } else if (rank == 1) {
        const std::int64_t leaves_ns = deadline_in(1);  // rank 0 listens by then
        const Deadline leaves{deadline_in(20), [&] {
                                if (now_ns() < leaves_ns) return;
                                has_left = true;
                                throw Error(ErrorCode::aborted, "Ctrl-C");
                              }};
        bootstrap(place, rank, 3, leaves);
      } else {
        bootstrap(place, rank, 3, seconds(20));
      }
    });
    const std::string words =
        says_why ? "aborted: rank 1 reports: Ctrl-C" : "peer lost: rank 1 closed its socket";
    CHECK(thrown[0] == words + "; rank 2 had not joined yet");
    CHECK(thrown[1] == (says_why ? "aborted: Ctrl-C" : ""));
    CHECK(thrown[2].find(says_why ? "Ctrl-C" : "rank 1 closed its socket") != std::string::npos);
  }
  CHECK(now_ns() - began_ns < 25'000'000'000);
}

TEST_CASE("a rank that reached the socket of an earlier attempt joins the next attempt") {
  TestFolder folder;
  std::optional<Fd> earlier(listen_at(folder.socket(), 4));
  const auto thrown = as_threads(2, [&](int rank) {
    if (rank == 0) {
      await_connection(*earlier);
      ::unlink(folder.socket().c_str());
      earlier.reset();
    }
    const auto rendezvous = bootstrap("unix:" + folder.socket(), rank, 2, seconds(10));
    allgather_twice(*rendezvous, rank, 2);
  });
  for (const std::string& one : thrown) CHECK(one == "");
}

TEST_CASE("the end of a rank 0 that has not read is no earlier attempt") {
  TestFolder folder;
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    std::optional<Fd> listener(listen_at(folder.socket(), 4));
    await_connection(*listener);
    ::unlink(folder.socket().c_str());
    listener.reset();
    poll(nullptr, 0, 500);  // a process may end long after its sockets
    _exit(0);
  }
  const std::int64_t began_ns = now_ns();
  const auto thrown =
      as_threads(1, [&](int) { bootstrap("unix:" + folder.socket(), 1, 2, seconds(10)); });
  CHECK(thrown[0] == "peer lost: rank 0 closed its socket");
  CHECK(now_ns() - began_ns < 8'000'000'000);
  REQUIRE(waitpid(child, nullptr, 0) == child);
}

TEST_CASE("an error of rank 0 while ranks join is an error for the ranks that have joined") {
  TestFolder folder;
  const auto thrown = as_threads(2, [&](int rank) {
    const std::int64_t leaves_ns = deadline_in(1);  // rank 1 has joined by then
    const Deadline leaves{deadline_in(20), [&] {
                            if (rank == 0 && now_ns() > leaves_ns)
                              throw Error(ErrorCode::aborted, "Ctrl-C");
                          }};
    bootstrap("unix:" + folder.socket(), rank, 3, leaves);
  });
  CHECK(thrown[0] == "aborted: Ctrl-C");
  CHECK(thrown[1] == "aborted: rank 0 reports: Ctrl-C");
}

TEST_CASE("a rank that leaves between two allgathers is an error for the rest") {
  TestFolder folder;
  const auto thrown = as_threads(3, [&](int rank) {
    const auto rendezvous = bootstrap("unix:" + folder.socket(), rank, 3, seconds(10));
    if (rank == 2) return;
    rendezvous->allgather("x", {}, seconds(10));
  });
  CHECK(thrown[0].find("rank 2 closed its socket") != std::string::npos);
  CHECK(thrown[1].find("rank 2 closed its socket") != std::string::npos);
}

TEST_CASE("a rank that leaves an allgather early ends the rendezvous for all ranks") {
  TestFolder folder;
  std::atomic<int> have_left{0};
  std::unique_ptr<Rendezvous> of_ranks[3];  // closed once all ranks have ended
  const auto thrown = as_threads(3, [&](int rank) {
    std::unique_ptr<Rendezvous>& rendezvous = of_ranks[rank];
    rendezvous = bootstrap("unix:" + folder.socket(), rank, 3, seconds(10));
    const Deadline leaves{deadline_in(10), [] { throw Error(ErrorCode::aborted, "Ctrl-C"); }};
    const auto step = [&](const std::string& mine, const Deadline& deadline) {
      std::string all;
      for (const Contribution& one : rendezvous->allgather(mine, {}, deadline)) all += one.bytes;
      return all;
    };
    if (rank == 1) {
      CHECK_THROWS_WITH_AS(step("b", leaves), "aborted: Ctrl-C", Error);
      have_left = 1;
      for (int call = 0; call < 2; ++call)
        CHECK_THROWS_WITH_AS(step("no vote", seconds(10)), "aborted: Ctrl-C", Error);
      return;
    }
    while (rank == 0 && have_left == 0) std::this_thread::yield();
    CHECK(step(rank == 0 ? "a" : "c", seconds(10)) == "abc");
    for (int call = 0; call < 2; ++call) step("a vote", seconds(10));
  });
  CHECK(thrown[0] == "aborted: rank 1 reports: Ctrl-C");
  CHECK(thrown[1] == "");
  CHECK(thrown[2] == "aborted: rank 0 reports: rank 1 reports: Ctrl-C");
}

TEST_CASE("a rank that leaves amid a frame is lost to the rest") {
  TestFolder folder;
  const auto thrown = as_threads(2, [&](int rank) {
    const auto rendezvous = bootstrap("unix:" + folder.socket(), rank, 2, seconds(10));
    const Deadline leaves{deadline_in(10), [] { throw Error(ErrorCode::aborted, "Ctrl-C"); }};
    if (rank == 1) {  // longer than the socket's buffer
      const std::string long_bytes(1 << 20, 'b');
      CHECK_THROWS_WITH_AS(rendezvous->allgather(long_bytes, {}, leaves), "aborted: Ctrl-C", Error);
      return;
    }
    usleep(200'000);
    rendezvous->allgather("a", {}, seconds(10));
  });
  CHECK(thrown[0].find("peer lost: rank 1 closed its socket") == 0);
  CHECK(thrown[1] == "");
}

TEST_CASE("strangers and silent connections do not end the job") {
  TestFolder folder;
  std::atomic<bool> stranger_done{false};
  const auto thrown = as_threads(3, [&](int rank) {
    if (rank == 2) {
      const Fd silent = connect_to(folder.socket(), seconds(10));
      const Fd babbling = connect_to(folder.socket(), seconds(10));
      const std::string noise(4096, 'z');
      CHECK(write(babbling.get(), noise.data(), noise.size()) == 4096);
      stranger_done = true;
      poll(nullptr, 0, 300);
      return;
    }
    while (rank == 1 && !stranger_done) poll(nullptr, 0, 1);
    const auto rendezvous = bootstrap("unix:" + folder.socket(), rank, 2, seconds(10));
    allgather_twice(*rendezvous, rank, 2);
  });
  for (const std::string& one : thrown) CHECK(one == "");
}

TEST_CASE("a stale socket file is replaced; a file that is no socket is not") {
  TestFolder folder;
  {
    const Fd listener = listen_at(folder.socket(), 1);
  }  // closed without unlink, as after a kill
  CHECK(entries_of(folder.path()) == 1);
  CHECK(listen_at(folder.socket(), 1).valid());
  unlink(folder.socket().c_str());
  close(open(folder.socket().c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
  CHECK_THROWS_AS(listen_at(folder.socket(), 1), Error);
  unlink(folder.socket().c_str());
}

TEST_CASE("a socket that is bound and about to listen is not removed as stale") {
  TestFolder folder;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strcpy(address.sun_path, folder.socket().c_str());
  const Fd slow(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const Fd lock(open(folder.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  REQUIRE(flock(lock.get(), LOCK_EX) == 0);  // as listen_at does in the second process
  REQUIRE(bind(slow.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0);
  std::atomic<bool> done{false};
  Fd second;
  std::thread other([&] {
    second = listen_at(folder.socket(), 16);
    done = true;
  });
  poll(nullptr, 0, 100);
  CHECK_FALSE(done);
  REQUIRE(listen(slow.get(), 16) == 0);
  flock(lock.get(), LOCK_UN);
  other.join();
  CHECK_FALSE(second.valid());
  // The first listener's socket, still there.
  CHECK(connect_to(folder.socket(), seconds(1)).valid());
  unlink(folder.socket().c_str());
}

TEST_CASE("of many threads that listen at one path at once, one succeeds") {
  TestFolder folder;
  for (int round = 0; round < plait_test::rounds(300); ++round) {
    if (round % 2 == 0) listen_at(folder.socket(), 1);  // a stale file: closed, not removed
    std::atomic<int> ready{0};
    std::vector<Fd> listeners(4);
    const auto thrown = as_threads(4, [&](int i) {
      for (++ready; ready < 4;) std::this_thread::yield();
      listeners[i] = listen_at(folder.socket(), 16);  // connections of more threads take places too
    });
    for (const std::string& one : thrown) CHECK(one == "");
    int listening = 0;
    for (const Fd& fd : listeners) listening += fd.valid() ? 1 : 0;
    REQUIRE(listening == 1);
    CHECK(connect_to(folder.socket(), seconds(1)).valid());
    unlink(folder.socket().c_str());
  }
}

TEST_CASE("folders that others can enter are refused") {
  TestFolder folder;
  REQUIRE(chmod(folder.path().c_str(), 0755) == 0);
  CHECK_THROWS_AS(listen_at(folder.socket(), 1), Error);
  CHECK_THROWS_AS(connect_to(folder.socket(), seconds(0.1)), Error);
  CHECK_THROWS_AS(private_folder(folder.path()), Error);
  CHECK_THROWS_AS(bootstrap("unix:relative", 0, 2, seconds(0.1)), Error);
  CHECK_THROWS_AS(bootstrap("tcp:1", 0, 2, seconds(0.1)), Error);
  const std::string link = folder.path() + "-link";
  REQUIRE(chmod(folder.path().c_str(), 0700) == 0);
  REQUIRE(symlink(folder.path().c_str(), link.c_str()) == 0);
  CHECK_THROWS_AS(private_folder(link), Error);
  unlink(link.c_str());
}

TEST_CASE("a folder that no rank can use is an error on every rank") {
  TestFolder folder;
  const std::string missing = folder.path() + "/none";
  const auto of_all = [&](const std::string& place) {
    return as_threads(3, [&](int rank) { bootstrap("unix:" + place, rank, 3, seconds(30)); });
  };
  const std::int64_t began = now_ns();
  CHECK(all_contain(of_all(missing + "/s"), "found no folder '" + missing + "': make it"));
  REQUIRE(mkdir(missing.c_str(), 0755) == 0);
  CHECK(all_contain(of_all(missing + "/s"), "found '" + missing + "' with another owner, mode"));
  CHECK(now_ns() - began < 20'000'000'000);
  rmdir(missing.c_str());
}

TEST_CASE("ranks wait a moment for the program to make the folder") {
  TestFolder folder;
  const std::string later = folder.path() + "/later";
  const auto thrown = as_threads(2, [&](int rank) {
    if (rank == 0) {
      usleep(200'000);
      private_folder(later);
    }
    bootstrap("unix:" + later + "/s", rank, 2, seconds(30));
  });
  for (const std::string& one : thrown) CHECK(one == "");
  rmdir(later.c_str());
}

TEST_CASE("the other end's user is checked") {
  int pair[2];
  REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
  CHECK_NOTHROW(check_peer_uid(pair[0], geteuid()));
  try {
    check_peer_uid(pair[0], geteuid() + 1);
    FAIL("another user was let in");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::permission);
  }
  close(pair[0]), close(pair[1]);
}

TEST_CASE("inherited descriptors must be Unix stream sockets, as many as there are other ranks") {
  Fd zero(open("/dev/zero", O_RDONLY | O_CLOEXEC));
  CHECK_THROWS_AS(bootstrap(text("fd:{}", zero.get()), 1, 2, seconds(0.1)), Error);
  CHECK_THROWS_AS(bootstrap("fd:99999", 1, 2, seconds(0.1)), Error);
  CHECK_THROWS_AS(bootstrap("fd:x", 1, 2, seconds(0.1)), Error);
  int pair[2];
  REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
  CHECK_THROWS_AS(bootstrap(text("fd:{}", pair[0]), 0, 3, seconds(0.1)), Error);
  close(pair[0]), close(pair[1]);
}

TEST_CASE("frames: too long, torn and foreign ones are refused") {
  int pair[2];
  REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) == 0);
  Fd a(pair[0]);
  Fd b(pair[1]);
  send_frame(a.get(), FrameKind::data, "hello", {}, seconds(1), "b");
  CHECK(receive_frame(b.get(), 100, 0, seconds(1), "a").bytes == "hello");
  send_frame(a.get(), FrameKind::data, "hello", {}, seconds(1), "b");
  CHECK_THROWS_AS(receive_frame(b.get(), 4, 0, seconds(1), "a"), Error);
  char rest[5];
  CHECK(read(b.get(), rest, 5) == 5);
  send_frame(a.get(), FrameKind::data, "", {b.get()}, seconds(1), "b");
  CHECK_THROWS_AS(receive_frame(b.get(), 100, 0, seconds(1), "a"),
                  Error);  // a descriptor too many
  try {
    receive_frame(b.get(), 100, 0, seconds(0.05), "rank 9");
    FAIL("nothing was sent");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::timeout);
    CHECK(std::string(error.what()).find("rank 9 sent nothing") != std::string::npos);
  }
}

TEST_CASE("packed strings survive, anything else is refused") {
  const std::vector<std::string> parts = {"", "a", std::string(300, 'b'), std::string("\0x", 2)};
  CHECK(unpack(pack(parts)) == parts);
  CHECK(unpack("").empty());
  const std::string whole = pack(parts);
  CHECK_THROWS_AS(unpack(whole.substr(0, whole.size() - 1)), Error);
  CHECK_THROWS_AS(unpack(std::string(8, '\xff')), Error);
  CHECK_THROWS_AS(unpack("abc"), Error);
}

namespace {

/// Returns the lines of a log file, and removes the file.
std::vector<std::string> lines_of(const std::string& file) {
  std::ifstream lines(file);
  std::vector<std::string> all;
  for (std::string line; std::getline(lines, line);) all.push_back(line);
  unlink(file.c_str());
  return all;
}

/// Returns the warnings logged while ranks join, each rank late_s seconds late.
std::vector<std::string> bootstrap_warnings(const std::vector<double>& late_s,
                                            double warn_after_s) {
  TestFolder folder;
  const std::string file = folder.path() + "/lines";
  set_log("WARN", file);
  const auto thrown = as_threads(static_cast<int>(late_s.size()), [&](int rank) {
    std::this_thread::sleep_for(std::chrono::duration<double>(late_s[rank]));
    bootstrap("unix:" + folder.socket(), rank, static_cast<int>(late_s.size()), seconds(20),
              warn_after_s);
  });
  for (const std::string& one : thrown) CHECK(one == "");
  set_log("", "");
  return lines_of(file);
}

/// Counts the lines that contain both texts. On a slow machine peers wait for long too, and warn.
std::size_t count_of(const std::vector<std::string>& lines, const std::string& who,
                     const std::string& what) {
  return static_cast<std::size_t>(std::count_if(lines.begin(), lines.end(), [&](const auto& line) {
    return line.find(who) != std::string::npos && line.find(what) != std::string::npos;
  }));
}

}  // namespace

TEST_CASE("a rank that waits for long warns once, with the missing ranks") {
  const auto of_root = bootstrap_warnings({0, 3, 0, 3}, 1.5);
  CAPTURE(of_root);
  CHECK(count_of(of_root, "[0] PLAIT WARN rank 0 waits for rank 1, 3 of 4 to join rendezvous '",
                 "': 1.5 s so far") == 1);
  const auto of_member = bootstrap_warnings({1, 0}, 0.2);
  CAPTURE(of_member);
  CHECK(count_of(of_member, "[1] PLAIT WARN rank 1 waits for rank 0 of 2 to join", "") == 1);
  CHECK(bootstrap_warnings({0, 0.1, 0}, 10).empty());
}

TEST_CASE("it warns over inherited sockets too, and about a slow rank that has joined") {
  TestFolder folder;
  const std::string file = folder.path() + "/lines";
  int ends[2];
  REQUIRE(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
  set_log("WARN", file);
  const auto thrown = as_threads(2, [&](int rank) {
    const auto late = [&] { std::this_thread::sleep_for(std::chrono::seconds(rank)); };
    late();
    const auto rendezvous = bootstrap(text("fd:{}", ends[rank]), rank, 2, seconds(20), 0.2);
    for (int round = 0; round < 2; ++round) {
      late();
      rendezvous->allgather("x", {}, seconds(20));
    }
  });
  for (const std::string& one : thrown) CHECK(one == "");
  set_log("", "");
  close(ends[0]), close(ends[1]);
  const std::vector<std::string> lines = lines_of(file);
  CAPTURE(lines);
  CHECK(count_of(lines, "rank 0 waits for rank 1 of 2 to join rendezvous 'fd:", "") == 1);
  CHECK(count_of(lines, "rank 0 waits for rank 1 to send its part of an exchange: 0.2 s", "") == 1);
}

TEST_CASE("descriptors lie above a closed stderr, also those from a peer") {
  int pair[2];
  REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) == 0);
  const Fd a(pair[0]), b(pair[1]);
  const Fd kept(fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3));
  close(STDERR_FILENO);
  const int lowest = open("/dev/null", O_RDONLY | O_CLOEXEC);
  const Fd made(lowest);
  send_frame(a.get(), FrameKind::data, "x", {made.get()}, seconds(1), "b");
  const Frame frame = receive_frame(b.get(), 100, 1, seconds(1), "a");
  const bool is_free = fcntl(STDERR_FILENO, F_GETFD) < 0;
  dup2(kept.get(), STDERR_FILENO);
  CHECK(is_free);
  CHECK(lowest == STDERR_FILENO);
  CHECK(made.get() > STDERR_FILENO);
  CHECK((fcntl(made.get(), F_GETFD) & FD_CLOEXEC) != 0);
  REQUIRE(frame.fds.size() == 1);
  CHECK(frame.fds[0].get() > STDERR_FILENO);
  errno = EMFILE;
  CHECK(!Fd(-1).valid());
  CHECK(errno == EMFILE);
}

TEST_CASE("a process without room for a peer's descriptors learns of its limit of open files") {
  int pair[2];
  REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) == 0);
  const Fd a(pair[0]), b(pair[1]);
  send_frame(a.get(), FrameKind::data, "x", {a.get()}, seconds(1), "b");
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
  rlimit none = before;
  none.rlim_cur = 0;
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &none) == 0);
  std::string said;
  try {
    receive_frame(b.get(), 100, 1, seconds(1), "rank 1");
  } catch (const Error& error) {
    said = error.what();
  }
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &before) == 0);
  CAPTURE(said);
  CHECK(said.find("receiving the descriptors of rank 1") != std::string::npos);
  CHECK(said.find("ulimit -n") != std::string::npos);
}
