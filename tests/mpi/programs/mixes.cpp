// mixes SEED ROUNDS [kill|abort]: random collectives over random communicators (dup, idup, split,
// groups, free): blocking, non-blocking and persistent, several pending, completed by every
// completion function. Prints a line of JSON a rank. With the third argument the last rank ends
// halfway, by a signal or by MPI_Abort, while calls are pending.
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <list>
#include <string>

#include "mixed_calls.hpp"

namespace {

/// Communicators that partition the ranks: this rank's communicator, and the index.
struct CommFamily {
  MPI_Comm comm;
  int part;
};

struct MixedRun {
  std::uint64_t seed;
  Dice all;  ///< the same draws on all ranks of the job
  Dice own;
  std::vector<CommFamily> families;
  std::list<PendingCall> pending;
  long calls = 0, wrong = 0;
  int number_made = 0;

  void check(PendingCall& one) {
    if (!one.right()) ++wrong;
  }

  /// Every parts-th rank, in a collective call of these ranks alone.
  static MPI_Comm of_group(int part, int parts, int number) {
    std::vector<int> members;
    for (int rank = part; rank < ranks_of(MPI_COMM_WORLD); rank += parts) members.push_back(rank);
    MPI_Group world, group;
    MPI_Comm comm;
    MPI_Comm_group(MPI_COMM_WORLD, &world);
    MPI_Group_incl(world, static_cast<int>(members.size()), members.data(), &group);
#if MPI_VERSION >= 4
    const std::string name = "plait-mixes-" + std::to_string(number);
    MPI_Comm_create_from_group(group, name.c_str(), MPI_INFO_NULL, MPI_ERRORS_ARE_FATAL, &comm);
#else
    MPI_Comm_create_group(MPI_COMM_WORLD, group, number, &comm);
#endif
    MPI_Group_free(&group);
    MPI_Group_free(&world);
    return comm;
  }

  void new_family() {
    const int kind = all.below(5), parts = 2 + all.below(2);
    const auto salt = static_cast<std::uint64_t>(all.below(1 << 30));
    const int rank = rank_in(MPI_COMM_WORLD);
    CommFamily made{MPI_COMM_NULL, 0};
    if (kind < 2) {
      const CommFamily& of =
          families[static_cast<std::size_t>(all.below(static_cast<int>(families.size())))];
      MPI_Request request = MPI_REQUEST_NULL;
      if (kind == 0)
        MPI_Comm_dup(of.comm, &made.comm);
      else
        MPI_Comm_idup(of.comm, &made.comm, &request);
      MPI_Wait(&request, MPI_STATUS_IGNORE);
      made.part = of.part;
    } else if (kind == 2) {
      made.part = rank % parts;
      made.comm = of_group(made.part, parts, number_made++);
    } else {
      made.part = kind == 3 ? rank % parts
                            : static_cast<int>(mixed(salt, static_cast<std::uint64_t>(rank)) % 2);
      const int key = static_cast<int>(mixed(salt, static_cast<std::uint64_t>(rank), 7) % 100);
      MPI_Comm_split(MPI_COMM_WORLD, made.part, key, &made.comm);
    }
    families.push_back(made);
  }

  void one_call(int round) {
    const CommFamily& family =
        families[static_cast<std::size_t>(all.below(static_cast<int>(families.size())))];
    CallSetting setting;
    setting.comm = family.comm;
    setting.rank = rank_in(family.comm);
    setting.ranks = ranks_of(family.comm);
    setting.seed =
        mixed(seed, static_cast<std::uint64_t>(round), static_cast<std::uint64_t>(family.part));
    Dice common(setting.seed);
    setting.blocking = !common.one_in(3);
    setting.persistent = !setting.blocking && common.one_in(3);
    ++calls;
    PendingCall one = common.one_in(2) ? mixed_reduction(setting, common, own)
                                       : mixed_movement(setting, common, own);
    if (setting.blocking || setting.persistent)
      check(one);
    else
      pending.push_back(std::move(one));
  }

