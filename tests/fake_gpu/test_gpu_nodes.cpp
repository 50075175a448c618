// GPU calls over two pretended nodes, with fake drivers: order on streams, faults and error texts.
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "base/error_reason.hpp"
#include "base/text.hpp"
#include "comm/multinode/gpu_multinode.hpp"
#include "comm/multinode/node_program_runner.hpp"
#include "comm/node/setup.hpp"
#include "fake_cuda/fake_gpu.hpp"
#include "fake_gpu/order.hpp"
#include "gpu/abi/call_args.hpp"
#include "plait/error.hpp"
#include "tests/fake_gpu/node_rank.hpp"
#include "tests/fake_gpu/require.hpp"
#include "tests/gpu/ranks.hpp"

using namespace plait;
using plait_test::fake_cuda;
using plait_test::FakeNote;
using plait_test::kMemory;
using plait_test::kOther;
using plait_test::kTwoOfTwo;
using plait_test::NodeRank;
using plait_test::Order;
using plait_test::request_of;
using plait_test::require;
using plait_test::run_nodes;

namespace {

constexpr double kSoonS = 8;  // on a busy machine; calls are tried for 10 s

std::ptrdiff_t threads_of_process() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return std::distance(begin(tasks), end(tasks));
}

/// Recorded items without the check that fails the stream after NCCL was aborted.
std::vector<FakeNote> notes() {
  std::vector<FakeNote> found = fake_cuda().notes.all();
  std::erase_if(found, [](const FakeNote& note) { return note.what == "plait_fail_if_peer_lost"; });
  return found;
}

/// Recorded items of a call, made once before, so that the items contain no preparation.
Order order_of(NodeRank& side, const Request& request, const CallOptions& options = {},
               cuda::Stream stream = nullptr) {
  for (int turn = 0; turn < 2; ++turn) {
    fake_cuda().notes.clear();
    side.multinode->enqueue(request, kMemory, kOther, stream, options);
  }
  return Order(notes());
}

CallOptions in_pieces(int pieces) {
  CallOptions options;
  options.strategy = "multi_node";
  options.params["pieces"] = pieces;
  return options;
}

}  // namespace

TEST_CASE("a piece crosses nodes while the next one is reduced inside them") {
  CHECK(
      run_nodes(kTwoOfTwo, {}, [](NodeRank& side) {
        const Order order =
            order_of(side, request_of(Collective::all_reduce, 1 << 20), in_pieces(2));
        require(order.count("plait_") == 4 && order.count("ncclAllReduce") == 2, order.all());
        std::size_t kernel[4], across[2];
        for (std::size_t i = 0; i < 4; ++i) kernel[i] = order.find("plait_", i);
        for (std::size_t i = 0; i < 2; ++i) across[i] = order.find("ncclAllReduce", i);
        for (std::size_t piece = 0; piece < 2; ++piece) {
          require(order.is_behind(across[piece], kernel[piece]), "a sum in the node" + order.all());
          require(order.is_behind(kernel[2 + piece], across[piece]), "a gather" + order.all());
          require(order.at(across[piece]).stream != nullptr, "the caller's stream");
        }
        require(!order.is_behind(kernel[1], across[0]), "the next piece waits" + order.all());
        require(!order.is_behind(kernel[2], across[1]), "a piece waits for the next" + order.all());
        require(order.at(across[0]).what == "ncclAllReduce 262144 of 2", order.all());
      }) == 0);
}

