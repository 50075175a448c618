// Records the loads and stores of a kernel on host threads, by thread, in order.
#pragma once
#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <unordered_map>
#include <vector>

namespace plait_test {

enum class Touch : std::uint8_t { load, store, raise, look };  // the last two: flags between ranks

/// An access of up to 16 bytes; a bulk copy may have more, and then has no value.
struct MemoryAccess {
  Touch touch;
  const char* at;
  unsigned bytes;
  std::array<unsigned long long, 2> value;
  unsigned long long turn;  ///< among all accesses of all threads
};

/// The accesses of a thread. A load with the same value as the thread's last load of that address
/// is left out, since polls would fill memory.
class Trace {
 public:
  void note(Touch touch, const void* at, const void* value, unsigned bytes) {
    MemoryAccess access{touch, static_cast<const char*>(at), bytes, {}, 0};
    if (value != nullptr) std::memcpy(access.value.data(), value, bytes);
    auto& last = last_[access.at];
    if (touch != Touch::store && value != nullptr && last != 0) {
      const MemoryAccess& before = accesses_[last - 1];
      if (before.touch == touch && before.value == access.value && before.bytes == bytes) return;
    }
    static std::atomic<unsigned long long> turns{0};
    access.turn = turns.fetch_add(1);
    accesses_.push_back(access);
    last = accesses_.size();
  }
  std::vector<MemoryAccess> taken() {
    last_.clear();
    return std::move(accesses_);
  }

 private:
  std::vector<MemoryAccess> accesses_;
  std::unordered_map<const char*, std::size_t> last_;  // index + 1
};

inline thread_local Trace* trace = nullptr;
inline thread_local std::atomic<unsigned>* looks = nullptr;  ///< counter of this thread's rank
inline void note(Touch touch, const void* at, const void* value, unsigned bytes) {
  if (looks != nullptr && touch != Touch::store) ++*looks;
  if (trace != nullptr) trace->note(touch, at, value, bytes);
}

}  // namespace plait_test
