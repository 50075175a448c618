// Tests communicators with a thread per rank: right results, and the same clear error on every rank
// for calls that do not fit.
#include <doctest/doctest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <numeric>
#include <thread>

#include "base/env.hpp"
#include "base/text.hpp"
#include "comm/bootstrap/socket.hpp"
#include "cpu/float_mode.hpp"
#include "plait/error.hpp"
#include "unit/comm/communicators.hpp"
#include "unit/scale.hpp"

using namespace plait;
using namespace plait_test;

namespace {

Request request_for(Collective collective, std::uint64_t count, int ranks) {
  Request request;
  request.collective = collective;
  request.count = count;
  request.ranks = ranks;
  return request;
}

/// Runs an all_reduce of the values i + rank and throws if a sum is wrong.
void checked_sum(Communicator& comm, std::uint64_t count, const CallOptions& options = {}) {
  std::vector<float> input(count);
  std::vector<float> output(count, -1.0f);
  for (std::uint64_t i = 0; i < count; ++i) input[i] = static_cast<float>(i % 1000 + comm.rank());
  comm.run(request_for(Collective::all_reduce, count, comm.ranks()), input.data(), output.data(),
           options);
  const auto ranks = static_cast<float>(comm.ranks());
  for (std::uint64_t i = 0; i < count; ++i) {
    const float wanted = ranks * static_cast<float>(i % 1000) + ranks * (ranks - 1) / 2;
    if (output[i] != wanted)
      throw std::runtime_error(
          text("element {} of {}: wanted {}, found {}", i, count, wanted, output[i]));
  }
}

/// Returns the error code that this rank's call throws; throws if the call succeeds.
ErrorCode code_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.code();
  }
  return ErrorCode::ok;
}

/// Waits until `count` ranks have ended, at most a minute.
void await(const std::atomic<int>& ended, int count) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (ended < count && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

}  // namespace

TEST_CASE("all_reduce of any size, one after the other") {
  for (int ranks : {1, 2, 3, 4})
    check_no_errors(with_communicators(ranks, [](Communicator& comm) {
      for (std::uint64_t count : {1, 0, 7, 1024, 100003, 5, 262144}) checked_sum(comm, count);
      CHECK(comm.counters().calls == 7);
      comm.barrier();
    }));
}

TEST_CASE("all ranks get the same bits, whatever float mode each has set, and keep it") {
  for (const DataType type : {DataType::fp32, DataType::bf16})
    for (const std::uint64_t words : {6, 5000}) {
      check_no_errors(with_communicators(3, [&](Communicator& comm) {
        const FloatMode usual = float_mode(), set = comm.rank() == 1 ? kFlushToZero : 0;
        set_float_mode(kPlainFloats | set);
        std::vector<std::uint32_t> input(words, 0x00010001), output(words);  // subnormal
        Request request = request_for(Collective::all_reduce, words * 4 / bytes_of(type), 3);
        request.type = type;
        comm.run(request, input.data(), output.data());
        const bool kept = (float_mode() & kFlushToZero) == set;
        set_float_mode(usual);
        CHECK(kept);
        const std::vector<std::uint32_t> wanted(words, 0x00030003);  // three times, in either type
        CHECK(output == wanted);
      }));
    }
}

TEST_CASE("every strategy that takes the request gives the same result") {
  check_no_errors(with_communicators(3, [](Communicator& comm) {
    int tried = 0;
    for (const StrategyInfo& strategy : strategies()) {
      CallOptions options;
      options.strategy = strategy.name;
      const ErrorCode code = code_of([&] { checked_sum(comm, 10007, options); });
      CHECK((code == ErrorCode::ok || code == ErrorCode::unsupported ||
             code == ErrorCode::invalid_argument));
      if (code == ErrorCode::ok) ++tried;
      if (code == ErrorCode::ok) checked_sum(comm, 3, options);
    }
    CHECK(tried >= 3);
  }));
}

