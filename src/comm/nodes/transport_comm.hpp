// Ranks of several hosts: exchanges and collectives between them, made of messages that a library
// of the program carries. plait opens no port of its own.
#pragma once
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "comm/bootstrap/socket.hpp"
#include "comm/nodes/transport.hpp"
#include "exec/cpu/node_library.hpp"
#include "plait/error.hpp"

namespace plait {

/// Every rank sends to every other by itself, in one round or two: so an error can say who has not
/// come, sums have the bits of members' order where one round makes them, and no call needs a
/// group to be made for it.
class TransportComm : public NodeLibrary {
 public:
  /// members: the carrier's ranks that are this world's 0, 1, ...; this one is `me` of them. Two
  /// worlds of one carrier have unlike `series`, 0 or 1.
  TransportComm(std::shared_ptr<Transport> transport, std::vector<int> members, int me,
                int series = 0);

  int ranks() const { return static_cast<int>(members_.size()); }
  int rank() const { return me_; }
  const Transport& transport() const { return *transport_; }
  /// Where a rank is: the host by a name for people, and its node.
  struct HostLocation {
    std::string host;
    int node = 0;
  };
  void set_locations(std::vector<HostLocation> places) { locations_ = std::move(places); }
  /// "rank 2 on host b"
  std::string name_of_rank(int rank) const;
  /// Every rank's bytes in rank order; all ranks together. Error(timeout) past the deadline, and
  /// what deadline.check throws.
  std::vector<std::string> exchange(const std::string& mine, const Deadline& deadline);
  /// This rank and another, by the same carrier.
  std::unique_ptr<TransportComm> between(int peer) const;

  int begin(const Request& request, const std::vector<int>& ranks, int member, const void* src,
            void* dst) override;
  bool is_done(int handle) override;
  void end(int handle) override;
  std::string awaits(int handle) const override;
  /// A whole call, from begin() to end(): asks deadline.check meanwhile, and whether another rank
  /// has failed. Error(timeout), whose words begin with `waiting`. buffers: what the call reads and
  /// writes; they outlive an error where the library may still use them.
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
  /// Gives up all calls under way; false where the library may still use a buffer of theirs.
  bool drop_all() noexcept;
  /// Shows all ranks that this one goes no further.
  void publish_failure(const Error& error) noexcept;
  /// Throws what another rank has told.
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
    std::function<void()> then;  ///< once all have ended
  };
  struct OpenMessage {
    std::uint64_t message;
    int rank;
    bool is_sent;
  };
  /// A buffer that keeps its memory from call to call.
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
  std::vector<bool> is_lost_;  ///< by rank: the library has given it up
  std::set<int> given_up_;     ///< ranks whose messages were dropped before they had ended
  std::vector<std::unique_ptr<TransportCall>> calls_;
  std::vector<int> sent_, received_;  ///< messages so far, to and from each rank
};

}  // namespace plait
