// Tests that launchers' environments give rank, ranks and a rendezvous address of a single job.
#include <doctest/doctest.h>
#include <sched.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

#include "comm/bootstrap/rendezvous.hpp"
#include "plait/communicator.hpp"
#include "plait/error.hpp"
#include "unit/folder.hpp"

using namespace plait;

namespace {

using Values = std::vector<std::pair<const char*, const char*>>;

/// Sets variables for a scope.
class ScopedEnvironment {
 public:
  explicit ScopedEnvironment(const Values& values) : values_(values) {
    for (const auto& [name, value] : values_) setenv(name, value, 1);
  }
  ~ScopedEnvironment() {
    for (const auto& [name, value] : values_) unsetenv(name);
  }

 private:
  Values values_;
};

/// Returns derived_rendezvous() of a child process of this process. apart: new namespaces of the
/// child (CLONE_NEW*). Empty if the system forbids namespaces.
std::string derived_in_child(const Env& env = {}, int apart = 0) {
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    if (apart != 0 && unshare(CLONE_NEWUSER | apart) != 0) _exit(0);
    const std::string name = derived_rendezvous(env, 0);
    _exit(write(ends[1], name.data(), name.size()) == static_cast<ssize_t>(name.size()) ? 0 : 1);
  }
  close(ends[1]);
  char name[256];
  const ssize_t bytes = read(ends[0], name, sizeof(name));
  close(ends[0]);
  waitpid(child, nullptr, 0);
  return std::string(name, bytes > 0 ? static_cast<std::size_t>(bytes) : 0);
}

}  // namespace

TEST_CASE("rank and ranks come from the launcher that started the process, PLAIT_* on top") {
  // This process sets all variables itself, hence no launcher is nearer than another.
  const ScopedEnvironment slurm(Values{{"SLURM_PROCID", "5"}, {"SLURM_NTASKS", "6"}});
  CHECK(options_from_environment().rank == 5);
  const ScopedEnvironment mpirun(
      Values{{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}});
  CHECK(options_from_environment().ranks == 2);  // mpirun runs inside Slurm
  {
    const ScopedEnvironment pod(Values{{"RANK", "0"}, {"WORLD_SIZE", "1"}});  // no LOCAL_WORLD_SIZE
    CHECK(options_from_environment().ranks == 2);
  }
  const ScopedEnvironment torchrun(
      Values{{"RANK", "2"}, {"WORLD_SIZE", "4"}, {"LOCAL_WORLD_SIZE", "4"}});
  try {
    options_from_environment();
    FAIL("two launchers' words");
  } catch (const Error& error) {
    const std::string found = error.what();
    CAPTURE(found);
    CHECK(found.find("torchrun says rank 2 of 4 (RANK, WORLD_SIZE), Open MPI says rank 1 of 2 (") !=
          std::string::npos);
    CHECK(found.find("set PLAIT_RANK and PLAIT_RANKS") != std::string::npos);
  }
  const ScopedEnvironment own(Values{{"PLAIT_RANK", "0"},
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
    const ScopedEnvironment wrong(Values{{"RANK", "4"}, {"WORLD_SIZE", "4"}});
    CHECK_THROWS_AS(options_from_environment(), Error);
  }
  const ScopedEnvironment wrong(Values{{"RANK", "one"}, {"WORLD_SIZE", "4"}});
  CHECK_THROWS_AS(options_from_environment(), Error);
}

TEST_CASE("ranks that their launcher has put on several hosts are refused, and no others") {
  const auto refusal = [](const Values& values, int ranks) {
    const ScopedEnvironment job(values);
    try {
      if (const std::string why = why_not_one_host(read_env(), ranks); !why.empty())
        throw Error(ErrorCode::unsupported, why);
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::unsupported);
      return std::string(error.what());
    }
    return std::string();
  };
  const auto with = [](Values values, const Values& more) {
    values.insert(values.end(), more.begin(), more.end());
    return values;
  };
  const Values torchrun = {{"RANK", "1"}, {"WORLD_SIZE", "4"}};
  const Values mpirun = {{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "4"}};
  const Values hydra = {{"PMI_RANK", "1"}, {"PMI_SIZE", "4"}};
  const Values slurm = {{"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "4"}};
  const Values two_here = {{"SLURM_NNODES", "2"}, {"SLURM_TASKS_PER_NODE", "2(x2)"}};
  const Values uneven = {
      {"SLURM_NNODES", "2"}, {"SLURM_TASKS_PER_NODE", "3,1"}, {"SLURM_NODEID", "1"}};
  for (const auto& [values, said] : std::vector<std::pair<Values, std::string>>{
           {with(torchrun, {{"LOCAL_WORLD_SIZE", "2"}}), "found 2 of 4 on this one (LOCAL_WORLD"},
           {with(mpirun, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "3"}}), "found 3 of 4"},
           {with(hydra, {{"MPI_LOCALNRANKS", "1"}}), "found 1 of 4"},
           {with(slurm, two_here), "found 2 of 4 on this one (SLURM_TASKS_PER_NODE=2(x2))"},
           {with(slurm, uneven), "found 1 of 4"},
           {with(slurm, {{"SLURM_NNODES", "3"}}), "found 2 of 4"},  // upper bound
           {with(slurm, {{"SLURM_STEP_NUM_NODES", "2"},
                         {"SLURM_STEP_TASKS_PER_NODE", "1,3"},
                         {"SLURM_TASKS_PER_NODE", "8(x9)"}}),
            "found 1 of 4"},
           {with(with(hydra, slurm), two_here), "found 2 of 4"},
           {with(with(torchrun, slurm), two_here), "found 2 of 4"}}) {
    const std::string found = refusal(values, 4);
    CAPTURE(found);
    CHECK(found.find(said) != std::string::npos);
    CHECK(found.find("at most 16") != std::string::npos);
    CHECK(refusal(values, 3) == "");  // not the launcher's ranks: the caller knows the hosts
    const Values own = {{"PLAIT_RANK", "1"}, {"PLAIT_RANKS", "4"}};
    CHECK(refusal(with(values, own), 4) == "");  // for example a Slurm batch step that starts ranks
  }
  for (const Values& one_host :
       {Values{}, torchrun, with(torchrun, {{"LOCAL_WORLD_SIZE", "4"}}),
        with(torchrun, {{"LOCAL_WORLD_SIZE", "some"}}),
        with(mpirun, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}}),
        with(mpirun, {{"SLURM_NNODES", "2"}, {"SLURM_NTASKS", "2"}}),
        with(hydra, {{"MPI_LOCALNRANKS", "4"}}), slurm, with(slurm, {{"SLURM_NNODES", "1"}}),
        with(slurm, {{"SLURM_NNODES", "2"}, {"SLURM_STEP_NUM_NODES", "1"}}),
        with(with(torchrun, {{"LOCAL_WORLD_SIZE", "4"}}), two_here)})
    CHECK(refusal(one_host, 4) == "");
}