TEST_CASE("every collective by rails, and by NCCL among all ranks") {
  struct Row {
    Collective collective;
    std::size_t kernels;  // Kernels of a single rank, with two nodes of two ranks.
    const char* across;
    const char* library;
  };
  const Row rows[] = {
      {Collective::all_reduce, 2, "ncclAllReduce 512 of 2", "ncclAllReduce 1024 of 4"},
      {Collective::reduce_scatter, 2, "ncclReduceScatter 1024 of 2", "ncclReduceScatter 1024 of 4"},
      {Collective::all_gather, 2, "ncclAllGather 1024 of 2", "ncclAllGather 1024 of 4"},
      {Collective::all_to_all, 2, "ncclSend to 1 8192 of 2", "ncclSend to 3 4096 of 4"},
      {Collective::send_recv, 1, "", "ncclSend to "},
      {Collective::broadcast, 1, "ncclBroadcast 512 of 2", "ncclBroadcast 1024 of 4"},
      {Collective::reduce, 1, "ncclReduce 512 of 2", "ncclReduce 1024 of 4"},
      {Collective::gather, 0, "ncclSend to 0 4096 of 2", "ncclSend to 0 4096 of 4"},
      {Collective::scatter, 0, "ncclRecv from 0 4096 of 2", "ncclRecv from 0 4096 of 4"},
      {Collective::copy, 0, "", ""}};
  CHECK(run_nodes(kTwoOfTwo, {}, [&](NodeRank& side) {
          CallOptions library;
          library.strategy = "library";
          for (const Row& row : rows) {
            Request request = request_of(row.collective, 1024);
            request.peer = 3;
            const std::string name = name_of(row.collective);
            const Order rails = order_of(side, request, in_pieces(1));
            require(rails.count("plait_") >= row.kernels, name + rails.all());
            require(rails.count(row.across) > 0, name + rails.all());
            const Order whole = order_of(side, request, library);
            require(whole.count("plait_") == 0 && whole.count(row.library) > 0, name + whole.all());
          }
          const Request average = [] {
            Request request = request_of(Collective::all_reduce, 1024);
            request.op = ReduceOp::avg;
            return request;
          }();
          require(order_of(side, average).count("ncclAllReduce 1024 of 4") == 1, "an average");
          Counters counters;
          side.multinode->add_to(counters);
          require(counters.calls_of["all_reduce/multi_node(pieces=1)"] == 2 &&
                      counters.calls_of["all_reduce/library"] == 4 &&
                      counters.bytes_of_path["nccl"] > 0,
                  "counted calls");
        }) == 0);
}

TEST_CASE("all_reduces below 256 KiB are NCCL's whole, unless a strategy or the bits are named") {
  GpuMultinodeOptions named, bitwise;
  named.forced = in_pieces(1);
  bitwise.bitwise = true;
  const Request least = request_of(Collective::all_reduce, 64 << 10);
  const Request shorter = request_of(Collective::all_reduce, (64 << 10) - 2);
  CHECK(run_nodes(kTwoOfTwo, {}, [&](NodeRank& side) {
          const Order whole = order_of(side, shorter);
          require(whole.count("plait_") == 0 && whole.count("ncclAllReduce 65534 of 4") == 1,
                  whole.all());
          require(side.multinode->explain(shorter).find(
                      "on GPUs of 2 nodes: library (over nodes NCCL is faster below 256 KiB), "
                      "NCCL 22809 between nodes, sums in NCCL's order\n"
                      "  all_reduce of 65534 by NCCL among all ranks\n") == 0,
                  side.multinode->explain(shorter));
          const Order rails = order_of(side, least);
          require(rails.count("plait_") == 2 && rails.count("ncclAllReduce 32768 of 2") == 1,
                  rails.all());
          require(side.multinode->explain(least).find("nodes: multi_node(pieces=1), NCCL") !=
                      std::string::npos,
                  side.multinode->explain(least));
          Request narrow = least;  // As many elements, half of the bytes.
          narrow.type = DataType::bf16;
          require(order_of(side, narrow).count("ncclAllReduce 65536 of 4") == 1, "bf16");
          const Order by_call = order_of(side, shorter, in_pieces(1));
          require(by_call.count("ncclAllReduce 32767 of 2") == 1, by_call.all());
        }) == 0);
  CHECK(run_nodes(kTwoOfTwo, named, [&](NodeRank& side) {
          const Order order = order_of(side, shorter);
          require(order.count("ncclAllReduce 32767 of 2") == 1, order.all());
        }) == 0);
  CHECK(run_nodes(kTwoOfTwo, bitwise, [&](NodeRank& side) {
          const Order order = order_of(side, shorter);
          require(order.count("ncclReduce 32767 of 2") == 1, order.all());
          Request whole_numbers = shorter;  // No plan in rank order exists or is needed.
          whole_numbers.type = DataType::int32;
          const Order rails = order_of(side, whole_numbers);
          require(rails.count("ncclAllReduce 32767 of 2") == 1, rails.all());
          require(
              side.multinode->explain(shorter).find("node_order") != std::string::npos &&
                  side.multinode->explain(shorter).find("sums in rank order") != std::string::npos,
              side.multinode->explain(shorter));
        }) == 0);
}

