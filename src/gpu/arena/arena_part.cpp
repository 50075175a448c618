// Looks parts up by name.
#include "gpu/arena/arena_part.hpp"

#include <algorithm>
#include <cstring>

#include "base/text.hpp"

namespace plait::cuda {
namespace {

bool are_same(const ArenaPart& one, const ArenaPart& other) {
  return &one == &other || std::strcmp(one.name, other.name) == 0;
}

}  // namespace

const DeviceArenaSizes::Row* DeviceArenaSizes::find(const ArenaPart& part) const {
  for (const Row& row : rows_)
    if (are_same(*row.part, part)) return &row;
  return nullptr;
}

DeviceArenaSizes::Row& DeviceArenaSizes::row(const ArenaPart& part) {
  const Row* const found = find(part);
  return found != nullptr ? rows_[static_cast<std::size_t>(found - rows_.data())]
                          : rows_.emplace_back(Row{&part});
}

std::uint64_t DeviceArenaSizes::operator[](const ArenaPart& part) const {
  const Row* const found = find(part);
  return found == nullptr ? 0 : found->bytes;
}

std::uint64_t& DeviceArenaSizes::operator[](const ArenaPart& part) { return row(part).bytes; }

std::uint64_t DeviceArenaSizes::divided(const ArenaPart& part) const {
  const Row* const found = find(part);
  return found == nullptr ? 0 : found->way;
}

void DeviceArenaSizes::divide(const ArenaPart& part, std::uint64_t way) { row(part).way = way; }

std::string DeviceArenaSizes::text() const {
  std::vector<std::string> words;
  for (const Row& row : rows_)
    if (row.bytes != 0 || row.way != 0)
      words.push_back(plait::text("{}={}/{}", row.part->name, row.bytes, row.way));
  std::sort(words.begin(), words.end());
  std::string all;
  for (const std::string& word : words) all += word + " ";
  return all;
}

}  // namespace plait::cuda
