// Tests blocks with a count each on CPU ranks: the reference's bits for every type and reduction,
// out of place and in place; counts known to some ranks only; the same clear error on every rank
// for counts that do not fit together.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "base/text.hpp"
#include "cpu/reference.hpp"
#include "plait/error.hpp"
#include "plans/uneven.hpp"
#include "unit/comm/communicators.hpp"
#include "unit/scale.hpp"

using namespace plait;
using namespace plait_test;

namespace {

using Bytes = std::vector<std::byte>;

std::size_t at(int index) { return static_cast<std::size_t>(index); }

/// Random input bytes, and the reference's results.
struct UnevenCase {
  Request request;
  std::vector<Bytes> inputs, outputs;

  UnevenCase(const Topology& topology, const Request& asked, std::mt19937_64& random)
      : request(checked(asked, topology)) {
    std::vector<const void*> sources;
    std::vector<void*> results;
    for (int rank = 0; rank < request.ranks; ++rank) {
      inputs.emplace_back(input_bytes(request, rank));
      outputs.emplace_back(output_bytes(request, rank));
    }
    for (int rank = 0; rank < request.ranks; ++rank) {
      for (std::byte& byte : inputs[at(rank)]) byte = static_cast<std::byte>(random());
      sources.push_back(inputs[at(rank)].data());
      results.push_back(outputs[at(rank)].data());
    }
    run_reference(propose_one(topology, request, "direct"), sources, results);
  }

  /// Returns the number of wrong elements of a call out of place, or in NCCL's in-place layout.
  std::uint64_t wrong(Communicator& comm, bool in_place, const OwnCounts* own) const {
    const Bytes &input = inputs[at(comm.rank())], &wanted = outputs[at(comm.rank())];
    const bool gathers = wanted.size() > input.size();
    std::uint64_t mine = 0;
    for (int rank = 0; rank < comm.rank() && in_place; ++rank)
      mine += request.counts[at(rank)] * bytes_of(request.type);
    const bool shared = in_place && !wanted.empty() && !input.empty();
    Bytes memory(shared ? std::max(input.size(), wanted.size()) : input.size() + wanted.size());
    std::byte* const in = memory.data() + (shared && gathers ? mine : 0);
    std::byte* const out = memory.data() + (!shared ? input.size() : gathers ? 0 : mine);
    std::copy(input.begin(), input.end(), in);
    if (own == nullptr) {
      comm.run(request, in, out);
    } else {
      Request unknown = request;
      unknown.counts.clear();
      comm.run(unknown, *own, in, out);
    }
    std::uint64_t differ = 0;
    for (std::size_t i = 0; i < wanted.size(); ++i) differ += wanted[i] == out[i] ? 0 : 1;
    return differ;
  }
};

/// Returns the counts that a rank knows: the rank's side of each pair of joined ranks.
OwnCounts known_to(const Request& request, int rank) {
  OwnCounts known;
  const bool is_gather = request.collective == Collective::gather;
  for (int peer = 0; peer < request.ranks; ++peer) {
    std::uint64_t sends = OwnCounts::kNotKnown, gets = OwnCounts::kNotKnown;
    if (request.collective == Collective::all_to_all) {
      sends = request.counts[at(rank * request.ranks + peer)];
      gets = request.counts[at(peer * request.ranks + rank)];
    } else if (is_gather) {
      if (peer == request.root) sends = request.counts[at(rank)];
      if (rank == request.root) gets = request.counts[at(peer)];
    } else {
      if (rank == request.root) sends = request.counts[at(peer)];
      if (peer == request.root) gets = request.counts[at(rank)];
    }
    known.sends.push_back(sends);
    known.gets.push_back(gets);
  }
  return known;
}

Request asked(Collective collective, int ranks, std::vector<std::uint64_t> counts) {
  Request request;
  request.collective = collective;
  request.ranks = ranks;
  request.counts = std::move(counts);
  return normal(request);
}

}  // namespace

TEST_CASE("uneven blocks on CPU ranks: the reference's bits for every type and op, any counts") {
  const std::uint64_t seed = std::random_device{}();
  MESSAGE("seed " << seed);
  for (const int ranks : {2, 3, 4, 7})
    check_no_errors(with_communicators(ranks, [&](Communicator& comm) {
      std::mt19937_64 random(seed);  // the same on all ranks
      const int trials = plait_test::rounds(ranks == 7 ? 40 : 120);
      for (int trial = 0; trial < trials; ++trial) {
        const Collective collective = uneven::kCollectives[at(trial) % uneven::kCollectives.size()];
        Request request =
            uneven::request_of(collective, ranks, uneven::kShapes[random() % 4],
                               trial % 20 == 7 ? 300007 : 1ULL << random() % 13, random());
        request.type = static_cast<DataType>(at(trial / 5) % 14);
        request.op = static_cast<ReduceOp>(random() % (is_float(request.type) ? 5 : 9));
        if (request.op == ReduceOp::premul_sum) request.op = ReduceOp::sum;
        const UnevenCase one(comm.topology(), request, random);
        if (one.request.counts.empty()) continue;
        CAPTURE(to_json(one.request));
        CHECK(one.wrong(comm, false, nullptr) == 0);
        if (collective != Collective::all_to_all) CHECK(one.wrong(comm, true, nullptr) == 0);
        if (collective == Collective::all_gather || collective == Collective::reduce_scatter)
          continue;
        const OwnCounts mine = known_to(one.request, comm.rank());
        CHECK(one.wrong(comm, false, &mine) == 0);
      }
    }));
}