TEST_CASE("in place and overlapping buffers") {
  check_no_errors(with_communicators(2, [](Communicator& comm) {
    std::vector<int> data(1000);
    std::iota(data.begin(), data.end(), comm.rank());
    Request request = request_for(Collective::all_reduce, 1000, 2);
    request.type = DataType::int32;
    comm.run(request, data.data(), data.data());
    for (int i = 0; i < 1000; ++i)
      if (data[i] != 2 * i + 1) throw std::runtime_error("in place: wrong sum");
    std::iota(data.begin(), data.end(), comm.rank());
    request.count = 500;
    comm.run(request, data.data(), data.data() + 100);  // overlaps in no in-place layout
    for (int i = 0; i < 500; ++i)
      if (data[100 + i] != 2 * i + 1) throw std::runtime_error("overlapping: wrong sum");
    request = request_for(Collective::all_gather, 10, 2);
    request.type = DataType::int32;
    std::vector<int> gathered(20, comm.rank());
    comm.run(request, gathered.data() + 10 * comm.rank(), gathered.data());
    for (int i = 0; i < 20; ++i)
      if (gathered[i] != i / 10) throw std::runtime_error("all_gather in place: wrong");
  }));
}

TEST_CASE("pre-multiplied sums take every rank's own factor") {
  check_no_errors(with_communicators(3, [](Communicator& comm) {
    Request request = request_for(Collective::all_reduce, 100, 3);
    request.op = ReduceOp::premul_sum;
    CallOptions options;
    options.scalar = comm.rank() + 1;
    const std::vector<float> input(100, 2.0f);
    std::vector<float> output(100);
    comm.run(request, input.data(), output.data(), options);
    for (float value : output)
      if (value != 12.0f) throw std::runtime_error(text("wanted 12, found {}", value));
  }));
}

/// Sends from a rank to the peer; both make the call.
void send(Communicator& comm, int from, int to, std::uint64_t count) {
  if (comm.rank() != from && comm.rank() != to) return;
  const bool sends = comm.rank() == from;
  Communicator& pair = comm.pair(sends ? to : from);
  Request request = request_for(Collective::copy, count, 2);
  request.type = DataType::int32;
  request.root = from < to ? 0 : 1;
  request.peer = 1 - request.root;
  std::vector<int> sent(count), got(count, -1);
  std::iota(sent.begin(), sent.end(), 1000 * from + to);
  pair.run(request, sends ? sent.data() : nullptr, sends ? nullptr : got.data());
  if (!sends && got != sent) throw std::runtime_error(text("wrong from {} to {}", from, to));
}

TEST_CASE("two ranks send to each other while others do something else") {
  for (const int ranks : {2, 4})
    check_no_errors(with_communicators(ranks, [ranks](Communicator& comm) {
      for (const std::uint64_t count : {1, 7, 100003})
        for (int from = 0; from < ranks; ++from)
          for (int to = 0; to < ranks; ++to)
            if (from != to) send(comm, from, to, count);
      checked_sum(comm, 100);
      // Every rank makes pairs in a different order.
      send(comm, 0, 1, 10);
      if (ranks == 4) send(comm, 3, 2, 10);
      send(comm, 1, 0, 10);
      const auto sends = static_cast<std::uint64_t>(6 * (ranks - 1) + 2 - (comm.rank() > 1));
      CHECK(comm.counters().calls == sends + 1);
      CHECK(&comm.pair((comm.rank() + 1) % ranks) == &comm.pair((comm.rank() + 1) % ranks));
    }));
}

TEST_CASE("pairs are made in whatever order ranks ask, round a ring too") {
  for (const int ranks : {3, 5})
    check_no_errors(with_communicators(ranks, [ranks](Communicator& comm) {
      const int next = (comm.rank() + 1) % ranks, before = (comm.rank() + ranks - 1) % ranks;
      CHECK(comm.pair(next).rank() == (comm.rank() < next ? 0 : 1));
      CHECK(&comm.pair(before) != &comm.pair(next));
      if (comm.rank() % 2 == 1) send(comm, before, comm.rank(), 100);
      send(comm, comm.rank(), next, 100);
      if (comm.rank() % 2 == 0) send(comm, before, comm.rank(), 100);
    }));
}

