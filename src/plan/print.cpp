// Prints a plan for people: the request first, then a line per op. Indices are printed unchanged,
// valid or not, since a broken plan most needs reading.
#include <sstream>

#include "base/text.hpp"
#include "plait/plan.hpp"

namespace plait {
namespace {

template <class Items>
std::string joined(const Items& items) {
  std::string out;
  for (const auto& item : items) out += text("{}{}", out.empty() ? "" : " ", item);
  return out;
}

std::string hop_of(const Op& op, const Plan& plan) {
  if (op.path == kLocalPath) return "";
  const bool is_known = op.path >= 0 && static_cast<std::size_t>(op.path) < plan.paths.size();
  return text(
      " via {} hop {}",
      is_known ? plan.paths[static_cast<std::size_t>(op.path)].name : text("path {}?", op.path),
      op.hop);
}

// A wait for a value of earlier calls is printed as the distance from that value.
std::string value_of(const Op& op) {
  if (op.kind == OpKind::signal || op.value != 0) return text("{}", op.value);
  return op.before == 0 ? "earlier calls" : text("earlier calls - {}", op.before);
}

std::string request_line(const Request& request) {
  std::string out =
      text("{} of {} {}", name_of(request), amount_of(request), name_of(request.type));
  if (reduces(request.collective)) out += text(" ({})", name_of(request.op));
  out += text(" on {}{}", request.ranks, request.ranks == 1 ? " rank" : " ranks");
  if (request.root != 0) out += text(", root {}", request.root);
  if (request.peer != 0) out += text(", peer {}", request.peer);
  return out + text(", devices {}", joined(request.devices));
}

std::string print(const LibraryCall& call) {
  std::string out = text("{} {} of {} among ranks {}", name_of(call.library),
                         name_of(call.collective), call.count, joined(call.ranks));
  if (call.root != 0) out += text(", root {}", call.root);
  return call.peer != 0 ? out + text(", peer {}", call.peer) : out;
}

}  // namespace

std::string print(const Region& region) {
  std::ostringstream stream;
  stream << name_of(region.space) << "[" << region.rank << "]+0x" << std::hex << region.offset
         << std::dec << ":" << region.bytes;
  return stream.str();
}

std::string print(const Op& op, const Plan& plan) {
  std::string out = name_of(op.kind);
  if (op.kind == OpKind::signal || op.kind == OpKind::wait)
    return out + text(" flag {} of rank {} by rank {}{}{}", op.flag.index, op.flag.owner,
                      op.flag.writer, op.kind == OpKind::signal ? " := " : " >= ", value_of(op));
  const bool has_call = op.call >= 0 && static_cast<std::size_t>(op.call) < plan.calls.size();
  if (op.kind == OpKind::join) out += text(" call {}{}", op.call, has_call ? ":" : "?:");
  out += text(" {} <-", print(op.dst));
  const char* between = " ";
  for (const Region& src : op.srcs) {
    out += between + print(src);
    between = " + ";
  }
  if (op.kind == OpKind::copy) return out + hop_of(op, plan);
  return out + (op.finish ? " finish" : "");
}

std::string print(const Plan& plan) {
  std::string out = text("plan {}: {}, topology {}\n  sum order {}", label(plan),
                         request_line(plan.request), plan.topology, name_of(plan.sum_order));
  if (!plan.kernel.empty()) out += text(", kernel {}", plan.kernel);
  if (plan.symmetric) out += ", symmetric";
  out += text("\n  scratch {} | inbox {} | ring {} bytes\n", joined(plan.scratch_bytes),
              joined(plan.inbox_bytes), joined(plan.ring_bytes));
  if (!plan.relay_devices.empty())
    out += text("  relay GPUs: devices {}\n", joined(plan.relay_devices));
  for (const Stripe& stripe : plan.stripes)
    out += text("  stripe {}: {}+{} bytes\n", stripe.route, stripe.offset, stripe.bytes);
  for (const auto& [name, bytes] : bytes_per_path(plan))
    out += text("  over {}: {} bytes\n", name, bytes);
  for (const auto& [index, count] : plan.counts)
    out += text("  flags {} count on by {}\n", index, count);
  for (std::size_t i = 0; i < plan.calls.size(); ++i)
    out += text("  call {}: {}\n", i, print(plan.calls[i]));
  for (const Lane& lane : plan.lanes) {
    out += text("r{}.{} ({}, {}{}", lane.rank, lane.name, name_of(lane.kind), lane.ops.size(),
                lane.ops.size() == 1 ? " op)\n" : " ops)\n");
    for (std::size_t i = 0; i < lane.ops.size(); ++i)
      out += text("r{}.{}#{} {}\n", lane.rank, lane.name, i, print(lane.ops[i], plan));
  }
  return out;
}

}  // namespace plait
