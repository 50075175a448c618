// Sums of inputs with hash consing (see expressions.hpp).
#include "verify/expressions.hpp"

#include <bit>
#include <limits>

namespace plait {
namespace {

constexpr std::size_t kMostText = 400;
constexpr int kMostDepth = 100;

}  // namespace

Expressions::Expressions(int ranks, bool rounds_factors) : rounds_factors_(rounds_factors) {
  for (int rank = 0; rank < ranks; ++rank) {
    SumNode& leaf = nodes_.emplace_back();
    leaf.leaf = rank;
    leaf.ranks = 1ULL << static_cast<unsigned>(rank);
    leaf.in_order = rank == 0 ? 1 : 0;
    leaf.tree_ranks = 1;
    leaf.tree_first = rank;
  }
}

int Expressions::sum(const std::vector<int>& children, bool finish, int call) {
  constexpr int kAnyCall = std::numeric_limits<int>::max();  // two terms have a single sum
  const bool by_library = call >= 0;
  const auto [entry, is_new] = index_of_.try_emplace(
      {children, finish, by_library && children.size() <= 2 ? kAnyCall : call},
      static_cast<int>(nodes_.size()));
  if (!is_new) return entry->second;
  SumNode made;
  made.finish = finish;
  made.children = children;
  made.by_library = by_library;
  made.in_order = by_library ? 0 : node(children.front()).in_order;
  for (std::size_t i = 1; i < children.size() && made.in_order != 0; ++i)
    made.in_order = node(children[i]).leaf == made.in_order ? made.in_order + 1 : 0;
  for (const int child : children) {
    const SumNode& part = node(child);
    made.doubled |= part.doubled | (made.ranks & part.ranks);
    made.ranks |= part.ranks;
    made.is_flat = made.is_flat && part.leaf >= 0 && !by_library;
    made.has_inner_finish = made.has_inner_finish || part.has_inner_finish || part.finish;
  }
  set_tree(made);
  nodes_.push_back(made);
  return entry->second;
}

// A tree of trees: as many as a power of two, equally large, side by side, the first at a multiple
// of the whole. Libraries sum two of them in a single way.
void Expressions::set_tree(SumNode& made) const {
  const auto count = static_cast<unsigned>(made.children.size());
  const SumNode& first = node(made.children.front());
  if (rounds_factors_ && count == 1 && first.leaf >= 0 && !made.finish) return;
  const int ranks = first.tree_ranks * static_cast<int>(count);
  if (ranks == 0 || !std::has_single_bit(count) || (made.by_library && count > 2) ||
      first.tree_first % ranks != 0)
    return;
  int next = first.tree_first;
  for (const int child : made.children) {
    const SumNode& part = node(child);
    if (part.tree_ranks != first.tree_ranks || part.tree_first != next) return;
    next += part.tree_ranks;
  }
  made.tree_ranks = ranks;
  made.tree_first = first.tree_first;
}

std::string Expressions::print(int expression) const {
  std::string out;
  print_into(out, expression, 0);
  const bool is_bare = node(expression).is_flat || node(expression).by_library;
  return is_bare ? out : "(" + out + ")";
}

void Expressions::print_into(std::string& out, int expression, int depth) const {
  const SumNode& printed = node(expression);
  if (printed.leaf >= 0) {
    out += std::to_string(printed.leaf);
    return;
  }
  const char* between = printed.by_library ? "{" : "";
  for (const int child : printed.children) {
    out += between;
    between = printed.by_library ? ", " : "+";
    if (out.size() > kMostText || depth > kMostDepth) {
      out += "...";
      return;
    }
    const bool is_sum = node(child).leaf < 0 && !printed.by_library && !node(child).by_library;
    if (is_sum) out += "(";
    print_into(out, child, depth + 1);
    if (is_sum) out += ")";
  }
  if (printed.by_library) out += "}";
}

}  // namespace plait
