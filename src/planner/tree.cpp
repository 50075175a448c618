// tree: binomial trees. Broadcast and scatter go down from the root, reduce and gather go up to the
// root, in ceil(log2 n) steps. Large messages go in pipelined chunks. A node receives from all its
// children, reduces once (n-way), and sends a message to its parent. Source: the binomial trees of
// MPICH (Thakur, Rabenseifner, Gropp 2005).
#include <algorithm>
#include <bit>

#include "plait/courier.hpp"
#include "plait/error.hpp"

namespace plait {
namespace {

constexpr int kSlots = 2;

// Node v of the tree is rank (root + v) mod n. The subtree of v is v, v + 1, ..., v + size(v) - 1;
// the children are v + 1, v + 2, v + 4, ... inside the subtree.
class Tree {
 public:
  explicit Tree(Builder& builder)
      : builder_(builder), n_(builder.ranks()), root_(builder.request().root) {}

  double scratch_per_byte() const {
    const auto height = static_cast<double>(std::bit_width(static_cast<unsigned>(n_ - 1)));
    switch (builder_.request().collective) {
      case Collective::broadcast: return kSlots;
      case Collective::reduce: return kSlots * height;
      default: return kSlots * static_cast<double>(n_);
    }
  }

  void write(Courier& courier, Range chunk) {
    switch (builder_.request().collective) {
      case Collective::broadcast: return broadcast(courier, chunk);
      case Collective::reduce: return reduce(courier, chunk);
      case Collective::gather: return gather(courier, chunk);
      default: return scatter(courier, chunk);
    }
  }

 private:
  int rank(int node) const { return (root_ + node) % n_; }
  int width(int node) const {
    return node == 0 ? static_cast<int>(std::bit_ceil(static_cast<unsigned>(n_))) : node & -node;
  }
  int size(int node) const { return std::min(width(node), n_ - node); }
  int parent(int node) const { return node & (node - 1); }
  std::vector<int> children(int node) const {  // the smallest subtree first
    std::vector<int> out;
    for (int step = 1; step < width(node) && node + step < n_; step *= 2)
      out.push_back(node + step);
    return out;
  }
  std::uint64_t subtree_bytes(int node, Range chunk) const {
    return static_cast<std::uint64_t>(size(node)) * chunk.bytes;
  }

  void broadcast(Courier& courier, Range chunk) {
    for (int node = 0; node < n_; ++node) {
      const int here = rank(node);
      const Region src = node == 0 ? builder_.input(here, chunk) : builder_.output(here, chunk);
      if (node == 0) {
        courier.copy(here, builder_.output(here, chunk), src);
      } else {
        const Message message = courier.receive(here, rank(parent(node)), chunk.bytes);
        courier.copy(here, src, message.region);
        courier.release(message);
      }
      const std::vector<int> below = children(node);
      for (auto child = below.rbegin(); child != below.rend(); ++child)
        courier.send(here, rank(*child), {src});
    }
  }

  void reduce(Courier& courier, Range chunk) {
    for (int node = n_ - 1; node >= 0; --node) {
      const int here = rank(node);
      std::vector<Region> srcs{builder_.input(here, chunk)};
      std::vector<Message> messages;
      for (const int child : children(node)) {
        messages.push_back(courier.receive(here, rank(child), chunk.bytes));
        srcs.push_back(messages.back().region);
      }
      Region sum = srcs[0];
      if (!messages.empty()) {
        sum = node == 0 ? builder_.output(here, chunk) : srcs[1];
        courier.reduce(here, sum, srcs, node == 0);
      }
      if (node != 0) courier.send(here, rank(parent(node)), {sum});
      for (const Message& message : messages) courier.release(message);
    }
  }

