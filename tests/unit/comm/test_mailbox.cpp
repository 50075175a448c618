// Tests messages between ranks that are threads or processes: contents, order, any source and tag,
// wrong sizes, deadlines, and ranks that close or die.
#include <doctest/doctest.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/text.hpp"
#include "comm/p2p/mailbox.hpp"
#include "unit/comm/mailboxes.hpp"
#include "unit/scale.hpp"

using namespace plait;
using namespace plait::p2p;
using namespace plait_test;

TEST_CASE("an offer is taken while another message of its sender is filled in part") {
  Group group(2);
  const Bytes offered = numbered(kLarge, 1), through = numbered(100 << 10, 2);
  std::vector<Bytes> first;
  for (int i = 0; i < 4; ++i) first.push_back(numbered(120 << 10, 10 + i));
  const Posted large = send(group.at(0), 1, offered, 1);
  std::vector<Posted> sends;
  for (const Bytes& one : first) sends.push_back(send(group.at(0), 1, one, 3));
  sends.push_back(send(group.at(0), 1, through, 2));  // the ring holds its beginning alone
  Bytes got_through(through.size()), got_offered(offered.size());
  const Posted small = receive(group.at(1), 0, got_through, 2);
  const Posted pulled = receive(group.at(1), 0, got_offered, 1);
  arrives(group.at(1), pulled);
  CHECK(got_offered == offered);
  std::thread sender([&] {
    for (const Posted& one : sends) arrives(group.at(0), one);
    arrives(group.at(0), large);
  });
  arrives(group.at(1), small);
  CHECK(got_through == through);
  for (const Bytes& one : first) {
    Bytes got(one.size());
    arrives(group.at(1), receive(group.at(1), 0, got, 3));
    CHECK(got == one);
  }
  sender.join();
}

TEST_CASE("a send of which nothing is written is withdrawn alone") {
  Group group(2);
  std::vector<Bytes> all;
  for (int i = 0; i < 8; ++i) all.push_back(numbered(120 << 10, i));
  std::vector<Posted> sends;
  for (const Bytes& one : all) sends.push_back(send(group.at(0), 1, one));
  group.at(0).withdraw(sends.back(), ErrorCode::timeout, "too late");
  CHECK(failure_of(group.at(0), sends.back()).find("too late") != std::string::npos);
  sends.pop_back();
  std::thread sender([&] {
    for (const Posted& one : sends) arrives(group.at(0), one);
  });
  for (std::size_t at = 0; at < sends.size(); ++at) {
    Bytes got(all[at].size());
    arrives(group.at(1), receive(group.at(1), 0, got));
    CHECK(got == all[at]);
  }
  sender.join();
}

