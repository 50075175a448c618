// Launches of pre-multiplied sums over a fake driver: a rank's products, and the sum of the
// products by the engine of the same sum, at random sizes; memory for products, and refusals.
#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "base/text.hpp"
#include "comm/gpu/drop_in.hpp"
#include "comm/gpu/gpu_calls.hpp"
#include "fake_cuda/fake_gpu.hpp"
#include "gpu/abi/call_args.hpp"
#include "gpu/select/gpu_tables.hpp"
#include "plait/error.hpp"
#include "tests/fake_gpu/h200_group.hpp"
#include "tests/fake_gpu/on_ranks.hpp"
#include "tests/fake_gpu/require.hpp"

using namespace plait;
using namespace plait_test;

namespace {

constexpr std::uint64_t kMib = 1 << 20;

/// Runs `body` with the calls of each rank, as the drop-in makes them; a process each.
void on_ranks(int ranks, const std::function<void(GpuCalls&)>& body, bool bitwise = false,
              bool in_processes = true) {
  CHECK(run_on_ranks(ranks, [&](const RankProcess& mine) {
          Env env;
          env.bitwise = bitwise;
          GpuGroup group = h200_group(mine.rank, ranks, mine.exchange, "");
          group.kind = cuda::default_table().gpus().kind();  // which is measured
          GpuCallsOptions options =
              drop_in_options_on(group, drop_in_options(env, {.in_processes = in_processes}));
          options.opens_at_first_call = false;
          options.rank.proves_paths = false;  // No kernel runs here.
          options.rank.large_arena_wait_s = 30;
          group.in_processes = in_processes;
          with_calls(mine, std::move(group), options, body);
        }) == 0);
}

/// A launch: of a kernel with CallArgs, or of the products.
struct Noted {
  std::string kernel;
  unsigned blocks = 0;
  cuda::ScaleArgs scale{};
  const void* input = nullptr;
};

/// Makes the call; returns the launches.
std::vector<Noted> launched(GpuCalls& calls, const Request& sum, const cuda::ScaleFactor& factor,
                            const void* input, void* output) {
  std::vector<Noted> all;
  fake_cuda().on_launch = [&](const std::string& kernel, unsigned blocks, unsigned,
                              const void* args) {
    Noted one{kernel, blocks, {}, nullptr};
    if (kernel == "plait_scale")
      one.scale = *static_cast<const cuda::ScaleArgs*>(args);
    else
      one.input = static_cast<const cuda::CallArgs*>(args)->input;
    all.push_back(one);
  };
  if (calls.wants_large_arena(sum))
    require(calls.rank().reserve_large_arena(cuda::CallMode::alone), "no large arena");
  calls.enqueue_scaled(sum, factor, input, output, nullptr);
  fake_cuda().on_launch = nullptr;
  return all;
}

char* place(std::uint64_t at) {
  return reinterpret_cast<char*>(std::uintptr_t{(at + 1) * 4096 * kMib});
}

Request sum_of(Collective collective, std::uint64_t bytes, int ranks, int root = 0) {
  Request sum;
  sum.collective = collective;
  sum.count = bytes / 4;
  sum.ranks = ranks;
  sum.root = root;
  return sum;
}

}  // namespace

