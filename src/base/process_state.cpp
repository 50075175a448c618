// Reads the state letter behind the process's name, which may hold any character.
#include "base/process_state.hpp"

#include <fstream>

#include "base/text.hpp"

namespace plait {

std::string stat_of_process(int pid) {
  std::ifstream file(text("/proc/{}/stat", pid));
  std::string line;
  std::getline(file, line, '\0');
  return line;
}

ProcessState process_state(int pid) {
  const std::string line = stat_of_process(pid);
  const std::size_t name_end = line.rfind(')');
  if (name_end == std::string::npos || name_end + 2 >= line.size()) return ProcessState::dead;
  switch (line[name_end + 2]) {
    case 'T':
    case 't': return ProcessState::stopped;
    case 'Z':
    case 'X':
    case 'x': return ProcessState::dead;
    default: return ProcessState::runs;
  }
}

}  // namespace plait
