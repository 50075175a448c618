// Expressions over the ranks' inputs: leaves and n-ary sums. Equal expressions have equal numbers
// (hash consing). values.cpp tracks the expression of each byte.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

namespace plait {

class Expressions {
 public:
  struct SumNode {
    int leaf = -1;        // rank of the input; -1 = a sum
    bool finish = false;  // marked as the element's last reduction
    bool has_inner_finish = false;
    bool is_flat = true;      // a leaf, or a sum of leaves
    bool by_library = false;  // summed in the library's own order
    int in_order = 0;         // number of ranks summed in turn from rank 0 on; 0 = other order
    int tree_ranks = 0;  // of a sum in a tree ((r0+r1)+(r2+r3))+..., where a sum of several takes
                         // pairs: number of ranks; 0 = no tree
    int tree_first = 0;  // first rank of the tree, a multiple of tree_ranks
    std::uint64_t ranks = 0;    // ranks with inputs in the sum, as bits
    std::uint64_t doubled = 0;  // ranks with inputs in the sum more than once
    std::vector<int> children;
  };

  /// Expressions 0..ranks-1 are the ranks' inputs. rounds_factors: a sum of a single input scales
  /// and rounds it, hence is no part of a tree.
  explicit Expressions(int ranks, bool rounds_factors = false);
  /// Returns the number of a sum of expressions. call: the library call that sums; -1 = an op. Sums
  /// of more than two terms by different calls are different: a call has an order of its own.
  int sum(const std::vector<int>& children, bool finish, int call = -1);
  const SumNode& node(int expression) const { return nodes_[static_cast<std::size_t>(expression)]; }
  /// Prints "0+1+2", "((0+1)+2)", or for a library's sum "{0+1, 2+3}"; long sums end in "...".
  std::string print(int expression) const;

 private:
  void set_tree(SumNode& made) const;
  void print_into(std::string& out, int expression, int depth) const;

  bool rounds_factors_;
  std::vector<SumNode> nodes_;
  std::map<std::tuple<std::vector<int>, bool, int>, int> index_of_;
};

}  // namespace plait
