// Communicators over nodes with GPUs, as programs make them: two ranks, a process each, on
// two pretended nodes, over a driver and a libnccl that note what they are given, and a carrier in
// memory.
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <stdexcept>
#include <thread>
#include <tuple>

#include "comm/carrier.hpp"
#include "comm/vote.hpp"
#include "exec/cuda/device/call_args.hpp"
#include "fake_gpu/fake_gpu.hpp"
#include "plait/communicator.hpp"
#include "tests/gpu/ranks.hpp"

using namespace plait;
using plait_test::fake_cuda;

namespace {

/// Messages of two ranks, in memory that both map: what each has sent so far, one behind another.
struct Mail {
  static constexpr std::size_t kBytes = 64 << 20;
  struct Head {
    int tag;
    std::size_t bytes;
  };
  struct Sent {
    std::atomic<std::size_t> end{0};
    char bytes[kBytes];
  } sent[2];
  struct Told {
    std::atomic<bool> is_there{false};
    char words[Carrier::kMostTold];
  } told[2];  ///< by receiver
};

class MailCarrier : public Carrier {
 public:
  MailCarrier(Mail& mail, int rank) : mail_(mail), rank_(rank) {}
  int ranks() const override { return 2; }
  std::string name() const override { return "memory"; }
  std::uint64_t send(int, int tag, const void* src, std::size_t bytes) override {
    Mail::Sent& mine = mail_.sent[rank_];
    const Mail::Head head{tag, bytes};
    const std::size_t end = mine.end.load();
    if (end + sizeof head + bytes > Mail::kBytes) throw std::logic_error("too much mail");
    std::memcpy(mine.bytes + end, &head, sizeof head);
    std::memcpy(mine.bytes + end + sizeof head, src, bytes);
    mine.end.store(end + sizeof head + bytes);
    return 0;
  }
  std::uint64_t receive(int, int tag, void* dst, std::size_t bytes) override {
    awaited_[++last_] = {tag, dst, bytes};
    return last_;
  }
  bool is_done(std::uint64_t& message) override {
    const Mail::Sent& theirs = mail_.sent[1 - rank_];
    for (const std::size_t end = theirs.end.load(); read_ < end;) {
      Mail::Head head{};
      std::memcpy(&head, theirs.bytes + read_, sizeof head);
      come_[head.tag].emplace_back(theirs.bytes + read_ + sizeof head, head.bytes);
      read_ += sizeof head + head.bytes;
    }
    const auto& [tag, dst, bytes] = awaited_.at(message);
    std::deque<std::string>& box = come_[tag];
    if (box.empty()) return false;
    if (box.front().size() != bytes) throw std::logic_error("a message of another size");
    std::memcpy(dst, box.front().data(), bytes);
    box.pop_front();
    return true;
  }
  bool drop(std::uint64_t& message) noexcept override { return awaited_.erase(message) != 0; }
  void tell(const std::vector<int>& ranks, const std::string& failure) override {
    for (const int rank : ranks) {
      std::strncpy(mail_.told[rank].words, failure.c_str(), kMostTold - 1);
      mail_.told[rank].is_there.store(true);
    }
  }
  std::optional<std::pair<int, std::string>> told() override {
    if (!mail_.told[rank_].is_there.load()) return std::nullopt;
    return std::pair(1 - rank_, std::string(mail_.told[rank_].words));
  }

