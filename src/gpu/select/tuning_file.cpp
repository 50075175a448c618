// Reads, merges and writes tuning files. A user's file must be writable by that user alone. Writing
// goes by a new file and a rename, so that a reader finds the old table or the new one.
#include "gpu/select/tuning_file.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "base/json_place.hpp"
#include "base/log.hpp"
#include "base/system_call.hpp"
#include "base/text.hpp"
#include "base/whole_file.hpp"
#include "gpu/select/tuning_table.hpp"
#include "plait/error.hpp"

namespace plait::cuda {
namespace {

constexpr const char* kDocument = "tuning table";

std::string cache_folder() {
  const std::string folder = foreign_env("XDG_CACHE_HOME");
  if (!folder.empty() && folder[0] == '/') return folder;
  const std::string home = foreign_env("HOME");
  return home.empty() || home[0] != '/' ? std::string() : home + "/.cache";
}

/// JSON on a line, with a blank behind each comma and colon.
std::string spaced(const Json& value) {
  if (!value.is_structured()) return dumped(value);
  const bool is_object = value.is_object();
  std::string inner;
  for (const auto& [key, item] : value.items())
    inner += text("{}{}{}", inner.empty() ? "" : ", ", is_object ? dumped(Json(key)) + ": " : "",
                  spaced(item));
  return is_object ? "{" + inner + "}" : "[" + inner + "]";
}

/// The fields that say which calls a row is about.
Json subject_of(const Json& row) {
  Json found = Json::array();
  for (const char* const name : {"when", "collective", "type", "upto_ranks"})
    found.push_back(row.value(name, Json()));
  found.push_back(row.value("engine", "") == kMessagesRow);
  return found;
}

[[noreturn]] void refuse(const std::string& file, const std::string& why) {
  throw Error(ErrorCode::io_error, text("wanted to write the tuning table {}: {}", file, why));
}

void write_all(int fd, const std::string& words, const std::string& file) {
  for (std::size_t at = 0; at < words.size();) {
    const ssize_t put = ::write(fd, words.data() + at, words.size() - at);
    if (put < 0 && errno != EINTR) refuse(file, std::strerror(errno));
    if (put > 0) at += static_cast<std::size_t>(put);
  }
}

/// Makes the file's folder, which only this user may enter, and folders above.
bool make_folder(const std::string& file, std::string& why) {
  const std::filesystem::path folder = std::filesystem::path(file).parent_path();
  std::error_code failed;
  std::filesystem::create_directories(folder.parent_path(), failed);
  if (::mkdir(folder.c_str(), 0700) == 0 || errno == EEXIST) return true;
  why = std::strerror(errno);
  return false;
}

}  // namespace

std::string tuning_file(const Env& env, const TuningKey& key) {
  if (env.tuning == "none") return "";
  if (!env.tuning.empty()) return env.tuning;
  const std::string folder = cache_folder();
  if (folder.empty()) return "";
  return text("{}/plait/tuning-{}-cuda{}{}-{}.json", folder, key.machine, key.cuda_driver,
              key.nccl.empty() ? "" : "-nccl" + key.nccl, key.ranks);
}

std::string read_tuning(const Env& env, const std::string& file) {
  if (file.empty()) return "";
  const FileTerms terms{.what = kDocument,
                        .most_bytes = 1 << 20,
                        .writers = Writers::this_user_alone,
                        .advice = "correct that, or remove it and run `plait tune`",
                        .may_be_missing = env.tuning.empty()};
  return read_whole_file(file, terms).value_or("");
}

std::string offered_tuning(const Env& env, const std::string& file, int rank) {
  try {
    std::string table = read_tuning(env, file);
    static_cast<void>(TuningTable(table, file));
    return table;
  } catch (const Error& error) {
    if (!env.tuning.empty()) throw;
    log(LogLevel::warn, rank, error.what());
    return "";
  }
}

std::string tuning_text(std::string_view json) {
  const Json table = parse_json(json, kDocument);
  std::string head, rows;
  for (const auto& [key, value] : table.items())
    if (key != "rows") head += text(" {}: {},\n", dumped(Json(key)), spaced(value));
  for (const Json& row : table.value("rows", Json::array()))
    rows += text("{}{}", rows.empty() ? "\n  " : ",\n  ", spaced(row));
  return text("{{\n{} \"rows\": [{}{}]\n}}\n", head, rows, rows.empty() ? "" : "\n ");
}

std::string merged_tuning(const std::string& older, const std::string& newer) {
  Json merged = parse_json(newer, kDocument);
  Json former;
  try {
    static_cast<void>(TuningTable(older));
    former = older.empty() ? Json::object() : parse_json(older, kDocument);
  } catch (const Error&) {  // no table
    former = Json::object();
  }
  const auto differs = [&](const char* name) {
    return former.value(name, Json()) != merged.value(name, Json());
  };
  for (const char* const name : {"fingerprint", "gpu", "cuda_driver", "nccl", "plait"})
    if (differs(name)) former = Json::object();
  std::vector<Json> measured;
  for (const Json& row : merged.at("rows")) measured.push_back(subject_of(row));
  for (const Json& row : former.value("rows", Json::array()))
    if (std::find(measured.begin(), measured.end(), subject_of(row)) == measured.end())
      merged["rows"].push_back(row);
  return tuning_text(merged.dump());
}

void write_tuning(const std::string& file, const std::string& json) {
  static_cast<void>(TuningTable(json));
  std::string why;
  if (!make_folder(file, why)) refuse(file, why);
  std::string partial = file + ".XXXXXX";
  const int fd = above_stderr(::mkostemp(partial.data(), O_CLOEXEC));  // mode 0600
  if (fd < 0) refuse(file, std::strerror(errno));
  try {
    write_all(fd, tuning_text(json), file);
    if (::fsync(fd) != 0 || ::rename(partial.c_str(), file.c_str()) != 0)
      refuse(file, std::strerror(errno));
  } catch (...) {
    ::close(fd);
    ::unlink(partial.c_str());
    throw;
  }
  ::close(fd);
  ::unlink(MeasuringMark(file).file().c_str());
}

MeasuringMark::~MeasuringMark() {
  if (fd_ >= 0) ::close(fd_);
}

MeasuringMark::Taken MeasuringMark::take() {
  constexpr int kFlags = O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NOCTTY;
  std::string why;
  if (!make_folder(file_, why)) return Taken::no_folder;
  for (;;) {
    const int fd = above_stderr(::open(file_.c_str(), kFlags, 0600));
    if (fd < 0) return Taken::no_folder;
    struct stat facts{};
    if (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
      const bool is_held = errno == EWOULDBLOCK;
      ::close(fd);
      return is_held ? Taken::by_another : Taken::no_folder;
    }
    if (::fstat(fd, &facts) != 0 || facts.st_nlink != 0) {
      fd_ = fd;
      break;
    }
    ::close(fd);  // removed by the process that held the lock
  }
  char words[512];
  const ssize_t got = ::pread(fd_, words, sizeof words, 0);
  former_.assign(words, got > 0 ? static_cast<std::size_t>(got) : 0);
  while (!former_.empty() && former_.back() == '\n') former_.pop_back();
  return Taken::yes;
}

void MeasuringMark::write(const std::string& words) {
  if (fd_ < 0) return;
  const std::string line = words + "\n";
  if (::ftruncate(fd_, 0) != 0) return;
  static_cast<void>(::pwrite(fd_, line.data(), line.size(), 0));
}

void MeasuringMark::remove() {
  if (fd_ < 0) return;
  ::unlink(file_.c_str());
  ::close(fd_);
  fd_ = -1;
}

}  // namespace plait::cuda
