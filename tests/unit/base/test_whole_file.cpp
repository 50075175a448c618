// Tests which files are trusted, and that a file of changing length is refused.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <fstream>

#include "base/whole_file.hpp"
#include "plait/error.hpp"

using namespace plait;

namespace {

constexpr FileTerms kTerms{.what = "note", .most_bytes = 1 << 20, .advice = "write it again"};

/// A file with a text in a separate folder.
struct Note {
  std::string folder, file;
  explicit Note(const std::string& words) {
    char name[] = "/tmp/plait-note-XXXXXX";
    folder = mkdtemp(name);
    file = folder + "/note";
    std::ofstream(file) << words;
    REQUIRE(chmod(file.c_str(), 0600) == 0);
  }
  ~Note() {
    unlink(file.c_str());
    rmdir(folder.c_str());
  }
};

ErrorCode refusal(const std::string& file, const FileTerms& terms, const std::string& says) {
  try {
    static_cast<void>(read_whole_file(file, terms));
    return ErrorCode::ok;
  } catch (const Error& error) {
    CHECK_MESSAGE(std::string(error.what()).find(says) != std::string::npos, error.what());
    return error.code();
  }
}

struct stat facts_of(uid_t user, mode_t mode) {
  struct stat facts{};
  facts.st_uid = user;
  facts.st_mode = S_IFREG | mode;
  return facts;
}

}  // namespace

TEST_CASE("a whole file, and only a whole one") {
  const Note note("ten bytes.");
  CHECK(read_whole_file(note.file, kTerms) == "ten bytes.");
  for (const std::int64_t seen : {0, 9, 11, 4096}) {  // as if it had grown or shrunk meanwhile
    const int fd = open(note.file.c_str(), O_RDONLY | O_CLOEXEC);
    REQUIRE(fd >= 0);
    errno = EIO;
    CHECK_FALSE(read_to_end(fd, seen).has_value());
    CHECK(errno == 0);
    close(fd);
  }
  const int folder = open(note.folder.c_str(), O_RDONLY | O_CLOEXEC);
  CHECK_FALSE(read_to_end(folder, 10).has_value());
  CHECK(errno == EISDIR);
  close(folder);
  REQUIRE(truncate(note.file.c_str(), 0) == 0);
  CHECK(read_whole_file(note.file, kTerms) == "");
  // A regular file with a size of 0 bytes that has content.
  CHECK(refusal("/proc/self/status", kTerms, "its 0 bytes") == ErrorCode::io_error);
}

TEST_CASE("what is no file, is too long, or is missing") {
  const Note note("");
  CHECK(refusal("/dev/zero", kTerms, "no regular file") == ErrorCode::io_error);
  CHECK(refusal(note.folder, kTerms, "no regular file") == ErrorCode::io_error);
  REQUIRE(truncate(note.file.c_str(), 1 << 20) == 0);
  CHECK(read_whole_file(note.file, kTerms)->size() == 1 << 20);
  REQUIRE(truncate(note.file.c_str(), (1 << 20) + 1) == 0);
  CHECK(refusal(note.file, kTerms, "at most 1 MiB, found 1048577 bytes") == ErrorCode::io_error);
  REQUIRE(unlink(note.file.c_str()) == 0);
  CHECK(refusal(note.file, kTerms, "write it again") == ErrorCode::io_error);
  FileTerms terms = kTerms;
  terms.may_be_missing = true;
  CHECK_FALSE(read_whole_file(note.file, terms).has_value());
  REQUIRE(mkfifo(note.file.c_str(), 0600) == 0);  // must not wait for a writer
  CHECK(refusal(note.file, terms, "no regular file") == ErrorCode::io_error);
}

TEST_CASE("whose files are believed") {
  const uid_t me = geteuid(), other = me + 4321;
  const auto trusts = [](uid_t user, mode_t mode, Writers writers) {
    return distrust(facts_of(user, mode), writers).empty();
  };
  CHECK(trusts(other, 0666, Writers::anyone));
  for (const Writers writers : {Writers::not_everybody, Writers::this_user_alone}) {
    CHECK(trusts(me, 0644, writers));
    CHECK_FALSE(trusts(me, 0646, writers));
    CHECK_FALSE(trusts(other, 0600, writers));
  }
  CHECK(trusts(me, 0664, Writers::not_everybody));
  CHECK_FALSE(trusts(me, 0664, Writers::this_user_alone));
  CHECK(trusts(0, 0644, Writers::not_everybody));
  CHECK(trusts(0, 0644, Writers::this_user_alone) == (me == 0));

  const Note note("words");
  FileTerms terms = kTerms;
  terms.writers = Writers::this_user_alone;
  CHECK(read_whole_file(note.file, terms) == "words");
  REQUIRE(chmod(note.file.c_str(), 0620) == 0);
  CHECK(refusal(note.file, terms, "alone may write, found one its group may write") ==
        ErrorCode::permission);
}
