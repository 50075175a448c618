// Names of communicators, by which ranks of a host meet (comm/meet): alike on all ranks that make
// the same communicator, before NCCL has made it. Of a new communicator: its unique ids. Of a
// child: the parent's name, the kind of child, and a count.
#pragma once
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "comm/meet/meeting.hpp"
#include "comm/transport/nccl/abi.hpp"

namespace plait::nccl {

// NCCL checks the arguments later: wrong ones give no name (empty), and set-up records then go over
// NCCL. So does a lack of memory.

/// Returns the name by `count` unique ids; `rank` of `ranks` of the new communicator.
MeetingName name_by_ids(const UniqueId* ids, int count, int rank, int ranks) noexcept;
/// Returns a name that no other process can have, for ncclCommInitAll.
std::string name_in_process() noexcept;
/// Returns the name for a rank that joins by ncclCommGrow; no name (empty) if the communicator that
/// grows is not on this host.
MeetingName name_of_joining(const UniqueId& id, int rank) noexcept;

/// Names of a communicator's children. Any thread.
class ChildNames {
 public:
  /// Sets the communicator's name, alike on all ranks. Without it, children have no names.
  void set_parent(const std::string& name);
  /// Returns the next child's name; all ranks of the parent call this alike. No colour: no name.
  std::string split(int color) noexcept;
  /// Returns the next name; all ranks but the `count` excluded call this alike. ranks: the
  /// parent's.
  std::string shrink(const int* excluded, int count, int ranks) noexcept;
  std::string grow() noexcept;
  /// Called after NCCL's answer to the call that took the last name. The next child of the kind
  /// gets the name of a refused call, since the other ranks have counted no child.
  void answered(bool is_refused) noexcept;
  /// Shows the next grow()'s name to ranks that have the id alone. After a failure set-up records
  /// go over NCCL.
  void show_grow(const UniqueId& id) noexcept;
  /// Removes what show_grow() shows.
  void hide_grow();

 private:
  std::string next(const std::string& kind, const std::string& detail);
  std::mutex guard_;
  std::string parent_;
  std::map<std::string, unsigned> made_;  ///< children by kind
  std::string last_;                      ///< kind of the last name; empty = NCCL has answered
  std::unique_ptr<MeetingAlias> shown_;
};

}  // namespace plait::nccl
