// Counts calls by (name, path, size) with atomics. With PLAIT_PROFILE also records the times of
// each call, and writes a JSON file per process to that folder at exit. No CUDA call is made during
// exit.
#include "comm/trace/call_book.hpp"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/env.hpp"
#include "base/log.hpp"
#include "base/memory_held.hpp"
#include "base/system_call.hpp"
#include "base/text.hpp"
#include "comm/bootstrap/vote.hpp"
#include "driver/cuda/api.hpp"

namespace plait {
namespace {

constexpr const char* kNames[] = {
#define PLAIT_COLLECTIVE(name, input, output, busbw) #name,
#include "plait/collectives.def"
#undef PLAIT_COLLECTIVE
    "send",
    "receive",
};
/// Names of CounterRow::served values.
constexpr const char* kDoers[] = {
    "nccl",
    "plait",
#define PLAIT_ENGINE(name) #name,
#include "gpu/select/engines.def"
#undef PLAIT_ENGINE
    "mpi",
};
constexpr int kRows = static_cast<int>(std::size(kNames));
constexpr std::size_t kEvents = 1u << 18;  // kept for the trace: 10 MB

struct Cell {
  std::atomic<std::uint64_t> calls{0}, bytes{0}, host_ns{0}, gpu_calls{0}, gpu_ns{0};
};

struct TraceEvent {
  std::int64_t start_ns = 0;
  std::int64_t host_ns = 0;
  std::uint64_t bytes = 0;
  float gpu_ms = -1;
  std::int32_t thread = 0;
  std::int16_t row = 0;
  std::int16_t by = 0;
};

struct Pending {
  std::unique_ptr<CallTimer> timer;
  std::size_t event;
  int row, bucket;
  int by;
};

struct Folders {
  std::string profile;  ///< folder for timed calls; empty = no timing
  std::string counts;   ///< folder for counters written at exit; empty = none
};

Folders configured_folders() {
  Folders configured;
  static_cast<void>(attempt([&] {  // the reader of all settings reports errors
    const Env env = read_env();
    configured.profile = env.profile;
    configured.counts = env.profile.empty() ? env.counts : env.profile;
  }));
  return configured;
}

struct Book {
  const Folders folders = configured_folders();
  std::array<std::array<std::array<Cell, kBuckets>, kRows>, std::size(kDoers)> cells;
  std::mutex guard;
  std::vector<TraceEvent> events;
  std::deque<Pending> pending;
  std::uint64_t events_left_out = 0;
  std::map<std::string, std::uint64_t> bytes_of_path;  ///< of closed communicators
  std::set<const CountedPaths::Look*> paths;           ///< of open communicators
  pid_t owner = ::getpid();
};

/// Made by the first counted call and never destroyed, since exit code reads the book. The
/// environment must not be read during exit: destructors have run.
std::atomic<Book*> existing_book{nullptr};

Book& book() {
  static auto* const only = [] {
    auto* const made = new Book;
    existing_book.store(made);
    return made;
  }();
  return *only;
}

Cell& cell(int by, int row, int bucket) {
  return book().cells[static_cast<std::size_t>(by)][static_cast<std::size_t>(row)]
                     [static_cast<std::size_t>(bucket)];
}

int bucket_of(std::uint64_t bytes) {
  return std::min(static_cast<int>(std::bit_width(bytes)), kBuckets - 1);
}

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

bool profiling() {
  static const bool on = !book().folders.profile.empty();
  return on;
}

/// Measures between two events on a call's stream.
class EventTimer : public CallTimer {
 public:
  explicit EventTimer(cuda::Stream stream) {
    PLAIT_CUDA_CALL(event_create, &begin_, 0);
    PLAIT_CUDA_CALL(event_create, &end_, 0);
    PLAIT_CUDA_CALL(event_record, begin_, stream);
  }
  ~EventTimer() override {
    cuda::api().event_destroy(begin_);
    cuda::api().event_destroy(end_);
  }
  void stop(void* stream) override {
    cuda::api().event_record(end_, static_cast<cuda::Stream>(stream));
  }
  float elapsed_ms() override {
    float ms = -1;
    return cuda::api().event_elapsed(&ms, begin_, end_) == cuda::kSuccess ? ms : -1;
  }

