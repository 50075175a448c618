// Finds the folder of the file that holds some code or constant.
#include "base/own_folder.hpp"

#include <cstdint>
#include <cstdio>
#include <fstream>

namespace plait {

std::string folder_of(const void* code) {
  const auto here = reinterpret_cast<std::uintptr_t>(code);
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    unsigned long first = 0, end = 0;
    const std::size_t path = line.find('/');
    if (std::sscanf(line.c_str(), "%lx-%lx", &first, &end) != 2 || path == std::string::npos)
      continue;
    if (first <= here && here < end) return line.substr(path, line.rfind('/') + 1 - path);
  }
  return {};
}

}  // namespace plait
