// LRU cache with a fixed number of entries, found by key. A new entry replaces the least recently
// used entry. Pinned entries stay.
#pragma once
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

namespace plait {

/// Hash of tuples of numbers, strings, vectors and maps.
struct TupleHash {
  template <class... Parts>
  std::size_t operator()(const std::tuple<Parts...>& parts) const {
    return std::apply(
        [](const Parts&... part) {
          std::size_t all = 0;
          ((all = mixed(all, of(part))), ...);
          return all;
        },
        parts);
  }

 private:
  static std::size_t mixed(std::size_t all, std::size_t part) {
    return (all ^ part) * 0x9e3779b97f4a7c15ull + (all >> 29);
  }
  template <class Part>
  static std::size_t of(const Part& part) {
    return std::hash<Part>()(part);
  }
  template <class... Parts>
  static std::size_t of(const std::tuple<Parts...>& parts) {
    return TupleHash()(parts);
  }
  template <class Part>
  static std::size_t of(const std::vector<Part>& parts) {
    std::size_t all = parts.size();
    for (const Part& part : parts) all = mixed(all, of(part));
    return all;
  }
  template <class Name, class Part>
  static std::size_t of(const std::map<Name, Part>& parts) {
    std::size_t all = parts.size();
    for (const auto& [name, part] : parts) all = mixed(mixed(all, of(name)), of(part));
    return all;
  }
};

template <class Key, class Value>
class LruCache {
 public:
  explicit LruCache(std::size_t most) : most_(most) {}
  LruCache(const LruCache&) = delete;
  LruCache& operator=(const LruCache&) = delete;

  /// Returns null if absent. The pointer is valid until the next add().
  Value* find(const Key& key) {
    const auto found = index_.find(key);
    if (found == index_.end()) return nullptr;
    if (!found->second->is_pinned) used_.splice(used_.begin(), used_, found->second);
    return &found->second->value;
  }
  /// Calls dropping(value) before the oldest entry goes.
  template <class Dropping>
  Value& add(Key key, Value value, const Dropping& dropping) {
    if (used_.size() >= most_) {
      dropping(used_.back().value);
      index_.erase(used_.back().key);
      used_.pop_back();
    }
    used_.push_front({key, std::move(value), false});
    index_[std::move(key)] = used_.begin();
    return used_.front().value;
  }
  /// Keeps the entry for ever; it no longer counts against the limit.
  void pin(const Key& key) {
    const auto found = index_.find(key);
    if (found == index_.end() || found->second->is_pinned) return;
    found->second->is_pinned = true;
    pinned_.splice(pinned_.begin(), used_, found->second);
  }
  std::size_t size() const { return index_.size(); }
  void clear() {
    index_.clear();
    used_.clear();
    pinned_.clear();
  }
  template <class Use>
  void for_each(const Use& use) {
    for (auto* list : {&used_, &pinned_})
      for (CacheEntry& entry : *list) use(entry.value);
  }
  template <class Use>
  void for_each(const Use& use) const {
    for (const auto* list : {&used_, &pinned_})
      for (const CacheEntry& entry : *list) use(entry.value);
  }

 private:
  struct CacheEntry {
    Key key;
    Value value;
    bool is_pinned;
  };
  const std::size_t most_;
  std::list<CacheEntry> used_;  // most recently used first
  std::list<CacheEntry> pinned_;
  std::unordered_map<Key, typename std::list<CacheEntry>::iterator, TupleHash> index_;
};

}  // namespace plait
