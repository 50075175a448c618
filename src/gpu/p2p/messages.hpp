// Point-to-point messages under NCCL: a single kernel for any number of sends and receives.
// Channels and tiles follow from the size of a message and from values agreed on at set-up, so both
// endpoints cut a message alike without communication.
#pragma once
#include <vector>

#include "gpu/abi/message_args.hpp"

namespace plait::cuda {

/// Endpoint of a message between this rank and `peer`, possibly this rank itself. Messages between
/// the same two ranks match in the order given.
struct MessageEnd {
  bool sends = true;
  int peer = 0;
  /// Device memory of any alignment; read by a send, written by a receive.
  void* memory = nullptr;
  std::uint64_t bytes = 0;
};

/// Cut of messages; the same on all ranks.
struct MessageTuning {
  std::uint64_t packets_upto = 256 << 10;             ///< In bytes; larger messages go by tiles.
  std::uint32_t tile_units = kMessageSlotBytes / 16;  ///< Most 16-byte units of a tile.
  /// In bytes; host channels, if any, share larger messages.
  std::uint64_t shared_from = 128ull << 20;
  std::uint32_t host_channels = kMessageHostChannels;  ///< At most; the same in all calls.
};
struct MessageLaunchConfig {
  std::uint32_t channels = 0;  ///< Between two ranks.
  MessageTuning tuning;
  std::uint32_t host_channels = 0;  ///< Through host memory; 0 = none.
};

/// Channels between two ranks, so that `most_blocks` blocks can serve all peers at once.
std::uint32_t message_channels(int ranks, unsigned most_blocks);

/// True if host channels exist in addition; both ranks then map memory for the slots.
bool has_host_channels(int ranks, unsigned most_blocks);

/// True if messages of this many ranks were measured against NCCL: no slower up to 256 MiB, and at
/// most 4 % slower beyond.
bool messages_beat_nccl(int ranks, unsigned most_blocks);

/// Cut of a message of some size.
struct MessageCut {
  bool by_packets = false;
  bool shared = false;
  std::uint32_t channels = 0;
  std::uint32_t tile_units = 0;
};
MessageCut cut_message(std::uint64_t bytes, const MessageLaunchConfig& config);

/// Blocks of a launch.
unsigned message_blocks(const MessageArgs& args);

/// Bytes of a rank's slots for tiles from peers.
std::uint64_t message_slot_bytes(int ranks, std::uint32_t channels);
std::uint64_t message_packet_bytes(int ranks, std::uint32_t channels);

/// Returns the launches of a group, in order and without device addresses. The last launch moves
/// all messages; preceding launches store works. Hence a message waits only for its own two
/// endpoints, whatever groups they are in, and a single resident block per GPU is enough
/// (message_ends.cuh). Only a group of more than kMessageNoted + kMessageWorks messages is moved in
/// several launches, each with the next messages of all peers; then the other endpoints, if their
/// groups are that large too, must be in a group like it. Error(invalid_argument) if a peer is no
/// rank, or if this rank's sends to itself do not match its receives from itself.
std::vector<MessageArgs> plan_messages(const std::vector<MessageEnd>& messages, int rank, int ranks,
                                       const MessageLaunchConfig& config);

}  // namespace plait::cuda