  // Copies each block of a node's subtree, in node order, from `message` to the root's output.
  void deliver(Courier& courier, int node, const Region& message, Range chunk) {
    for (int i = 0; i < size(node); ++i)
      courier.copy(root_,
                   builder_.output(root_, in_block(builder_.request(), rank(node + i), chunk)),
                   slice(message, {static_cast<std::uint64_t>(i) * chunk.bytes, chunk.bytes}));
  }

  void gather(Courier& courier, Range chunk) {
    for (int node = n_ - 1; node >= 0; --node) {
      const int here = rank(node);
      std::vector<Region> parts{builder_.input(here, chunk)};
      std::vector<Message> messages;
      if (node == 0)
        courier.copy(here, builder_.output(here, in_block(builder_.request(), here, chunk)),
                     parts[0]);
      for (const int child : children(node)) {
        messages.push_back(courier.receive(here, rank(child), subtree_bytes(child, chunk)));
        parts.push_back(messages.back().region);
        if (node == 0) deliver(courier, child, parts.back(), chunk);
      }
      if (node != 0) courier.send(here, rank(parent(node)), parts);
      for (const Message& message : messages) courier.release(message);
    }
  }

  // Data for a child's subtree: blocks of the root's input, or a part of the parent's message.
  std::vector<Region> share(int node, int child, const Region& held, Range chunk) const {
    if (node != 0)
      return {slice(held, {static_cast<std::uint64_t>(child - node) * chunk.bytes,
                           subtree_bytes(child, chunk)})};
    std::vector<Region> blocks;
    for (int i = 0; i < size(child); ++i)
      blocks.push_back(builder_.input(root_, in_block(builder_.request(), rank(child + i), chunk)));
    return blocks;
  }

  void scatter(Courier& courier, Range chunk) {
    for (int node = 0; node < n_; ++node) {
      const int here = rank(node);
      Message message;
      if (node != 0)
        message = courier.receive(here, rank(parent(node)), subtree_bytes(node, chunk));
      const std::vector<int> below = children(node);
      for (auto child = below.rbegin(); child != below.rend(); ++child)
        courier.send(here, rank(*child), share(node, *child, message.region, chunk));
      courier.copy(here, builder_.output(here, chunk),
                   node == 0 ? builder_.input(here, in_block(builder_.request(), here, chunk))
                             : slice(message.region, {0, chunk.bytes}));
      courier.release(message);
    }
  }

  Builder& builder_;
  int n_;
  int root_;
};

int default_chunks(const Request& request) {
  const std::uint64_t bytes = request.count * bytes_of(request.type);
  return bytes <= 256ULL << 10 ? 1 : bytes <= 8ULL << 20 ? 4 : 16;
}

std::vector<Params> candidates(const Topology&, const Request& request) {
  const int chunks = default_chunks(request);
  std::vector<Params> out{{{"chunks", chunks}}};
  if (chunks > 1) out.push_back({{"chunks", 1}});
  if (chunks > 4) out.push_back({{"chunks", 4 * chunks}});
  return out;
}

void write(Builder& builder, const Params& params) {
  const Request& request = builder.request();
  CourierCut cut = cut_from(builder, params, "chunks", default_chunks(request), 2);
  if (reduces(request.collective)) builder.sum_order(SumOrder::algorithm_order);
  if (request.ranks == 1) return alone(builder);
  Tree tree(builder);
  cut.lane_name = "tree";
  cut.slots = kSlots;
  cut.scratch_per_byte = tree.scratch_per_byte();
  in_chunks(builder, cut, [&](Courier& courier, Range chunk) { tree.write(courier, chunk); });
}

}  // namespace

const Strategy& tree_strategy() {
  static const Strategy strategy{
      {"tree",
       "binomial trees down from the root or up to it, in chunks",
       "MPICH binomial trees (Thakur, Rabenseifner, Gropp 2005)",
       {Collective::broadcast, Collective::reduce, Collective::gather, Collective::scatter}},
      candidates,
      write,
      {"chunks", "lanes"}};
  return strategy;
}

}  // namespace plait
