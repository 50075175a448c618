// What ranks send each other, some of them and not all alike: one kernel for any number of
// messages. How a message is spread follows from its size and from what all ranks agreed on when
// they set up, so both ends cut it alike and need not meet.
#pragma once
#include <vector>

#include "exec/cuda/messages/message_args.hpp"

namespace plait::cuda {

/// One end of a message between this rank and `peer`, which may be this rank itself. Those between
/// the same two ranks match in the order in which they are given.
struct MessageEnd {
  bool sends = true;
  int peer = 0;
  void* memory = nullptr;  ///< device memory of any alignment: read where it sends, else written
  std::uint64_t bytes = 0;
};

/// How messages are cut; must agree between ranks.
struct MessageTuning {
  std::uint64_t packets_upto = 256 << 10;             ///< bytes; larger ones go by tiles
  std::uint32_t tile_units = kMessageSlotBytes / 16;  ///< 16-byte units of a tile, at most
  std::uint64_t shared_from = 128ull << 20;  ///< bytes; where there are host channels, those share
  std::uint32_t host_channels = kMessageHostChannels;  ///< at most; the same in all calls
};
struct MessageLaunchConfig {
  std::uint32_t channels = 0;  ///< between two ranks
  MessageTuning tuning;
  std::uint32_t host_channels = 0;  ///< through host memory; 0 = none
};

/// Channels for so many ranks: no more than `most_blocks` blocks can serve at once.
std::uint32_t message_channels(int ranks, unsigned most_blocks);

/// Whether there are host channels beside them, where both ranks map memory for their slots.
bool has_host_channels(int ranks, unsigned most_blocks);

/// Whether messages between so many ranks were measured beside NCCL's: no slower up to 256 MiB, and
/// by 4 % at most beyond.
bool messages_beat_nccl(int ranks, unsigned most_blocks);

/// How a message of so many bytes goes.
struct MessageCut {
  bool by_packets = false;
  bool shared = false;
  std::uint32_t channels = 0;
  std::uint32_t tile_units = 0;
};
MessageCut cut_message(std::uint64_t bytes, const MessageLaunchConfig& config);

/// Of a launch.
unsigned message_blocks(const MessageArgs& args);

/// Memory of a rank for what its peers send it.
std::uint64_t message_slot_bytes(int ranks, std::uint32_t channels);
std::uint64_t message_packet_bytes(int ranks, std::uint32_t channels);

/// The launches, one behind the other, each as far as it does not depend on device memory. All
/// messages are moved by the last of them, and those before it note what it has to do: so nothing
/// waits for a message but its own two ends, whatever groups these are in, and one resident block a
/// GPU is enough (message_ends.cuh). Only a group of more than kMessageNoted + kMessageWorks
/// messages is moved in several launches, each with the next of all peers: other ends that are in
/// groups of that size too must be in a group like it. Error(invalid_argument) where a peer is no
/// rank, or where what this rank sends itself and what it receives from itself differ.
std::vector<MessageArgs> plan_messages(const std::vector<MessageEnd>& messages, int rank, int ranks,
                                       const MessageLaunchConfig& config);

}  // namespace plait::cuda
