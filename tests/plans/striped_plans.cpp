// Tests of the strategy striped: plans are proved at sizes that are cut, shares follow the paths'
// speeds, a masked link is replaced by a relay GPU inside or outside the job or by host memory, and
// small messages take the direct path.
#include <doctest/doctest.h>

#include <cmath>
#include <map>
#include <string>

#include "plait/error.hpp"
#include "plait/report.hpp"
#include "plans/cases.hpp"

namespace {

using namespace plait;

constexpr unsigned long long kGiB = 1ULL << 30;

Request copy_of(const Topology& topology, std::uint64_t bytes, std::vector<int> gpus = {0, 1},
                Collective collective = Collective::copy) {
  Request request;
  request.collective = collective;
  request.type = DataType::uint8;
  request.count = bytes;
  request.ranks = static_cast<int>(gpus.size());
  request.peer = 1;
  for (const int gpu : gpus) request.devices.push_back(find_device(topology, DeviceKind::gpu, gpu));
  return checked(request, topology);
}

Plan proved(const Topology& topology, const Request& request,
            const std::map<std::string, std::int64_t>& params = {}) {
  Plan plan = propose_one(topology, request, "striped", params);
  const Report report = verify(plan);
  if (!report.proved()) FAIL_CHECK(label(plan), ": ", print(report));
  CHECK(plan.symmetric);
  return plan;
}

std::map<std::string, double> shares(const Plan& plan) {
  std::map<std::string, double> found;
  for (const Stripe& stripe : plan.stripes)
    found[stripe.route] +=
        static_cast<double>(stripe.bytes) / static_cast<double>(plan.request.count);
  return found;
}

}  // namespace

TEST_CASE(
    "striped: 1 GiB between two H200 goes 9 to 12 % by the host, through a ring in the cache") {
  const Topology topology = load_topology("hgx-h200");
  const Plan one_way = proved(topology, copy_of(topology, kGiB));
  CHECK(shares(one_way).size() == 2);
  CHECK(shares(one_way)["host"] >= 0.09);
  CHECK(shares(one_way)["host"] <= 0.12);
  CHECK(one_way.ring_bytes[0] <= 32ULL << 20);
  CHECK(one_way.ring_bytes[1] == 0);
  CHECK(one_way.scratch_bytes == std::vector<std::uint64_t>{0, 0});
  const Plan both = proved(topology, copy_of(topology, kGiB, {0, 1}, Collective::send_recv));
  CHECK(shares(both)["host"] >= 0.08);
  CHECK(shares(both)["host"] < shares(one_way)["host"]);
  CHECK(both.ring_bytes[0] + both.ring_bytes[1] <= 32ULL << 20);
}

TEST_CASE("striped: small messages go over the direct link alone, in one copy") {
  const Topology topology = load_topology("hgx-h200");
  double last = 0.0;
  for (std::uint64_t bytes = 1; bytes <= 4 * kGiB; bytes = bytes * 4 + 3) {
    const Plan plan = proved(topology, copy_of(topology, bytes));
    const double host = shares(plan)["host"];
    CHECK(host + 0.02 >= last);  // grows with the size, to within a chunk
    last = host;
    if (bytes > 4 << 20) continue;
    CHECK(host == 0.0);
    CHECK(op_count(plan) <= 5);
  }
  CHECK(last > 0.1);
}

TEST_CASE("striped: a masked pair uses a relay GPU, of the job or not, and the host") {
  const Topology topology = without(load_topology("hgx-h200"), {"nvlink:0-1"});
  const Plan outside = proved(topology, copy_of(topology, kGiB));
  CHECK(outside.relay_devices.size() == 1);
  CHECK(shares(outside)["relay:" + device_label(topology, outside.relay_devices[0])] > 0.8);
  CHECK(shares(outside)["host"] > 0.05);
  CHECK(outside.scratch_bytes.back() <= 128ULL << 20);
  const Plan inside = proved(topology, copy_of(topology, kGiB, {0, 1, 2, 3, 4, 5, 6, 7}));
  CHECK(inside.relay_devices.empty());
  const Plan named = proved(topology, copy_of(topology, kGiB),
                            {{"relay_permille", 1000}, {"relay", 5}, {"chunk_kib", 2048}});
  CHECK(named.relay_devices == std::vector<int>{5});
  CHECK(shares(named)["relay:5"] == 1.0);
  const Plan both = proved(topology, copy_of(topology, kGiB, {0, 1}, Collective::send_recv));
  CHECK(both.relay_devices.size() >= 1);
}

TEST_CASE("striped: with two GPUs and no link, everything goes through host memory") {
  std::vector<std::string> masks{"nvlink:0-1"};
  for (int gpu = 2; gpu < 8; ++gpu) masks.push_back("relay:" + std::to_string(gpu));
  const Topology topology = without(load_topology("hgx-h200"), masks);
  for (const std::uint64_t bytes : {1ULL, 1000ULL, 1ULL << 20, 3ULL << 20, kGiB + 7}) {
    const Plan plan = proved(topology, copy_of(topology, bytes));
    CHECK(shares(plan)["host"] == 1.0);
    CHECK(plan.ring_bytes[0] <= 32ULL << 20);
  }
  CHECK_THROWS_AS(propose_one(without(topology, {"host:0"}), copy_of(topology, 8), "striped"),
                  Error);
}

TEST_CASE("striped: GPUs of two sockets meet in the sender's host memory") {
  Topology topology = cases::wide_machine();
  topology = without(topology, {"nvlink:0-15"});
  for (int gpu = 1; gpu < 15; ++gpu) topology = without(topology, {"relay:" + std::to_string(gpu)});
  const Plan plan = proved(topology, copy_of(topology, 64 << 20, {0, 15}));
  REQUIRE(plan.paths.size() == 1);
  CHECK(plan.paths[0].links.size() == 3);
}

TEST_CASE("striped: every machine, odd sizes, and shares as requested") {
  for (const Topology& topology : cases::machines()) {
    const int devices = static_cast<int>(rank_devices(topology).size());
    if (devices < 2 || find_device(topology, DeviceKind::gpu, 1) < 0) continue;
    for (const std::uint64_t bytes : {12345ULL, (64ULL << 20) + 1, kGiB - 129})
      for (const Collective collective : {Collective::copy, Collective::send_recv}) {
        CAPTURE(topology.name);
        CAPTURE(bytes);
        try {
          proved(topology, copy_of(topology, bytes, {0, 1}, collective));
          proved(topology, copy_of(topology, bytes, {0, 1}, collective), {{"chunk_kib", 512}});
          proved(topology, copy_of(topology, bytes, {0, 1}, collective), {{"host_permille", 130}});
        } catch (const Error& refusal) {
          CHECK(refusal.code() == ErrorCode::unsupported);
        }
      }
  }
}
