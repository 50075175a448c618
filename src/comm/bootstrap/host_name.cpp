// A host's name is the kernel's boot id and the PID namespace, not the network's name.
#include "comm/bootstrap/host_name.hpp"

#include <unistd.h>

#include <fstream>

#include "base/text.hpp"

namespace plait {

std::string boot_id() {
  std::string id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> id;
  return id;
}

std::string host_name() {
  char link[128] = {};
  if (::readlink("/proc/self/ns/pid", link, sizeof link - 1) < 0) link[0] = '?';
  return text("{} {}", boot_id(), link);
}

}  // namespace plait