  std::vector<MPI_Request> requests() {
    std::vector<MPI_Request> all_of_them;
    for (PendingCall& one : pending) all_of_them.push_back(one.request);
    return all_of_them;
  }

  /// Removes completed calls (requests that are null).
  void take_ended(const std::vector<MPI_Request>& now) {
    auto at = pending.begin();
    for (const MPI_Request request : now) {
      at->request = request;
      if (request == MPI_REQUEST_NULL) {
        check(*at);
        at = pending.erase(at);
      } else {
        ++at;
      }
    }
  }

  void end_some(int how) {
    std::vector<MPI_Request> now = requests();
    const int count = static_cast<int>(now.size());
    if (count == 0) return;
    int index = 0, ended = 0, flag = 0;
    std::vector<int> indices(now.size());
    switch (how) {
      case 0: MPI_Wait(&now[0], MPI_STATUS_IGNORE); break;
      case 1: MPI_Waitany(count, now.data(), &index, MPI_STATUS_IGNORE); break;
      case 2: MPI_Waitsome(count, now.data(), &ended, indices.data(), MPI_STATUSES_IGNORE); break;
      case 3: MPI_Test(&now[0], &flag, MPI_STATUS_IGNORE); break;
      case 4: MPI_Testany(count, now.data(), &index, &flag, MPI_STATUS_IGNORE); break;
      case 5: MPI_Testsome(count, now.data(), &ended, indices.data(), MPI_STATUSES_IGNORE); break;
      case 6: MPI_Testall(count, now.data(), &flag, MPI_STATUSES_IGNORE); break;
      case 7:
        while (flag == 0) MPI_Request_get_status(now[0], &flag, MPI_STATUS_IGNORE);
        break;
      default: MPI_Waitall(count, now.data(), MPI_STATUSES_IGNORE);
    }
    take_ended(now);
  }

  void round(int number) {
    const int what = all.below(20);
    if (what == 0 && families.size() < 8) return new_family();
    if (what == 1 && families.size() > 2) {
      while (!pending.empty()) end_some(8);  // Open MPI's own calls do not outlive a communicator
      const auto at = 1 + all.below(static_cast<int>(families.size()) - 1);
      MPI_Comm_free(&families[static_cast<std::size_t>(at)].comm);
      families.erase(families.begin() + at);
      return;
    }
    one_call(number);
    if (pending.size() > 12 || own.one_in(4)) end_some(own.below(10));
  }
};

}  // namespace

int main(int argc, char** argv) {
  EmulatedCuda::now().begin(static_cast<std::uint64_t>(::getpid()));
  MPI_Init(&argc, &argv);
  const std::uint64_t seed = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 1;
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 100;
  const int rank = rank_in(MPI_COMM_WORLD);
  const std::string ends = argc > 3 && rank == ranks_of(MPI_COMM_WORLD) - 1 ? argv[3] : "";
  MixedRun run{seed, Dice(seed), Dice(mixed(seed, static_cast<std::uint64_t>(rank), 99)), {}, {}};
  run.families.push_back({MPI_COMM_WORLD, 0});
  run.new_family();
  for (int number = 0; number < rounds; ++number) {
    run.round(number);
    if (ends.empty() || number < rounds / 2 || run.pending.empty()) continue;
    if (ends == "abort") MPI_Abort(MPI_COMM_WORLD, 3);
    ::raise(SIGKILL);
  }
  while (!run.pending.empty()) run.end_some(8);
  const long served = calls_served();
  std::printf("{\"rank\": %d, \"calls\": %ld, \"wrong\": %ld, \"served\": %ld}\n", rank, run.calls,
              run.wrong, served);
  std::fflush(stdout);
  MPI_Finalize();
  return run.wrong == 0 ? 0 : 1;
}