TEST_CASE("NCCL serves the whole call if a node's engines refuse, and the log says so") {
  const InNode takes_none{[](const Request&) { return false; }, nullptr};
  NodeProgramRunner multinode(nodes_of(kTwoOfTwo, 0, 0), takes_none, nullptr, nullptr, {}, false);
  const auto program = multinode.program(request_of(Collective::all_reduce, 1 << 20), {});
  CHECK(program->is_library());
  CHECK(program->why == "inside a node no engine serves multi_node(pieces=1), or NCCL is faster");
}

TEST_CASE("odd counts, unequal nodes and several streams") {
  CHECK(run_nodes({"a", "a", "b", "b", "b"}, {}, [](NodeRank& side) {
          const bool has_rail = side.nodes.place < 2;
          const Order order =
              order_of(side, request_of(Collective::all_reduce, 1001, 5), in_pieces(1));
          require(order.count("ncclAllReduce 500 of 2") == (has_rail ? 1u : 0u), order.all());
          require(order.count("ncclAllReduce 1 of 5") == 1, "the rest" + order.all());
          require(order.count("plait_") == (side.nodes.mine == 0 ? 2u : 4u), order.all());
        }) == 0);
  CHECK(run_nodes({"a", "b"}, {}, [](NodeRank& side) {
          const Order order = order_of(side, request_of(Collective::all_reduce, 1000, 2));
          require(order.count("ncclAllReduce 1000 of 2") == 1 && order.count("plait_") == 0,
                  order.all());
          cuda::Stream stream = nullptr;
          const cuda::Current current(side.calls->rank().context());
          PLAIT_CUDA_CALL(stream_create, &stream, 0, 0);
          fake_cuda().notes.clear();
          side.multinode->enqueue(request_of(Collective::all_reduce, 1000, 2), kMemory, kOther,
                                  nullptr, {});
          const std::size_t first = notes().size();
          side.multinode->enqueue(request_of(Collective::all_reduce, 1000, 2), kMemory, kOther,
                                  stream, {});
          const Order both(notes());
          require(both.is_behind(both.find("ncclAllReduce", 1), both.find("ncclAllReduce")),
                  both.all());
          require(both.at(first).what == "wait", "the second stream" + both.all());
        }) == 0);
}

TEST_CASE("two ranks of unequal nodes send and receive between calls of all ranks") {
  CHECK(run_nodes(kTwoOfTwo, {}, [](NodeRank& side) {
          const int rank = side.rank();
          const Request all = request_of(Collective::all_reduce, 1 << 17);
          side.multinode->enqueue(all, kMemory, kOther, nullptr, {});
          cuda::Stream stream = nullptr;
          const cuda::Current current(side.calls->rank().context());
          PLAIT_CUDA_CALL(stream_create, &stream, 0, 0);
          fake_cuda().notes.clear();
          side.multinode->enqueue(all, kMemory, kOther, nullptr, {});
          Request copy = request_of(Collective::copy, 1024, 2);
          copy.peer = 1;
          const bool sends = rank == 0, takes_part = rank == 0 || rank == 3;
          if (takes_part)
            side.multinode->message(3 - rank, copy, sends ? 0 : 1, sends ? kMemory : nullptr,
                                    sends ? nullptr : kOther, stream, true);
          side.multinode->enqueue(all, kMemory, kOther, nullptr, {});
          const Order order(notes());
          require(order.count("ncclSend") == (sends ? 1u : 0u) &&
                      order.count("ncclRecv") == (rank == 3 ? 1u : 0u),
                  order.all());
          if (!takes_part) return;
          const std::size_t moved =
              order.find(sends ? "ncclSend to 3 4096 of 4" : "ncclRecv from 0 4096 of 4");
          require(order.is_behind(moved, order.find("ncclAllReduce")), order.all());
          require(order.is_behind(order.find("ncclAllReduce", 1), moved), order.all());
        }) == 0);
}

