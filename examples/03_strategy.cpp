// A strategy of one's own in C++: added, proved, simulated, and run by the ranks of a job.
//
//   cmake -S examples/consumer -B build/consumer -Dplait_DIR=$(python -m plait --cmakedir)
//   cmake --build build/consumer && plait launch -n 4 build/consumer/strategy
#include <cstdio>
#include <vector>

#include "plait/communicator.hpp"
#include "plait/courier.hpp"
#include "plait/error.hpp"
#include "plait/report.hpp"
#include "plait/strategy.hpp"
#include "plait/timeline.hpp"

using namespace plait;

namespace {

/// Each rank hands the message on to the next rank, chunk by chunk.
void chain(Builder& builder, const Params& params) {
  const Request& request = builder.request();
  const int chunks = param_in(params, "chunks", 4, 1, 1024);
  builder.param("chunks", chunks);
  in_chunks(builder, CourierCut{"chain", chunks, 1, 2, 2.0}, [&](Courier& courier, Range chunk) {
    Region held = builder.input(request.root, chunk);
    courier.copy(request.root, builder.output(request.root, chunk), held);
    for (int step = 1; step < request.ranks; ++step) {
      const int before = (request.root + step - 1) % request.ranks;
      const int here = (request.root + step) % request.ranks;
      courier.send(before, here, {held});
      const Message message = courier.receive(here, before, chunk.bytes);
      held = builder.output(here, chunk);
      courier.copy(here, held, message.region);
      courier.release(message);
    }
  });
}

void show(const char* machine) {
  const Topology topology = load_topology(machine);
  Request request{Collective::broadcast, 1 << 20, DataType::fp32};
  request.ranks = 4;
  const Plan plan = propose_one(topology, request, "chain", {{"chunks", 16}});
  const Report report = verify(plan);
  std::printf("%s%s: %.0f us\n", print(report).c_str(), machine,
              simulate(plan, topology).total_ns / 1e3);
}

}  // namespace

int main() {
  try {
    Strategy mine;
    mine.info = {"chain", "each rank hands on to the next", "", {Collective::broadcast}};
    mine.candidates = [](const Topology&, const Request&) {
      return std::vector<Params>{{{"chunks", 4}}, {{"chunks", 16}}};
    };
    mine.write = chain;
    add_strategy(mine);

    const auto comm = Communicator::create(options_from_environment());
    if (comm->rank() == 0) show("hgx-h200");
    std::vector<float> data(1000, static_cast<float>(comm->rank() + 7)), got(1000);
    Request request{Collective::broadcast, data.size(), DataType::fp32};
    request.ranks = comm->ranks();
    comm->run(request, data.data(), got.data(), {.strategy = "chain", .params = {{"chunks", 3}}});
    std::printf("rank %d of %d has %g\n", comm->rank(), comm->ranks(), got.back());
    return got.front() == 7.0F && got.back() == 7.0F ? 0 : 1;
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return error_exit_code(error.code());
  }
}
