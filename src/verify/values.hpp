// Executes a plan symbolically: tracks, for each byte of each memory, the expression over the
// ranks' inputs and the matching byte of the message. contract.cpp checks the outputs.
#pragma once
#include <algorithm>
#include <cstdint>
#include <map>
#include <vector>

#include "verify/expressions.hpp"
#include "verify/intervals.hpp"
#include "verify/phases.hpp"

namespace plait {

inline constexpr int kUnwritten = -1;  ///< no op has written these bytes
inline constexpr int kSpoilt = -2;     ///< computed from bytes that have a finding already

/// The content of a range: byte k holds `expression`, evaluated on byte origin + k of the inputs.
struct Content {
  int expression = kUnwritten;
  std::uint64_t origin = 0;
  Content later(std::uint64_t bytes) const {
    return {expression, expression < 0 ? origin : origin + bytes};
  }
  bool operator==(const Content&) const = default;
};

struct ContentPiece {
  std::uint64_t lo = 0;  ///< relative to the region
  std::uint64_t hi = 0;
  Content content;
};

/// Returns the pieces of bytes [begin, begin + bytes), with offsets relative to `begin`.
inline std::vector<ContentPiece> part_of(const std::vector<ContentPiece>& pieces,
                                         std::uint64_t begin, std::uint64_t bytes) {
  std::vector<ContentPiece> part;
  for (const ContentPiece& piece : pieces) {
    const std::uint64_t lo = std::max(piece.lo, begin), hi = std::min(piece.hi, begin + bytes);
    if (lo < hi) part.push_back({lo - begin, hi - begin, piece.content.later(lo - piece.lo)});
  }
  return part;
}

class Values {
 public:
  Values(const Plan& plan, Placement placement, Findings& findings);

  void run(const OpOrder& order);
  /// Returns the contents of a region; merges adjacent pieces with continuous content.
  std::vector<ContentPiece> contents_of(const Region& region) const;
  const Expressions& expressions() const { return expressions_; }
  const char* suffix() const { return suffix_; }

 private:
  void copy(Site here, const Op& op);
  void reduce(Site here, const Op& op);
  void join(Site here, const Op& op);
  /// Reports a finding, at most one per op, and returns spoilt content.
  Content spoil(Site here, const std::string& sentence);
  std::vector<ContentPiece> sum_pieces(Site here, const Op& op,
                                       const std::vector<std::vector<ContentPiece>>& sources,
                                       std::uint64_t bytes);
  std::vector<ContentPiece> source(Site here, const Region& src);
  Content sum_contents(Site here, const Op& op, const std::vector<Content>& operands);
  void put(const Region& dst, const std::vector<ContentPiece>& pieces);

  const Plan& plan_;
  const OpOrder* order_ = nullptr;
  Findings& findings_;
  Memories memories_;
  const char* suffix_;
  bool scales_;  // each input has a factor (premul_sum)
  Expressions expressions_;
  std::vector<Intervals<Content>> bytes_;
  std::map<int, std::vector<std::vector<ContentPiece>>>
      given_;                            // by library call, then member: contents of the source
  bool has_misaligned_finding_ = false;  // limits spoil() to a finding per op
};

}  // namespace plait
