// Transport over MPI: messages on a private communicator, started and tested (never blocking), so
// that deadlines hold and errors return to plait.
#include "comm/transport/mpi/mpi_transport.hpp"

#include <dlfcn.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <mutex>
#include <numeric>
#include <string_view>
#include <utility>
#include <vector>

#include "base/text.hpp"
#include "comm/transport/mpi/loaded.hpp"
#include "comm/transport/transport_comm.hpp"
#include "plait/error.hpp"

namespace plait {
namespace {

using mpi::Handle;

constexpr int kFailureTag = 32767;  // on the private communicator
constexpr double kAnswerS = 1.0;    // time for ranks that have come to say so

/// Message of a rank that gives up waiting. No private communicator exists yet: the message goes by
/// the program's communicator, where the program may use every tag. Receivers recognise the message
/// by the length, probed before anything is received. Each attempt has its tag, so that the
/// message of a late rank ends no later attempt.
constexpr int kGaveUpTag = 32766, kGaveUpTags = 64;
using GaveUpMessage = std::array<char, 1021>;
constexpr GaveUpMessage kGaveUp = [] {
  GaveUpMessage bytes{};
  constexpr std::string_view kSaid = "plait: this rank has given up waiting, 6f1d0c3e9a7b4852";
  for (std::size_t i = 0; i < kSaid.size(); ++i) bytes[i] = kSaid[i];
  return bytes;
}();

struct MpiFunctions {
#define PLAIT_MPI_FUNCTION(name, parameters) int(*name) parameters = nullptr;
#include "comm/transport/mpi/node_functions.def"
#undef PLAIT_MPI_FUNCTION
};

MpiFunctions functions_of(const mpi::LoadedMpi& loaded) {
  MpiFunctions found;
#define PLAIT_MPI_FUNCTION(name, parameters)                                                \
  found.name = reinterpret_cast<int(*) parameters>(::dlsym(loaded.library, "PMPI_" #name)); \
  if (found.name == nullptr)                                                                \
    throw Error(ErrorCode::unsupported,                                                     \
                text("{}{}", loaded.path, " has no MPI_" #name ": wanted MPI 3"));
#include "comm/transport/mpi/node_functions.def"
#undef PLAIT_MPI_FUNCTION
  return found;
}

/// Code of the handler's last run in this thread; 0 = no run. MPICH 5 returns 0 from a call whose
/// error went to a handler that is a function.
constinit thread_local int noted_code = 0;

/// Error handler: notes the error code, and makes MPI functions return.
void note_code(void*, int* code, ...) { noted_code = *code; }

/// Returns the code of call(), or else the code that the handler noted meanwhile.
template <class Call>
int code_of(const Call& call) {
  const int before = std::exchange(noted_code, 0);  // a call may run the program's callbacks
  const int code = call();
  const int noted = std::exchange(noted_code, before);
  return code != 0 ? code : noted;
}

class MpiTransport : public Transport {
 public:
  /// Takes over a private communicator.
  MpiTransport(mpi::LoadedMpi loaded, Handle comm, int rank, int ranks)
      : loaded_(std::move(loaded)), rank_(rank), ranks_(ranks), comm_(comm) {
    let_errors_return();
  }
  /// Duplicates MPI_COMM_WORLD; called by all ranks of the world together.
  MpiTransport(mpi::LoadedMpi loaded, int rank, int ranks, const Deadline& deadline,
               double arrive_s)
      : loaded_(std::move(loaded)), rank_(rank), ranks_(ranks) {
    static std::atomic<int> attempts{0};  // alike on all ranks, since a duplicate is collective
    gave_up_tag_ -= attempts++ % kGaveUpTags;
    Handle request = 0;
    call(mpi_.Comm_idup(loaded_.abi.world, &comm_, &request), "MPI_Comm_idup");
    for (int turn = 1; !test(request); ++turn) {
      ::usleep(turn < 100 ? 10 : 500);
      if (turn % 16 == 0 && deadline.check) deadline.check();
      if (now_ns() > deadline.at_ns || (turn % 16 == 0 && any_gave_up()))
        throw Error(ErrorCode::timeout, describe_missing(arrive_s));
    }
    // The MPI completes the duplicate also with ranks that have given up, in later calls of MPI.
    if (any_gave_up()) throw Error(ErrorCode::timeout, describe_missing(arrive_s));
    let_errors_return();
  }
  ~MpiTransport() override {
    int is_finished = 1;
    if (mpi_.Finalized(&is_finished) == 0 && is_finished == 0 && !has_failed_)
      mpi_.Comm_free(&comm_);
  }
  int ranks() const override { return ranks_; }
  std::string name() const override { return text("MPI, {}", loaded_.path); }

  std::uint64_t send(int peer, int tag, const void* src, std::size_t bytes) override {
    return start([&](Handle* request) {
      return mpi_.Isend(src, static_cast<int>(bytes), loaded_.abi.byte, peer, tag, comm_, request);
    });
  }
  std::uint64_t receive(int peer, int tag, void* dst, std::size_t bytes) override {
    return start([&](Handle* request) {
      return mpi_.Irecv(dst, static_cast<int>(bytes), loaded_.abi.byte, peer, tag, comm_, request);
    });
  }
  bool is_done(std::uint64_t& message) override {
    Handle request = message;
    const bool is_finished = test(request);
    message = request;
    return is_finished;
  }
  bool drop(std::uint64_t& message) noexcept override {
    has_failed_ = true;
    Handle request = message;
    mpi_.Cancel(&request);
    int flag = 0;
    for (int turn = 0; flag == 0 && turn < 100; ++turn)
      if (code_of([&] { return mpi_.Test(&request, &flag, loaded_.abi.status_ignore); }) != 0)
        return true;
    message = request;
    return flag != 0;
  }

  /// MPI keeps failure messages: a failed rank frees nothing of MPI's.
  void publish_failure(const std::vector<int>& ranks, const std::string& failure) override {
    if (first_failure_.first >= 0) return;  // already reported by a rank that published to all
    has_failed_ = true;
    static std::mutex mutex;
    static std::vector<std::unique_ptr<FailureText>> published_texts;
    const std::lock_guard lock(mutex);
    published_texts.push_back(std::make_unique<FailureText>());
    std::memcpy(published_texts.back()->data(), failure.data(),
                std::min(failure.size(), kMaxFailureBytes - 1));
    Handle request = 0;
    for (const int peer : ranks)
      mpi_.Isend(published_texts.back()->data(), kMaxFailureBytes, loaded_.abi.byte, peer,
                 kFailureTag, comm_, &request);
  }
  std::optional<std::pair<int, std::string>> first_failure() override {
    const std::lock_guard lock(mutex_);
    if (first_failure_.first < 0) {
      const int peer = probe(comm_, loaded_.abi.any_source, kFailureTag).peer;
      if (peer < 0) return std::nullopt;
      FailureText bytes{};
      call(code_of([&] {
             return mpi_.Recv(bytes.data(), kMaxFailureBytes, loaded_.abi.byte, peer, kFailureTag,
                              comm_, loaded_.abi.status_ignore);
           }),
           "MPI_Recv");
      first_failure_ = {peer, bytes.data()};
    }
    return first_failure_;
  }

 private:
  using FailureText = std::array<char, kMaxFailureBytes>;

  /// Sets a private error handler: libraries with MPI 5's ABI differ in the value of
  /// MPI_ERRORS_RETURN.
  void let_errors_return() {
    Handle handler = 0;
    call(mpi_.Comm_create_errhandler(note_code, &handler), "MPI_Comm_create_errhandler");
    const int code = mpi_.Comm_set_errhandler(comm_, handler);
    mpi_.Errhandler_free(&handler);  // the communicator keeps a reference
    call(code, "MPI_Comm_set_errhandler");
  }
  void call(int result, const char* what) const {
    if (result == 0) return;
    std::array<char, 1024> said{};  // MPI_MAX_ERROR_STRING is at most 512
    int length = 0;
    if (mpi_.Error_string(result, said.data(), &length) != 0) length = 0;
    throw Error(ErrorCode::peer_lost,
                text("{} returned {}: {} ({})", what, result, said.data(), loaded_.path));
  }
  template <class Begin>
  std::uint64_t start(const Begin& begin) {
    Handle request = 0;
    call(code_of([&] { return begin(&request); }), "a message between nodes");
    return request;
  }
  bool test(Handle& request) const {
    int flag = 0;
    call(code_of([&] { return mpi_.Test(&request, &flag, loaded_.abi.status_ignore); }),
         "MPI_Test");
    return flag != 0;
  }
  struct Probed {
    int peer = -1;  ///< -1 = no such message
    int bytes = 0;
  };
  /// Probes for a message of this tag.
  Probed probe(Handle comm, int source, int tag) const {
    int flag = 0;
    Probed found;
    std::array<char, 64> status{};  // MPI_Status has at most 32 bytes
    // A library error is ignored here: the wait for the message reports the error with a name.
    const auto iprobe = [&] { return mpi_.Iprobe(source, tag, comm, &flag, status.data()); };
    if (code_of(iprobe) != 0 || flag == 0) return {};
    if (mpi_.Get_count(status.data(), loaded_.abi.byte, &found.bytes) != 0) return {};
    std::memcpy(&found.peer, status.data() + loaded_.abi.source_at, sizeof found.peer);
    return found;
  }
  /// Whether that rank has sent the give-up message. The program's own messages of this tag stay in
  /// place.
  bool has_given_up(int peer) const {
    return probe(loaded_.abi.world, peer, gave_up_tag_).bytes == static_cast<int>(kGaveUp.size());
  }
  bool any_gave_up() const {
    for (int peer = 0; peer < ranks_; ++peer)
      if (peer != rank_ && has_given_up(peer)) return true;
    return false;
  }

  /// Called after a wait timed out. The ranks that have come report to each other over
  /// MPI_COMM_WORLD. Ranks that come later find the messages and give up too.
  std::string describe_missing(double arrive_s) const {
    Handle sent = 0;
    for (int peer = 0; peer < ranks_; ++peer)
      if (peer != rank_)
        call(mpi_.Isend(kGaveUp.data(), static_cast<int>(kGaveUp.size()), loaded_.abi.byte, peer,
                        gave_up_tag_, loaded_.abi.world, &sent),
             "MPI_Isend");
    std::string missing;
    const std::int64_t deadline_ns = deadline_in(kAnswerS);
    for (int peer = 0; peer < ranks_; ++peer) {
      bool has_come = peer == rank_ || has_given_up(peer);
      for (; !has_come && now_ns() < deadline_ns; has_come = has_given_up(peer)) ::usleep(500);
      if (!has_come) missing += text("{}{}", missing.empty() ? "" : ", ", peer);
      if (has_come && peer != rank_) consume_gave_up(peer);
    }
    return missing.empty()
               ? text("ranks came later than arrive_s ({}  s) after each other", arrive_s)
               : text(
                     "wanted all ranks of MPI_COMM_WORLD to make this communicator; after {} s "
                     "(arrive_s) there is no rank {}",
                     arrive_s, missing);
  }

  /// Receives the message, so that a later communicator does not read it.
  void consume_gave_up(int peer) const {
    GaveUpMessage bytes{};
    Handle request = 0;
    if (mpi_.Irecv(bytes.data(), static_cast<int>(bytes.size()), loaded_.abi.byte, peer,
                   gave_up_tag_, loaded_.abi.world, &request) != 0)
      return;
    const std::int64_t deadline_ns = deadline_in(kAnswerS);  // another thread may have received it
    while (!test(request)) {
      ::usleep(50);
      if (now_ns() < deadline_ns) continue;
      mpi_.Cancel(&request);
      int flag = 0;
      for (int turn = 0; flag == 0 && turn < 100; ++turn)
        if (mpi_.Test(&request, &flag, loaded_.abi.status_ignore) != 0) return;
      return;
    }
  }

  const mpi::LoadedMpi loaded_;
  const MpiFunctions mpi_ = functions_of(loaded_);
  const int rank_, ranks_;
  int gave_up_tag_ = kGaveUpTag;
  Handle comm_ = 0;
  bool has_failed_ = false;  // true: messages may be left on the communicator
  std::mutex mutex_;
  std::pair<int, std::string> first_failure_{-1, ""};
};

}  // namespace

std::shared_ptr<Transport> mpi::transport_over(Handle comm, int rank, int ranks) {
  return std::make_shared<MpiTransport>(find_loaded(), comm, rank, ranks);
}

std::unique_ptr<Transport> mpi_transport(int rank, int ranks, const Deadline& deadline,
                                         double arrive_s, bool may_be_some) {
  mpi::LoadedMpi loaded = mpi::find_loaded();
  if (loaded.library == nullptr) return nullptr;
  const MpiFunctions functions = functions_of(loaded);
  int is_initialized = 0, is_finished = 0;
  if (functions.Initialized(&is_initialized) != 0 || is_initialized == 0) return nullptr;
  if (functions.Finalized(&is_finished) != 0 || is_finished != 0) return nullptr;
  int its_rank = -1, its_ranks = -1;
  const bool has_rank = functions.Comm_rank(loaded.abi.world, &its_rank) == 0 &&
                        functions.Comm_size(loaded.abi.world, &its_ranks) == 0;
  if (has_rank && may_be_some && its_ranks != ranks) return nullptr;
  if (!has_rank || its_rank != rank || its_ranks != ranks) {
    const Error wrong(
        ErrorCode::mismatch,
        text("this is rank {} of {}; MPI_COMM_WORLD says {} of {}: both must be the same", rank,
             ranks, its_rank, its_ranks));
    if (its_ranks == ranks) {  // the peers wait for this rank
      std::vector<int> members(static_cast<std::size_t>(ranks));
      std::iota(members.begin(), members.end(), 0);
      TransportComm(
          std::make_shared<MpiTransport>(std::move(loaded), its_rank, ranks, deadline, arrive_s),
          std::move(members), its_rank)
          .publish_failure(wrong);
    }
    throw Error(wrong);
  }
  return std::make_unique<MpiTransport>(std::move(loaded), rank, ranks, deadline, arrive_s);
}

}  // namespace plait