TEST_CASE("products come before the sum, in the output or in memory of the rank") {
  for (const int ranks : {2, 4})
    on_ranks(ranks, [ranks](GpuCalls& calls) {
      std::mt19937 random(7);
      for (int call = 0; call < 200; ++call) {
        const bool reduces_all = random() % 2 == 0;
        const Request sum =
            sum_of(reduces_all ? Collective::all_reduce : Collective::reduce_scatter,
                   4 * (1 + random() % (1u << (4 + random() % 18))), ranks);
        if (!calls.takes_scaled(sum)) {
          require(!calls.takes(sum) || input_bytes(sum, 0) > most_scaled_ahead_of_nccl(sum),
                  text("left to NCCL: {}", sum.count));
          continue;
        }
        const bool in_place = random() % 2 == 0;
        const cuda::ScaleFactor factor{random() % 2 == 0 ? place(9) : nullptr, random()};
        char* const output = in_place ? place(0) : place(1);
        const std::vector<Noted> all = launched(calls, sum, factor, place(0), output);
        require(all.size() >= 2 && all[0].kernel == "plait_scale", "no products first");
        require(std::count_if(all.begin(), all.end(),
                              [](const Noted& one) { return one.kernel == "plait_scale"; }) == 1,
                "products more than once");
        const cuda::ScaleArgs& args = all[0].scale;
        require(args.input == place(0) && args.factor == factor.on_gpu &&
                    args.factor_bits == factor.bits && args.type == static_cast<int>(sum.type),
                "arguments");
        require(args.rows * args.row_bytes == input_bytes(sum, 0) &&
                    args.stride_bytes == args.row_bytes,
                "rows");
        require(all[0].blocks >= 1 && all[0].blocks <= 132, "blocks");
        require((args.output == output) == reduces_all, "place of the products");
        require(all[1].kernel.find("any") == std::string::npos,
                text("a kernel of sums was wanted, found {}", all[1].kernel));
        const bool has_call_args = all[1].kernel.find("copy") == std::string::npos &&
                                   all[1].kernel.find("step") == std::string::npos;
        require(!has_call_args || all[1].input == args.output,
                text("{} reads another input", all[1].kernel));
      }
      const std::uint64_t held = calls.rank().memory().of(MemoryPart::products);
      require(held > 0 && held <= 82 * kMib, text("{} bytes for products", held));
      const auto part =
          std::find_if(fake_cuda().memory.parts.begin(), fake_cuda().memory.parts.end(),
                       [](const auto& one) { return one.second == 2 * kMib; });
      require(part != fake_cuda().memory.parts.end(), "no memory of 2 MiB");
      require(calls.rank().gpu_memory().staying >= held, "memory is not counted");
    });
}

TEST_CASE("with PLAIT_BITWISE long calls go in pieces, reduces too") {
  on_ranks(
      2,
      [](GpuCalls& calls) {
        for (const Collective collective : {Collective::reduce_scatter, Collective::reduce}) {
          const Request sum = sum_of(collective, 100 * kMib + 4, 2, 0);
          require(calls.takes_scaled(sum), "not taken");
          std::uint64_t bytes = 0;
          std::vector<const char*> inputs;
          for (const Noted& one : launched(calls, sum, {}, place(0), place(1)))
            if (one.kernel == "plait_scale") {
              bytes += one.scale.row_bytes;
              inputs.push_back(one.scale.input);
            }
          require(bytes == sum.count * 4, "products of all elements");
          const std::uint64_t piece = collective == Collective::reduce ? 64 * kMib : 32 * kMib;
          require(inputs.size() == (sum.count * 4 + piece - 1) / piece, "pieces");
          for (std::size_t i = 0; i < inputs.size(); ++i)
            require(inputs[i] == place(0) + i * piece, "a piece's input");
        }
        const std::uint64_t held = calls.rank().memory().of(MemoryPart::products);
        // Rank 0's products of the reduce lie in its output.
        require(held == 64 * kMib, text("{} bytes", held));
      },
      true);
}

TEST_CASE("a rank whose GPU is full holds products in host memory") {
  for (const int full_rank : {0, 1})
    on_ranks(2, [full_rank](GpuCalls& calls) {
      const Request sum = sum_of(Collective::reduce_scatter, 4096, 2);
      require(calls.takes_scaled(sum), "not taken");
      const bool is_full = calls.rank().rank() == full_rank;
      std::vector<const void*> inputs;
      if (is_full) fake_cuda().memory.most = fake_cuda().memory.bytes;
      for (int call = 0; call < 2; ++call)
        for (const Noted& one : launched(calls, sum, {}, place(0), place(1)))
          if (one.kernel == "plait_scale")
            inputs.push_back(one.scale.output);
          else
            require(one.input == inputs.back(), text("{} reads another input", one.kernel));
      require(inputs.size() == 2 && inputs[0] == inputs[1], "memory is not kept");
      const MemoryHeld& held = calls.rank().memory();
      require(held.of(MemoryPart::products) == (is_full ? 0 : 2 * kMib), "GPU memory");
      require(held.of(MemoryPart::host_products) == (is_full ? 2 * kMib : 0), "host memory");
    });
}