TEST_CASE("an error of NCCL ends the communicator and waits between nodes") {
  CHECK(run_nodes(kTwoOfTwo, {}, [](NodeRank& side) {
          const Request request = request_of(Collective::all_reduce, 1 << 20);
          side.multinode->enqueue(request, kMemory, kOther, nullptr, {});
          side.multinode->check(true);
          fake_cuda().nccl.async_error = 6;  // A rank of another node is gone.
          const auto [said, took_s] = side.run_caught(request);
          const std::string others = side.nodes.mine == 0 ? "rank 2 on host b, rank 3 on host b?"
                                                          : "rank 0 on host a, rank 1 on host a?";
          require(said.find("NCCL between nodes: error 6; is one of these gone: " + others) !=
                      std::string::npos,
                  said);
          require(took_s < kSoonS, text("it took {} s", took_s));
          require(side.failure.has_value(), "the node was not told");
          require(side.told.empty(), "ranks that may be gone were told");
          const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(10);
          while (fake_cuda().nccl.aborted < 2 && std::chrono::steady_clock::now() < until)
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
          require(fake_cuda().nccl.aborted == 2 && fake_cuda().nccl.destroyed == 0, "not aborted");
        }) == 0);
}

TEST_CASE("nodes report to each other why NCCL has failed") {
  CHECK(run_nodes(kTwoOfTwo, {}, [](NodeRank& side) {
          const Request request = request_of(Collective::all_reduce, 1 << 20);
          const Error died(ErrorCode::peer_lost, "rank 1 on host a (pid 7) ended");
          side.multinode->enqueue(request, kMemory, kOther, nullptr, {});
          if (side.nodes.mine == 0) {
            side.fail(died);
            for (int turn = 0; turn < 2; ++turn) {
              const auto [said, took_s] = side.run_caught(request);
              require(said.find(reason_of(died)) != std::string::npos, said);
            }
            require(side.told == std::vector{reason_of(died)}, "told otherwise than once");
            return;
          }
          fake_cuda().nccl.async_error = 6;
          std::this_thread::sleep_for(std::chrono::milliseconds(100));  // NCCL notices first.
          side.others = reported_by("rank 0 on host a", died.code(), reason_of(died));
          const auto [said, took_s] = side.run_caught(request);
          require(said.find("rank 0 on host a reports: rank 1 on host a (pid 7) ended") !=
                      std::string::npos,
                  said);
          require(took_s < kSoonS, text("it took {} s", took_s));
        }) == 0);
}

TEST_CASE("an error of NCCL has the cause that another rank reports") {
  CHECK(run_nodes(kTwoOfTwo, {}, [](NodeRank& side) {
          const Request request = request_of(Collective::all_reduce, 1 << 20);
          side.multinode->enqueue(request, kMemory, kOther, nullptr, {});
          fake_cuda().nccl.call_result = 6;
          std::thread later([&] {
            std::this_thread::sleep_for(std::chrono::milliseconds(200));
            side.fail(Error(ErrorCode::peer_lost, "rank 0 on host a reports: it is over"));
          });
          const auto [said, took_s] = side.run_caught(request);
          later.join();
          require(said.find("rank 0 on host a reports: it is over") != std::string::npos, said);
        }) == 0);
}

