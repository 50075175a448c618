// Compares outputs with the collective's definition: every byte holds the right input or the sum of
// all ranks, each exactly once, in the plan's order of summation.
#include <algorithm>
#include <bit>
#include <set>

#include "base/text.hpp"
#include "plan/library_call.hpp"
#include "verify/values.hpp"

namespace plait {
namespace {

constexpr std::size_t kMostOrders = 32;

std::string ranks_in(std::uint64_t bits) {
  std::string out;
  for (; bits != 0; bits &= bits - 1)
    out += text("{}{}", out.empty() ? "" : ", ", std::countr_zero(bits));
  return out;
}

class ContractCheck {
 public:
  ContractCheck(const Plan& plan, const Values& values, Findings& findings)
      : plan_(plan), values_(values), findings_(findings) {}

  void rank(int rank) {
    for (const Given& wanted : given_by(plan_.request, rank)) {
      const Region region{Space::output, rank, wanted.lo, wanted.hi - wanted.lo};
      for (const ContentPiece& piece : values_.contents_of(region)) check(rank, wanted, piece);
    }
  }

  std::vector<std::string> orders() const {
    std::vector<std::string> printed;
    for (const int expression : roots_)
      if (printed.size() < kMostOrders) printed.push_back(values_.expressions().print(expression));
    return printed;
  }

 private:
  void check(int rank, const Given& wanted, const ContentPiece& piece) {
    const Content& content = piece.content;
    if (content.expression == kSpoilt) return;  // reported at the spoiling op
    const Region part{Space::output, rank, wanted.lo + piece.lo, piece.hi - piece.lo};
    const std::uint64_t origin = wanted.origin + piece.lo;
    std::string fault;
    if (content.expression == kUnwritten)
      fault = "found that no op writes it";
    else if (wanted.from >= 0)
      fault = fault_of_leaf(wanted.from, content);
    else
      fault = fault_of_sum(content.expression);
    if (fault.empty() && content.origin != origin)
      fault = text("found byte {} of it", content.origin);
    if (fault.empty() && wanted.from < 0) fault = fault_of_agreement(origin, part.bytes, content);
    if (fault.empty() && wanted.from < 0) roots_.insert(content.expression);
    if (fault.empty()) return;
    const std::string what =
        wanted.from >= 0 ? text("the input of rank {}", wanted.from) : std::string("the sum");
    findings_.of_rank(Rule::contract, rank,
                      text("wanted byte {} on of {} in {}, {}{}", origin, what, print(part), fault,
                           values_.suffix()));
  }

  std::string fault_of_leaf(int leaf, const Content& content) const {
    return content.expression == leaf
               ? ""
               : text("found {}", values_.expressions().print(content.expression));
  }

  std::string fault_of_sum(int expression) const {
    const Expressions::SumNode& root = values_.expressions().node(expression);
    const int ranks = plan_.request.ranks;
    const std::uint64_t all = ranks == 64 ? ~0ULL : (1ULL << static_cast<unsigned>(ranks)) - 1;
    const std::string found = text("found {}", values_.expressions().print(expression));
    // A float's reduction scales, rounds, and makes any NaN the canonical NaN. Hence a copy
    // differs.
    if (ranks == 1 && root.leaf == 0)
      return is_float(plan_.request.type)
                 ? text("found the input as it is, where {} of {} need a reduction",
                        name_of(plan_.request.op), name_of(plan_.request.type))
                 : "";
    if (root.ranks != all) return text("{}, which lacks {}", found, ranks_in(all & ~root.ranks));
    if (root.doubled != 0) return text("{}, which counts {} twice", found, ranks_in(root.doubled));
    if (!root.finish) return text("{}, whose last reduction is not marked finish", found);
    if (root.has_inner_finish)
      return text("{}, in which an inner reduction is marked finish", found);
    if (plan_.sum_order == SumOrder::algorithm_order) return "";
    if (has_no_order(plan_.request.type, plan_.request.op)) return "";
    if (is_tree(plan_.sum_order)) return fault_of_tree(root, found);
    if (root.in_order != ranks || (!root.is_flat && is_widened(plan_.request.type)))
      return text("{} where rank order is one reduction over 0..{}", found, ranks - 1);
    return "";
  }

  // A sum of half the ranks is half the tree. A region holds a sum of a widened type rounded.
  std::string fault_of_tree(const Expressions::SumNode& root, const std::string& found) const {
    if (root.tree_ranks != plan_.request.ranks)
      return text("{} where the order {} is ((0+1)+(2+3))+...", found, name_of(plan_.sum_order));
    if (plan_.sum_order == SumOrder::tree && is_widened(plan_.request.type) && !root.is_flat)
      return text("{} where a tree of {} is one reduction over 0..{}, rounded once", found,
                  name_of(plan_.request.type), plan_.request.ranks - 1);
    return "";
  }

  // All ranks must have the same expression for each byte of the message: the same bits.
  std::string fault_of_agreement(std::uint64_t origin, std::uint64_t bytes,
                                 const Content& content) {
    std::string fault;
    agreed_.read(origin, origin + bytes, [&](std::uint64_t, std::uint64_t, const Content& other) {
      if (other.expression < 0 || other.expression == content.expression) return;
      const std::string mine = values_.expressions().print(content.expression);
      const std::string theirs = values_.expressions().print(other.expression);
      fault = text("found {} where another rank has {}{}", mine, theirs,
                   mine == theirs ? " from another library call" : "");
    });
    agreed_.write(origin, origin + bytes, content);
    return fault;
  }

  const Plan& plan_;
  const Values& values_;
  Findings& findings_;
  Intervals<Content> agreed_;
  std::set<int> roots_;
};

}  // namespace

std::vector<std::string> check_contract(const Plan& plan, const OpOrder& order, Placement placement,
                                        Findings& findings) {
  Values values(plan, placement, findings);
  values.run(order);
  ContractCheck check(plan, values, findings);
  for (int rank = 0; rank < plan.request.ranks; ++rank) check.rank(rank);
  return check.orders();
}

}  // namespace plait
