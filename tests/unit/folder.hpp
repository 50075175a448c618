// A private folder that goes away with its test, and ranks as threads that meet in it.
#pragma once
#include <dirent.h>
#include <unistd.h>

#include <cstdlib>
#include <exception>
#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace plait {

class TestFolder {
 public:
  TestFolder() {
    char name[] = "/tmp/plait-test-XXXXXX";
    path_ = mkdtemp(name);
  }
  ~TestFolder() { rmdir(path_.c_str()); }  // fails, and so shows, where something was left
  const std::string& path() const { return path_; }
  std::string socket() const { return path_ + "/meet"; }

 private:
  std::string path_;
};

/// Number of entries in a folder, without . and .., whose names contain `part`.
inline int entries_of(const std::string& path, const std::string& part = "") {
  DIR* folder = opendir(path.c_str());
  if (folder == nullptr) return -1;
  int count = 0;
  while (const dirent* entry = readdir(folder)) {
    const std::string name = entry->d_name;
    if (name != "." && name != ".." && name.find(part) != std::string::npos) ++count;
  }
  closedir(folder);
  return count;
}

/// Number of plait's own files in /dev/shm. Files of other programs may come and go.
inline int shm_files_of_plait() { return entries_of("/dev/shm", "plait"); }

inline int open_descriptors() { return entries_of("/proc/self/fd"); }

/// Runs body(rank) in a thread a rank; the texts of what they threw, "" where nothing.
inline std::vector<std::string> as_threads(int ranks, const std::function<void(int)>& body) {
  std::vector<std::string> thrown(ranks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      try {
        body(rank);
      } catch (const std::exception& error) {
        thrown[rank] = error.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
  return thrown;
}

}  // namespace plait
