// Writes and reads plans as JSON "plait.plan/1" (docs/schema/plan.schema.json). Regions are arrays
// [space, place, offset, bytes] and flags [owner, writer, index], since a plan holds thousands. The
// reader refuses unknown keys and wrong types, but leaves indices to verify().
#include <limits>

#include "base/json_place.hpp"
#include "base/text.hpp"
#include "plait/error.hpp"
#include "plait/plan.hpp"
#include "plan/blocks.hpp"

namespace plait {
namespace {

constexpr const char* kSchema = "plait.plan/1";
constexpr const char* kDocument = "plan JSON";
constexpr int kSpaces = 5, kLaneKinds = 3, kSumOrders = 4, kPathKinds = 6, kLibraries = 2;
#define PLAIT_TYPE(name, bytes, is_float, nccl_value) +1
constexpr int kDataTypes = 0
#include "plait/types.def"
    ;
#undef PLAIT_TYPE
#define PLAIT_REDUCE_OP(name, on_floats, on_integers) +1
constexpr int kReduceOps = 0
#include "plait/reduce_ops.def"
    ;
#undef PLAIT_REDUCE_OP
#define PLAIT_COLLECTIVE(name, input, output, busbw) +1
constexpr int kCollectives = 0
#include "plait/collectives.def"
    ;
#undef PLAIT_COLLECTIVE
#define PLAIT_OP(name, meaning) +1
constexpr int kOpKinds = 0
#include "plait/ops.def"
    ;
#undef PLAIT_OP

Json request_json(const Request& request) {
  Json made = {{"collective", name_of(request.collective)},
               {"count", request.count},
               {"type", name_of(request.type)},
               {"op", name_of(request.op)},
               {"ranks", request.ranks},
               {"root", request.root},
               {"peer", request.peer},
               {"devices", request.devices}};
  if (!request.counts.empty()) made["counts"] = request.counts;
  return made;
}

Json region_json(const Region& region) {
  return Json::array({name_of(region.space), region.rank, region.offset, region.bytes});
}

Json op_json(const Op& op) {
  Json made = {{"op", name_of(op.kind)}};
  if (op.kind == OpKind::signal || op.kind == OpKind::wait) {
    made["flag"] = Json::array({op.flag.owner, op.flag.writer, op.flag.index});
    made["value"] = op.value;
    if (op.before != 0) made["before"] = op.before;
    return made;
  }
  made["dst"] = region_json(op.dst);
  made["srcs"] = Json::array();
  for (const Region& src : op.srcs) made["srcs"].push_back(region_json(src));
  if (op.kind == OpKind::join) made["call"] = op.call;
  if (op.kind == OpKind::copy) {
    made["path"] = op.path;
    made["hop"] = op.hop;
  } else {
    made["finish"] = op.finish;
  }
  return made;
}

Json path_json(const Path& path) {
  return {{"name", path.name},
          {"kind", name_of(path.kind)},
          {"devices", path.devices},
          {"links", path.links}};
}

Json head_json(const Plan& plan) {
  Json made = {
      {"schema", kSchema}, {"request", request_json(plan.request)}, {"strategy", plan.strategy}};
  made["params"] = Json::object();
  for (const auto& [name, value] : plan.params) made["params"][name] = value;
  made["topology"] = plan.topology;
  made["sum_order"] = name_of(plan.sum_order);
  made["kernel"] = plan.kernel;
  made["symmetric"] = plan.symmetric;
  made["relay_devices"] = plan.relay_devices;
  made["scratch_bytes"] = plan.scratch_bytes;
  made["inbox_bytes"] = plan.inbox_bytes;
  made["ring_bytes"] = plan.ring_bytes;
  made["stripes"] = Json::array();
  for (const Stripe& stripe : plan.stripes)
    made["stripes"].push_back(
        {{"route", stripe.route}, {"offset", stripe.offset}, {"bytes", stripe.bytes}});
  made["paths"] = Json::array();
  for (const Path& path : plan.paths) made["paths"].push_back(path_json(path));
  for (const LibraryCall& call : plan.calls)
    made["calls"].push_back({{"library", name_of(call.library)},
                             {"collective", name_of(call.collective)},
                             {"count", call.count},
                             {"ranks", call.ranks},
                             {"root", call.root},
                             {"peer", call.peer}});
  if (!plan.enqueued.empty()) made["enqueued"] = plan.enqueued;
  for (const auto& [index, count] : plan.counts) made["counts"].push_back({index, count});
  return made;
}

template <class Item, class Read>
std::vector<Item> list(const JsonPlace& place, Read read) {
  std::vector<Item> items;
  for (const JsonPlace& item : place.items()) items.push_back(read(item));
  return items;
}

std::vector<int> indices(const JsonPlace& place) {
  return list<int>(place, [](const JsonPlace& item) { return item.index(); });
}

std::vector<std::uint64_t> sizes(const JsonPlace& place) {
  return list<std::uint64_t>(place, [](const JsonPlace& item) { return item.bytes(); });
}

Request read_request(const JsonPlace& place) {
  place.object_of_some(
      {"collective", "count", "counts", "type", "op", "ranks", "root", "peer", "devices"});
  Request request;
  request.collective = place.at("collective").name_in<Collective>(kCollectives);
  request.count = place.at("count").bytes();
  request.type = place.at("type").name_in<DataType>(kDataTypes);
  request.op = place.at("op").name_in<ReduceOp>(kReduceOps);
  request.ranks = static_cast<int>(place.at("ranks").integer(1, kMaxRanks));
  request.root = static_cast<int>(place.at("root").integer(0, request.ranks - 1));
  request.peer = static_cast<int>(place.at("peer").integer(0, request.ranks - 1));
  request.devices = indices(place.at("devices"));
  if (place.has("counts")) request.counts = sizes(place.at("counts"));
  if (const std::string fault = counts_fault(request); !fault.empty())
    throw Error(ErrorCode::parse_error, fault);
  return request;
}

Region read_region(const JsonPlace& place) {
  const std::vector<JsonPlace> parts = place.items();
  if (parts.size() != 4) place.refuse("[space, place, offset, bytes]");
  return {parts[0].name_in<Space>(kSpaces), parts[1].index(), parts[2].bytes(), parts[3].bytes()};
}

Op read_op(const JsonPlace& place) {
  if (!place.value().is_object()) place.refuse("an object");
  Op op;
  op.kind = place.at("op").name_in<OpKind>(kOpKinds);
  if (op.kind == OpKind::signal || op.kind == OpKind::wait) {
    place.object_of_some({"op", "flag", "value", "before"});
    const std::vector<JsonPlace> parts = place.at("flag").items();
    if (parts.size() != 3) place.at("flag").refuse("[owner, writer, index]");
    op.flag = {parts[0].index(), parts[1].index(), parts[2].index()};
    const auto count = [&](const char* key) {
      return static_cast<std::uint32_t>(
          place.at(key).integer(0, std::numeric_limits<std::uint32_t>::max()));
    };
    op.value = count("value");
    if (place.has("before")) op.before = count("before");
    return op;
  }
  if (op.kind == OpKind::copy) {
    place.object({"op", "dst", "srcs", "path", "hop"});
    op.path = place.at("path").index(kLocalPath);
    op.hop = place.at("hop").index();
  } else {
    const bool joins = op.kind == OpKind::join;
    if (joins)
      place.object({"op", "call", "dst", "srcs", "finish"});
    else
      place.object({"op", "dst", "srcs", "finish"});
    if (joins) op.call = place.at("call").index();
    op.finish = place.at("finish").boolean();
  }
  op.dst = read_region(place.at("dst"));
  op.srcs = list<Region>(place.at("srcs"), read_region);
  return op;
}

Path read_path(const JsonPlace& place) {
  place.object({"name", "kind", "devices", "links"});
  Path path;
  path.name = place.at("name").string();
  path.kind = place.at("kind").name_in<PathKind>(kPathKinds);
  path.devices = indices(place.at("devices"));
  path.links = indices(place.at("links"));
  return path;
}

Lane read_lane(const JsonPlace& place) {
  place.object({"rank", "kind", "name", "ops"});
  return {place.at("rank").index(), place.at("kind").name_in<LaneKind>(kLaneKinds),
          place.at("name").string(), list<Op>(place.at("ops"), read_op)};
}

LibraryCall read_call(const JsonPlace& place) {
  place.object({"library", "collective", "count", "ranks", "root", "peer"});
  return {place.at("library").name_in<Library>(kLibraries),
          place.at("collective").name_in<Collective>(kCollectives),
          place.at("count").bytes(),
          indices(place.at("ranks")),
          place.at("root").index(),
          place.at("peer").index()};
}

std::map<int, std::uint32_t> read_counts(const JsonPlace& place) {
  std::map<int, std::uint32_t> counts;
  for (const JsonPlace& item : place.items()) {
    const std::vector<JsonPlace> parts = item.items();
    if (parts.size() != 2) item.refuse("[index, count]");
    counts[parts[0].index()] =
        static_cast<std::uint32_t>(parts[1].integer(0, std::numeric_limits<std::uint32_t>::max()));
  }
  return counts;
}

Stripe read_stripe(const JsonPlace& place) {
  place.object({"route", "offset", "bytes"});
  return {place.at("route").string(), place.at("offset").bytes(), place.at("bytes").bytes()};
}

std::map<std::string, std::int64_t> read_params(const JsonPlace& place) {
  std::map<std::string, std::int64_t> params;
  for (const auto& [name, value] : place.members())
    params[name] = value.integer(std::numeric_limits<std::int64_t>::min(),
                                 std::numeric_limits<std::int64_t>::max());
  return params;
}

}  // namespace

std::string to_json(const Request& request) { return dumped(request_json(request)); }

std::string to_json(const Plan& plan) {
  std::string made = dumped(head_json(plan));
  made.pop_back();  // the closing brace: lanes follow, an op a line
  made += ",\"lanes\":[";
  const char* between_lanes = "\n";
  for (const Lane& lane : plan.lanes) {
    made += text("{}{{\"rank\":{},\"kind\":\"{}\",\"name\":{},\"ops\":[", between_lanes, lane.rank,
                 name_of(lane.kind), dumped(lane.name));
    between_lanes = ",\n";
    const char* between_ops = "\n";
    for (const Op& op : lane.ops) {
      made += between_ops + dumped(op_json(op));
      between_ops = ",\n";
    }
    made += "]}";
  }
  return made + "]}\n";
}

Plan plan_from_json(std::string_view json) {
  const Json document = parse_json(json, kDocument);
  const JsonPlace root(document, "", kDocument);
  root.object_of_some({"schema", "request", "strategy", "params", "topology", "sum_order", "kernel",
                       "symmetric", "relay_devices", "guests", "scratch_bytes", "inbox_bytes",
                       "ring_bytes", "stripes", "paths", "calls", "lanes", "counts", "enqueued"});
  if (root.at("schema").string() != kSchema) root.at("schema").refuse(text("\"{}\"", kSchema));
  Plan plan;
  plan.request = read_request(root.at("request"));
  plan.strategy = root.at("strategy").string();
  plan.params = read_params(root.at("params"));
  plan.topology = root.at("topology").string();
  const JsonPlace order = root.at("sum_order");
  plan.sum_order = order.string() == "stated"  // the name up to version 0.1
                       ? SumOrder::algorithm_order
                       : order.name_in<SumOrder>(kSumOrders);
  plan.kernel = root.at("kernel").string();
  plan.symmetric = root.at("symmetric").boolean();
  plan.relay_devices = indices(root.at(root.has("guests") ? "guests" : "relay_devices"));
  plan.scratch_bytes = sizes(root.at("scratch_bytes"));
  plan.inbox_bytes = sizes(root.at("inbox_bytes"));
  plan.ring_bytes = sizes(root.at("ring_bytes"));
  plan.stripes = list<Stripe>(root.at("stripes"), read_stripe);
  plan.paths = list<Path>(root.at("paths"), read_path);
  if (root.has("calls")) plan.calls = list<LibraryCall>(root.at("calls"), read_call);
  plan.lanes = list<Lane>(root.at("lanes"), read_lane);
  if (root.has("counts")) plan.counts = read_counts(root.at("counts"));
  if (root.has("enqueued")) plan.enqueued = list<std::vector<int>>(root.at("enqueued"), indices);
  return plan;
}

}  // namespace plait
