// Named parts of a rank's arena behind the header, and their sizes. Each room defines the parts
// that its calls use; the arena knows no part by name.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace plait::cuda {

/// Steps in which the large arena is made at fixed addresses, each for the first call that needs
/// the step. The memory of copies lies behind that of tiles, which copies borrow. The last step is
/// asked for by a call on its way to the streams (EngineRank::reserve_long_inbox), and exists at
/// fixed addresses alone.
enum LargeStep : unsigned { kPacketStep = 1, kTileStep = 2, kCopyStep = 4, kLongStep = 8 };
/// Steps that a call reserves before it is prepared.
inline constexpr unsigned kAllLargeSteps = kPacketStep | kTileStep | kCopyStep;
inline constexpr std::size_t kLargeStepCount = 4;

/// Defined once, by the room that uses the part. Two parts are the same if their names are.
struct ArenaPart {
  const char* name;
  const char* what;        ///< For messages: "slots of tiles".
  unsigned halves = 1;     ///< 2 = calls alternate between two of the part's size.
  unsigned char byte = 0;  ///< Initial value of every byte.
  /// No peer uses the part, except ranks of an island (DeviceArena): the part lies in GPU memory
  /// wherever arenas lie.
  bool is_own = false;
  LargeStep step = kCopyStep;  ///< In the large arena.
};

/// Bytes of each part; of a single half if the part has halves. The same on all ranks. A part that
/// was never set has 0 bytes.
class DeviceArenaSizes {
 public:
  std::uint64_t operator[](const ArenaPart& part) const;
  std::uint64_t& operator[](const ArenaPart& part);
  /// How the room divides the part; the room alone gives the number a meaning. 0 = its usual way.
  std::uint64_t divided(const ArenaPart& part) const;
  void divide(const ArenaPart& part, std::uint64_t way);
  bool operator==(const DeviceArenaSizes& other) const { return text() == other.text(); }
  /// "flag=4198400/0 tiles=19660800/100 ", in the order of names and without empty parts: equal on
  /// two ranks if their sizes are.
  std::string text() const;

 private:
  struct Row {
    const ArenaPart* part;
    std::uint64_t bytes = 0, way = 0;
  };
  const Row* find(const ArenaPart& part) const;
  Row& row(const ArenaPart& part);
  std::vector<Row> rows_;
};

}  // namespace plait::cuda
