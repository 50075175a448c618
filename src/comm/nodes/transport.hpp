// What carries messages between the ranks of several nodes: a library that the program has already.
// A TransportComm makes exchanges and collectives of them.
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
  /// What it is, for people: "MPI (/usr/lib/libmpi.so.12)".
  virtual std::string name() const = 0;
  /// Begins a message of at most kMostBytes. Of two ranks, messages of one tag arrive in the order
  /// in which they were sent. Returns what is_done and drop know it by; 0 = it has ended already.
  virtual std::uint64_t send(int peer, int tag, const void* src, std::size_t bytes) = 0;
  virtual std::uint64_t receive(int peer, int tag, void* dst, std::size_t bytes) = 0;
  /// True once it has ended, and is not asked for again. Waits a millisecond at most.
  /// Error(peer_lost) where it failed.
  virtual bool is_done(std::uint64_t& message) = 0;
  /// Gives it up; true where its buffer is left alone from now on.
  virtual bool drop(std::uint64_t& message) noexcept = 0;
  /// Shows these ranks why this one goes no further, by kMostTold bytes at most. Waits for nobody.
  virtual void publish_failure(const std::vector<int>& ranks, const std::string& failure) = 0;
  /// What one of them has shown, and which; the same from then on.
  virtual std::optional<std::pair<int, std::string>> first_failure() = 0;

  static constexpr std::size_t kMaxMessageBytes = 1u << 30;
  static constexpr std::size_t kMaxFailureBytes = 1024;
  static constexpr int kMaxTag = 32765;  ///< an MPI may know tags up to 32767 alone
};

/// Makes a carrier of the program's own where it has one; all ranks together. unique_id: of the
/// communicator, whose ranks may then be some of the program's; empty = they are all of them.
using TransportFactory = std::function<std::shared_ptr<Transport>(
    int rank, int ranks, double arrive_s, const std::string& unique_id)>;
/// Asked where no MPI is; Python's is that over torch.distributed.
void set_transport_factory(TransportFactory maker);

}  // namespace plait