TEST_CASE("a pair wants another rank, and calls that fit") {
  check_no_errors(with_communicators(3, [](Communicator& comm) {
    for (const int peer : {-1, 3, comm.rank()})
      CHECK(code_of([&] { comm.pair(peer); }) == ErrorCode::invalid_argument);
    if (comm.rank() != 2) {  // both send
      Communicator& pair = comm.pair(1 - comm.rank());
      Request request = request_for(Collective::copy, 5, 2);
      request.root = pair.rank();
      request.peer = 1 - pair.rank();
      std::vector<float> data(5);
      CHECK(code_of([&] { pair.run(request, data.data(), data.data()); }) == ErrorCode::mismatch);
      send(comm, 1, 0, 9);
    }
    checked_sum(comm, 10);
  }));
}

TEST_CASE("a rank that has given up its communicator is no longer waited for as a pair") {
  check_no_errors(with_communicators(3, [](Communicator& comm) {
    if (comm.rank() == 1) comm.abort();
    if (comm.rank() != 0) return;
    const auto before = std::chrono::steady_clock::now();
    for (const int peer : {1, 2}) {
      const ErrorCode code = code_of([&] { comm.pair(peer); });
      CHECK(code == (peer == 1 ? ErrorCode::aborted : ErrorCode::peer_lost));
    }
    CHECK(std::chrono::steady_clock::now() - before < std::chrono::seconds(5));
  }));
}

TEST_CASE("a pair that could not be made is made once both ask again") {
  TestFolder folder;
  std::atomic<int> told{0};
  check_no_errors(as_threads(3, [&](int rank) {
    CommunicatorOptions options = options_for(folder, rank, 3);
    options.arrive_s = 2;  // on a busy machine ranks come at different times
    const auto comm = Communicator::create(options);
    // Rank 1 waits in vain while rank 0 is away; rank 0 tries in vain while waiting for rank 2.
    if (rank == 1) CHECK(code_of([&] { comm->pair(0); }) == ErrorCode::timeout);
    if (rank == 1) ++told;
    while (told < 1) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (rank == 0) CHECK(code_of([&] { comm->pair(2); }) == ErrorCode::timeout);
    if (rank == 0) ++told;
    while (told < 2) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    send(*comm, 0, 1, 100);
    comm->barrier();
  }));
}

TEST_CASE("pairs plan over the devices of their two ranks") {
  TestFolder folder;
  check_no_errors(as_threads(4, [&](int rank) {
    CommunicatorOptions options = options_for(folder, rank, 4);
    options.masks = {"shm:0-1"};
    const auto comm = Communicator::create(options);
    send(*comm, 2, 3, 1000);
    if (rank == 2) CHECK(comm->counters().bytes_of_path.contains("shm:cpu2>cpu3"));
    CHECK_FALSE(comm->counters().bytes_of_path.contains("shm:cpu0>cpu1"));
    comm->barrier();
  }));
}

TEST_CASE("abort() ends the wait for the other rank of a pair") {
  std::atomic<bool> ended{false};
  check_no_errors(with_communicators(3, [&](Communicator& comm) {
    if (comm.rank() == 1) {
      std::thread later([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        comm.abort();
      });
      CHECK(code_of([&] { comm.pair(2); }) == ErrorCode::aborted);
      later.join();
      ended = true;
    }
    while (!ended) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }));
}

TEST_CASE("exchange hands everyone's bytes to everyone") {
  check_no_errors(with_communicators(3, [](Communicator& comm) {
    for (std::size_t bytes : {std::size_t{0}, std::size_t{5}, std::size_t{1} << 20}) {
      const auto all = comm.exchange(std::string(bytes, static_cast<char>('a' + comm.rank())));
      for (int rank = 0; rank < 3; ++rank)
        if (all[rank] != std::string(bytes, static_cast<char>('a' + rank)))
          throw std::runtime_error("wrong bytes");
      checked_sum(comm, 10);
    }
    CHECK(code_of([&] { comm.exchange(std::string((1 << 20) + (comm.rank() == 1), 'x')); }) ==
          ErrorCode::invalid_argument);
    comm.barrier();
  }));
}

