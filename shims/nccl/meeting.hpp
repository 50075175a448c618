// Ranks of one communicator that are threads of one process meet on the host before each exchange.
// Allocating may wait for every kernel of the process: a rank whose NCCL kernel already waits for a
// rank that still allocates would wait for ever.
#pragma once
#include <functional>
#include <string>

namespace plait::nccl {

/// A random word that no other process, and no other call, has.
std::string random_word();
/// The same for all threads of this process, and for no other process.
const std::string& process_word();
/// Returns when `count` threads have come to the meeting of that name. give_up throws.
void meet(const std::string& name, int count, const std::function<void()>& give_up);

}  // namespace plait::nccl