/// Waits until `holds` is true, at most ten seconds.
void await(const char* what, const std::function<bool()>& holds) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (!holds()) {
    require(std::chrono::steady_clock::now() < until, what);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

double seconds_of(const std::function<void()>& work) {
  const auto began = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
}

std::string why(const std::function<void()>& work) {
  const auto caught = attempt(work);
  return caught ? reason_of(*caught) : "no error";
}

TEST_CASE("a call that the driver refuses half-way ends the communicator on all nodes") {
  CHECK(run_nodes(kTwoOfTwo, {}, [](NodeRank& side) {
          const Request request = request_of(Collective::all_reduce, 1 << 20);
          const auto call = [&] { side.multinode->enqueue(request, kMemory, kOther, nullptr, {}); };
          call();
          if (side.rank() != 0) return;
          fake_cuda().refuses.of("event_record", 4);
          require(why(call).find("CUDA driver call event_record") != std::string::npos, why(call));
          const std::string said = why(call);
          require(said.find("failed before all of its work was enqueued") != std::string::npos,
                  said);
          require(side.told.size() == 1 && side.told[0] == said, "the other node was not told why");
          fake_cuda().refuses.none();
        }) == 0);
}

TEST_CASE("the end of calls is known beside a call that all ranks refuse") {
  GpuGroup unknown;
  unknown.reach.why_no_kernels = "two GPUs have no direct link";
  unknown.why_no_topology = "no topology is known";
  CHECK(run_nodes(
            kTwoOfTwo, {},
            [](NodeRank& side) {
              const Request small = request_of(Collective::all_reduce, 1024);
              const std::string said = why(
                  [&] { side.multinode->enqueue(small, kMemory, kOther, nullptr, in_pieces(1)); });
              require(said.find("wants a plan, and no topology is known") != std::string::npos,
                      said);
              side.multinode->enqueue(small, kMemory, kOther, nullptr, {});  // NCCL's whole
              side.multinode.reset();
              require(fake_cuda().nccl.aborted == 0, "ended as if calls were under way");
            },
            unknown) == 0);
}

TEST_CASE("a call stuck in NCCL is an error at the deadline, which names its peers") {
  GpuMultinodeOptions how;
  how.arrive_s = 0.3;
  CHECK(run_nodes(kTwoOfTwo, how, [](NodeRank& side) {
          fake_cuda().nccl.holds_calls = true;
          const bool is_pair = side.rank() == 0;  // Pair of ranks 0 and 3.
          Request copy = request_of(Collective::copy, 1024, 2);
          copy.peer = 1;
          std::string said;
          const double took_s = seconds_of([&] {
            said = why([&] {
              if (is_pair)
                return side.multinode->message(3, copy, 0, kMemory, nullptr, nullptr, true);
              side.multinode->enqueue(request_of(Collective::all_reduce, 1 << 20), kMemory, kOther,
                                      nullptr, {});
            });
          });
          const std::string whom =
              is_pair                ? "is rank 3 on host b gone?"
              : side.nodes.mine == 0 ? "is one of these gone: rank 2 on host b, rank 3 on host b?"
                                     : "is one of these gone: rank 0 on host a, rank 1 on host a?";
          require(said == "a call between nodes has been inside NCCL for 0.3 s; " + whom, said);
          require(took_s < 4, text("it took {} s", took_s));
          await("not aborted", [] { return fake_cuda().nccl.aborted == 2; });
          fake_cuda().nccl.holds_calls = false;
        }) == 0);
}

TEST_CASE("a thread behind a call stuck in NCCL gets an error with the cause") {
  GpuMultinodeOptions how;
  how.arrive_s = 0.3;
  CHECK(run_nodes(kTwoOfTwo, how, [](NodeRank& side) {
          fake_cuda().nccl.holds_calls = true;
          const Request request = request_of(Collective::all_reduce, 1 << 20);
          const auto call = [&] { side.multinode->enqueue(request, kMemory, kOther, nullptr, {}); };
          std::string first;
          std::thread other([&] { first = why(call); });
          await("no call inside", [] { return !notes().empty(); });
          std::this_thread::sleep_for(std::chrono::milliseconds(50));
          const std::string second = why(call);
          other.join();
          require(first == second && second.find("inside NCCL for 0.3 s") != std::string::npos,
                  first + second);
        }) == 0);
}

TEST_CASE("the error of a stuck receive names its peer") {
  GpuMultinodeOptions how;
  how.arrive_s = 0.3;
  CHECK(run_nodes(kTwoOfTwo, how, [](NodeRank& side) {
          if (side.rank() != 3) return;
          fake_cuda().still.is_wanted = true;
          Request copy = request_of(Collective::copy, 1024, 2);
          copy.peer = 1;
          side.multinode->message(0, copy, 1, nullptr, kOther, nullptr, true);
          await("not aborted", [] { return fake_cuda().nccl.aborted == 2; });
          const std::string said = why([&] { side.multinode->check(true); });
          require(
              said == "a call between nodes has stood still for 0.3 s; is rank 0 on host a gone?",
              said);
        }) == 0);
}

TEST_CASE("a communicator that NCCL does not make in time fails all ranks, and is freed") {
  fake_cuda().gpu = {};
  ::setenv("PLAIT_NCCL_LIB", FAKE_NCCL, 1);
  bench::Board* const board = bench::make_board(4);
  CHECK(bench::run_ranks(board, true, [&](int rank) {
          auto& nccl = fake_cuda().nccl;
          nccl.holds_init = rank == 2;
          const std::string said =
              why([&] { const NodeRank side(board, kTwoOfTwo, rank, {}, rank == 2 ? 0.3 : 60); });
          require(said == "NCCL among all ranks: NCCL has not come back by the deadline", said);
          nccl.holds_init = false;
          await("kept", [&] { return nccl.made > 0 && nccl.made == nccl.aborted; });
        }) == 0);
}

TEST_CASE("a driver that does not answer delays neither errors nor queries") {
  CHECK(run_nodes(kTwoOfTwo, {}, [](NodeRank& side) {
          side.multinode->enqueue(request_of(Collective::all_reduce, 1 << 20), kMemory, kOther,
                                  nullptr, {});
          fake_cuda().still.is_wanted = true;  // So that a call is pending.
          side.multinode->enqueue(request_of(Collective::all_reduce, 1 << 20), kMemory, kOther,
                                  nullptr, {});
          fake_cuda().holds_queries = true;
          await("no query", [] { return fake_cuda().held_queries > 0; });
          const double took_s = seconds_of([&] {
            side.multinode->check(true);
            Counters counters;
            side.multinode->add_to(counters);
          });
          require(took_s < kSoonS, text("check() took {} s", took_s));
          side.fail(Error(ErrorCode::peer_lost, "rank 1 on host a (pid 7) ended"));
          await("not aborted", [] { return fake_cuda().nccl.aborted == 2; });
          fake_cuda().holds_queries = false;
        }) == 0);
}

TEST_CASE("check() ends without the watch thread") {
  class Holding : public PeerObserver {
   public:
    Holding() : PeerObserver(0) {}
    void lost(int, int, Loss) override {}
    void fail_streams() noexcept override {}
    void look() override {
      is_looking = true;
      while (is_held) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    std::atomic<bool> is_held{true}, is_looking{false};
  };
  CHECK(run_nodes(kTwoOfTwo, {}, [](NodeRank& side) {
          Holding holding;
          watch(std::make_shared<WatchedPeers>(), holding, ObserverCalls::look);
          await("not held", [&] { return holding.is_looking.load(); });
          fake_cuda().nccl.call_result = 6;
          std::thread release([&] {
            std::this_thread::sleep_for(std::chrono::seconds(5));
            holding.is_held = false;
          });
          const auto [said, took_s] = side.run_caught(request_of(Collective::all_reduce, 1 << 20));
          release.join();
          unwatch(holding);
          require(said.find("is one of these gone") != std::string::npos, said);
          require(took_s < 4, text("it took {} s", took_s));
        }) == 0);
}

TEST_CASE("a stream fault that follows NCCL's abort is not taken for the cause") {
  CHECK(run_nodes(kTwoOfTwo, {}, [](NodeRank& side) {
          side.at_failure = [&side] {  // Between two queries of a check().
            fake_cuda().nccl.async_error = 6;
            await("not aborted", [] { return fake_cuda().nccl.aborted == 2; });
            fake_cuda().fault = cuda::kFaultLost;
            side.calls->rank().fail_if_peer_lost(nullptr);
          };
          side.others = std::nullopt;
          const std::string first = why([&] { side.multinode->check(true); });
          side.others = Error(ErrorCode::peer_lost, "rank 0 on host a reports: it is over");
          const std::string then = why([&] { side.multinode->check(true); });
          require(then == reason_of(*side.others), first + ", then " + then);
          require(side.failure && reason_of(*side.failure) == then, side.failure->what());
        }) == 0);
}

TEST_CASE("threads of a communicator and its pairs exchange failures one at a time, once") {
  CHECK(run_nodes(kTwoOfTwo, {}, [](NodeRank& side) {
          std::atomic<int> hearing{0}, at_once{0};
          side.at_hearing = [&] {
            if (hearing.fetch_add(1) > 0) ++at_once;
            std::this_thread::sleep_for(std::chrono::milliseconds(2));
            --hearing;
          };
          const auto look = [&] {
            for (int turn = 0; turn < 50; ++turn) {
              static_cast<void>(attempt([&] { side.multinode->check(true); }));
              std::this_thread::sleep_for(std::chrono::milliseconds(1));
            }
          };
          for (const bool has_failed : {false, true}) {
            if (has_failed) side.fail(Error(ErrorCode::peer_lost, "rank 1 ended"));
            std::thread other(look);
            look();
            other.join();
          }
          require(at_once == 0, text("{} heard while another did", at_once.load()));
          require(side.told == std::vector<std::string>{"rank 1 ended"}, "not told once");
        }) == 0);
}

TEST_CASE("one watch thread serves all communicators of a process") {
  CHECK(run_nodes(kTwoOfTwo, {}, [](NodeRank& side) {
          const std::ptrdiff_t before = threads_of_process();
          const int rank = side.rank();
          for (int more = 0; more < 3; ++more) {
            const GpuMultinode another(
                side.nodes, {side.calls.get(), [] { return std::nullopt; }, [](const Error&) {}},
                {}, [&](const std::string& mine) { return side.board->exchange(rank, mine); },
                Deadline{deadline_in(60), nullptr});
            const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(10);
            while (threads_of_process() > before && std::chrono::steady_clock::now() < until)
              std::this_thread::sleep_for(std::chrono::milliseconds(1));  // Short tasks end.
            require(threads_of_process() <= before, "a thread for each communicator");
          }
        }) == 0);
}

TEST_CASE("the death of a rank aborts its node's communicators between nodes") {
  CHECK(run_nodes(kTwoOfTwo, {}, [](NodeRank& side) {
          {
            const std::lock_guard lock(side.guard);
            side.failure = Error(ErrorCode::peer_lost, "rank 1 ended");
          }
          const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(10);
          while (fake_cuda().nccl.aborted < 2 && std::chrono::steady_clock::now() < until)
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
          require(fake_cuda().nccl.aborted == 2, "not aborted");
          const auto caught = attempt([&] { side.multinode->check(true); });
          require(caught && caught->code() == ErrorCode::peer_lost, "no error");
        }) == 0);
}

TEST_CASE("a rail that cannot be made fails all ranks, and nothing leaks") {
  fake_cuda().gpu = {};
  ::setenv("PLAIT_NCCL_LIB", FAKE_NCCL, 1);
  bench::Board* const board = bench::make_board(4);
  CHECK(bench::run_ranks(board, true, [&](int rank) {
          if (rank == 2) fake_cuda().nccl.init_result = 2;
          const auto caught = attempt([&] { const NodeRank side(board, kTwoOfTwo, rank, {}); });
          require(caught &&
                      std::string(caught->what()).find("NCCL among all ranks failed with NCCL's") !=
                          std::string::npos,
                  caught ? caught->what() : "no error");
        }) == 0);
}

TEST_CASE("the bits of rank order, or an error if NCCL adds, and the log says so") {
  GpuMultinodeOptions bitwise;
  bitwise.bitwise = true;
  CHECK(run_nodes(kTwoOfTwo, bitwise, [](NodeRank& side) {
          Request request = request_of(Collective::all_reduce, 1 << 20);
          const Order order = order_of(side, request);  // Node 1 continues from node 0's sum.
          require(order.count("ncclReduce 524288 of 2") == 1 &&
                      order.count("ncclBroadcast 524288 of 2") == 1,
                  order.all());
          require(order.is_behind(order.find("ncclBroadcast"), order.find("ncclReduce")),
                  order.all());
          require(side.multinode->explain(request).find("sums in rank order") != std::string::npos,
                  side.multinode->explain(request));
          request.type = DataType::bf16;  // A partial sum would be rounded.
          const auto caught =
              attempt([&] { side.multinode->enqueue(request, kMemory, kOther, nullptr, {}); });
          require(caught && std::string(caught->what()).find("PLAIT_BITWISE") != std::string::npos,
                  "no error");
          request.type = DataType::int32;  // Any order gives the same bits.
          side.multinode->enqueue(request, kMemory, kOther, nullptr, {});
          const std::string said = side.multinode->explain(request);
          require(said.find("on GPUs of 2 nodes: multi_node(pieces=1), NCCL 22809") !=
                          std::string::npos &&
                      said.find("reduce_scatter of 524288 in the node, chosen: ") !=
                          std::string::npos &&
                      said.find("by NCCL on rail ") != std::string::npos,
                  said);
          const auto odd = attempt([&] {
            request.type = DataType::int16;
            side.multinode->enqueue(request, kMemory, kOther, nullptr, {});
          });
          require(odd && std::string(odd->what()).find("reduces no int16") != std::string::npos,
                  odd ? odd->what() : "no error");
        }) == 0);
}