TEST_CASE("ranks that ask for different things are all told, and stay in step") {
  check_no_errors(with_communicators(3, [](Communicator& comm) {
    const bool odd = comm.rank() == 1;
    std::vector<double> in(64), out(64 * 3);
    const auto mismatch = [&](const std::string& field,
                              const std::function<void(Request&, CallOptions&)>& change) {
      Request request = request_for(Collective::all_reduce, 16, 3);
      CallOptions options;
      if (odd) change(request, options);
      try {
        comm.run(request, in.data(), out.data(), options);
        throw std::runtime_error(field + ": no error");
      } catch (const Error& error) {
        CAPTURE(error.what());
        CHECK(error.code() == ErrorCode::mismatch);
        CHECK(std::string(error.what()).find(field + ": rank 0 asks for") != std::string::npos);
      }
    };
    mismatch("type", [](Request& request, CallOptions&) { request.type = DataType::fp64; });
    mismatch("count", [](Request& request, CallOptions&) { request.count = 17; });
    mismatch("op", [](Request& request, CallOptions&) { request.op = ReduceOp::max; });
    mismatch("collective",
             [](Request& request, CallOptions&) { request.collective = Collective::all_gather; });
    mismatch("strategy",
             [](Request&, CallOptions& options) { options.strategy = strategies()[0].name; });
    checked_sum(comm, 100);
    CHECK(code_of([&] { odd ? comm.barrier() : static_cast<void>(comm.exchange("x")); }) ==
          ErrorCode::mismatch);
    checked_sum(comm, 100);
  }));
}

