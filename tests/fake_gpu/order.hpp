// Happens-before order of the items that the fake driver has recorded on streams.
#pragma once
#include <cstddef>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "base/text.hpp"
#include "fake_cuda/fake_gpu.hpp"

namespace plait_test {

/// Items of a call and the items' order: a stream keeps its order, and a wait comes after the last
/// record of the event.
class Order {
 public:
  explicit Order(std::vector<FakeNote> notes) : notes_(std::move(notes)) {
    for (std::size_t i = 0; i < notes_.size(); ++i) {
      behind_.emplace_back();
      for (std::size_t k = i; k-- > 0;) {
        const bool is_same = notes_[k].stream == notes_[i].stream;
        const bool is_record =
            notes_[i].what == "wait" && notes_[k].is_record && notes_[k].event == notes_[i].event;
        if (!is_same && !is_record) continue;
        behind_[i].insert(k);
        behind_[i].insert(behind_[k].begin(), behind_[k].end());
        if (is_record) break;
      }
      for (std::size_t k = i; k-- > 0;)
        if (notes_[k].stream == notes_[i].stream) {
          behind_[i].insert(k);
          behind_[i].insert(behind_[k].begin(), behind_[k].end());
          break;
        }
    }
  }
  /// Index of the n-th item that starts with `begin`.
  std::size_t find(const std::string& begin, std::size_t n = 0) const {
    for (std::size_t i = 0; i < notes_.size(); ++i)
      if (notes_[i].what.rfind(begin, 0) == 0 && n-- == 0) return i;
    throw std::runtime_error("no " + begin + " in" + all());
  }
  std::size_t count(const std::string& begin) const {
    std::size_t found = 0;
    for (const FakeNote& note : notes_) found += note.what.rfind(begin, 0) == 0;
    return found;
  }
  bool is_behind(std::size_t late, std::size_t early) const {
    return behind_[late].count(early) != 0;
  }
  const FakeNote& at(std::size_t i) const { return notes_[i]; }
  std::string all() const {
    std::string said;
    for (const FakeNote& note : notes_)
      said += plait::text("\n  {} {} on {}", note.what, note.event, note.stream);
    return said;
  }

 private:
  std::vector<FakeNote> notes_;
  std::vector<std::set<std::size_t>> behind_;
};

}  // namespace plait_test
