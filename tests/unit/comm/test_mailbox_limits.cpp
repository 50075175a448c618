// Tests what a mailbox does at limits: of its buffers, of open files, and of the kernel's
// permission to read another process.
#include <doctest/doctest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

#include "comm/p2p/mailbox.hpp"
#include "unit/comm/mailboxes.hpp"

using namespace plait;
using namespace plait::p2p;
using namespace plait_test;

namespace {

/// From now on this process gets EPERM from process_vm_readv, as in most containers.
void deny_pulls() {
  sock_filter steps[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{4, steps};
  check(::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0, "no new privileges");
  check(::syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) == 0,
        "seccomp filter");
}

/// Leaves this process few more open files.
class FileLimit {
 public:
  explicit FileLimit(int left) {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    std::vector<int> free;  // the lowest descriptors, which may have others in between
    for (int i = 0; i <= left; ++i) free.push_back(::dup(0));
    for (const int one : free) ::close(one);
    const rlimit now{static_cast<rlim_t>(free.back()), before_.rlim_max};
    ::setrlimit(RLIMIT_NOFILE, &now);
  }
  ~FileLimit() { ::setrlimit(RLIMIT_NOFILE, &before_); }
  FileLimit(const FileLimit&) = delete;
  FileLimit& operator=(const FileLimit&) = delete;

 private:
  rlimit before_{};
};

/// Connects to a mailbox and passes no ring.
int silent_connection(const Mailbox& to) {
  const int made = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, to.address().data(), to.address().size());
  const auto bytes =
      static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + to.address().size());
  REQUIRE(::connect(made, reinterpret_cast<sockaddr*>(&address), bytes) == 0);
  return made;
}

}  // namespace

TEST_CASE("large messages go through the ring once the kernel forbids a pull that it allowed") {
  const auto check_received = [](Mailbox& mailbox, std::uint64_t bytes, std::int64_t tag) {
    Bytes found(bytes);
    const Posted in = mailbox.receive(0, {0, tag}, found.data(), found.size());
    mailbox.wait(in, kLongS);
    INFO(failure_text(in->failure()));
    check(in->failure() == nullptr && found == numbered(bytes, 1), "a large message");
  };
  TwoProcesses two([&](Mailbox& mailbox) {
    check_received(mailbox, kLarge, 1);
    deny_pulls();
    check_received(mailbox, kRingBytes * 3, 3);  // an offer that came before its receive
    check_received(mailbox, kLarge, 2);
    check_received(mailbox, 16 << 20, 4);
  });
  std::vector<Bytes> sent;
  for (const std::uint64_t bytes : {kLarge, kLarge, kRingBytes * 3, std::uint64_t{16} << 20})
    sent.push_back(numbered(bytes, 1));
  std::vector<Posted> out;
  for (std::size_t at = 0; at < sent.size(); ++at)
    out.push_back(send(*two.mailbox, 1, sent[at], static_cast<std::int64_t>(at + 1)));
  for (const Posted& one : out) arrives(*two.mailbox, one);
  CHECK(two.child->status() == 0);
}

TEST_CASE("offers that no receive wants stay with their sender once the buffers are full") {
  Group group(2);
  constexpr std::uint64_t kMost = 1 << 20;
  for (const bool may_pull : {true, false}) {
    group.at(1).set_may_pull(may_pull);
    group.at(1).set_most_buffered(kMost);
    const Bytes large = numbered(kMost * 3 / 4, 1), last = numbered(kLarge, 2);
    std::vector<Posted> sends;
    for (int i = 0; i < 20; ++i) sends.push_back(send(group.at(0), 1, large, 1));
    sends.push_back(send(group.at(0), 1, last, 2));
    Bytes found(last.size()), none(8);
    arrives(group.at(1), receive(group.at(1), 0, found, 2));
    CHECK(found == last);
    // A receive of another tag waits long enough that offers would be buffered.
    CHECK(
        failure_of(group.at(1), receive(group.at(1), 0, none, 3), 0.2).find("receive them first") !=
        std::string::npos);
    CHECK(group.at(1).buffered() <= kMost);
    for (int i = 0; i < 20; ++i) {
      Bytes one(large.size());
      arrives(group.at(1), receive(group.at(1), 0, one, 1));
      CHECK(one == large);
    }
    for (const Posted& one : sends) arrives(group.at(0), one);
    CHECK(group.at(1).buffered() == 0);
  }
}

TEST_CASE("small messages that no receive wants stay in the ring once the buffers are full") {
  Group group(2);
  constexpr std::uint64_t kMost = 1 << 20;
  constexpr int kCount = 200;
  group.at(1).set_most_buffered(kMost);
  const Bytes small = numbered(16 << 10, 1), last = numbered(8, 2);
  std::vector<Posted> sends;
  for (int i = 0; i < kCount; ++i) sends.push_back(send(group.at(0), 1, small, 1));
  sends.push_back(send(group.at(0), 1, last, 2));
  Bytes found(8);
  CHECK(failure_of(group.at(1), receive(group.at(1), 0, found, 2), 0.3) ==
        "recv from rank 0 (tag 2): not done within 0.3 s; rank 0 sent 63 messages of 1032192 bytes "
        "before that have no receive, and at most 1048576 bytes of such messages are buffered: "
        "receive them first");
  CHECK(group.at(1).buffered() <= kMost);
  for (int i = 0; i < kCount; ++i) {
    Bytes one(small.size());
    arrives(group.at(1), receive(group.at(1), 0, one, 1));
    CHECK(one == small);
  }
  arrives(group.at(1), receive(group.at(1), 0, found, 2));
  CHECK(found == last);
  for (const Posted& one : sends) arrives(group.at(0), one);
}