TEST_CASE("one rank's bad arguments are an error on every rank") {
  check_no_errors(with_communicators(3, [](Communicator& comm) {
    const bool odd = comm.rank() == 2;
    std::vector<float> in(64), out(64);
    const Request good = request_for(Collective::all_reduce, 64, 3);
    const auto refused = [&](const Request& request, const void* input, void* output) {
      CHECK(code_of([&] {
              comm.run(odd ? request : good, odd ? input : in.data(), odd ? output : out.data());
            }) == ErrorCode::invalid_argument);
    };
    refused(good, nullptr, out.data());
    refused(good, in.data(), nullptr);
    void* page = mmap(nullptr, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    refused(good, in.data(), page);
    munmap(page, 4096);
    Request bad = good;
    bad.count = ~std::uint64_t{0} / 2;
    refused(bad, in.data(), out.data());
    bad = good;
    bad.ranks = 2;
    refused(bad, in.data(), out.data());
    bad = good;
    bad.op = ReduceOp::bit_and;  // invalid for floats
    CHECK(code_of([&] { comm.run(odd ? bad : good, in.data(), out.data()); }) != ErrorCode::ok);
    CHECK((odd ? (comm.refuse(ErrorCode::invalid_argument, "not contiguous"),
                  ErrorCode::invalid_argument)
               : code_of([&] { comm.run(good, in.data(), out.data()); })) ==
          ErrorCode::invalid_argument);
    checked_sum(comm, 100);
  }));
}

TEST_CASE("more memory than there is: out_of_memory on every rank, and on with smaller calls") {
#if defined(__SANITIZE_THREAD__)
  MESSAGE("skipped: ThreadSanitizer leaves no address range of 16 TiB free");
  return;
#endif
  check_no_errors(with_communicators(2, [](Communicator& comm) {
    // No machine has memory for a message of this size; an address range replaces it.
    const std::uint64_t bytes = 1ull << 44;
    void* range = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    REQUIRE(range != MAP_FAILED);
    CHECK(code_of([&] {
            comm.run(request_for(Collective::all_reduce, bytes / 4, 2), range, range);
          }) == ErrorCode::out_of_memory);
    munmap(range, bytes);
    checked_sum(comm, 100);
  }));
}

TEST_CASE("a rank that does not enter a call is named when the time is up") {
  TestFolder folder;
  std::atomic<int> ended{0};
  const auto thrown = as_threads(3, [&](int rank) {
    const auto comm = Communicator::create(options_for(folder, rank, 3));
    comm->set_host_deadlines(1, 1);
    if (rank == 1) {
      await(ended, 2);
      return;
    }
    try {
      checked_sum(*comm, 10);
    } catch (const Error&) {
      CHECK(code_of([&] { checked_sum(*comm, 10); }) == ErrorCode::aborted);  // permanently
      ++ended;
      throw;
    }
  });
  CHECK(thrown[1] == "");
  for (int rank : {0, 2}) {
    CAPTURE(thrown[rank]);
    CHECK(thrown[rank].find("rank 1 to enter call 1") != std::string::npos);
  }
}

TEST_CASE("new deadlines hold for the later calls of the rank that sets them") {
  TestFolder folder;
  std::atomic<int> ended{0};
  const auto thrown = as_threads(2, [&](int rank) {
    CommunicatorOptions options = options_for(folder, rank, 2);
    options.arrive_s = 1.5;
    const auto comm = Communicator::create(options);
    CHECK(code_of([&] { comm->set_host_deadlines(0, 1); }) == ErrorCode::invalid_argument);
    CHECK(code_of([&] { comm->set_host_deadlines(1, -1); }) == ErrorCode::invalid_argument);
    checked_sum(*comm, 10);
    comm->set_host_deadlines(20, 20);
    if (rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(2000));
    checked_sum(*comm, 10);
    comm->set_host_deadlines(0.3, 0.3);
    if (rank == 1) await(ended, 1);
    try {
      checked_sum(*comm, 10);
    } catch (const Error&) {
      ++ended;
      throw;
    }
  });
  CAPTURE(thrown[0]);
  CHECK(thrown[0].find("rank 1 to enter call 3") != std::string::npos);
}

TEST_CASE("a rank that closes its communicator releases those who wait for it") {
  const auto thrown = with_communicators(3, [](Communicator& comm) {
    checked_sum(comm, 1000);
    if (comm.rank() != 2) checked_sum(comm, 1000);
  });
  CHECK(thrown[2] == "");
  for (int rank : {0, 1}) {
    CAPTURE(thrown[rank]);
    CHECK(thrown[rank].find("rank 2") != std::string::npos);
    CHECK(thrown[rank].find("closed its communicator") != std::string::npos);
  }
}

TEST_CASE("an exception of the program in a wait ends the communicator, whatever its type") {
  TestFolder folder;
  std::atomic<bool> is_over{false};
  const auto thrown = as_threads(2, [&](int rank) {
    CommunicatorOptions options = options_for(folder, rank, 2);
    bool throws = false;
    options.interrupt = [&throws] {
      if (throws) throw 7;
    };
    const auto communicator = Communicator::create(options);
    throws = rank == 0;
    float value = static_cast<float>(rank), sum = 0;
    const Request request = request_for(Collective::all_reduce, 1, 2);
    if (rank == 0) {
      CHECK_THROWS_AS(communicator->run(request, &value, &sum), int);
      throws = false;
      is_over = true;
    }
    while (!is_over) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    communicator->run(request, &value, &sum);  // rank 0's second call, rank 1's first
  });
  check_all_say(thrown, "exception");
}

TEST_CASE("abort from another thread ends a pending call, and peers hear of it") {
  const auto start = std::chrono::steady_clock::now();
  const auto thrown = with_communicators(3, [](Communicator& comm) {
    if (comm.rank() == 2) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      comm.abort();
      CHECK(code_of([&] { comm.barrier(); }) == ErrorCode::aborted);
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      return;
    }
    comm.barrier();
  });
  CHECK(thrown[0].find("aborted: rank 2 reports: abort() was called") != std::string::npos);
  CHECK(thrown[1].find("aborted: rank 2 reports: abort() was called") != std::string::npos);
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(10));  // of 20 s
}

TEST_CASE("settings that differ are named on every rank") {
  TestFolder folder;
  check_all_say(as_threads(3,
                           [&](int rank) {
                             CommunicatorOptions options = options_for(folder, rank, 3);
                             if (rank == 2) options.deadline_s = 7;
                             Communicator::create(options);
                           }),
                "deadline_s: rank 0 has '5', rank 2 has '7'");
}

TEST_CASE("a topology file that cannot be read is an error on every rank") {
  TestFolder folder;
  const auto with_topology = [&](const std::string& topology) {
    return as_threads(2, [&](int rank) {
      CommunicatorOptions options = options_for(folder, rank, 2);
      options.topology = topology;
      Communicator::create(options);
    });
  };
  const std::string path = folder.path() + "/bad.json";
  std::ofstream(path) << "{\"devices\": 3}";
  check_all_say(with_topology(path), "malformed input: rank 0");
  unlink(path.c_str());
  check_all_say(with_topology("/no/such/file.json"), "rank 0");
  for (const std::string& one : with_topology("no-such-machine")) CHECK(one != "");
}

