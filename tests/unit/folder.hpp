// A private folder for the time of a test, and ranks as threads.
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
  ~TestFolder() { rmdir(path_.c_str()); }  // fails if files are left; tests see the folder then
  const std::string& path() const { return path_; }
  std::string socket() const { return path_ + "/meet"; }

 private:
  std::string path_;
};

/// Returns the number of entries in a folder with `part` in the name, without . and ..
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

/// Returns the number of plait's files in /dev/shm; unrelated programs' files may come and go.
inline int shm_files_of_plait() { return entries_of("/dev/shm", "plait"); }

inline int open_descriptors() { return entries_of("/proc/self/fd"); }

/// Runs body(rank) in a thread for each rank; returns the messages of exceptions, "" = none.
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