TEST_CASE("the rendezvous address is this job's, this communicator's, and in a private folder") {
  TestFolder runtime;
  const ScopedEnvironment place(Values{{"XDG_RUNTIME_DIR", runtime.path().c_str()}});
  Env env;
  const ScopedEnvironment job(Values{{"MASTER_ADDR", "node1"}, {"MASTER_PORT", "29500"}});
  const std::string first = derived_rendezvous(env, 0);
  CHECK(first == derived_rendezvous(env, 0));
  CHECK(first != derived_rendezvous(env, 1));
  CHECK(first.rfind("unix:" + runtime.path() + "/plait/job-", 0) == 0);
  {
    const ScopedEnvironment other(Values{{"MASTER_PORT", "29501"}});
    CHECK(derived_rendezvous(env, 0) != first);
  }
  env.rendezvous = "a-name";
  const std::string named = derived_rendezvous(env, 0);
  CHECK(named != first);
  {
    const ScopedEnvironment other(Values{{"MASTER_PORT", "29501"}});
    CHECK(derived_rendezvous(env, 0) == named);  // by the name alone, as in several containers
  }
  struct stat status{};
  REQUIRE(stat((runtime.path() + "/plait").c_str(), &status) == 0);
  CHECK((status.st_mode & 0777) == 0700);
  rmdir((runtime.path() + "/plait").c_str());
}

