// Counts the process's bytes by part.
#include "base/memory_held.hpp"

namespace plait {
namespace {

struct CountedPart {
  std::atomic<std::uint64_t> now{0}, most{0};
};
std::array<CountedPart, kMemoryParts> counted;

/// more wraps around for less memory.
void add(std::size_t part, std::uint64_t more) noexcept {
  const std::uint64_t now = counted[part].now.fetch_add(more) + more;
  std::uint64_t most = counted[part].most.load();
  while (most < now && !counted[part].most.compare_exchange_weak(most, now)) {
  }
}

}  // namespace

const char* name_of(MemoryPart part) {
  constexpr std::array<const char*, kMemoryParts> kNames = {
      "arena of small calls",   "arena of large calls",  "streams",
      "products of factors",    "arenas in host memory", "rings in host memory",
      "products in host memory"};
  return kNames[static_cast<std::size_t>(part)];
}

std::vector<MemoryOfPart> memory_by_part() {
  std::vector<MemoryOfPart> rows;
  for (std::size_t part = 0; part < kMemoryParts; ++part)
    if (const std::uint64_t most = counted[part].most.load(); most != 0)
      rows.push_back({static_cast<MemoryPart>(part), counted[part].now.load(), most});
  return rows;
}

void MemoryHeld::set(MemoryPart part, std::uint64_t bytes) noexcept {
  const auto at = static_cast<std::size_t>(part);
  add(at, bytes - bytes_[at].exchange(bytes));
}

std::uint64_t MemoryHeld::on_gpu() const noexcept {
  std::uint64_t bytes = 0;
  for (std::size_t part = 0; part < kMemoryParts; ++part)
    if (is_on_gpu(static_cast<MemoryPart>(part))) bytes += of(static_cast<MemoryPart>(part));
  return bytes;
}

MemoryHeld::~MemoryHeld() {
  for (std::size_t part = 0; part < kMemoryParts; ++part) set(static_cast<MemoryPart>(part), 0);
}

}  // namespace plait
