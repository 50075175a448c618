// What bytes hold, as expressions over the ranks' inputs: leaves and n-ary sums, each made once, so
// that equal expressions have equal numbers (hash consing).
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
    int leaf = -1;        // the rank whose input it is; -1 = a sum
    bool finish = false;  // the sum claims to be the element's last
    bool has_inner_finish = false;
    bool is_flat = true;        // a leaf, or a sum of leaves
    bool by_library = false;    // whose order of summation is its own
    int in_order = 0;           // so many ranks from 0 on, summed one by one; 0 = it is none such
    std::uint64_t ranks = 0;    // whose inputs are in it, as bits
    std::uint64_t doubled = 0;  // whose inputs are in it more than once
    std::vector<int> children;
  };

  /// Leaves 0..ranks-1 are the numbers 0..ranks-1.
  explicit Expressions(int ranks);
  int sum(const std::vector<int>& children, bool finish, bool by_library = false);
  const SumNode& node(int expression) const { return nodes_[static_cast<std::size_t>(expression)]; }
  /// "0+1+2", "((0+1)+2)", "{0+1, 2+3}" by a library; long ones end in "...".
  std::string print(int expression) const;

 private:
  void print_into(std::string& out, int expression, int depth) const;

  std::vector<SumNode> nodes_;
  std::map<std::tuple<std::vector<int>, bool, bool>, int> index_of_;
};

}  // namespace plait
