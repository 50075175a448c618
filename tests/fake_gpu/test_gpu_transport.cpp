// Communicators over nodes with GPUs, as programs make them: a process per rank on two
// pretended nodes, over a fake driver and a fake libnccl that record calls, and a transport in
// memory.
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <thread>
#include <tuple>

#include "comm/bootstrap/vote.hpp"
#include "comm/transport/transport.hpp"
#include "fake_cuda/fake_gpu.hpp"
#include "gpu/abi/call_args.hpp"
#include "plait/communicator.hpp"
#include "tests/fake_gpu/require.hpp"
#include "tests/gpu/ranks.hpp"

using namespace plait;
using plait_test::fake_cuda;
using plait_test::require;

namespace {

/// Messages between ranks in memory that all map: the bytes sent so far, message behind message.
struct Mail {
  static constexpr int kRanks = 4;
  static constexpr std::size_t kBytes = 32 << 20;
  struct Head {
    int tag;
    std::size_t bytes;
  };
  struct Sent {
    std::atomic<std::size_t> end{0};
    char bytes[kBytes];
  } sent[kRanks][kRanks];  ///< By sender, receiver.
  struct FailureText {
    std::atomic<int> by{-1};
    char words[Transport::kMaxFailureBytes];
  } first_failure[kRanks];  ///< By receiver.
};

class MailTransport : public Transport {
 public:
  MailTransport(Mail& mail, int rank, int ranks) : mail_(mail), rank_(rank), ranks_(ranks) {}
  int ranks() const override { return ranks_; }
  std::string name() const override { return "memory"; }
  std::uint64_t send(int peer, int tag, const void* src, std::size_t bytes) override {
    Mail::Sent& mine = mail_.sent[rank_][peer];
    const Mail::Head head{tag, bytes};
    const std::size_t end = mine.end.load();
    if (end + sizeof head + bytes > Mail::kBytes) throw std::logic_error("too much mail");
    std::memcpy(mine.bytes + end, &head, sizeof head);
    std::memcpy(mine.bytes + end + sizeof head, src, bytes);
    mine.end.store(end + sizeof head + bytes);
    return 0;
  }
  std::uint64_t receive(int peer, int tag, void* dst, std::size_t bytes) override {
    awaited_[++last_] = {peer, tag, dst, bytes};
    return last_;
  }
  bool is_done(std::uint64_t& message) override {
    const auto& [peer, tag, dst, bytes] = awaited_.at(message);
    Box& box = boxes_[peer];
    const Mail::Sent& theirs = mail_.sent[peer][rank_];
    for (const std::size_t end = theirs.end.load(); box.read < end;) {
      Mail::Head head{};
      std::memcpy(&head, theirs.bytes + box.read, sizeof head);
      box.come[head.tag].emplace_back(theirs.bytes + box.read + sizeof head, head.bytes);
      box.read += sizeof head + head.bytes;
    }
    std::deque<std::string>& come = box.come[tag];
    if (come.empty()) return false;
    if (come.front().size() != bytes) throw std::logic_error("a message of another size");
    std::memcpy(dst, come.front().data(), bytes);
    come.pop_front();
    return true;
  }
  bool drop(std::uint64_t& message) noexcept override { return awaited_.erase(message) != 0; }
  void publish_failure(const std::vector<int>& ranks, const std::string& failure) override {
    for (const int rank : ranks) {
      std::strncpy(mail_.first_failure[rank].words, failure.c_str(), kMaxFailureBytes - 1);
      mail_.first_failure[rank].by.store(rank_);
    }
  }
  std::optional<std::pair<int, std::string>> first_failure() override {
    const Mail::FailureText& first_failure = mail_.first_failure[rank_];
    const int by = first_failure.by.load();
    if (by < 0) return std::nullopt;
    return std::pair(by, std::string(first_failure.words));
  }

 private:
  struct Box {
    std::size_t read = 0;
    std::map<int, std::deque<std::string>> come;  ///< By tag.
  };
  Mail& mail_;
  const int rank_, ranks_;
  std::uint64_t last_ = 0;
  std::map<int, Box> boxes_;  ///< By sender.
  std::map<std::uint64_t, std::tuple<int, int, void*, std::size_t>> awaited_;
};

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
  for (const plait_test::FakeNote& note : fake_cuda().notes.all())
    found += note.what.rfind(begin, 0) == 0;
  return found;
}

