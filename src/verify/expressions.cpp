// Sums of inputs, each made once (see expressions.hpp).
#include "verify/expressions.hpp"

namespace plait {
namespace {

constexpr std::size_t kMostText = 400;
constexpr int kMostDepth = 100;

}  // namespace

Expressions::Expressions(int ranks) {
  for (int rank = 0; rank < ranks; ++rank) {
    Node& leaf = nodes_.emplace_back();
    leaf.leaf = rank;
    leaf.ranks = 1ULL << static_cast<unsigned>(rank);
  }
}

int Expressions::sum(const std::vector<int>& children, bool finish) {
  const auto [entry, is_new] =
      known_.try_emplace({children, finish}, static_cast<int>(nodes_.size()));
  if (!is_new) return entry->second;
  Node made;
  made.finish = finish;
  made.children = children;
  for (const int child : children) {
    const Node& part = node(child);
    made.doubled |= part.doubled | (made.ranks & part.ranks);
    made.ranks |= part.ranks;
    made.is_flat = made.is_flat && part.leaf >= 0;
    made.has_inner_finish = made.has_inner_finish || part.has_inner_finish || part.finish;
  }
  nodes_.push_back(made);
  return entry->second;
}

std::string Expressions::print(int expression) const {
  std::string out;
  print_into(out, expression, 0);
  return node(expression).is_flat ? out : "(" + out + ")";
}

void Expressions::print_into(std::string& out, int expression, int depth) const {
  const Node& said = node(expression);
  if (said.leaf >= 0) {
    out += std::to_string(said.leaf);
    return;
  }
  const char* between = "";
  for (const int child : said.children) {
    out += between;
    between = "+";
    if (out.size() > kMostText || depth > kMostDepth) {
      out += "...";
      return;
    }
    const bool is_sum = node(child).leaf < 0;
    if (is_sum) out += "(";
    print_into(out, child, depth + 1);
    if (is_sum) out += ")";
  }
}

}  // namespace plait
