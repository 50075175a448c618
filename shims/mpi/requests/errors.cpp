// Keeps a record of each communicator as an attribute. The delete callback runs when the program
// frees the handle: MPIs reuse a freed handle at once.
#include "shims/mpi/requests/errors.hpp"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <list>
#include <mutex>
#include <new>
#include <string>
#include <system_error>
#include <vector>

#include "base/log.hpp"
#include "base/text.hpp"
#include "comm/bootstrap/vote.hpp"
#include "shims/mpi/args/layout.hpp"
#include "shims/mpi/requests/freed_comm.hpp"
#include "shims/mpi/requests/requests.hpp"

namespace plait::mpi {

namespace {

/// Error handlers of destroyed records. Any thread may drop a record's last reference: a thread of
/// plait's, or an ending thread of the program. Later calls of the program free the handlers.
struct UnusedHandlers {
  std::mutex mutex;
  std::list<Handle> all;
};

UnusedHandlers& unused_handlers() {
  static auto* const one = new UnusedHandlers;
  return *one;
}

}  // namespace

/// Destroyed in any thread, so the destructor calls no MPI.
struct CommRecord {
  explicit CommRecord(Handle of) : comm(of) {}
  ~CommRecord() {
    if (handler.front() == 0) return;
    const std::lock_guard lock(unused_handlers().mutex);
    unused_handlers().all.splice(unused_handlers().all.end(), handler);
  }
  CommRecord(const CommRecord&) = delete;
  CommRecord& operator=(const CommRecord&) = delete;