TEST_CASE("messages of all sizes arrive as sent, posted before and after the send") {
  Group group(2);
  for (const std::uint64_t bytes :
       {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{8}, std::uint64_t{4096},
        std::uint64_t{100'001}, kRendezvousFrom - 1, kRendezvousFrom, kLarge, kRingBytes * 3 + 5}) {
    CAPTURE(bytes);
    for (const bool receive_first : {false, true}) {
      const Bytes sent = numbered(bytes, receive_first ? 1 : 2);
      Bytes found(bytes);
      Posted in, out;
      if (receive_first) in = receive(group.at(1), 0, found);
      out = send(group.at(0), 1, sent);
      if (!receive_first) in = receive(group.at(1), 0, found);
      arrives(group.at(1), in);
      arrives(group.at(0), out);
      CHECK(found == sent);
      CHECK(in->source() == 0);
    }
  }
}

TEST_CASE("large messages go through the ring where the kernel forbids a pull") {
  const auto sender = make_mailbox(0, 2), receiver = make_mailbox(1, 2);
  receiver->set_may_pull(false);
  sender->connect(1, receiver->address());
  const Bytes sent = numbered(kRingBytes * 2 + 77, 3);
  for (int round = 0; round < 3; ++round) {
    Bytes found(sent.size());
    const Posted out = send(*sender, 1, sent), in = receive(*receiver, 0, found);
    std::thread waiter([&] { arrives(*sender, out); });
    arrives(*receiver, in);
    waiter.join();
    CHECK(found == sent);
  }
}

TEST_CASE("a receive takes the first message of its tag and context, in the order of sends") {
  Group group(2);
  for (const std::uint64_t bytes : {std::uint64_t{64}, kLarge}) {
    std::vector<Bytes> sent, found(6, Bytes(bytes));
    for (int i = 0; i < 6; ++i) sent.push_back(numbered(bytes, i));
    std::vector<Posted> out, in;
    for (int i = 0; i < 6; ++i)
      out.push_back(send(group.at(0), 1, sent[static_cast<std::size_t>(i)], i % 2, i / 4));
    // Tag 1 first, then tag 0, of context 0; then context 1.
    const int order[] = {1, 3, 0, 2, 5, 4};
    for (const int i : order)
      in.push_back(receive(group.at(1), 0, found[static_cast<std::size_t>(i)], i % 2, i / 4));
    for (const Posted& one : in) arrives(group.at(1), one);
    for (const Posted& one : out) arrives(group.at(0), one);
    for (std::size_t i = 0; i < 6; ++i) CHECK(found[i] == sent[i]);
  }
}

TEST_CASE("a receive of any source and any tag takes messages in the order of each source") {
  constexpr int kRanks = 4, kEach = 20;
  Group group(kRanks);
  std::vector<std::thread> senders;
  for (int rank = 1; rank < kRanks; ++rank)
    senders.emplace_back([&, rank] {
      for (int i = 0; i < kEach; ++i) {
        const Bytes sent = numbered(i % 5 == 4 ? kLarge : 16, rank * 100 + i);
        // A receive of any source has one size: a small message tells the size of the next.
        const Bytes size(1, i % 5 == 4 ? 1 : 0);
        arrives(group.at(rank), send(group.at(rank), 0, size, 2 * i));
        arrives(group.at(rank), send(group.at(rank), 0, sent, 2 * i + 1));
      }
    });
  std::vector<int> next(kRanks);
  for (int i = 0; i < (kRanks - 1) * kEach; ++i) {
    Bytes size(1);
    const Posted first = receive(group.at(0), kAnySource, size, kAnyTag);
    arrives(group.at(0), first);
    const int source = first->source();
    REQUIRE(source > 0);
    Bytes found(size[0] == 1 ? kLarge : 16);
    arrives(group.at(0), receive(group.at(0), source, found, kAnyTag));
    CHECK(found == numbered(found.size(), source * 100 + next[static_cast<std::size_t>(source)]++));
  }
  for (std::thread& one : senders) one.join();
  for (int rank = 1; rank < kRanks; ++rank) CHECK(next[static_cast<std::size_t>(rank)] == kEach);
}

TEST_CASE("a rank sends to itself") {
  Group group(2);
  for (const std::uint64_t bytes : {std::uint64_t{8}, kLarge}) {
    const Bytes sent = numbered(bytes, 4);
    Bytes found(bytes);
    const Posted in = receive(group.at(0), 0, found), out = send(group.at(0), 0, sent);
    arrives(group.at(0), in);
    arrives(group.at(0), out);
    CHECK(found == sent);
  }
}

TEST_CASE("posted messages progress without a waiting thread, and call back once done") {
  Group group(2);
  const Bytes sent = numbered(kRingBytes * 2, 5);
  Bytes found(sent.size());
  const Posted in = receive(group.at(1), 0, found), out = send(group.at(0), 1, sent);
  std::atomic<int> calls{0};
  group.at(1).on_done(in, [&] { ++calls; });
  group.at(0).on_done(out, [&] { ++calls; });
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (calls < 2 && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  CHECK(calls == 2);
  CHECK(in->is_done());
  CHECK(out->is_done());
  CHECK(found == sent);
  group.at(1).on_done(in, [&] { ++calls; });
  CHECK(calls == 3);
}

TEST_CASE("a callback of the background thread drops the last owner of its mailbox") {
  const auto other = make_mailbox(0, 2);
  std::atomic<bool> is_freed{false};
  std::shared_ptr<void> held(nullptr, [&](void*) { is_freed = true; });
  auto last = make_mailbox(1, 2, [held = std::move(held)] {});
  other->connect(1, last->address());
  last->connect(0, other->address());
  const Bytes sent = numbered(8, 5);
  Bytes found(8), unsent(8);
  const Posted in = receive(*last, 0, found, 1), open = receive(*last, 0, unsent, 2);
  std::string failed;
  last->on_done(open, [&] { failed = failure_text(open->failure()); });
  Mailbox& mailbox = *last;
  mailbox.on_done(in, [owner = std::move(last)] {});
  arrives(*other, send(*other, 1, sent, 1));
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!is_freed && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  REQUIRE(is_freed);
  CHECK(found == sent);
  CHECK(failed == "recv from rank 0 (tag 2): it was destroyed");
  CHECK(failure_of(*other, receive(*other, 1, unsent)) ==
        "recv from rank 1 (tag 0): rank 1 has ended");
}

TEST_CASE("more large messages than a direction has offers go both ways") {
  Group group(2);
  const int count = static_cast<int>(kMostOffers) + 40;
  const Bytes sent = numbered(kRendezvousFrom, 1);
  const auto run = [&](int rank) {
    std::vector<Posted> all;
    std::vector<Bytes> found(static_cast<std::size_t>(count), Bytes(kRendezvousFrom));
    for (int i = 0; i < count; ++i) all.push_back(send(group.at(rank), 1 - rank, sent));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // for the background threads
    for (Bytes& one : found) all.push_back(receive(group.at(rank), 1 - rank, one));
    for (const Posted& one : all) arrives(group.at(rank), one);
    for (const Bytes& one : found) REQUIRE(one == sent);
  };
  std::thread other(run, 1);
  run(0);
  other.join();
}

TEST_CASE("blocking sends of unexpected messages let the sender go on") {
  Group group(2);
  const Bytes first = numbered(kLarge, 6), second = numbered(kLarge, 7);
  std::thread sender([&] {
    arrives(group.at(0), send(group.at(0), 1, numbered(8, 0), 9));  // so that the stream is known
    arrives(group.at(0), send(group.at(0), 1, first, 1));
    arrives(group.at(0), send(group.at(0), 1, second, 2));
  });
  Bytes small(8), found(kLarge);
  arrives(group.at(1), receive(group.at(1), 0, small, 9));
  arrives(group.at(1), receive(group.at(1), 0, found, 2));
  CHECK(found == second);
  arrives(group.at(1), receive(group.at(1), 0, found, 1));
  CHECK(found == first);
  sender.join();
}

TEST_CASE("a message of another size is an error that names both sizes, and is kept") {
  Group group(2);
  for (const std::uint64_t bytes : {std::uint64_t{16}, kLarge}) {
    const Bytes sent = numbered(bytes, 8), other = numbered(4, 9);
    Bytes small(12), found(bytes), next(4);
    const Posted out = send(group.at(0), 1, sent), behind = send(group.at(0), 1, other, 1);
    CHECK(failure_of(group.at(1), receive(group.at(1), 0, small)) ==
          text("recv from rank 0 (tag 0): wanted 12 bytes, found a message of {} bytes from rank "
               "0; receive into a tensor of that size and type",
               bytes));
    arrives(group.at(0), out);
    arrives(group.at(1), receive(group.at(1), 0, next, 1));
    CHECK(next == other);
    arrives(group.at(1), receive(group.at(1), 0, found));
    CHECK(found == sent);
    arrives(group.at(0), behind);
  }
}

TEST_CASE("a wait has a deadline, and a receive that was taken back leaves the memory unchanged") {
  Group group(2);
  Bytes found(8, 0xee);
  const double took = seconds_of([&] {
    CHECK(failure_of(group.at(1), receive(group.at(1), 0, found), 0.2) ==
          "recv from rank 0 (tag 0): not done within 0.2 s");
  });
  CHECK(took > 0.19);
  arrives(group.at(0), send(group.at(0), 1, numbered(8, 1)));
  CHECK(found == Bytes(8, 0xee));
  arrives(group.at(1), receive(group.at(1), 0, found));
  CHECK(found == numbered(8, 1));
}

TEST_CASE("a mailbox that closes fails its messages and names itself to peers") {
  Group group(3);
  Bytes one(8), two(8), three(8);
  const Posted mine = receive(group.at(0), 1, one), theirs = receive(group.at(1), 0, two);
  const Posted any = receive(group.at(1), kAnySource, three);
  group.at(0).close("it was aborted");
  CHECK(failure_of(group.at(0), mine) == "recv from rank 1 (tag 0): it was aborted");
  CHECK(failure_of(group.at(1), theirs) == "recv from rank 0 (tag 0): rank 0 has ended");
  CHECK(!any->is_done());
  group.at(2).close("it was aborted");
  CHECK(failure_of(group.at(1), any) == "recv from any rank (tag 0): rank 0 has ended");
  CHECK_THROWS_WITH_AS(send(group.at(0), 1, one),
                       "aborted: send to rank 1: the mailbox is closed: it was aborted", Error);
  CHECK(failure_of(group.at(1), send(group.at(1), 0, one)) ==
        "send of 8 bytes to rank 0 (tag 0): rank 0 has ended");
}

TEST_CASE("a shut-down waits until the program's messages are read, not internal ones") {
  Group group(2);
  const Bytes sent = numbered(64, 3), large = numbered(kLarge, 4);
  Bytes found(64), found_large(kLarge);
  send(group.at(0), 1, sent);
  const Posted out = send(group.at(0), 1, large, 1);
  send(group.at(0), 1, sent, 0, -1);
  const auto began = std::chrono::steady_clock::now();
  std::thread receiver([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    arrives(group.at(1), receive(group.at(1), 0, found_large, 1));
    arrives(group.at(1), receive(group.at(1), 0, found));
  });
  CHECK(!group.at(0).shut_down("it was destroyed", kLongS));
  CHECK(seconds_since(began) > 0.25);
  receiver.join();
  CHECK(found == sent);
  CHECK(found_large == large);
  CHECK(out->failure() == nullptr);
}

TEST_CASE("a shut-down names the message that nobody read") {
  for (const std::uint64_t bytes : {std::uint64_t{12}, kLarge, kRingBytes * 2}) {
    Group group(2);
    const Bytes sent = numbered(bytes, 3);
    send(group.at(0), 1, sent, 9);
    const auto late = group.at(0).shut_down("it was destroyed", 0.1);
    REQUIRE(late);
    CHECK(late->what == text("the send of {} bytes to rank 1 (tag 9)", bytes));
    CHECK(late->code == ErrorCode::timeout);
    CHECK(!group.at(0).shut_down("it was destroyed", 10));
  }
  Group group(2);
  send(group.at(0), 1, numbered(12, 3), 9);
  group.at(1).close("it was destroyed");
  const auto lost = group.at(0).shut_down("it was destroyed", kLongS);
  REQUIRE(lost);
  CHECK(failure_text(&*lost) == "the send of 12 bytes to rank 1 (tag 9): rank 1 has ended");
}

TEST_CASE("messages go between processes, and the last ones outlive their sender") {
  TwoProcesses two([](Mailbox& mailbox) {
    Bytes found(kLarge);
    const Posted in = mailbox.receive(0, {0, 1}, found.data(), found.size());
    mailbox.wait(in, kLongS);
    check(in->failure() == nullptr && found == numbered(kLarge, 1), "large message");
    const Bytes last = numbered(100, 2);
    check(mailbox.send(0, {0, 2}, last.data(), last.size()) == nullptr, "send");
    ::_exit(0);
  });
  Mailbox& mailbox = *two.mailbox;
  arrives(mailbox, send(mailbox, 1, numbered(kLarge, 1), 1));
  CHECK(two.child->status() == 0);
  Bytes found(100);
  arrives(mailbox, receive(mailbox, 1, found, 2));
  CHECK(found == numbered(100, 2));
  CHECK(failure_of(mailbox, receive(mailbox, 1, found, 2)) ==
        "recv from rank 1 (tag 2): rank 1 has ended");
  CHECK(failure_of(mailbox, send(mailbox, 1, found)) ==
        "send of 100 bytes to rank 1 (tag 0): rank 1 has ended");
}

TEST_CASE("a killed rank is named soon, in a wait and in the background") {
  for (const bool waits : {true, false}) {
    TwoProcesses two([](Mailbox&) { ::sleep(60); });
    Mailbox& mailbox = *two.mailbox;
    Bytes found(8);
    const Bytes large = numbered(kRingBytes * 2, 1);
    const Posted in = receive(mailbox, 1, found), out = send(mailbox, 1, large);
    const auto began = std::chrono::steady_clock::now();
    std::thread killer([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      two.child->kill();
    });
    while (!waits && !(in->is_done() && out->is_done()))
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    CHECK(failure_of(mailbox, in) == "recv from rank 1 (tag 0): rank 1 has ended");
    CHECK(failure_of(mailbox, out) ==
          text("send of {} bytes to rank 1 (tag 0): rank 1 has ended", large.size()));
    CHECK(seconds_since(began) > 0.15);
    CHECK(seconds_since(began) < 10);  // of a wait of a minute, on a busy machine
    killer.join();
  }
}

TEST_CASE("the death of a rank is seen though a forked child keeps its sockets") {
  int forked[2];
  REQUIRE(::pipe(forked) == 0);
  TwoProcesses two([&](Mailbox&) {
    const pid_t child = ::fork();
    if (child == 0) ::sleep(60);
    if (::write(forked[1], &child, sizeof child) < 0) ::_exit(1);
    ::sleep(60);
  });
  pid_t child = 0;
  REQUIRE(::read(forked[0], &child, sizeof child) == sizeof child);
  Bytes found(8);
  const Posted in = receive(*two.mailbox, 1, found);
  two.child->kill();
  CHECK(failure_of(*two.mailbox, in, 5) == "recv from rank 1 (tag 0): rank 1 has ended");
  ::kill(child, SIGKILL);
  ::close(forked[0]);
  ::close(forked[1]);
}

TEST_CASE("a forked child may not use a mailbox, and its end closes nothing") {
  Group group(2);
  Bytes found(8);
  const Posted in = receive(group.at(0), 1, found);  // starts the background thread
  Child child([&] {
    try {
      group.at(0).send(1, {}, nullptr, 0);
    } catch (const Error& error) {
      group.at(0).close("the child ended");
      group.all.clear();
      ::_exit(error.code() == ErrorCode::unsupported ? 0 : 2);
    }
  });
  CHECK(child.status() == 0);
  arrives(group.at(1), send(group.at(1), 0, numbered(8, 1)));
  arrives(group.at(0), in);
  CHECK(found == numbered(8, 1));
}

TEST_CASE("random messages of several threads arrive as sent") {
  constexpr int kRanks = 3;
  const int count = plait_test::rounds(10'000) / kRanks;
  Group group(kRanks);
  // Each rank sends `count` messages to random peers; both ends know sizes and tags from the seed.
  struct Plan {
    int to;
    std::int64_t tag;
    std::uint64_t bytes;
  };
  std::vector<std::vector<Plan>> plans(kRanks);
  for (int rank = 0; rank < kRanks; ++rank) {
    std::mt19937 random(static_cast<unsigned>(rank + 1));
    for (int i = 0; i < count; ++i) {
      const auto kind = random() % 100;
      const std::uint64_t most = kind < 80 ? 300 : kind < 97 ? 40'000 : 3 * kRendezvousFrom;
      plans[static_cast<std::size_t>(rank)].push_back({static_cast<int>(random() % kRanks),
                                                       static_cast<std::int64_t>(random() % 3),
                                                       random() % most});
    }
  }
  std::atomic<int> wrong{0};
  const auto run = [&](int rank) {
    Mailbox& mailbox = group.at(rank);
    constexpr std::size_t kWindow = 40;
    std::vector<std::pair<Posted, std::unique_ptr<Bytes>>> out;
    struct Expected {
      Posted message;
      std::unique_ptr<Bytes> found;
      Bytes sent;
    };
    std::vector<Expected> in;
    const auto settle = [&] {
      for (const Expected& one : in) {
        mailbox.wait(one.message, kLongS);
        wrong += one.message->failure() != nullptr || *one.found != one.sent;
      }
      in.clear();
    };
    for (int i = 0; i < count; ++i) {
      for (int from = 0; from < kRanks; ++from) {
        const Plan& plan = plans[static_cast<std::size_t>(from)][static_cast<std::size_t>(i)];
        if (plan.to != rank) continue;
        in.push_back({nullptr, std::make_unique<Bytes>(plan.bytes), numbered(plan.bytes, i)});
        in.back().message = receive(mailbox, from, *in.back().found, plan.tag);
      }
      const Plan& mine = plans[static_cast<std::size_t>(rank)][static_cast<std::size_t>(i)];
      auto bytes = std::make_unique<Bytes>(numbered(mine.bytes, i));
      Posted sent = send(mailbox, mine.to, *bytes, mine.tag);
      if (sent != nullptr) out.emplace_back(std::move(sent), std::move(bytes));
      if (in.size() >= kWindow) settle();
    }
    settle();
    for (const auto& [message, bytes] : out) {
      mailbox.wait(message, kLongS);
      wrong += message->failure() != nullptr;
    }
  };
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < kRanks; ++rank) ranks.emplace_back(run, rank);
  for (std::thread& one : ranks) one.join();
  CHECK(wrong == 0);
}
