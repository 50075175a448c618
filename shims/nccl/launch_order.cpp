// Finds or makes the launch order of a device.
#include "shims/nccl/launch_order.hpp"

#include <map>

#include "base/nccl_settings.hpp"
#include "shims/nccl/settings.hpp"

namespace plait::nccl {

std::shared_ptr<LaunchOrder> launch_order(int device, bool configured) {
  const std::optional<std::string> said = nccl_setting("NCCL_LAUNCH_ORDER_IMPLICIT");
  const std::optional<std::int64_t> number = said ? nccl_number(*said) : std::nullopt;
  if (number ? *number == 0 : !configured) return nullptr;
  static std::mutex guard;
  static auto* const all = new std::map<int, std::weak_ptr<LaunchOrder>>;
  const std::lock_guard<std::mutex> hold(guard);
  std::weak_ptr<LaunchOrder>& known = (*all)[device];
  std::shared_ptr<LaunchOrder> found = known.lock();
  if (found == nullptr) {
    found = std::make_shared<LaunchOrder>(platform().marker(device), mixes_graphs(true));
    known = found;
  }
  return found;
}

}  // namespace plait::nccl
