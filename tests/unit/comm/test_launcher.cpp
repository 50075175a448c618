// Launchers' environments -> rank, ranks and a meeting place that is one job's own.
#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>

#include "comm/rendezvous.hpp"
#include "folder.hpp"
#include "plait/communicator.hpp"
#include "plait/error.hpp"

using namespace plait;

namespace {

using Values = std::vector<std::pair<const char*, const char*>>;

/// Variables set for one scope.
class Setting {
 public:
  explicit Setting(const Values& values) : values_(values) {
    for (const auto& [name, value] : values_) setenv(name, value, 1);
  }
  ~Setting() {
    for (const auto& [name, value] : values_) unsetenv(name);
  }

 private:
  Values values_;
};

}  // namespace

TEST_CASE("rank and ranks come from the launcher, in a fixed order, PLAIT_* on top") {
  const Setting slurm(Values{{"SLURM_PROCID", "5"}, {"SLURM_NTASKS", "6"}});
  CHECK(options_from_environment().rank == 5);
  const Setting mpirun(Values{{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}});
  CHECK(options_from_environment().ranks == 2);
  const Setting torchrun(Values{{"RANK", "2"}, {"WORLD_SIZE", "4"}});
  CHECK(options_from_environment().rank == 2);
  CHECK(options_from_environment().ranks == 4);
  const Setting own(Values{{"PLAIT_RANK", "0"},
                           {"PLAIT_RANKS", "3"},
                           {"PLAIT_DEADLINE_S", "2.5"},
                           {"PLAIT_WITHOUT", "nvlink:0-1,host:0"},
                           {"PLAIT_RENDEZVOUS", "fd:7,8"}});
  const CommunicatorOptions options = options_from_environment();
  CHECK(options.rank == 0);
  CHECK(options.ranks == 3);
  CHECK(options.deadline_s == 2.5);
  CHECK(options.masks == std::vector<std::string>{"nvlink:0-1", "host:0"});
  CHECK(options.rendezvous == "fd:7,8");
}

TEST_CASE("a rank outside its job, and values that are no numbers, are refused") {
  {
    const Setting wrong(Values{{"RANK", "4"}, {"WORLD_SIZE", "4"}});
    CHECK_THROWS_AS(options_from_environment(), Error);
  }
  const Setting wrong(Values{{"RANK", "one"}, {"WORLD_SIZE", "4"}});
  CHECK_THROWS_AS(options_from_environment(), Error);
}

TEST_CASE("the meeting place is this job's, this communicator's, and in a private folder") {
  TestFolder runtime;
  const Setting place(Values{{"XDG_RUNTIME_DIR", runtime.path().c_str()}});
  Env env;
  const Setting job(Values{{"MASTER_ADDR", "node1"}, {"MASTER_PORT", "29500"}});
  const std::string first = derived_rendezvous(env, 0);
  CHECK(first == derived_rendezvous(env, 0));
  CHECK(first != derived_rendezvous(env, 1));
  CHECK(first.rfind("unix:" + runtime.path() + "/plait/job-", 0) == 0);
  {
    const Setting other(Values{{"MASTER_PORT", "29501"}});
    CHECK(derived_rendezvous(env, 0) != first);
  }
  env.rendezvous = "a-name";
  CHECK(derived_rendezvous(env, 0) != first);
  struct stat status{};
  REQUIRE(stat((runtime.path() + "/plait").c_str(), &status) == 0);
  CHECK((status.st_mode & 0777) == 0700);
  rmdir((runtime.path() + "/plait").c_str());
}

TEST_CASE("a runtime folder that others can enter is not used") {
  TestFolder runtime;
  REQUIRE(chmod(runtime.path().c_str(), 0755) == 0);
  const Setting place(Values{{"XDG_RUNTIME_DIR", runtime.path().c_str()}});
  CHECK(rendezvous_folder() == "/tmp/plait-" + std::to_string(geteuid()));
}