namespace {

/// Requires that products of this size are served, and those of an element more are not.
void require_largest(GpuCalls& calls, Request sum) {
  require(calls.takes_scaled(sum), text("{} elements", sum.count));
  sum.count += 1;
  require(!calls.takes_scaled(sum) && calls.takes(sum), text("{} elements", sum.count));
}

/// Requires that the sum is refused for a reason with these words.
void require_refused(GpuCalls& calls, const Request& sum, const std::string& words) {
  const char* const why = calls.why_not_scaled(sum);
  require(why != nullptr && std::string(why).find(words) != std::string::npos,
          why == nullptr ? "served: " + words : why);
}

}  // namespace

TEST_CASE("all_reduces of more than two ranks are served up to 4 MiB") {
  on_ranks(4, [](GpuCalls& calls) {
    require_largest(calls, sum_of(Collective::all_reduce, 4 * kMib, 4));
  });
}

TEST_CASE("other calls, long ones and those of threads that need memory are left to NCCL") {
  on_ranks(2, [](GpuCalls& calls) {
    require_largest(calls, sum_of(Collective::all_reduce, 16 * kMib, 2));
    require_largest(calls, sum_of(Collective::reduce_scatter, 2 * kMib, 2));  // 4 MiB of input
    require_refused(calls, sum_of(Collective::reduce, kMib, 2), "longer than the sum is ahead");
    require_refused(calls, sum_of(Collective::all_gather, kMib, 2), "only sums");
    Request sum = sum_of(Collective::all_reduce, kMib, 2);
    sum.op = ReduceOp::max;
    require_refused(calls, sum, "only sums");
    require_refused(calls, sum_of(Collective::all_reduce, 0, 2), "at least one element");
  });
  on_ranks(
      2,
      [](GpuCalls& calls) {
        require(calls.takes_scaled(sum_of(Collective::all_reduce, kMib, 2)), "an all_reduce");
        require_refused(calls, sum_of(Collective::reduce_scatter, kMib, 2), "ranks of one process");
      },
      false, false);
}

TEST_CASE("a rank without GPU and host memory for products gets an error, and keeps nothing") {
  on_ranks(2, [](GpuCalls& calls) {
    const Request sum = sum_of(Collective::reduce_scatter, 4096, 2);
    const std::uint64_t before = fake_cuda().memory.bytes;
    if (calls.rank().rank() == 0) {
      fake_cuda().memory.most = before;
      fake_cuda().refuses.of("host_register", 1);
    }
    try {
      launched(calls, sum, {}, place(0), place(1));
      require(calls.rank().rank() == 1, "served without memory");
    } catch (const Error& error) {
      fake_cuda().on_launch = nullptr;
      require(calls.rank().rank() == 0 && error.code() == ErrorCode::out_of_memory, error.what());
      require(calls.rank().memory().of(MemoryPart::host_products) == 0, "memory is counted");
      require(fake_cuda().memory.bytes == before, "memory is kept");
    }
  });
}

TEST_CASE("misaligned memory is refused before anything is enqueued") {
  on_ranks(2, [](GpuCalls& calls) {
    fake_cuda().launches.clear();
    try {
      calls.enqueue_scaled(sum_of(Collective::all_reduce, 4096, 2), {}, place(0) + 2, place(1),
                           nullptr);
      require(false, "accepted");
    } catch (const Error& error) {
      require(error.code() == ErrorCode::invalid_argument, error.what());
    }
    require(fake_cuda().launches.empty(), "products of a refused call");
  });
}