 private:
  cuda::Event begin_ = nullptr;
  cuda::Event end_ = nullptr;
};

std::unique_ptr<CallTimer> start_event_timer(void* given) {
  const auto stream = static_cast<cuda::Stream>(given);
  int status = cuda::kCaptureNone;
  if (cuda::api().stream_is_capturing(stream, &status) != cuda::kSuccess ||
      status != cuda::kCaptureNone)
    return nullptr;
  return std::make_unique<EventTimer>(stream);
}

StartTimer start_timer = start_event_timer;

/// Whether any observer is active: a single test per call.
bool observed() {
  static const bool is = profiling() || NvtxRange::is_listened_to();
  return is;
}

void add(Cell& counted, std::uint64_t bytes) {
  counted.calls.fetch_add(1, std::memory_order_relaxed);
  counted.bytes.fetch_add(bytes, std::memory_order_relaxed);
}

/// Reads finished timers, oldest first. The caller holds the guard.
void harvest(Book& all) {
  while (!all.pending.empty()) {
    Pending& oldest = all.pending.front();
    const float ms = oldest.timer->elapsed_ms();
    if (ms < 0) return;
    Cell& counted = cell(oldest.by, oldest.row, oldest.bucket);
    counted.gpu_calls.fetch_add(1, std::memory_order_relaxed);
    counted.gpu_ns.fetch_add(static_cast<std::uint64_t>(ms * 1e6f), std::memory_order_relaxed);
    if (oldest.event < all.events.size()) all.events[oldest.event].gpu_ms = ms;
    all.pending.pop_front();
  }
}

std::string row_json(const CounterRow& row) {
  return text(
      "{{\"name\":\"{}\",\"served\":{},\"bucket\":{},\"calls\":{},\"bytes\":{},\"host_ns\":{},"
      "\"gpu_calls\":{},\"gpu_ns\":{}}}",
      row.name, row.served, row.bucket, row.calls, row.bytes, row.host_ns, row.gpu_calls,
      row.gpu_ns);
}

std::string event_json(const TraceEvent& event) {
  return text("[{},{},{},{},{},\"{}\",{}]", event.start_ns, event.host_ns, event.bytes,
              event.gpu_ms, event.thread, kNames[event.row], event.by);
}

/// Includes open communicators.
std::string paths_json(const Book& all) {
  std::map<std::string, std::uint64_t> bytes = all.bytes_of_path;
  for (const CountedPaths::Look* look : all.paths)
    for (const auto& [path, sent] : (*look)()) bytes[path] += sent;
  std::string body = "{";
  for (const auto& [path, sent] : bytes)
    body += text("{}\"{}\":{}", body.size() > 1 ? "," : "", path, sent);
  return body + "}";
}

std::string memory_json() {
  std::string body = "[";
  for (const MemoryOfPart& row : memory_by_part())
    body += text("{}{{\"part\":\"{}\",\"on_gpu\":{},\"now\":{},\"most\":{}}}",
                 body.size() > 1 ? "," : "", name_of(row.part),
                 is_on_gpu(row.part) ? "true" : "false", row.now, row.most);
  return body + "]";
}

/// Returns the rank by the variable of torchrun, Open MPI, MPICH or Slurm; -1 = none.
int rank_by_launcher() {
  for (const char* name : {"RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"})
    if (const std::optional<std::string> rank = foreign_variable(name))
      return std::atoi(rank->c_str());
  return -1;
}

std::string page(Book& all) {
  std::string body = text(
      "{{\"schema\":\"plait.profile/"
      "1\",\"pid\":{},\"rank\":{},\"end_ns\":{},\"left_out\":{},\"bytes_of_path\":{},\"memory\":{},"
      "\"doers\":[",
      all.owner, rank_by_launcher(), now_ns(), all.events_left_out, paths_json(all), memory_json());
  const char* comma = "";
  for (const char* name : kDoers) body += text("{}\"{}\"", std::exchange(comma, ","), name);
  body += "],\n\"rows\":[";
  comma = "\n";
  for (const CounterRow& row : counter_rows())
    body += text("{}{}", std::exchange(comma, ",\n"), row_json(row));
  body += "],\n\"events\":[";
  comma = "\n";
  for (const TraceEvent& event : all.events)
    body += text("{}{}", std::exchange(comma, ",\n"), event_json(event));
  return body + "]}\n";
}

/// Runs at exit, or when the library is unloaded.
[[gnu::destructor]] void write_profile() {
  Book* const existing = existing_book.load();
  if (existing == nullptr || existing->folders.counts.empty()) return;
  if (existing->owner != ::getpid()) return;  // a forked child has counted nothing
  Book& all = *existing;
  try {
    const std::lock_guard<std::mutex> hold(all.guard);
    if (counter_rows().empty()) return;
    const std::string body = page(all);
    std::string path;
    int file = -1;
    for (const char* suffix : {"", "-2", "-3"}) {  // each library of plait has its own book
      path = text("{}/plait-{}{}.json", all.folders.counts, ::getpid(), suffix);
      file = above_stderr(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
      if (file >= 0 || errno != EEXIST) break;
    }
    if (file < 0 || ::write(file, body.data(), body.size()) < 0)
      log(LogLevel::warn, -1, text("cannot write the profile {}: {}", path, std::strerror(errno)));
    if (file >= 0) ::close(file);
  } catch (const std::exception& error) {
    log(LogLevel::warn, -1, text("cannot write the profile: {}", error.what()));
  }
}

}  // namespace

void time_calls_by(StartTimer start) { start_timer = start; }

std::vector<CounterRow> counter_rows() {
  std::vector<CounterRow> rows;
  for (int by = 0; by < static_cast<int>(std::size(kDoers)); ++by)
    for (int row = 0; row < kRows; ++row)
      for (int bucket = 0; bucket < kBuckets; ++bucket) {
        const Cell& from = cell(by, row, bucket);
        if (from.calls.load() == 0) continue;
        CounterRow to{};
        std::strncpy(to.name, kNames[row], sizeof to.name - 1);
        to.served = by;
        to.bucket = bucket;
        to.calls = from.calls.load();
        to.bytes = from.bytes.load();
        to.host_ns = from.host_ns.load();
        to.gpu_calls = from.gpu_calls.load();
        to.gpu_ns = from.gpu_ns.load();
        rows.push_back(to);
      }
  return rows;
}

CountedCall::CountedCall(const Request& request, int by, void* stream, bool is_launched)
    : row_(static_cast<int>(request.collective)),
      bytes_(message_bytes(request)),
      by_(by),
      stream_(stream) {
  bucket_ = bucket_of(bytes_);
  if (!observed()) return;
  range_.emplace(kNames[row_], bytes_);
  if (!profiling()) return;
  start_ns_ = now_ns();
  if (is_launched) timer_ = start_timer(stream);
}

CountedCall::CountedCall(Collective collective, std::uint64_t bytes, int by)
    : row_(static_cast<int>(collective)), bucket_(bucket_of(bytes)), bytes_(bytes), by_(by) {
  if (!observed()) return;
  range_.emplace(kNames[row_], bytes_);
  if (profiling()) start_ns_ = now_ns();
}

CountedCall::~CountedCall() {
  Cell& counted = cell(by_, row_, bucket_);
  add(counted, bytes_);
  if (start_ns_ == 0) return;
  if (timer_ != nullptr) timer_->stop(stream_);
  const std::int64_t took_ns = now_ns() - start_ns_;
  counted.host_ns.fetch_add(static_cast<std::uint64_t>(took_ns), std::memory_order_relaxed);
  Book& all = book();
  const std::lock_guard<std::mutex> hold(all.guard);
  harvest(all);
  const std::size_t index = all.events.size();
  if (index < kEvents)
    all.events.push_back({start_ns_, took_ns, bytes_, -1,
                          static_cast<std::int32_t>(::syscall(SYS_gettid)),
                          static_cast<std::int16_t>(row_), static_cast<std::int16_t>(by_)});
  else
    ++all.events_left_out;
  if (timer_ != nullptr) all.pending.push_back({std::move(timer_), index, row_, bucket_, by_});
}

CountedPaths::CountedPaths(Look look) : look_(std::move(look)) {
  if (!profiling()) return;
  const std::lock_guard<std::mutex> hold(book().guard);
  book().paths.insert(&look_);
}

CountedPaths::~CountedPaths() {
  if (!profiling()) return;
  const std::lock_guard<std::mutex> hold(book().guard);
  book().paths.erase(&look_);
  for (const auto& [path, sent] : look_()) book().bytes_of_path[path] += sent;
}

void count_message(bool sends, std::uint64_t bytes, bool served) {
  add(cell(served ? kByPlait : kByNccl, sends ? kRows - 2 : kRows - 1, bucket_of(bytes)), bytes);
}

}  // namespace plait
