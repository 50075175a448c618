// Plans of blocks with a count each: proved on every machine, and run by the reference executor
// against plain loops that do not use plan/blocks.hpp, out of place and in place. Mistakes in the
// plans are rejected.
#include <doctest/doctest.h>

#include <cstring>
#include <map>
#include <numeric>
#include <optional>

#include "cpu/reference.hpp"
#include "plait/error.hpp"
#include "plait/report.hpp"
#include "plans/cases.hpp"
#include "plans/uneven.hpp"

namespace {

using namespace plait;
using Words = std::vector<std::int32_t>;

std::size_t at(int index) { return static_cast<std::size_t>(index); }

std::int32_t word(int rank, std::uint64_t element) {
  return static_cast<std::int32_t>((element * 2654435761ULL + at(rank) * 40503ULL) >> 3 & 0xffff);
}

std::uint64_t sum_to(const std::vector<std::uint64_t>& counts, int index) {
  return std::accumulate(counts.begin(), counts.begin() + index, std::uint64_t{0});
}

/// The elements that `from` sends to `to`: the number, and the number of elements before the first.
struct SentBlock {
  std::uint64_t count;
  std::uint64_t before;
};
SentBlock sent(const Request& request, int from, int to) {
  const std::vector<std::uint64_t>& counts = request.counts;
  if (request.collective == Collective::all_to_all) {
    const int row = from * request.ranks;
    return {counts[at(row + to)], sum_to(counts, row + to) - sum_to(counts, row)};
  }
  if (request.collective == Collective::all_gather || request.collective == Collective::gather)
    return {counts[at(from)], 0};
  return {counts[at(to)], sum_to(counts, to)};
}

Words input_of(const Request& request, int rank) {
  std::uint64_t count = 0;
  const bool is_root = rank == request.root;
  switch (request.collective) {
    case Collective::all_gather:
    case Collective::gather: count = request.counts[at(rank)]; break;
    case Collective::scatter: count = is_root ? sum_to(request.counts, request.ranks) : 0; break;
    case Collective::reduce_scatter: count = sum_to(request.counts, request.ranks); break;
    default:
      for (int to = 0; to < request.ranks; ++to) count += sent(request, rank, to).count;
  }
  Words words;
  for (std::uint64_t i = 0; i < count; ++i) words.push_back(word(rank, i));
  return words;
}

Words output_of(const Request& request, int rank) {
  Words words;
  const auto take = [&](int from) {
    const SentBlock block = sent(request, from, rank);
    for (std::uint64_t i = 0; i < block.count; ++i) words.push_back(word(from, block.before + i));
  };
  switch (request.collective) {
    case Collective::gather:
      if (rank != request.root) return words;
      [[fallthrough]];
    case Collective::all_gather:
    case Collective::all_to_all:
      for (int from = 0; from < request.ranks; ++from) take(from);
      return words;
    case Collective::scatter: take(request.root); return words;
    default:
      take(0);
      for (std::size_t i = 0; i < words.size(); ++i)
        for (int from = 1; from < request.ranks; ++from)
          words[i] += word(from, sent(request, from, rank).before + i);
  }
  return words;
}

/// Counts wrong words. In place: the input inside the output, or the output inside the input.
std::uint64_t wrong_words(const Plan& plan, bool in_place) {
  const Request& request = plan.request;
  std::vector<Words> memory(at(request.ranks));
  std::vector<const void*> inputs;
  std::vector<void*> outputs;
  for (int rank = 0; rank < request.ranks; ++rank) {
    const Words input = input_of(request, rank), output = output_of(request, rank);
    const bool shared = in_place && request.collective != Collective::all_to_all &&
                        !input.empty() && !output.empty();
    const std::uint64_t mine = sum_to(request.counts, rank);
    Words& words = memory[at(rank)];
    words.assign(shared ? std::max(input.size(), output.size()) : input.size() + output.size(), -1);
    const bool gathers = output.size() > input.size();
    const std::uint64_t in = shared && gathers ? mine : 0;
    std::copy(input.begin(), input.end(), words.begin() + static_cast<std::ptrdiff_t>(in));
    inputs.push_back(words.data() + in);
    outputs.push_back(words.data() + (!shared ? input.size() : gathers ? 0 : mine));
  }
  run_reference(plan, inputs, outputs);
  std::uint64_t wrong = 0;
  for (int rank = 0; rank < request.ranks; ++rank) {
    const Words wanted = output_of(request, rank);
    REQUIRE(wanted.size() * 4 == output_bytes(request, rank));
    const auto* found = static_cast<const std::int32_t*>(outputs[at(rank)]);
    for (std::size_t i = 0; i < wanted.size(); ++i) wrong += wanted[i] == found[i] ? 0 : 1;
  }
  return wrong;
}

std::optional<Plan> built(const Strategy& strategy, const Topology& topology,
                          const Request& request, std::size_t turn) {
  try {
    const std::vector<Params> sets = strategy.candidates(topology, request);
    return strategy.build(topology, request, sets[turn % sets.size()]);
  } catch (const Error& refusal) {
    CHECK(refusal.code() == ErrorCode::unsupported);
    return std::nullopt;
  }
}

/// Calls body for every uneven request on a machine, by each strategy that takes counts.
template <class Body>
void for_each_plan(const Topology& topology, std::uint64_t most, const Body& body) {
  static plait_test::Sample is_next_taken;
  const auto devices = static_cast<int>(rank_devices(topology).size());
  std::uint64_t turn = most;
  for (const int ranks : {2, 3, 4, 5, 7, 8, 16})
    for (const Collective collective : uneven::kCollectives)
      for (const std::string& shape : uneven::kShapes) {
        if (ranks > devices || !is_next_taken()) continue;
        Request request = uneven::request_of(collective, ranks, shape, most, ++turn);
        request.type = DataType::int32;
        request = checked(request, topology);
        if (request.counts.empty()) continue;  // all are equal
        for (const Strategy* strategy : all_strategies()) {
          const auto& does = strategy->info.collectives;
          if (!strategy->takes_counts ||
              std::find(does.begin(), does.end(), collective) == does.end())
            continue;
          if (const auto plan = built(*strategy, topology, request, at(ranks) + turn)) {
            CAPTURE(label(*plan));
            CAPTURE(to_json(plan->request));
            CAPTURE(topology.name);
            body(*plan);
          }
        }
      }
}

}  // namespace

