// Reading a tuning table: a file of this user alone, opened once and then looked at, and strict.
#include "comm/tuning.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/json_place.hpp"
#include "base/text.hpp"
#include "comm/socket.hpp"
#include "plait/error.hpp"

namespace plait {
namespace {

constexpr const char* kDocument = "tuning table";
constexpr const char* kSchema = "plait.tuning/1";
constexpr std::int64_t kMostBytes = 1 << 20;
constexpr int kTypes = static_cast<int>(DataType::fp8e5m2) + 1;
constexpr int kCollectives = static_cast<int>(Collective::copy) + 1;

TunedRow row_at(const JsonPlace& place) {
  place.object({"collective", "type", "ranks", "max_bytes", "kernel", "blocks", "us"});
  TunedRow row;
  row.collective = place.at("collective").name_in<Collective>(kCollectives);
  row.type = place.at("type").name_in<DataType>(kTypes);
  row.ranks = static_cast<int>(place.at("ranks").integer(2, kMaxRanks));
  row.max_bytes = place.at("max_bytes").bytes();
  row.kernel = place.at("kernel").string();
  row.tuning.blocks = static_cast<unsigned>(place.at("blocks").integer(0, 4096));
  place.at("us").number(true);
  return row;
}

[[noreturn]] void refuse(const std::string& file, ErrorCode code, const std::string& found) {
  throw Error(code, text("tuning table ", file, ": wanted a file of at most 1 MiB that user ",
                         geteuid(), " alone may write, found ", found,
                         "; correct that, or remove it and run `plait tune`"));
}

}  // namespace

TuningTable::TuningTable(std::string_view json) {
  if (json.empty()) return;
  const Json document = parse_json(json, kDocument);
  const JsonPlace whole(document, "", kDocument);
  whole.object({"schema", "machine", "fingerprint", "gpu", "cuda_driver", "plait", "date", "rows"});
  if (whole.at("schema").string() != kSchema) whole.at("schema").refuse(kSchema);
  for (const JsonPlace& place : whole.at("rows").items()) rows_.push_back(row_at(place));
}

const TunedRow* TuningTable::smallest(const Request& request, bool same_type) const {
  const TunedRow* best = nullptr;
  for (const TunedRow& row : rows_) {
    const bool fits = row.collective == request.collective && row.ranks == request.ranks &&
                      row.max_bytes >= message_bytes(request) &&
                      (same_type ? row.type == request.type
                                 : bytes_of(row.type) == bytes_of(request.type) &&
                                       is_float(row.type) == is_float(request.type));
    if (fits && (best == nullptr || row.max_bytes < best->max_bytes)) best = &row;
  }
  return best;
}

const TunedRow* TuningTable::find(const Request& request) const {
  const TunedRow* row = smallest(request, true);
  return row != nullptr ? row : smallest(request, false);
}

std::string tuning_file(const Env& env, const std::string& fingerprint, int ranks) {
  if (env.tuning == "none") return "";
  if (!env.tuning.empty()) return env.tuning;
  std::string folder = foreign_env("XDG_CACHE_HOME");
  if (folder.empty() || folder[0] != '/') {
    const std::string home = foreign_env("HOME");
    if (home.empty() || home[0] != '/') return "";
    folder = home + "/.cache";
  }
  return text(folder, "/plait/tuning-", fingerprint, "-", ranks, ".json");
}

std::string read_tuning(const Env& env, const std::string& file) {
  if (file.empty()) return "";
  const Fd opened(open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  struct stat facts{};
  if (!opened.valid() && errno == ENOENT && env.tuning.empty()) return "";
  if (!opened.valid() || fstat(opened.get(), &facts) != 0)
    refuse(file, ErrorCode::io_error, std::strerror(errno));
  if (!S_ISREG(facts.st_mode)) refuse(file, ErrorCode::io_error, "something else");
  if (facts.st_size > kMostBytes) refuse(file, ErrorCode::io_error, text(facts.st_size, " bytes"));
  if (facts.st_uid != geteuid())
    refuse(file, ErrorCode::permission, text("user ", facts.st_uid, "'s"));
  if ((facts.st_mode & (S_IWGRP | S_IWOTH)) != 0)
    refuse(file, ErrorCode::permission, "one that others may write");
  std::string read_so_far(static_cast<std::size_t>(facts.st_size), '\0');
  std::size_t at = 0;
  while (at < read_so_far.size()) {
    const ssize_t got = read(opened.get(), read_so_far.data() + at, read_so_far.size() - at);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) refuse(file, ErrorCode::io_error, got == 0 ? "its end" : std::strerror(errno));
    at += static_cast<std::size_t>(got);
  }
  return read_so_far;
}

}  // namespace plait