/// Runs two nodes with as many ranks each; every rank has a separate GPU.
int run_each(int ranks,
             const std::function<void(const CommunicatorOptions&, bench::Board&)>& body) {
  fake_cuda().gpu = {};
  fake_cuda().nccl.async_error = 0;
  ::setenv("PLAIT_NCCL_LIB", FAKE_NCCL, 1);
  ::setenv("PLAIT_NODE_SIZE", std::to_string(ranks / 2).c_str(), 1);
  Mail* const mail = new (bench::shared_memory(sizeof(Mail))) Mail;
  set_transport_factory([&](int rank, int all, double, const std::string&) {
    return std::make_shared<MailTransport>(*mail, rank, all);
  });
  bench::Board* const board = bench::make_board(ranks);
  const int failed = bench::run_ranks(board, true, [&](int rank) {
    fake_cuda().gpu.number = static_cast<char>(rank);
    CommunicatorOptions options;
    options.rank = rank;
    options.ranks = ranks;
    options.device = 0;
    options.arrive_s = 30;
    body(options, *board);
  });
  set_transport_factory(nullptr);
  ::unsetenv("PLAIT_NODE_SIZE");
  return failed;
}

int run(int ranks, const std::function<void(Communicator&, bench::Board&)>& body) {
  return run_each(ranks, [&](const CommunicatorOptions& options, bench::Board& board) {
    const std::unique_ptr<Communicator> comm = Communicator::create(options);
    body(*comm, board);
    board.barrier();
  });
}

}  // namespace

TEST_CASE("a GPU failure of a rank is reported to other nodes with its name and host") {
  CHECK(run(2, [](Communicator& comm, bench::Board& board) {
          const Request request = request_of(Collective::all_reduce, 1 << 20);
          comm.enqueue(request, kMemory, kOther, nullptr);
          comm.check();
          board.barrier();
          if (comm.rank() == 0) {
            fake_cuda().fault = cuda::kFaultDeadline;
            comm.enqueue(request, kMemory, kOther, nullptr);
            const auto caught = attempt([&] { comm.check(); });
            require(caught && caught->code() == ErrorCode::timeout,
                    caught ? caught->what() : "no error");
          }
          board.barrier();
          if (comm.rank() == 1) {
            fake_cuda().nccl.async_error = 6;  // NCCL's error names no rank.
            std::optional<Error> caught;
            for (int turn = 0; !caught && turn < 1000; ++turn) {
              caught = attempt([&] { comm.check(); });
              std::this_thread::sleep_for(std::chrono::milliseconds(1));
            }
            const std::string said = caught ? caught->what() : "no error";
            require(said.find("rank 0 on host ") != std::string::npos &&
                        said.find(" reports: rank 0 on host ") != std::string::npos &&
                        said.find(" waited 30 s") != std::string::npos,
                    said);
          }
        }) == 0);
}

TEST_CASE("a single id for all NCCL communicators is refused on all ranks") {
  ::setenv("NCCL_COMM_ID", "127.0.0.1:5000", 1);
  CHECK(run_each(2, [](const CommunicatorOptions& options, bench::Board&) {
          const auto caught = attempt([&] { Communicator::create(options); });
          const std::string said = caught ? caught->what() : "no error";
          require(said.find("NCCL_COMM_ID=127.0.0.1:5000, which gives all of them one id") !=
                      std::string::npos,
                  said);
          require(fake_cuda().nccl.made == 0, "a communicator of NCCL was made");
        }) == 0);
  ::unsetenv("NCCL_COMM_ID");
}

TEST_CASE("ranks of two nodes adopt GPUs later; without NCCL they go on in host memory") {
  CHECK(run_each(4, [](const CommunicatorOptions& given, bench::Board& board) {
          CommunicatorOptions options = given;
          options.device = kNoDevice;
          const std::unique_ptr<Communicator> comm = Communicator::create(options);
          const auto sum_on_host = [&] {
            Request request = request_of(Collective::all_reduce, 1000);
            request.ranks = 4;
            std::vector<float> in(1000, static_cast<float>(comm->rank() + 1)), out(1000);
            comm->run(request, in.data(), out.data());
            require(out == std::vector<float>(1000, 10.0F), "a sum on host memory");
          };
          sum_on_host();
          fake_cuda().nccl.init_result = 3;
          const auto caught = attempt([&] { comm->adopt_device(0); });
          fake_cuda().nccl.init_result = 0;
          require(caught.has_value() && comm->device() == kNoDevice, "a GPU without NCCL");
          sum_on_host();
          comm->adopt_device(0);
          Request request = request_of(Collective::all_reduce, 1 << 20);
          request.ranks = 4;
          fake_cuda().notes.clear();
          comm->enqueue(request, kMemory, kOther, nullptr);
          comm->check();
          require(comm->device() == 0 && noted("nccl") > 0, "a call over nodes");
          sum_on_host();
          board.barrier();
        }) == 0);
}