TEST_CASE("every plan of uneven blocks is proved and gives the results of plain loops") {
  std::map<std::string, int> proved;
  for (const Topology& topology : cases::machines())
    for (const std::uint64_t most : {1ULL, 3ULL, 127ULL, 1009ULL, 65537ULL, 3000017ULL})
      for_each_plan(topology, most, [&](const Plan& plan) {
        const Report report = verify(plan);
        INFO(print(report));
        REQUIRE(report.proved());
        ++proved[plan.strategy];
        for (const std::uint64_t bytes : plan.scratch_bytes) CHECK(bytes <= 256ULL << 20);
        if (most > 1009) return;
        CHECK(wrong_words(plan, false) == 0);
        CHECK(wrong_words(plan, true) == 0);
      });
  for (const char* strategy : {"direct", "one_shot", "ring", "rerouted"}) {
    CAPTURE(strategy);
    CHECK(plait_test::seen(static_cast<std::uint64_t>(proved[strategy])));
    MESSAGE(std::string(strategy), ": ", proved[strategy], " plans of uneven blocks proved");
  }
}

TEST_CASE("random counts on 2 to 8 ranks: every strategy's plan is proved and right") {
  const std::uint64_t seed = std::random_device{}();
  MESSAGE("seed " << seed);
  std::mt19937_64 random(seed);
  const Topology topology = cases::wide_machine();
  for (int trial = 0; trial < plait_test::rounds(150); ++trial) {
    const auto collective = uneven::kCollectives[random() % uneven::kCollectives.size()];
    Request request = uneven::request_of(collective, 2 + static_cast<int>(random() % 7), "random",
                                         1ULL << random() % 15, random());
    request.type = DataType::int32;
    request = checked(request, topology);
    if (request.counts.empty()) continue;
    CAPTURE(to_json(request));
    for (const Plan& plan : propose(topology, request)) {
      CAPTURE(label(plan));
      CHECK(verify(plan).proved());
      CHECK(wrong_words(plan, trial % 2 == 0) == 0);
    }
  }
}

namespace {

/// Makes a mistake in a copy or reduction; returns false if the op cannot hold the mistake.
bool make_mistake(const std::string& mistake, Op& op) {
  if (op.kind == OpKind::signal || op.kind == OpKind::wait) return false;
  const bool at_places = op.dst.space == Space::output;
  if (mistake == "an element too few") {
    op.dst.bytes -= 4;
    for (Region& src : op.srcs) src.bytes -= 4;
  } else if (mistake == "an element's place too far") {
    if (!at_places) return false;
    op.dst.offset += 4;
  } else if (mistake == "the place of even blocks") {
    if (!at_places || op.dst.offset % 4096 == 0) return false;
    op.dst.offset = op.dst.offset / 4096 * 4096;
  } else {  // "an element's part too far"
    for (Region& src : op.srcs)
      if (src.space == Space::input) {
        src.offset += 4;
        return true;
      }
    return false;
  }
  return true;
}

}  // namespace

