// Transport: carries messages between ranks of several nodes with a library that the program
// already uses (MPI, torch.distributed). TransportComm builds exchanges and collectives on a
// transport.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace plait {

class Transport {
 public:
  virtual ~Transport() = default;
  virtual int ranks() const = 0;
  /// The library's name for messages: "MPI (/usr/lib/libmpi.so.12)".
  virtual std::string name() const = 0;
  /// Starts a message of at most kMaxMessageBytes. Messages between two ranks with the same tag
  /// arrive in the order sent. Returns a handle for is_done and drop; 0 = already complete.
  virtual std::uint64_t send(int peer, int tag, const void* src, std::size_t bytes) = 0;
  virtual std::uint64_t receive(int peer, int tag, void* dst, std::size_t bytes) = 0;
  /// Returns true once the message is complete; not called again after that. Waits at most 1 ms.
  /// Throws Error(peer_lost) if the message failed.
  virtual bool is_done(std::uint64_t& message) = 0;
  /// Gives the message up. Returns true if the library no longer uses the buffer.
  virtual bool drop(std::uint64_t& message) noexcept = 0;
  /// Publishes this rank's failure to `ranks`, at most kMaxFailureBytes. Does not wait.
  virtual void publish_failure(const std::vector<int>& ranks, const std::string& failure) = 0;
  /// Returns the first failure that another rank published, with that rank. Sticky.
  virtual std::optional<std::pair<int, std::string>> first_failure() = 0;

  static constexpr std::size_t kMaxMessageBytes = 1u << 30;
  static constexpr std::size_t kMaxFailureBytes = 1024;
  static constexpr int kMaxTag = 32765;  ///< MPI guarantees tags up to 32767 only
};

/// Makes the program's own transport; called by all ranks together. Null if the program has none.
/// unique_id: the communicator's, possibly of a part of the program's ranks; empty = all ranks.
using TransportFactory = std::function<std::shared_ptr<Transport>(
    int rank, int ranks, double arrive_s, const std::string& unique_id)>;
/// Used if the process has no MPI. Python sets a factory for torch.distributed.
void set_transport_factory(TransportFactory maker);
/// The factory in use; empty = none.
const TransportFactory& transport_factory();

}  // namespace plait
