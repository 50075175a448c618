// Set-up of a communicator: join the rendezvous, compare settings, take rank 0's topology, map
// control pages. Each step reports failure before a rank waits for another: no rank is left
// waiting.
#include "comm/node/setup.hpp"

#include <unistd.h>

#include <algorithm>
#include <limits>
#include <map>
#include <mutex>

#include "base/error_reason.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "comm/bootstrap/host_name.hpp"
#include "comm/bootstrap/interrupt.hpp"
#include "comm/bootstrap/process_file.hpp"
#include "comm/bootstrap/unique_id.hpp"
#include "comm/choose/choose.hpp"
#include "comm/choose/reach.hpp"
#include "driver/cuda/api.hpp"
#include "plait/error.hpp"
#include "plan/sum_order.hpp"

namespace plait {
namespace {

std::string comma_list(const std::vector<std::string>& words) {
  std::string line;
  for (const std::string& word : words) line += (line.empty() ? "" : ",") + word;
  return line;
}

/// Settings that must be equal on all ranks, as name, value, name, value, ... The last, the pid,
/// may differ.
std::vector<std::string> settings(const CommunicatorOptions& options, const Env& env) {
  return {"arrive_s",
          text("{}", options.arrive_s),
          "deadline_s",
          text("{}", options.deadline_s),
          "topology",
          options.topology.empty() ? env.topology : options.topology,
          "masks",
          options.masks.empty() ? env.without : comma_list(options.masks),
          "PLAIT_ALGO",
          env.algo,
          "PLAIT_BITWISE",
          text("{}", is_bitwise(options, env)),
          "PLAIT_SUM_ORDER",
          name_of(order_of(options, env)),
          "device",
          options.device == kNoDevice           ? "none"
          : options.device == kDeviceByLauncher ? "by the launcher"
                                                : "given",
          "sm_budget",
          text("{}", options.sm_budget),
          "overlap_compute",
          text("{}", options.overlap_compute),
          "messages",
          text("{}", options.messages),
          "graph_mixing",
          text("{}", options.graph_mixing),
          "PLAIT_DEVICE_MEMORY",
          env.has("PLAIT_DEVICE_MEMORY") ? text("{}", env.device_memory) : "as is usual",
          "PLAIT_DEVICE_SCRATCH",
          text("{}", env.device_scratch),
          "user",
          text("{}", geteuid()),
          "boot",
          boot_id(),
          "pid",
          text("{}", getpid())};
}

/// Throws AgreedError(mismatch) if a setting differs. Returns the pids.
std::vector<int> compare_settings(const std::vector<Contribution>& all) {
  std::vector<std::vector<std::string>> shown;
  for (const Contribution& one : all) shown.push_back(unpack(one.bytes));
  std::vector<int> pids;
  for (std::size_t rank = 0; rank < shown.size(); ++rank) {
    if (shown[rank].size() != shown[0].size() || shown[rank].size() < 2)
      throw AgreedError(ErrorCode::mismatch,
                        text("rank {} sent another list of settings than rank 0", rank));
    for (std::size_t i = 0; i + 2 < shown[0].size(); i += 2)
      if (shown[rank][i + 1] != shown[0][i + 1])
        throw AgreedError(ErrorCode::mismatch,
                          text("{}: rank 0 has '{}', rank {} has '{}'", shown[0][i],
                               shown[0][i + 1], rank, shown[rank][i + 1]));
    pids.push_back(static_cast<int>(parse_integer("pid", shown[rank].back(), 0, 1 << 30)));
  }
  return pids;
}

void check_options(const CommunicatorOptions& options) {
  if (options.ranks < 1)
    throw Error(ErrorCode::invalid_argument,
                text("ranks: wanted 1..{}, found {}", kMostRanks, options.ranks));
  if (options.ranks > kMostRanks)
    throw Error(ErrorCode::unsupported,
                text("ranks: wanted 1..{}, all on one host, found {}", kMostRanks, options.ranks));
  if (options.rank < 0 || options.rank >= options.ranks)
    throw Error(ErrorCode::invalid_argument,
                text("rank: wanted 0..{}, found {}", options.ranks - 1, options.rank));
  if (!options.unique_id.empty()) static_cast<void>(parse_unique_id(options.unique_id));
  if (!options.unique_id.empty() && !options.rendezvous.empty())
    throw Error(ErrorCode::invalid_argument,
                "rendezvous and unique_id both name the place where ranks join: give one of them");
  if (options.device < kDeviceByLauncher)
    throw Error(ErrorCode::invalid_argument,
                text("device: wanted a CUDA ordinal or -1, found {}", options.device));
  if (options.sm_budget < 0)
    throw Error(ErrorCode::invalid_argument,
                text("sm_budget: wanted 0 or more blocks, found {}", options.sm_budget));
  require_deadlines(options.arrive_s, options.deadline_s);
}

/// Numbers this process's communicators of a rank and id (or of the job, without an id) in the
/// order of creation, the same on all ranks. An attempt without all ranks gives its number back: a
/// late rank has made fewer attempts than the ranks that waited.
class CommunicatorNumber {
 public:
  explicit CommunicatorNumber(const CommunicatorOptions& options)
      : key_(options.unique_id, options.rank) {}
  int take() {
    const std::lock_guard lock(guard());
    taken_ = counts()[key_]++;
    return taken_;
  }
  void give_back() {
    const std::lock_guard lock(guard());
    if (taken_ >= 0 && counts()[key_] == taken_ + 1) --counts()[key_];
  }

