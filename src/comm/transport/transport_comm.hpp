// TransportComm: exchanges and collectives between ranks of several hosts, built from a transport's
// messages. plait itself opens no network port.
#pragma once
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "comm/bootstrap/socket.hpp"
#include "comm/transport/transport.hpp"
#include "cpu/node_library.hpp"
#include "plait/error.hpp"

namespace plait {

/// Every rank sends directly to every peer, in a round or two. Hence an error names the missing
/// ranks, sums of a single round have the bits of the members' order, and no call sets up a group.
class TransportComm : public NodeLibrary {
 public:
  /// members: the transport's ranks that become ranks 0, 1, ... here; this process is number `me`.
  /// Two communicators on the same transport use different `series`, 0 and 1.
  TransportComm(std::shared_ptr<Transport> transport, std::vector<int> members, int me,
                int series = 0);

  int ranks() const { return static_cast<int>(members_.size()); }
  int rank() const { return me_; }
  const Transport& transport() const { return *transport_; }
  /// A rank's host name for messages, and the rank's node.
  struct HostLocation {
    std::string host;
    int node = 0;
  };
  void set_locations(std::vector<HostLocation> places) { locations_ = std::move(places); }
  /// Returns for example "rank 2 on host b".
  std::string name_of_rank(int rank) const;
  /// Returns every rank's bytes in rank order. Called by all ranks together. Throws Error(timeout)
  /// past the deadline, and the error of deadline.check.
  std::vector<std::string> exchange(const std::string& mine, const Deadline& deadline);
  /// Makes a communicator of this rank and `peer` on the same transport.
  std::unique_ptr<TransportComm> between(int peer) const;

  int begin(const Request& request, const std::vector<int>& ranks, int member, const void* src,
            void* dst) override;
  bool is_done(int handle) override;
  void end(int handle) override;
  std::string awaits(int handle) const override;
  /// Runs a whole call, from begin() to end(). Meanwhile calls deadline.check and checks for
  /// failures of peers. Error(timeout) begins with `waiting`. buffers: the memory of the call,
  /// leaked after an error if the library may still use the memory.
  template <class Buffers>
  void run(const Request& request, const std::vector<int>& ranks, int member, const void* src,
           void* dst, std::unique_ptr<Buffers>& buffers, const Deadline& deadline,
           const std::string& waiting) {
    try {
      const int handle = begin(request, ranks, member, src, dst);
      await(handle, deadline, waiting);
      end(handle);
    } catch (...) {
      if (!drop_all()) static_cast<void>(buffers.release());
      throw;
    }
  }
  /// Gives up all calls under way. Returns false if the library may still use the calls' buffers.
  bool drop_all() noexcept;
  /// Publishes to all ranks that this rank has failed.
  void publish_failure(const Error& error) noexcept;
  /// Throws the first failure that another rank published.
  void check() const;

 private:
  struct MessagePart {
    int member;
    char* at;
    std::uint64_t bytes;
    bool is_sent;
    int tag = 0;
  };
  struct MessageRound {
    std::vector<MessagePart> parts;
    std::function<void()> then;  ///< runs once all parts are complete
  };
  struct OpenMessage {
    std::uint64_t message;
    int rank;
    bool is_sent;
  };
  /// A buffer that keeps memory from call to call.
  struct ReusableBuffer {
    std::unique_ptr<char[]> bytes;
    std::size_t size = 0;
    char* of(std::size_t wanted);
  };
  struct TransportCall {
    bool is_taken = false;
    std::vector<MessageRound> rounds;
    std::size_t round = 0;
    std::vector<OpenMessage> open;
    ReusableBuffer staged, received;
  };
  class RoundBuilder;

  void await(int handle, const Deadline& deadline, const std::string& waiting);
  bool drop(int handle) noexcept;
  void number(TransportCall& call, const std::vector<int>& ranks);
  void open_round(TransportCall& call);
  template <class Step>
  auto with(int rank, const Step& step);
  std::vector<std::string> gather_fixed(const std::string& mine, std::size_t each,
                                        const Deadline& deadline);

  const std::shared_ptr<Transport> transport_;
  const std::vector<int> members_;
  const int me_, series_;
  std::vector<HostLocation> locations_;
  std::vector<bool> is_lost_;  ///< by rank: the library has given the rank up
  std::set<int> given_up_;     ///< ranks with messages dropped before completion
  std::vector<std::unique_ptr<TransportCall>> calls_;
  std::vector<int> sent_, received_;  ///< message counts to and from each rank
};

}  // namespace plait