TEST_CASE("mistakes in plans of uneven blocks are rejected") {
  const Topology topology = cases::wide_machine();
  std::map<std::string, int> rejected;
  for (const Collective collective : uneven::kCollectives)
    for (const char* const strategy : {"direct", "one_shot", "ring"})
      for (const std::string mistake : {"an element too few", "an element's place too far",
                                        "the place of even blocks", "an element's part too far"}) {
        Request request = uneven::request_of(collective, 4, "linear", 1009, 7);
        request.type = DataType::int32;
        Plan right;
        try {
          right = propose_one(topology, request, strategy);
        } catch (const Error&) {
          continue;  // a ring does not scatter
        }
        for (std::size_t lane = 0; lane < right.lanes.size(); ++lane)
          for (std::size_t k = 0; k < right.lanes[lane].ops.size(); ++k) {
            Plan wrong = right;
            if (!make_mistake(mistake, wrong.lanes[lane].ops[k])) continue;
            CAPTURE(label(right));
            CAPTURE(print(right.lanes[lane].ops[k], right));
            CHECK_FALSE(verify(wrong).proved());
            ++rejected[mistake];
          }
      }
  CHECK(rejected.size() == 4);
  for (const auto& [mistake, count] : rejected) MESSAGE(mistake, ": ", count, " rejected");
}

TEST_CASE("a plan for other counts and invalid counts are rejected") {
  const Topology topology = cases::wide_machine();
  for (const Collective collective : uneven::kCollectives) {
    Request request = uneven::request_of(collective, 4, "linear", 1009, 7);
    const Plan right = propose_one(topology, request, "direct");
    REQUIRE(verify(right).proved());
    for (std::size_t i = 0; i + 1 < right.request.counts.size(); ++i) {
      const bool is_diagonal = collective == Collective::all_to_all && i % 5 == 0;
      Plan wrong = right;  // the same total, with a single element moved to the next block
      if (wrong.request.counts[i + 1] == 0 || is_diagonal) continue;
      ++wrong.request.counts[i];
      --wrong.request.counts[i + 1];
      wrong.request.count = 1010;
      wrong.request = checked(wrong.request, topology);
      CAPTURE(name_of(right.request));
      CAPTURE(i);
      CHECK_FALSE(verify(wrong).proved());
    }
    Plan wrong = right;
    wrong.request.counts.pop_back();
    CHECK_FALSE(verify(wrong).proved());
    wrong = right;
    wrong.request.count += 1;
    CHECK_FALSE(verify(wrong).proved());
    request.counts.push_back(1);
    CHECK_THROWS_AS(checked(request, topology), Error);
  }
  Request even;
  even.ranks = 4;
  even.counts = {1, 2, 3, 4};
  CHECK_THROWS_AS(checked(even, topology), Error);  // an all_reduce
  even.collective = Collective::all_gather;
  even.counts = {1, 2, 3, 1ULL << 62};
  CHECK_THROWS_AS(checked(even, topology), Error);
  even.counts = {9, 9, 9, 9};
  CHECK(checked(even, topology).counts.empty());
  CHECK(checked(even, topology).count == 9);
  CHECK_THROWS_AS(
      propose_one(topology, uneven::request_of(Collective::all_gather, 4, "linear", 9, 0), "bruck"),
      Error);
}

TEST_CASE("uneven requests: bytes, names, JSON") {
  Request request;
  request.collective = Collective::all_to_all;
  request.ranks = 2;
  request.type = DataType::fp32;
  request.counts = {1, 2, 3, 4};  // rank 0 keeps 1 and sends 2, rank 1 sends 3 and keeps 4
  request = normal(request);
  CHECK(request.count == 4);
  CHECK(input_bytes(request, 0) == 12);
  CHECK(input_bytes(request, 1) == 28);
  CHECK(output_bytes(request, 0) == 16);
  CHECK(output_bytes(request, 1) == 24);
  CHECK(message_bytes(request) == 28);
  CHECK(busbw_factor(request) == doctest::Approx(12.0 / 28.0));
  CHECK(name_of(request) == "all_to_all_v");
  CHECK(amount_of(request) == "1+2+3+4");
  request.collective = Collective::gather;
  request.counts = {5, 1};
  request.root = 1;
  request = normal(request);
  CHECK(output_bytes(request, 0) == 0);
  CHECK(output_bytes(request, 1) == 24);
  CHECK(input_bytes(request, 0) == 20);
  CHECK(busbw_factor(request) == doctest::Approx(20.0 / 24.0));
  const Plan plan = propose_one(cases::wide_machine(), request, "direct");
  CHECK(plan_from_json(to_json(plan)) == plan);
  CHECK(print(plan).find("gather_v of 5+1 fp32") != std::string::npos);
}
