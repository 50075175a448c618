// Tests all_reduce_rms_norm of CPU ranks: the bits of the two calls one behind the other, and the
// same refusal on all ranks.
#include <doctest/doctest.h>

#include <cstring>
#include <functional>
#include <random>

#include "base/text.hpp"
#include "cpu/numbers.hpp"
#include "cpu/rms_norm.hpp"
#include "plait/error.hpp"
#include "unit/comm/communicators.hpp"

using namespace plait;
using namespace plait_test;

namespace {

struct alignas(16) Unit {
  std::uint16_t codes[8];
};

std::vector<Unit> random_units(std::size_t units, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<Unit> made(units);
  for (Unit& unit : made)
    for (std::uint16_t& code : unit.codes) code = Number<DataType::bf16>::down(normal(random));
  return made;
}

bool are_equal(const std::vector<Unit>& one, const std::vector<Unit>& other) {
  return std::memcmp(one.data(), other.data(), one.size() * sizeof(Unit)) == 0;
}

}  // namespace

TEST_CASE("all_reduce_rms_norm gives the bits of an all_reduce and the norm, also in place") {
  for (const int ranks : {1, 2, 3, 4})
    check_no_errors(with_communicators(ranks, [](Communicator& comm) {
      for (const bool in_place : {false, true}) {
        RmsNorm norm{.rows = 5, .hidden = 328};
        const std::size_t units = norm.rows * norm.hidden / 8;
        std::vector<Unit> input = random_units(units, 100u + static_cast<unsigned>(comm.rank()));
        std::vector<Unit> residual = random_units(units, 7), output(units), sums(units);
        const std::vector<Unit> weight = random_units(norm.hidden / 8, 8);
        std::vector<Unit> residual_wanted = residual, wanted(units);
        comm.run(all_reduce_of(norm, comm.ranks()), input.data(), sums.data());
        rms_norm(norm, sums.data(),
                 {nullptr, residual_wanted.data(), weight.data(), wanted.data(), nullptr});
        std::vector<Unit>& result = in_place ? input : output;
        comm.all_reduce_rms_norm(
            norm, {input.data(), residual.data(), weight.data(), result.data(), nullptr});
        if (!are_equal(residual, residual_wanted)) throw std::runtime_error("another residual");
        if (!are_equal(result, wanted)) throw std::runtime_error("another output");
      }
    }));
}

TEST_CASE("a rank with wrong arguments of all_reduce_rms_norm fails the call on all ranks") {
  const auto thrown = with_communicators(3, [](Communicator& comm) {
    std::vector<Unit> all(4);
    const RmsNorm norm{.rows = 1, .hidden = comm.rank() == 1 ? 12u : 8u};
    comm.all_reduce_rms_norm(norm, {&all[0], &all[1], &all[2], &all[3], nullptr});
  });
  check_all_say(thrown, "wanted rows of a multiple of 8 elements, at most 16384, found 12");
}

TEST_CASE(
    "ranks with unlike arguments of all_reduce_rms_norm are all told, and nothing is written") {
  const RmsNorm usual{.rows = 2, .hidden = 16};
  const auto thrown_by = [&](const std::function<void(RmsNorm&)>& change) {
    return with_communicators(3, [&](Communicator& comm) {
      std::vector<Unit> all(20);
      RmsNorm norm = usual;
      if (comm.rank() == 1) change(norm);
      try {
        comm.all_reduce_rms_norm(norm, {&all[0], &all[4], &all[8], &all[12], nullptr});
      } catch (const Error& error) {
        if (error.code() != ErrorCode::mismatch || !are_equal(all, std::vector<Unit>(20)))
          throw std::runtime_error("another error, or changed memory");
        throw;
      }
    });
  };
  const std::string of_0 = "rms_norm: rank 0 asks for 2 rows of 16 bf16, output bf16, epsilon ";
  const auto says = [&](const std::function<void(RmsNorm&)>& change, const std::string& of_1) {
    const std::vector<std::string> thrown = thrown_by(change);
    check_all_say(thrown, of_0);
    check_all_say(thrown, ", rank 1 for " + of_1);
  };
  says([](RmsNorm& n) { n.rows = 4, n.hidden = 8; }, "4 rows of 8 bf16, output bf16");
  says([](RmsNorm& n) { n.epsilon = 0.5f; }, "2 rows of 16 bf16, output bf16, epsilon 0.5");
  says([](RmsNorm& n) { n.output = DataType::fp8e4m3; }, "2 rows of 16 bf16, output fp8e4m3");
  const auto thrown = with_communicators(2, [&](Communicator& comm) {
    std::vector<Unit> all(20);
    if (comm.rank() == 1) return comm.run(all_reduce_of(usual, 2), &all[0], &all[4]);
    comm.all_reduce_rms_norm(usual, {&all[0], &all[4], &all[8], &all[12], nullptr});
  });
  check_all_say(thrown, ", rank 1 for none");
}

TEST_CASE("a call of no rows does nothing, and GPU memory wants a GPU") {
  check_no_errors(with_communicators(2, [](Communicator& comm) {
    comm.all_reduce_rms_norm({.rows = 0, .hidden = 8}, {});
    try {
      comm.enqueue_all_reduce_rms_norm({.rows = 0, .hidden = 8}, {}, nullptr);
    } catch (const Error& error) {
      if (error.code() == ErrorCode::no_device) return;
    }
    throw std::runtime_error("wanted Error(no_device)");
  }));
}