  const Handle comm;
  std::mutex mutex;  ///< held while the handle must not be freed
  std::atomic<bool> is_freed{false};
  /// Error handler of a freed communicator; 0 = not freed. A list of one element, because the
  /// destructor moves the element and needs no memory.
  std::list<Handle> handler{0};
};

namespace {

constexpr std::int64_t kRateLimitNs = 10'000'000, kMaxFaultWaitNs = 1'000'000'000;

std::int64_t now_ns() {
  return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
}

int keyval = 0;

int copy_nothing(Handle, int, void*, void*, void*, int* flag) {
  *flag = 0;
  return 0;
}

int communicator_freed(Handle comm, int, void* value, void*) {
  const std::unique_ptr<std::shared_ptr<CommRecord>> mark_library(
      static_cast<std::shared_ptr<CommRecord>*>(value));
  CommRecord& record = **mark_library;
  if (is_serving()) {
    free_unused_handlers();
    native().Comm_get_errhandler(comm, &record.handler.front());
  }
  const std::lock_guard lock(record.mutex);
  record.is_freed.store(true);
  return 0;
}

/// Threads may look up a communicator for the first time at once.
std::shared_ptr<CommRecord> find_or_add_record(Handle comm) {
  free_unused_handlers();
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  void* value = nullptr;
  int flag = 0;
  if (native().Comm_get_attr(comm, keyval, static_cast<void*>(&value), &flag) != 0) return nullptr;
  if (flag != 0) return *static_cast<std::shared_ptr<CommRecord>*>(value);
  if (FreedCommScope::has(comm)) return nullptr;
  auto made = std::make_unique<std::shared_ptr<CommRecord>>(std::make_shared<CommRecord>(comm));
  if (native().Comm_set_attr(comm, keyval, made.get()) != 0) return nullptr;
  return *made.release();
}

/// Calls the handler with a communicator of this rank alone, since a handler needs one.
void call_handler(Handle handler, int code) {
  const Abi& abi = native().abi;
  Handle comm = 0;
  if (native().Comm_split_type(abi.self, abi.shared_kind, 0, abi.no_info, &comm) != 0) return;
  native().Comm_set_errhandler(abi.at(&comm, 0), handler);
  native().Comm_call_errhandler(abi.at(&comm, 0), code);
  native().Comm_free(&comm);
}

/// Returns whether a lost rank or a revocation may have caused the error: a rank that sees a fault
/// aborts its peers.
bool may_be_a_fault(const Error& error) {
  return has_ulfm() && (error.code() == ErrorCode::peer_lost || error.code() == ErrorCode::aborted);
}

constinit thread_local RevocationScope* innermost = nullptr;

/// Programs keep codes and ask for the text later. Hence each text has its own code, up to kMost.
int code_of(const Error& error) {
  // Programs compare codes with ULFM's constants.
  if (error.code() == ErrorCode::peer_lost && native().err_proc_failed != 0)
    return native().err_proc_failed;
  if (error.code() == ErrorCode::aborted && has_ulfm()) return native().err_revoked;
  struct ErrorText {
    std::string words;
    int code = 0;
  };
  struct Codes {
    std::mutex mutex;
    std::vector<ErrorText> all;
    std::size_t oldest = 0;
    int error_class = 0;
  };
  constexpr std::size_t kMost = 256;
  static auto* const codes = new Codes;
  const std::string words = text("plait: {}", error.what()).substr(0, 250);
  const std::lock_guard lock(codes->mutex);
  auto& all = codes->all;
  const auto found = std::find_if(all.begin(), all.end(),
                                  [&](const ErrorText& one) { return one.words == words; });
  if (found != all.end()) return found->code;
  if (codes->error_class == 0) native().Add_error_class(&codes->error_class);
  const bool is_new = all.size() < kMost;
  ErrorText& one = is_new ? all.emplace_back() : all[codes->oldest++ % kMost];
  if (is_new) native().Add_error_code(codes->error_class, &one.code);
  one.words = words;
  native().Add_error_string(one.code, words.c_str());
  return one.code;
}

}  // namespace

int error_code(const std::exception& caught) {
  if (const auto* const error = dynamic_cast<const NativeError*>(&caught))
    return error->native_code();
  try {
    return code_of(as_error(caught));
  } catch (const std::exception&) {  // no memory for the text
    return native().abi.err_other;
  }
}

int call_errhandler(Handle comm, int code) {
  if (code != 0) native().Comm_call_errhandler(comm, code);
  return code;
}

void rethrow_program_exception(const std::exception& caught) {
  const bool is_plaits = dynamic_cast<const Error*>(&caught) != nullptr ||
                         dynamic_cast<const std::bad_alloc*>(&caught) != nullptr ||
                         dynamic_cast<const std::system_error*>(&caught) != nullptr;
  if (!is_plaits) throw;
}

int report(Handle comm, const std::exception& caught) {
  rethrow_program_exception(caught);
  bool is_fault = false;
  try {
    const Error error = as_error(caught);
    is_fault = may_be_a_fault(error);
    if (!is_fault) log(LogLevel::warn, -1, error.what());
  } catch (const std::exception&) {  // no memory for the text: the handler is still called
  }
  return is_fault ? RetainedComm(comm).report(caught) : call_errhandler(comm, error_code(caught));
}

bool RateLimit::is_due() {
  const std::int64_t now = now_ns();
  if (now < next_ns_) return false;
  const bool is_first = next_ns_ == 0;
  next_ns_ = now + kRateLimitNs;
  return !is_first;
}

bool is_revoked(Handle comm) {
  int flag = 0;
  return has_ulfm() && native().Comm_is_revoked(comm, &flag) == 0 && flag != 0;
}

int fault_in(Handle comm) {
  if (is_revoked(comm)) return native().err_revoked;
  Handle group = 0;
  int failed = 0;
  if (!has_ulfm() || native().Comm_get_failed(comm, &group) != 0) return 0;
  native().Group_size(native().abi.at(&group, 0), &failed);
  native().Group_free(&group);
  return failed > 0 ? native().err_proc_failed : 0;
}

void throw_if_revoked(Handle comm) {
  if (!is_revoked(comm)) return;
  throw Error(ErrorCode::aborted,
              "the program has revoked this communicator (MPIX_Comm_revoke): use one that "
              "MPIX_Comm_shrink makes");
}

RetainedComm::RetainedComm(Handle comm) {
  static thread_local std::shared_ptr<CommRecord> last;
  const Abi& abi = native().abi;
  if (keyval == 0 || abi.key(comm) == abi.no_comm) return;
  if (last == nullptr || last->is_freed.load() || abi.key(last->comm) != abi.key(comm))
    last = find_or_add_record(comm);
  record_ = last;
}

int RetainedComm::call_errhandler(int code) const {
  if (record_ == nullptr) return mpi::call_errhandler(native().abi.world, code);
  if (!record_->is_freed.load()) return mpi::call_errhandler(record_->comm, code);
  if (code != 0) call_handler(record_->handler.front(), code);
  return code;
}

int RetainedComm::report(const std::exception& caught) const {
  rethrow_program_exception(caught);
  const Error error = as_error(caught);
  log(LogLevel::warn, -1, error.what());
  const ProgramThreadScope here;
  std::int64_t since_ns = 0;
  while (true) {
    if (const std::optional<int> code = code_of(error, since_ns)) return call_errhandler(*code);
    let_mpi_progress();
    ::sched_yield();
  }
}

bool RetainedComm::is_revoked() const {
  if (record_ == nullptr || !has_ulfm()) return false;
  const std::lock_guard lock(record_->mutex);
  return !record_->is_freed.load() && mpi::is_revoked(record_->comm);
}

std::optional<Handle> RetainedComm::handle() const {
  return record_ == nullptr || record_->is_freed.load() ? std::nullopt
                                                        : std::optional(record_->comm);
}

bool RetainedComm::is_freed() const { return record_ != nullptr && record_->is_freed.load(); }

std::optional<int> RetainedComm::code_of(const Error& error, std::int64_t& since_ns) const {
  if (!may_be_a_fault(error) || record_ == nullptr) return error_code(error);
  {
    const std::lock_guard lock(record_->mutex);
    const int found = record_->is_freed.load() ? native().err_proc_failed : fault_in(record_->comm);
    if (found != 0) return found;
  }
  if (since_ns == 0) since_ns = now_ns();
  if (now_ns() - since_ns < kMaxFaultWaitNs) return std::nullopt;
  return native().err_proc_failed;
}

void free_unused_handlers() {
  std::list<Handle> unused;
  {
    const std::lock_guard lock(unused_handlers().mutex);
    unused.swap(unused_handlers().all);
  }
  for (Handle& handler : unused) native().Errhandler_free(&handler);
}

void begin_retained_comms() {
  native().Comm_create_keyval(copy_nothing, communicator_freed, &keyval, nullptr);
}

RevocationScope::RevocationScope(Handle comm, Abortable* state)
    : comm_(comm), state_(state), outer_(innermost) {
  if (has_ulfm()) innermost = this;
}

RevocationScope::~RevocationScope() {
  if (has_ulfm()) innermost = outer_;
}

void RevocationScope::look() {
  if (innermost == nullptr || !innermost->rate_limit_.is_due()) return;
  if (innermost->state_ == nullptr) return throw_if_revoked(innermost->comm_);
  if (is_revoked(innermost->comm_)) innermost->state_->abort();
}

}  // namespace plait::mpi