TEST_CASE("communicators over nodes refuse to suspend on all ranks, and keep memory and calls") {
  CHECK(run(4, [](Communicator& comm, bench::Board& board) {
          const std::size_t held = fake_cuda().memory.bytes;
          require(held > 0 && comm.gpu_memory().suspendable == 0, "memory that a suspend frees");
          for (const bool suspends : {true, false}) {
            const auto caught = attempt([&] { suspends ? comm.suspend() : comm.resume(); });
            require(caught && caught->code() == ErrorCode::unsupported &&
                        std::string(caught->what()).find("over several nodes stays") !=
                            std::string::npos,
                    caught ? caught->what() : "no error");
          }
          // A rank alone that asks for the suspend does not leave the rest waiting.
          const auto alone = attempt([&] { comm.rank() == 0 ? comm.suspend() : comm.barrier(); });
          require(alone.has_value(), "a suspend of one rank");
          require(fake_cuda().memory.bytes == held, "memory went");
          Request request = request_of(Collective::all_reduce, 1 << 20);
          request.ranks = 4;
          fake_cuda().notes.clear();
          comm.enqueue(request, kMemory, kOther, nullptr);
          comm.check();
          require(noted("nccl") > 0, "no call over nodes");
          board.barrier();
        }) == 0);
}

TEST_CASE("only NCCL sends and receives between GPUs of two nodes") {
  CHECK(run(2, [](Communicator& comm, bench::Board&) {
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
          const auto caught = attempt([&] {
            pair.enqueue(request_of(Collective::all_reduce, 8), kMemory, kOther, nullptr);
          });
          require(caught && caught->code() == ErrorCode::unsupported, "a sum of two");
          pair.check();
          Counters counters = comm.counters();
          require(counters.calls_of["copy/library"] == 1 &&
                      counters.calls_of["send_recv/library"] == 1 &&
                      counters.bytes_of_path["nccl"] == (sends ? 4096u + 32 : 32u),
                  "counted calls");
        }) == 0);
}

TEST_CASE("two GPUs of one node send and receive by plait's engines, beside calls over nodes") {
  CHECK(run(4, [](Communicator& comm, bench::Board& board) {
          const int here = comm.rank() ^ 1, far = (comm.rank() + 2) % 4;
          const Request all = [] {
            Request request = request_of(Collective::all_reduce, 1 << 20);
            request.ranks = 4;
            return request;
          }();
          comm.enqueue(all, kMemory, kOther, nullptr);
          Communicator& pair = comm.pair(here);
          const int me = pair.rank();
          require(pair.device() == 0 && me == comm.rank() % 2 && pair.ranks() == 2, "no GPU");
          board.barrier();
          fake_cuda().notes.clear();
          Request copy = request_of(Collective::copy, 1024);
          copy.peer = 1;
          pair.enqueue(copy, kMemory, kOther, nullptr);
          pair.enqueue(request_of(Collective::send_recv, 8), kMemory, kOther, nullptr);
          pair.enqueue(request_of(Collective::all_reduce, 8), kMemory, kOther, nullptr);
          require(noted("plait_") >= 3 && noted("nccl") == 0, "calls of a node's two ranks");
          Request there = request_of(Collective::copy, 1024);
          there.peer = 1;
          comm.pair(far).enqueue(there, kMemory, kOther, nullptr);
          require(noted("nccl") == 1, "a message to another node");
          comm.check();
          Counters counters = comm.counters();
          std::uint64_t in_node = 0;
          for (const auto& [name, calls] : counters.calls_of)
            if (name.find("/library") == std::string::npos && name.find("multi_node") > name.size())
              in_node += calls;
          require(counters.calls_of["copy/library"] == 1 && in_node == 3, "counted calls");
          board.barrier();
        }) == 0);
}

TEST_CASE("a rank that says where it is, where the others do not, is an error on all") {
  CHECK(run_each(2, [](const CommunicatorOptions& given, bench::Board&) {
          CommunicatorOptions options = given;
          options.device = kNoDevice;
          if (options.rank == 1) options.node = "b";
          const auto caught = attempt([&] { Communicator::create(options); });
          require(caught && caught->code() == ErrorCode::mismatch &&
                      std::string(caught->what()).find("node=given") != std::string::npos,
                  caught ? caught->what() : "no error");
        }) == 0);
}