TEST_CASE("an environment that cannot be read on one rank is an error on every rank") {
  TestFolder folder;
  setenv("PLAIT_TOPOLOGIE", "x", 1);
  check_all_say(
      as_threads(2, [&](int rank) { Communicator::create(options_for(folder, rank, 2)); }),
      "PLAIT_TOPOLOGIE is no variable of plait");
  unsetenv("PLAIT_TOPOLOGIE");
}

TEST_CASE("200 communicators leave no descriptor behind") {
  check_no_errors(with_communicators(2, [](Communicator& comm) { checked_sum(comm, 10); }));
  const int before = open_descriptors();
  const int rounds = plait_test::rounds(200);
  for (int round = 0; round < rounds; ++round)
    check_no_errors(with_communicators(2, [](Communicator& comm) { checked_sum(comm, 10); }));
  CHECK(open_descriptors() == before);
}

TEST_CASE("explain says what was chosen and what was refused") {
  check_no_errors(with_communicators(2, [](Communicator& comm) {
    const Request request = request_for(Collective::all_reduce, 1 << 20, 2);
    const std::string lines = comm.explain(request);
    CAPTURE(lines);
    CHECK(lines.find("chosen: ") != std::string::npos);
    CHECK(lines.find("<- chosen") != std::string::npos);
    CHECK(comm.plan_for(request).sum_order == SumOrder::rank_order);
  }));
}

TEST_CASE("a caller's plan is proved first, and must be the same everywhere") {
  check_no_errors(with_communicators(2, [](Communicator& comm) {
    Plan plan = comm.plan_for(request_for(Collective::all_reduce, 1000, 2));
    std::vector<float> in(1000, 1.5f), out(1000);
    comm.run(plan, in.data(), out.data());
    if (out != std::vector<float>(1000, 3.0f)) throw std::runtime_error("wrong sum");
    Plan broken = plan;
    for (Lane& lane : broken.lanes)
      std::erase_if(lane.ops, [](const Op& op) { return op.kind == OpKind::wait; });
    CHECK(code_of([&] { comm.run(comm.rank() == 0 ? broken : plan, in.data(), out.data()); }) ==
          ErrorCode::invalid_argument);
    comm.run(plan, in.data(), out.data());
  }));
}

TEST_CASE("a type, reduction or collective that plait does not have is an error on every rank") {
  const auto thrown_by = [](const std::function<void(Request&)>& change) {
    return with_communicators(2, [&](Communicator& comm) {
      Request request = request_for(Collective::all_reduce, 4, 2);
      if (comm.rank() == 1) change(request);
      float in[4] = {1, 2, 3, 4}, out[4];
      comm.run(request, in, out);
    });
  };
  for (const int type : {14, 255})
    check_all_say(thrown_by([&](Request& r) { r.type = static_cast<DataType>(type); }),
                  text("wanted a type in 0..13 (int8..fp8e5m2), found {}", type));
  check_all_say(thrown_by([](Request& r) { r.op = static_cast<ReduceOp>(9); }),
                "wanted a reduction in 0..8 (sum..bit_xor), found 9");
  check_all_say(thrown_by([](Request& r) { r.collective = static_cast<Collective>(77); }),
                "wanted a collective in 0..9 (all_reduce..copy), found 77");
}

TEST_CASE("a rank outside the ranks is refused at once, without a wait for other ranks") {
  for (const bool has_id : {false, true}) {
    TestFolder folder;
    CommunicatorOptions options = options_for(folder, 5, 3);
    options.arrive_s = 60;
    if (has_id) options.rendezvous.clear(), options.unique_id = unique_id();
    const auto start = std::chrono::steady_clock::now();
    std::string said;
    try {
      Communicator::create(options);
    } catch (const Error& error) {
      said = error.what();
    }
    CHECK(said.find("rank: wanted 0..2, found 5") != std::string::npos);
    CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(20));
  }
}