TEST_CASE("a receive behind full buffers fails long before its deadline") {
  Group group(2);
  constexpr int kCount = 200;
  group.at(1).set_most_buffered(1 << 20);
  const Bytes small = numbered(16 << 10, 1), last = numbered(8, 2);
  std::vector<Posted> sends;
  for (int i = 0; i < kCount; ++i) sends.push_back(send(group.at(0), 1, small, 1));
  sends.push_back(send(group.at(0), 1, last, 2));
  Bytes found(8);
  std::string failure;
  CHECK(seconds_of([&] {
          failure = failure_of(group.at(1), receive(group.at(1), 0, found, 2), 30);
        }) < 15);
  CHECK(failure ==
        "recv from rank 0 (tag 2): not in the buffers; rank 0 sent 63 messages of 1032192 bytes "
        "before that have no receive, and at most 1048576 bytes of such messages are buffered: "
        "receive them first");
  for (int i = 0; i < kCount; ++i) {  // as the error says
    Bytes one(small.size());
    arrives(group.at(1), receive(group.at(1), 0, one, 1));
    CHECK(one == small);
  }
  arrives(group.at(1), receive(group.at(1), 0, found, 2));
  CHECK(found == last);
  for (const Posted& one : sends) arrives(group.at(0), one);
}

TEST_CASE("a receive fails at once if no open file is left for its sender's connection") {
  const auto sender = make_mailbox(0, 2), receiver = make_mailbox(1, 2);
  sender->connect(1, receiver->address());
  const Bytes sent = numbered(8, 1);
  send(*sender, 1, sent);
  Bytes found(8);
  for (const int left : {0, 1}) {  // files: none for the connection, none for its ring
    std::string failure;
    const double took = seconds_of([&] {
      const FileLimit limit(left);
      failure = failure_of(*receiver, receive(*receiver, 0, found), 20);
    });
    CHECK(took < 5);
    CHECK(failure.find("Too many open files") != std::string::npos);
    CHECK(failure.find("ulimit -n") != std::string::npos);
  }
  arrives(*receiver, receive(*receiver, 0, found));
  CHECK(found == sent);
}

TEST_CASE("two open files are enough for a connection") {
  const auto sender = make_mailbox(0, 2), receiver = make_mailbox(1, 2);
  sender->connect(1, receiver->address());
  const Bytes sent = numbered(8, 1);
  send(*sender, 1, sent);
  Bytes found(8);
  const FileLimit limit(2);
  CHECK(failure_of(*receiver, receive(*receiver, 0, found), 10) == "");
  CHECK(found == sent);
}

TEST_CASE("a receive of any source is served by a connected peer if no open file is left") {
  std::vector<std::shared_ptr<Mailbox>> all;
  for (int rank = 0; rank < 3; ++rank) all.push_back(make_mailbox(rank, 3));
  const Bytes first = numbered(8, 1), second = numbered(8, 2);
  Bytes found(8);
  all[0]->connect(2, all[2]->address());
  send(*all[0], 2, first);
  arrives(*all[2], receive(*all[2], 0, found));
  all[1]->connect(2, all[2]->address());
  send(*all[1], 2, first);  // cannot be taken meanwhile
  {
    const FileLimit limit(0);
    const Posted any = receive(*all[2], kAnySource, found);
    CHECK_FALSE(all[2]->is_connected_from(1));
    CHECK_FALSE(any->is_done());
    send(*all[0], 2, second);
    CHECK(failure_of(*all[2], any, 10) == "");
    CHECK(any->source() == 0);
    CHECK(found == second);
  }
  const Posted any = receive(*all[2], kAnySource, found);
  arrives(*all[2], any);
  CHECK(any->source() == 1);
}

TEST_CASE("pulls go on after an error of one message's memory") {
  CHECK(is_forbidden(EPERM));
  CHECK(is_forbidden(ENOSYS));
  CHECK_FALSE(is_forbidden(EFAULT));
  CHECK_FALSE(is_forbidden(ENOMEM));
}

TEST_CASE("a connection that passes no ring delays no other") {
  const auto sender = make_mailbox(0, 2), receiver = make_mailbox(1, 2);
  std::vector<int> silent;
  for (int i = 0; i < 3; ++i) silent.push_back(silent_connection(*receiver));
  sender->connect(1, receiver->address());
  const Bytes sent = numbered(8, 1);
  Bytes found(8);
  send(*sender, 1, sent);
  // A single silent connection is awaited for 5 s.
  CHECK(seconds_of([&] { arrives(*receiver, receive(*receiver, 0, found)); }) < 4.5);
  CHECK(found == sent);
  for (const int one : silent) ::close(one);
}

TEST_CASE("messages in the ring of a sender that has ended are read beyond full buffers") {
  constexpr int kCount = 80;
  const Bytes small = numbered(16 << 10, 1), last = numbered(8, 2);
  TwoProcesses two([&](Mailbox& mailbox) {
    std::vector<Posted> sends;
    for (int i = 0; i < kCount; ++i) sends.push_back(send(mailbox, 0, small, 1));
    sends.push_back(send(mailbox, 0, last, 2));
    for (const Posted& one : sends)
      if (one != nullptr) mailbox.wait(one, kLongS);
  });
  two.mailbox->set_most_buffered(1 << 20);
  Bytes found(last.size());
  arrives(*two.mailbox, receive(*two.mailbox, 1, found, 2));
  CHECK(found == last);
  CHECK(two.child->status() == 0);
  for (int i = 0; i < kCount; ++i) {
    Bytes one(small.size());
    arrives(*two.mailbox, receive(*two.mailbox, 1, one, 1));
    CHECK(one == small);
  }
  CHECK(two.mailbox->buffered() == 0);
}