TEST_CASE("ranks with different parents get one address if the launcher names the job, else not") {
  TestFolder runtime;
  const ScopedEnvironment place(Values{{"XDG_RUNTIME_DIR", runtime.path().c_str()}});
  const auto same_rendezvous = [](const Values& values) {
    const ScopedEnvironment job(values);
    const std::string here = derived_rendezvous(Env(), 0);
    CHECK(here.find("/job-") != std::string::npos);
    CHECK(derived_rendezvous(Env(), 0) == here);
    return here == derived_in_child();
  };
  const Values torchrun = {{"RANK", "0"}, {"WORLD_SIZE", "2"}};
  const Values mpirun = {{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "2"}};
  const Values hydra = {{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}};
  const Values slurm = {{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "2"}};
  const auto with = [](Values values, const Values& more) {
    values.insert(values.end(), more.begin(), more.end());
    return values;
  };
  CHECK(
      same_rendezvous(with(torchrun, {{"TORCHELASTIC_RUN_ID", "none"}, {"MASTER_PORT", "29500"}})));
  CHECK(same_rendezvous(with(mpirun, {{"PMIX_NAMESPACE", "prterun-host-7@1"}})));
  CHECK(same_rendezvous(with(mpirun, {{"OMPI_MCA_ess_base_jobid", "7"}})));
  CHECK(same_rendezvous(with(hydra, {{"PMI_PORT", "host:7"}})));
  CHECK(same_rendezvous(with(slurm, {{"SLURM_JOB_ID", "7"}, {"SLURM_STEP_ID", "0"}})));
  // Nothing, or too little, identifies the job: then only a common parent does.
  CHECK_FALSE(same_rendezvous({}));
  CHECK_FALSE(same_rendezvous(torchrun));
  CHECK_FALSE(same_rendezvous(with(torchrun, {{"TORCHELASTIC_RUN_ID", "none"}})));
  CHECK_FALSE(same_rendezvous(hydra));
  CHECK_FALSE(same_rendezvous(with(slurm, {{"SLURM_JOB_ID", "7"}})));
  CHECK_FALSE(same_rendezvous(with(mpirun, {{"SLURM_JOB_ID", "7"}, {"SLURM_STEP_ID", "0"}})));
  rmdir((runtime.path() + "/plait").c_str());
}

TEST_CASE("two containers that share the folder have different rendezvous addresses") {
  TestFolder runtime;
  const ScopedEnvironment place(Values{{"XDG_RUNTIME_DIR", runtime.path().c_str()}});
  const auto same_rendezvous = [](const Values& values, int apart, const Env& env = {}) {
    const ScopedEnvironment job(values);
    const std::string there = derived_in_child(env, apart);
    if (there.empty()) MESSAGE("left out: this machine lets nobody make namespaces");
    return there.empty() ? std::string("unknown")
                         : std::string(there == derived_rendezvous(env, 0) ? "yes" : "no");
  };
  const auto is = [](const std::string& found, const std::string& wanted) {
    return found == wanted || found == "unknown";
  };
  const Values here = {{"RANK", "0"},
                       {"WORLD_SIZE", "2"},
                       {"LOCAL_WORLD_SIZE", "2"},
                       {"MASTER_ADDR", "127.0.0.1"},
                       {"MASTER_PORT", "29500"}};
  CHECK(is(same_rendezvous(here, CLONE_NEWNS), "yes"));
  CHECK(is(same_rendezvous(here, CLONE_NEWNET), "no"));  // the port there differs
  Values far = here;
  far[3].second = "node1";
  CHECK(is(same_rendezvous(far, CLONE_NEWNET), "yes"));
  Env env;
  env.rendezvous = "a-name";
  CHECK(is(same_rendezvous(here, CLONE_NEWNET, env), "yes"));
  const Values daemon = {{"OMPI_COMM_WORLD_RANK", "0"},
                         {"OMPI_COMM_WORLD_SIZE", "2"},
                         {"PMIX_NAMESPACE", "prterun-host-7@1"},
                         {"PMIX_SERVER_URI41", "prterun-host-7@0.0;tcp4://127.0.0.1:41001"}};
  const ScopedEnvironment one(daemon);
  const std::string first = derived_rendezvous(Env(), 0);
  const ScopedEnvironment other(
      Values{{"PMIX_SERVER_URI41", "prterun-host-7@0.0;tcp4://127.0.0.1:41002"}});
  CHECK(derived_rendezvous(Env(), 0) != first);
  rmdir((runtime.path() + "/plait").c_str());
}

TEST_CASE("a runtime folder that others can enter, or that is too long, is not used") {
  const std::string usual = "/tmp/plait-" + std::to_string(geteuid());
  TestFolder runtime;
  {
    REQUIRE(chmod(runtime.path().c_str(), 0755) == 0);
    const ScopedEnvironment place(Values{{"XDG_RUNTIME_DIR", runtime.path().c_str()}});
    CHECK(rendezvous_folder() == usual);
    CHECK(choose_rendezvous_folder().why_not_runtime.find("not a private folder") !=
          std::string::npos);
    REQUIRE(chmod(runtime.path().c_str(), 0700) == 0);
    CHECK(choose_rendezvous_folder().why_not_runtime == "");
  }
  const std::string deep = runtime.path() + "/" + std::string(60, 'x');
  REQUIRE(mkdir(deep.c_str(), 0700) == 0);
  const ScopedEnvironment place(Values{{"XDG_RUNTIME_DIR", deep.c_str()}});
  CHECK(rendezvous_folder() == usual);
  CHECK(choose_rendezvous_folder().why_not_runtime.find("too long for the path of a socket") !=
        std::string::npos);
  rmdir(deep.c_str());
}
