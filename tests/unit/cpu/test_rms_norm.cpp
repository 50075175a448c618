// Tests residual and RMSNorm of rows in host memory: against a program in double precision, the
// stated order of a row's squares, and refused calls.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "base/text.hpp"
#include "cpu/numbers.hpp"
#include "cpu/rms_norm.hpp"
#include "plait/error.hpp"

using namespace plait;

namespace {

template <DataType kType>
struct Rows {
  using N = Number<kType>;
  using Stored = typename N::Stored;
  RmsNorm norm;
  std::vector<Stored> sums, residual, weight, output;
  std::vector<std::uint8_t> codes;
  float scale = 0.25f;

  Rows(std::uint64_t rows, std::uint64_t hidden, unsigned seed) {
    norm.rows = rows, norm.hidden = hidden, norm.type = norm.output = kType;
    std::mt19937 random(seed);
    const auto fill = [&](std::vector<Stored>& all, std::size_t count) {
      std::normal_distribution<float> normal;
      for (std::size_t i = 0; i < count; ++i) all.push_back(N::down(normal(random)));
    };
    fill(sums, rows * hidden), fill(residual, rows * hidden), fill(weight, hidden);
    output.resize(rows * hidden), codes.resize(rows * hidden);
  }
  RmsNormBuffers buffers() {
    return {sums.data(), residual.data(), weight.data(), output.data(), nullptr};
  }
};

template <DataType kType>
void compare_with_double(double unit) {
  using N = Number<kType>;
  for (const std::uint64_t hidden : {8u, 264u, 4096u, 5120u, 16384u}) {
    Rows<kType> rows(3, hidden, static_cast<unsigned>(hidden));
    const Rows<kType> before = rows;
    rms_norm(rows.norm, rows.sums.data(), rows.buffers());
    for (std::uint64_t row = 0; row < 3; ++row) {
      double square = 0;
      for (std::uint64_t i = row * hidden; i < (row + 1) * hidden; ++i) {
        const double sum = N::up(before.sums[i]) + double{N::up(before.residual[i])};
        CHECK(std::abs(N::up(rows.residual[i]) - sum) <= unit * std::abs(sum));
        square += double{N::up(rows.residual[i])} * N::up(rows.residual[i]);
      }
      const double factor = 1 / std::sqrt(square / static_cast<double>(hidden) + 1e-6);
      double most = 0;
      for (std::uint64_t i = 0; i < hidden; ++i) {
        const std::uint64_t at = row * hidden + i;
        const double wanted = N::up(rows.residual[at]) * factor * N::up(before.weight[i]);
        most = std::max(
            most, std::abs(N::up(rows.output[at]) - wanted) / std::max(std::abs(wanted), 1e-3));
      }
      CAPTURE(hidden);
      CHECK(most <= 1.01 * unit);
    }
  }
}

std::string refusal(const RmsNorm& norm, const RmsNormBuffers& buffers) {
  try {
    check_norm(norm, buffers);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("rows are normalised as a program in double precision does") {
  compare_with_double<DataType::bf16>(1.0 / 256);
  compare_with_double<DataType::fp16>(1.0 / 2048);
}

TEST_CASE("the squares of a row are summed in a balanced tree of neighbours") {
  // 1 + 2^-24 + 2^-24 is 1 from left to right, and 1 + 2^-23 if the last two meet first.
  using N = Number<DataType::fp16>;
  Rows<DataType::fp16> rows(1, 8, 1);
  for (std::size_t i = 0; i < 8; ++i) rows.residual[i] = rows.sums[i] = N::down(0);
  rows.residual[0] = N::down(1.0f);
  rows.residual[2] = rows.residual[3] = N::down(std::ldexp(1.0f, -12));
  rows.norm.epsilon = 0;
  rms_norm(rows.norm, rows.sums.data(), rows.buffers());
  const float square = (1.0f + std::ldexp(1.0f, -23)) / 8;
  const float factor = 1.0f / std::sqrt(square);
  CHECK(rows.output[0] == N::down(factor * N::up(rows.weight[0])));
}

TEST_CASE("fp8 output is the product over the scale, rounded once, at most 448") {
  using N = Number<DataType::bf16>;
  using Small = Number<DataType::fp8e4m3>;
  Rows<DataType::bf16> rows(2, 64, 3);
  rows.weight[1] = N::down(1000.0f);
  rows.weight[2] = N::down(-1000.0f);
  rows.weight[3] = N::down(std::numeric_limits<float>::quiet_NaN());
  rows.sums[1] = rows.residual[1] = rows.sums[2] = rows.residual[2] = N::down(3.0f);
  Rows<DataType::bf16> wide = rows;
  rms_norm(wide.norm, wide.sums.data(), wide.buffers());
  rows.norm.output = DataType::fp8e4m3;
  RmsNormBuffers buffers = rows.buffers();
  buffers.output = rows.codes.data(), buffers.scale = &rows.scale;
  rms_norm(rows.norm, rows.sums.data(), buffers);
  CHECK(rows.residual == wide.residual);
  CHECK(Small::up(rows.codes[1]) == 448.0f);
  CHECK(Small::up(rows.codes[2]) == -448.0f);
  CHECK(rows.codes[3] == 0x7f);
  for (std::size_t i = 4; i < rows.codes.size(); ++i) {
    if (i % 64 < 4) continue;
    const float wanted = N::up(wide.output[i]) / rows.scale;
    CHECK(std::abs(Small::up(rows.codes[i]) - wanted) <=
          std::max(std::abs(wanted) / 14, std::ldexp(1.0f, -9)));
  }
}

TEST_CASE("the sums may lie in the output") {
  Rows<DataType::bf16> rows(2, 128, 4);
  Rows<DataType::bf16> apart = rows;
  rms_norm(apart.norm, apart.sums.data(), apart.buffers());
  RmsNormBuffers buffers = rows.buffers();
  buffers.output = rows.sums.data();
  rms_norm(rows.norm, rows.sums.data(), buffers);
  CHECK(rows.sums == apart.output);
}

TEST_CASE("wrong calls are refused with what was wanted and found") {
  Rows<DataType::bf16> rows(2, 64, 5);
  const RmsNormBuffers buffers = rows.buffers();
  const auto with = [&](auto change) {
    RmsNorm norm = rows.norm;
    RmsNormBuffers given = buffers;
    change(norm, given);
    return refusal(norm, given);
  };
  CHECK(with([](RmsNorm&, RmsNormBuffers&) {}) == "");
  const auto says = [&](auto change, const std::string& words) {
    const std::string found = with(change);
    CAPTURE(found);
    CHECK(found.find(words) != std::string::npos);
  };
  using Norm = RmsNorm&;
  using Given = RmsNormBuffers&;
  says([](Norm norm, Given) { norm.type = DataType::fp32; }, "wanted bf16 or fp16, found fp32");
  says([](Norm norm, Given) { norm.output = DataType::fp16; }, "wanted output of bf16 or fp8e4m3");
  says([](Norm norm, Given) { norm.hidden = 60; }, "a multiple of 8 elements, at most 16384");
  says([](Norm norm, Given) { norm.hidden = 16392; }, "found 16392");
  says([](Norm norm, Given) { norm.rows = ~0ull; }, "found -1");
  says([](Norm norm, Given) { norm.epsilon = std::nanf(""); }, "an epsilon of at least 0");
  says([](Norm, Given given) { given.weight = nullptr; }, "weight: wanted 128 bytes, found null");
  says([](Norm, Given given) { given.input = static_cast<const char*>(given.input) + 2; },
       "input: wanted memory aligned to 16 bytes");
  says([](Norm, Given given) { given.residual = given.output; }, "residual and output overlap");
  says([](Norm, Given given) { given.output = static_cast<char*>(given.residual) + 16; },
       "residual and output overlap");
  says(
      [&](Norm norm, Given given) {
        norm.output = DataType::fp8e4m3;
        given.output = rows.sums.data();
      },
      "input and output overlap");
  says([&](Norm, Given given) { given.scale = &rows.scale; }, "scale: wanted none");
  says(
      [](Norm norm, Given given) {
        norm.output = DataType::fp8e4m3;
        given.scale = static_cast<const float*>(given.residual) + 1;
      },
      "residual and scale overlap");
  CHECK(with([&](Norm, Given given) { given.output = rows.sums.data(); }) == "");
}
