// Names are used once (a random word and the number of the round), so a meeting is a plain count.
#include "shims/nccl/meeting.hpp"

#include <sys/random.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>

#include "base/text.hpp"
#include "plait/error.hpp"

namespace plait::nccl {
namespace {

struct Meetings {
  std::mutex guard;
  std::condition_variable came;
  struct Count {
    int come = 0;
    int gone = 0;
  };
  std::map<std::string, Count> open;
};

Meetings& meetings() {
  static auto* const all = new Meetings;
  return *all;
}

}  // namespace

std::string random_word() {
  unsigned char bytes[16];
  if (::getrandom(bytes, sizeof bytes, 0) != sizeof bytes)
    throw Error(ErrorCode::io_error, "the system gave no random bytes");
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string word;
  for (const unsigned char byte : bytes) word += {kDigits[byte >> 4], kDigits[byte & 15]};
  return word;
}

const std::string& process_word() {
  static auto* const word = new std::string(random_word());
  static auto* const forked = new std::string;
  static const pid_t owner = ::getpid();
  if (owner == ::getpid()) return *word;
  if (forked->empty()) *forked = text(*word, ' ', ::getpid());  // a fork's child is another process
  return *forked;
}

void meet(const std::string& name, int count, const std::function<void()>& give_up) {
  if (count < 2) return;
  Meetings& all = meetings();
  std::unique_lock<std::mutex> hold(all.guard);
  Meetings::Count& mine = all.open[name];
  if (++mine.come == count) all.came.notify_all();
  while (mine.come < count) {
    all.came.wait_for(hold, std::chrono::milliseconds(10));
    if (mine.come < count) {
      hold.unlock();
      give_up();  // leaves the count behind: the name is never used again
      hold.lock();
    }
  }
  if (++mine.gone == count) all.open.erase(name);
}

}  // namespace plait::nccl