 private:
  using Key = std::pair<std::string, int>;
  static std::mutex& guard() {
    static auto* const one = new std::mutex;
    return *one;
  }
  static std::map<Key, int>& counts() {
    static auto* const one = new std::map<Key, int>;
    return *one;
  }
  const Key key_;
  int taken_ = -1;  ///< -1 = none
};

/// Returns the rendezvous address if the caller gives none.
std::string rendezvous_address(const CommunicatorOptions& options, const Env& env,
                               CommunicatorNumber& number) {
  if (!options.rendezvous.empty() || options.ranks == 1) return options.rendezvous;
  if (!options.unique_id.empty())
    return text("unix:{}/id-{}-{}", rendezvous_folder(), parse_unique_id(options.unique_id).word,
                number.take());
  const bool place = env.rendezvous.rfind("unix:", 0) == 0 || env.rendezvous.rfind("fd:", 0) == 0;
  if (place) return env.rendezvous;
  if (const std::string why = why_not_one_host(env, options.ranks); !why.empty())
    throw Error(ErrorCode::unsupported, why);
  return derived_rendezvous(env, number.take());
}

/// Returns the launcher's job. Ranks compare jobs at a rendezvous named by the environment, to
/// detect two jobs at the same address. Empty if the program names the rendezvous, since the
/// address then belongs to this communicator alone. Empty if PLAIT_RANKS is set, since the
/// launcher's variables may then describe something else.
std::string job_shown(const CommunicatorOptions& options, const Env& env) {
  const bool is_named = !options.rendezvous.empty() && options.rendezvous != env.rendezvous;
  return is_named || !options.unique_id.empty() || env.ranks >= 0 ? std::string() : launcher_job();
}

/// Joins the peers at rendezvous_address().
std::unique_ptr<Rendezvous> bootstrap_numbered(const CommunicatorOptions& options, const Env& env,
                                               CommunicatorNumber& number, const Deadline& deadline,
                                               double warn_after_s) {
  try {
    return bootstrap(rendezvous_address(options, env, number), options.rank, options.ranks,
                     deadline, warn_after_s, job_shown(options, env));
  } catch (...) {
    number.give_back();
    throw;
  }
}

/// Returns the ranks' first records. Gives the number back if a peer failed: a peer that failed
/// between rank 0's answer and the vote has given its number back. Ranks above 0 keep the number
/// after a failure of their own in the vote, since rank 0 answers the rest.
std::vector<Contribution> first_vote(Rendezvous& rendezvous, int rank, CommunicatorNumber& number,
                                     const std::optional<Error>& trouble, const std::string& record,
                                     const std::vector<int>& fds, const Deadline& deadline) {
  try {
    return vote(rendezvous, trouble, record, fds, deadline);
  } catch (const AgreedError&) {
    throw;
  } catch (const Error& error) {
    const bool is_of_peer = error.code() == ErrorCode::peer_lost || names_reporter(error.what());
    if (rank == 0 || is_of_peer) number.give_back();
    throw;
  }
}

/// True if the communicator has a GPU: masks then apply to links between GPUs (GpuSide).
bool has_gpu(const CommunicatorOptions& options) {
  return options.device >= 0 || (options.device == kDeviceByLauncher && cuda::device_count() > 0);
}

/// Returns the topology as JSON. Only rank 0's counts, since measured speeds differ from rank to
/// rank.
std::string topology_json(const CommunicatorOptions& options, const Env& env) {
  const std::string name = options.topology.empty() ? env.topology : options.topology;
  std::vector<std::string> masks = requested_masks(options.masks, env);
  if (name.empty() && !masks.empty() && has_gpu(options)) masks = masks_of(masks, true);
  // Ranks' buffers are host memory, so the machine's shared memory links the ranks.
  Topology topology =
      name.empty() || name == "local-cpu" ? local_cpu(options.ranks) : load_topology(name);
  if (!masks.empty()) topology = without(topology, masks);
  const std::size_t devices = rank_devices(topology).size();
  if (devices < static_cast<std::size_t>(options.ranks))
    throw Error(ErrorCode::invalid_argument,
                text("topology {}: wanted devices for {} ranks, found {}", topology.name,
                     options.ranks, devices));
  return to_json(topology);
}

void set_log_once(const Env& env) {
  static std::mutex mutex;
  static std::string current;
  const std::lock_guard lock(mutex);
  const std::string wanted = env.debug + '\n' + env.debug_file;
  if (wanted == current) return;
  set_log(env.debug, env.debug_file);
  current = wanted;
}

}  // namespace

SumOrder order_of(const CommunicatorOptions& options, const Env& env) {
  if (!options.sum_order.empty()) return parse_sum_order("sum_order", options.sum_order);
  return demanded_order(env);
}

bool is_bitwise(const CommunicatorOptions& options, const Env& env) {
  return env.bitwise || options.bitwise || !options.sum_order.empty();
}

void require_deadlines(double arrive_s, double deadline_s) {
  for (const double seconds : {arrive_s, deadline_s})
    if (!(seconds > 0.0) || seconds > 1e9)
      throw Error(ErrorCode::invalid_argument,
                  text("arrive_s and deadline_s: wanted seconds above 0, at most 1e9, found {}",
                       seconds));
}

std::vector<Contribution> vote(Rendezvous& rendezvous, const std::optional<Error>& failure,
                               const std::string& bytes, const std::vector<int>& fds,
                               const Deadline& deadline) {
  std::vector<Contribution> all = rendezvous.allgather(encode_vote(failure, bytes), fds, deadline);
  for (std::size_t rank = 0; rank < all.size(); ++rank)
    all[rank].bytes = decode_vote(all[rank].bytes, text("rank {}", rank));
  return all;
}

std::vector<Mapping> share_memory(Rendezvous& rendezvous, int rank, int ranks, std::uint64_t bytes,
                                  const Deadline& deadline) {
  Fd mine;
  std::optional<Error> failure = attempt([&] { mine = make_shared_memory(bytes, ranks - 1); });
  std::vector<int> fds;
  if (mine.valid()) fds.push_back(mine.get());
  const std::vector<Contribution> all = vote(rendezvous, failure, "", fds, deadline);
  std::vector<Mapping> mappings(ranks);
  failure = attempt([&] {
    for (int peer = 0; peer < ranks; ++peer) {
      if (all[peer].fds.size() != 1)
        throw Error(ErrorCode::mismatch,
                    text("rank {} sent {} descriptors, wanted 1", peer, all[peer].fds.size()));
      mappings[peer] = map_shared_memory(peer == rank ? mine : all[peer].fds[0], bytes);
    }
  });
  vote(rendezvous, failure, "", {}, deadline);
  return mappings;
}

PairOf pair_of(const Joined& joined, int rank, int peer) {
  const int lower = std::min(rank, peer), upper = std::max(rank, peer);
  const std::vector<int> devices = rank_devices(joined.topology);
  PairOf pair;
  pair.ranks = {lower, upper};
  pair.topology = joined.topology;
  for (const int one : pair.ranks)
    pair.devices.push_back(devices.at(static_cast<std::size_t>(one)));
  pair.rendezvous = text("unix:{}/{}-{}-{}", rendezvous_folder(), joined.name, lower, upper);
  return pair;
}

CommunicatorOptions pair_options(const CommunicatorOptions& whole, const PairOf& pair) {
  CommunicatorOptions made = whole;
  made.rank = whole.rank == pair.ranks[0] ? 0 : 1;
  made.ranks = 2;
  made.rendezvous = pair.rendezvous;
  made.unique_id.clear();
  made.device = pair.device;
  made.sm_budget = pair.sm_budget;
  made.messages = false;
  return made;
}

Joined join(const CommunicatorOptions& options, const PairOf* pair) {
  // Another library's message may be stuck in this rank while peers wait for the message, so the
  // program's `meanwhile` runs during the wait.
  std::function<void()> look = pair == nullptr ? nullptr : pair->check;
  if (pair == nullptr && (options.meanwhile || options.interrupt))
    look = [&options, ask = now_and_then(options.interrupt)] {
      if (options.meanwhile) options.meanwhile();
      if (ask) ask();
    };
  const Deadline deadline{deadline_in(options.arrive_s > 0 ? options.arrive_s : 1.0), look};
  Env env;
  std::optional<Error> failure = attempt([&] {
    env = read_env();
    set_log_once(env);
    check_options(options);
  });
  const bool is_a_rank = options.rank >= 0 && options.rank < options.ranks;
  if (failure && (options.ranks < 2 || options.ranks > kMostRanks || !is_a_rank))
    throw Error(*failure);  // no rank to report to, or the place of no rank to report from
  if (failure)
    env.rendezvous = foreign_env("PLAIT_RENDEZVOUS");  // the peers wait there for this rank's error
  Joined joined;
  // The two ranks of a pair have other numbers in the larger communicator. pairs.cpp warns with
  // those numbers.
  const double warn_after_s =
      pair == nullptr ? wait_warning_s() : std::numeric_limits<double>::infinity();
  CommunicatorNumber number(options);
  joined.rendezvous = bootstrap_numbered(options, env, number, deadline, warn_after_s);
  Fd process;
  std::string topology, record;
  const std::optional<Error> trouble = attempt([&] {
    if (failure) throw Error(failure->code(), reason_of(*failure));
    record = pack(settings(options, env));
    process = open_own_process();
    joined.forced = parse_algo("PLAIT_ALGO", env.algo);
  });
  std::vector<int> fds;
  if (process.valid()) fds.push_back(process.get());
  std::vector<Contribution> hello =
      first_vote(*joined.rendezvous, options.rank, number, trouble, record, fds, deadline);
  const std::vector<int> pids = compare_settings(hello);
  for (int rank = 0; rank < options.ranks; ++rank) {
    if (hello[rank].fds.size() != 1)
      throw Error(ErrorCode::mismatch, text("rank {} sent no pid descriptor", rank));
    if (rank != options.rank)
      joined.peers.push_back({rank, pids[rank], std::move(hello[rank].fds[0])});
  }
  failure = attempt([&] {
    if (options.rank != 0) return;
    topology = pair == nullptr ? topology_json(options, env) : to_json(pair->topology);
  });
  const std::string shown =
      vote(*joined.rendezvous, failure, pack({topology, unique_token()}), {}, deadline)[0].bytes;
  const std::vector<std::string> of_rank_0 = unpack(shown);
  if (of_rank_0.size() != 2)
    throw Error(ErrorCode::parse_error,
                "set-up record of rank 0 is malformed: wanted topology and name");
  joined.topology = topology_from_json(of_rank_0[0]);
  joined.name = of_rank_0[1];
  joined.bitwise = is_bitwise(options, env);
  joined.sum_order = order_of(options, env);
  std::vector<Mapping> pages =
      share_memory(*joined.rendezvous, options.rank, options.ranks, kControlBytes, deadline);
  Controls::prepare(pages[options.rank], options.rank);
  vote(*joined.rendezvous, std::nullopt, "", {},
       deadline);  // all headers are written before any is read
  for (int rank = 0; rank < options.ranks; ++rank) Controls::check(pages[rank], rank);
  joined.controls = Controls(options.rank, std::move(pages));
  return joined;
}

}  // namespace plait
