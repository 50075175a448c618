// File descriptors handed between the processes of ranks: the driver shows memory of other
// processes by descriptors. src/comm implements the exchange.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace plait::cuda {

/// Serves a single exchange.
class FileExchange {
 public:
  virtual ~FileExchange() = default;
  /// Where this rank receives files, for the peers.
  virtual const std::string& address() const = 0;
  /// Hands `mine` to all other ranks, and returns theirs by rank, which the caller closes; -1 for
  /// this rank. addresses: of all ranks. All ranks call this together. Throws Error.
  virtual std::vector<int> swap(const std::vector<std::string>& addresses, int rank, int mine) = 0;
};

/// Opens this rank's end. Throws Error.
using OpenFileExchange = std::function<std::unique_ptr<FileExchange>()>;

}  // namespace plait::cuda