TEST_CASE("uneven blocks by each strategy on CPU ranks, counted under their own name") {
  check_no_errors(with_communicators(3, [](Communicator& comm) {
    std::mt19937_64 random(5);
    for (const char* strategy : {"direct", "one_shot", "ring"}) {
      const UnevenCase one(comm.topology(), asked(Collective::all_gather, 3, {5, 0, 1009}), random);
      Bytes out(one.outputs[0].size());
      CallOptions how;
      how.strategy = strategy;
      comm.run(one.request, one.inputs[at(comm.rank())].data(), out.data(), how);
      CHECK(out == one.outputs[0]);
    }
    std::uint64_t counted = 0;
    for (const auto& [name, calls] : comm.counters().calls_of)
      if (name.rfind("all_gather_v/", 0) == 0) counted += calls;
    CHECK(counted == 3);
    CHECK(comm.explain(asked(Collective::all_gather, 3, {5, 0, 1009}))
              .find("all_gather_v of 5+0+1009") != std::string::npos);
  }));
}

TEST_CASE("counts that differ between ranks are an error that names both lists, on all ranks") {
  const auto thrown = with_communicators(3, [](Communicator& comm) {
    std::vector<float> data(100);
    const std::uint64_t last = comm.rank() == 2 ? 7 : 6;
    comm.run(asked(Collective::all_gather, 3, {1, 2, last}), data.data(), data.data() + 50);
  });
  check_all_say(thrown, "counts: rank 0 asks for 1+2+6, rank 2 for 1+2+7");
  check_all_say(with_communicators(2,
                                   [](Communicator& comm) {
                                     std::vector<float> data(100);
                                     std::vector<std::uint64_t> counts{4, 4};
                                     if (comm.rank() == 1) counts = {4, 5};
                                     comm.run(asked(Collective::reduce_scatter, 2, counts),
                                              data.data(), data.data() + 50);
                                   }),
                "rank 0 asks for 4, rank 1 for 4+5");
}

TEST_CASE("what one rank sends and the other does not expect is an error on all, then all go on") {
  const auto thrown = with_communicators(3, [](Communicator& comm) {
    Request request;
    request.collective = Collective::all_to_all;
    request.ranks = 3;
    OwnCounts mine{{1, 1, 1}, {1, 1, 1}};
    std::vector<float> in(9, 1.0f), out(9);
    comm.run(request, mine, in.data(), out.data());  // equal counts: runs as an even call
    if (comm.rank() == 1) mine.sends[2] = 3;
    try {
      comm.run(request, mine, in.data(), out.data());
    } catch (const Error& error) {
      if (error.code() != ErrorCode::mismatch) throw;
      mine.sends = {1, 1, 1};
      comm.run(request, mine, in.data(), out.data());
      throw;
    }
  });
  check_all_say(thrown, "all_to_all_v: rank 1 sends rank 2 3 elements, of which that one wants 1");
}

TEST_CASE("own counts that cannot be meant are told to all ranks") {
  const auto said = [](Collective collective, const OwnCounts& bad, int root = 0) {
    return with_communicators(2, [&](Communicator& comm) {
      Request request;
      request.collective = collective;
      request.ranks = 2;
      request.root = root;
      const OwnCounts good{{1, 1}, {1, 1}};
      std::vector<float> data(100);
      comm.run(request, comm.rank() == 1 ? bad : good, data.data(), data.data() + 50);
    });
  };
  check_all_say(said(Collective::all_to_all, {{1}, {1, 1}}),
                "rank 1: counts sent: wanted a count for each of 2 ranks, found 1");
  check_all_say(said(Collective::all_to_all, {{1, 1}, {1, 1ULL << 63}}),
                "counts received: wanted at most 2^62 elements for rank 1");
  check_all_say(said(Collective::gather, {{OwnCounts::kNotKnown, 1}, {1, 1}}),
                "counts sent: wanted a count for rank 0, found none");
  check_all_say(said(Collective::scatter, {{1, 1}, {1, 1}}, 2), "wanted a root in 0..1, found 2");
  check_all_say(said(Collective::all_gather, {{1, 1}, {1, 1}}),
                "wanted an all_to_all, gather or scatter by own counts, found all_gather");
}