 private:
  Mail& mail_;
  const int rank_;
  std::uint64_t last_ = 0;
  std::size_t read_ = 0;
  std::map<int, std::deque<std::string>> come_;  ///< by tag
  std::map<std::uint64_t, std::tuple<int, void*, std::size_t>> awaited_;
};

void require(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error(what);
}

void* const kMemory = reinterpret_cast<void*>(std::uintptr_t{1} << 20);
void* const kOther = reinterpret_cast<void*>(std::uintptr_t{1} << 33);

Request request_of(Collective collective, std::uint64_t count) {
  Request request;
  request.collective = collective;
  request.ranks = 2;
  request.count = count;
  return request;
}

std::size_t noted(const std::string& begin) {
  std::size_t found = 0;
  for (const plait_test::FakeNote& note : fake_cuda().notes)
    found += note.what.rfind(begin, 0) == 0;
  return found;
}

int run(const std::function<void(Communicator&, bench::Board&)>& body) {
  fake_cuda().gpu = {};
  fake_cuda().nccl.async_error = 0;
  ::setenv("PLAIT_NCCL_LIB", FAKE_NCCL, 1);
  ::setenv("PLAIT_NODE_SIZE", "1", 1);
  Mail* const mail = new (bench::shared_memory(sizeof(Mail))) Mail;
  set_carrier_maker([&](int rank, int, double, const std::string&) {
    return std::make_shared<MailCarrier>(*mail, rank);
  });
  bench::Board* const board = bench::make_board(2);
  const int failed = bench::run_ranks(board, true, [&](int rank) {
    CommunicatorOptions options;
    options.rank = rank;
    options.ranks = 2;
    options.device = 0;
    options.arrive_s = 30;
    const std::unique_ptr<Communicator> comm = Communicator::create(options);
    body(*comm, *board);
    board->meet();
  });
  set_carrier_maker(nullptr);
  ::unsetenv("PLAIT_NODE_SIZE");
  return failed;
}

}  // namespace

TEST_CASE("what ends a rank's GPU side is told to ranks of other nodes, by name and host") {
  CHECK(run([](Communicator& comm, bench::Board& board) {
          const Request request = request_of(Collective::all_reduce, 1 << 20);
          comm.enqueue(request, kMemory, kOther, nullptr);
          comm.check();
          board.meet();
          if (comm.rank() == 0) {
            fake_cuda().fault = cuda::kFaultDeadline;
            comm.enqueue(request, kMemory, kOther, nullptr);
            const auto met = attempt([&] { comm.check(); });
            require(met && met->code() == ErrorCode::timeout, met ? met->what() : "no error");
          }
          board.meet();
          if (comm.rank() == 1) {
            fake_cuda().nccl.async_error = 6;  // as NCCL has it, which names nobody
            std::optional<Error> met;
            for (int turn = 0; !met && turn < 1000; ++turn) {
              met = attempt([&] { comm.check(); });
              std::this_thread::sleep_for(std::chrono::milliseconds(1));
            }
            const std::string said = met ? met->what() : "no error";
            require(said.find("rank 0 on host ") != std::string::npos &&
                        said.find(" reports: rank 0 on host ") != std::string::npos &&
                        said.find(" waited 30 s") != std::string::npos,
                    said);
          }
        }) == 0);
}

TEST_CASE("between GPUs of two nodes NCCL alone sends and receives") {
  CHECK(run([](Communicator& comm, bench::Board&) {
          Communicator& pair = comm.pair(1 - comm.rank());
          require(pair.device() == 0 && pair.rank() == comm.rank(), "the pair has no GPU");
          Request copy = request_of(Collective::copy, 1024);
          copy.peer = 1;
          const bool sends = comm.rank() == 0;
          pair.enqueue(copy, kMemory, kOther, nullptr);
          require(noted("ncclSend to 1 4096 of 2") == (sends ? 1u : 0u) &&
                      noted("ncclRecv from 0 4096 of 2") == (sends ? 0u : 1u),
                  "a copy");
          fake_cuda().notes.clear();
          pair.enqueue(request_of(Collective::send_recv, 8), kMemory, kOther, nullptr);
          const int peer = 1 - comm.rank();
          require(noted("ncclSend to " + std::to_string(peer) + " 32 of 2") == 1 &&
                      noted("ncclRecv from " + std::to_string(peer) + " 32 of 2") == 1,
                  "an exchange");
          const auto met = attempt([&] {
            pair.enqueue(request_of(Collective::all_reduce, 8), kMemory, kOther, nullptr);
          });
          require(met && met->code() == ErrorCode::unsupported, "a sum of two");
          pair.check();
          Counters counters = comm.counters();
          require(counters.calls_of["copy/library"] == 1 &&
                      counters.calls_of["send_recv/library"] == 1 &&
                      counters.bytes_of_path["nccl"] == (sends ? 4096u + 32 : 32u),
                  "counted calls");
        }) == 0);
}
