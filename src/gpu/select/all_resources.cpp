// Gathers the rows of all rooms.
#include "gpu/select/all_resources.hpp"

#include <algorithm>

#include "gpu/lanes/plan_memory.hpp"
#include "gpu/norm/norm_call.hpp"
#include "gpu/p2p/message_memory.hpp"
#include "gpu/path_check/path_check.hpp"
#include "gpu/scale/scaled_input.hpp"
#include "gpu/select/engines.hpp"

namespace plait::cuda {
namespace {

template <class Row>
std::vector<const Row*> gathered(std::vector<const Row*> Resources::* rows) {
  std::vector<const Row*> all;
  for (const Resources* const room : all_resources())
    all.insert(all.end(), (room->*rows).begin(), (room->*rows).end());
  return all;
}

std::vector<PartSize> path_check_sizes(const Group& group, const ArenaOptions&) {
  if (!group.has_islands) return {};
  PartSize inbox = whole(kIslandPaths, sizeof(PathInbox));
  inbox.turn = kWholeTurn;
  return {inbox};
}

const Resources& path_check_resources() {
  static const Resources resources{{&kPathFlags}, {&kIslandPaths}, path_check_sizes, {}, {}};
  return resources;
}

}  // namespace

const std::vector<const Resources*>& all_resources() {
  static const std::vector<const Resources*> all = [] {
    std::vector<const Resources*> rooms;
    const auto add = [&](const Resources& room) {
      if (std::find(rooms.begin(), rooms.end(), &room) == rooms.end()) rooms.push_back(&room);
    };
    for (const Engine* const engine : engines()) add(engine->resources());
    for (const Resources* const room :
         {&message_resources(), &lane_resources(), &path_check_resources(), &norm_resources(),
          &scale_resources()})
      add(*room);
    return rooms;
  }();
  return all;
}

const ArenaContents& arena_contents() {
  static const ArenaContents contents{gathered(&Resources::flags), gathered(&Resources::parts)};
  return contents;
}

const std::vector<const KernelFamily*>& kernel_families() {
  static const std::vector<const KernelFamily*> families = gathered(&Resources::families);
  return families;
}

}  // namespace plait::cuda
