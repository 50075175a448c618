// Writes exchanges over consecutive ranges by shares (see stripes.hpp).
#include "planner/stripes.hpp"

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <utility>

#include "base/text.hpp"
#include "plait/error.hpp"
#include "planner/routes.hpp"
#include "planner/transfer.hpp"
#include "topo/pair_paths.hpp"

namespace plait {
namespace {

// Below this size a second path costs more time than the path saves: two hops of about 20 us,
// compared with 10 % of the message's time (H200, 390 GB/s).
constexpr std::uint64_t kLeastStripedBytes = 32 << 20;
constexpr int kMostPieces = 2048;

using PathOf = std::function<Path(int, int)>;

// A share on a second path has few pieces: the hops overlap by the ring's slots, and each piece of
// each pair takes a dozen ops.
int host_pieces(std::uint64_t bytes, int ranks) {
  constexpr std::uint64_t kPieceBytes = 2 << 20;
  const std::uint64_t pieces = bytes / (kPieceBytes * static_cast<std::uint64_t>(ranks));
  return static_cast<int>(std::clamp<std::uint64_t>(pieces, 1, kMostPieces));
}

// Caches paths: a search takes far longer than a copy of a path, and a stripe's movers use the
// same.
PathOf remembered(PathOf find) {
  auto cache = std::make_shared<std::map<std::pair<int, int>, Path>>();
  return [cache, find = std::move(find)](int from, int to) {
    const auto at = cache->find({from, to});
    return at != cache->end() ? at->second : (*cache)[{from, to}] = find(from, to);
  };
}

bool is_given(const Params& params) {
  return params.contains("host_permille") || params.contains("host_cpu_permille") ||
         params.contains("relay_permille");
}

int pieces_of(std::uint64_t bytes, const Params& params, int otherwise) {
  const int kib = param_in(params, "piece_kib", 0, 0, 1 << 20);
  if (kib == 0) return param_in(params, "pieces", otherwise, 1, kMostPieces);
  const std::uint64_t piece = static_cast<std::uint64_t>(kib) << 10;
  return static_cast<int>(std::clamp<std::uint64_t>((bytes + piece - 1) / piece, 1, kMostPieces));
}

}  // namespace

int pieces_from(const Params& params, const Request& request, int otherwise) {
  const Collective c = request.collective;
  const bool is_cut_in_shards =
      c == Collective::all_reduce || c == Collective::reduce || c == Collective::broadcast;
  const std::uint64_t shards = is_cut_in_shards ? static_cast<std::uint64_t>(request.ranks) : 1;
  return pieces_of(whole_range(request).bytes / shards, params, otherwise);
}

int whole_pieces_from(const Params& params, const Request& request, int otherwise) {
  return pieces_of(whole_range(request).bytes, params, otherwise);
}

Shares shares_from(const Params& params, const Topology& topology, const Request& request) {
  Shares shares;
  shares.host_permille = param_in(params, "host_permille", 0, 0, 1000);
  shares.host_cpu_permille = param_in(params, "host_cpu_permille", 0, 0, 1000);
  shares.relay_permille = param_in(params, "relay_permille", 0, 0, 1000);
  shares.relay_device = param_in(params, "relay", -1, -1, 1 << 20);
  if (shares.other_permille() > 1000)
    throw Error(
        ErrorCode::invalid_argument,
        text("wanted shares of at most 1000 thousandths, found {}", shares.other_permille()));
  if (shares.relay_permille > 0 && shares.relay_device < 0)
    throw Error(ErrorCode::invalid_argument, "wanted relay=DEVICE with relay_permille, found none");
  if (shares.host_cpu_permille > 0 && !reduces(request.collective))
    throw Error(ErrorCode::unsupported,
                text("host_cpu_permille needs a collective that reduces, found {}",
                     name_of(request.collective)));
  if (is_given(params) || message_bytes(request) < kLeastStripedBytes || request.ranks < 2)
    return shares;
  if (!request.counts.empty())
    return shares;  // with uneven blocks a stripe would hold whole small blocks
  const std::vector<RouteShare> found = shares_of_collective(topology, request);
  if (found.empty() || found.front().route != "nvlink") return shares;
  for (const RouteShare& share : found) {
    const int permille = static_cast<int>(share.fraction * 1000.0 + 0.5);
    if (share.route == "host") shares.host_permille = permille;
    if (share.relay_device < 0) continue;
    shares.relay_permille = permille;
    shares.relay_device = share.relay_device;
  }
  return shares;
}

void note_shares(Builder& builder, const Shares& shares) {
  if (shares.host_permille > 0) builder.param("host_permille", shares.host_permille);
  if (shares.host_cpu_permille > 0) builder.param("host_cpu_permille", shares.host_cpu_permille);
  if (shares.relay_permille == 0) return;
  builder.param("relay_permille", shares.relay_permille);
  builder.param("relay", shares.relay_device);
}

void write_stripes(Builder& builder, ExchangeOptions direct, const Shares& shares) {
  const Topology& topology = builder.topology();
  const auto device = [&builder](int rank) { return builder.device(rank); };
  const Range whole = direct.range;
  const std::uint64_t scratch = scratch_limit(topology), ring = ring_limit(topology);
  const int stripes = (shares.host_permille > 0) + (shares.host_cpu_permille > 0);
  const std::string prefix = direct.name;
  std::uint64_t at = whole.offset;
  const auto stripe = [&](const std::string& route, int permille, bool is_last, const auto& path,
                          bool on_cpu) {
    ExchangeOptions exchange = direct;
    const double fraction = permille / 1000.0;
    const auto wanted = static_cast<std::uint64_t>(static_cast<double>(whole.bytes) * fraction);
    const std::uint64_t left = whole.offset + whole.bytes - at;
    const std::uint64_t bytes =
        is_last ? left : std::min(left, wanted / builder.granule() * builder.granule());
    exchange.range = {at, bytes};
    at += bytes;
    if (bytes == 0) return;
    exchange.scratch_bytes = std::max<std::uint64_t>(
        static_cast<std::uint64_t>(static_cast<double>(scratch) * fraction * 0.9), scratch / 64);
    exchange.ring_bytes = stripes > 0 ? ring / static_cast<std::uint64_t>(stripes) : ring;
    if (path) exchange.path = path;
    if (route == "host" && permille < 1000)
      exchange.pieces = std::min(exchange.pieces, host_pieces(bytes, builder.ranks()));
    builder.stripe(route, exchange.range);
    if (!is_last || route != "nvlink") exchange.name = prefix + route + ".";
    if (on_cpu)
      write_host_reduction(builder, exchange);
    else
      write_exchange(builder, exchange);
  };
  const PathOf by_host =
      remembered([&](int from, int to) { return host_path(topology, device(from), device(to)); });
  const PathOf by_relay = remembered([&](int from, int to) {
    return relay_path(topology, device(from), device(to), shares.relay_device);
  });
  const PathOf by_link =
      remembered([&](int from, int to) { return direct_path(topology, device(from), device(to)); });
  const int direct_permille = 1000 - shares.other_permille();
  const bool is_direct_last = direct_permille > 0;
  stripe("host+cpu", shares.host_cpu_permille, !is_direct_last && shares.host_cpu_permille == 1000,
         by_host, true);
  stripe("host", shares.host_permille,
         !is_direct_last && shares.relay_permille == 0 && shares.host_permille > 0, by_host, false);
  stripe(text("relay:{}",
              shares.relay_device < 0 ? text("none") : device_label(topology, shares.relay_device)),
         shares.relay_permille, !is_direct_last && shares.relay_permille > 0, by_relay, false);
  stripe("nvlink", direct_permille, true, direct.path ? PathOf() : by_link, false);
}

}  // namespace plait
