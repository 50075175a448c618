// Translates queued work into ops on lanes: addresses become regions, flags of memory become flags
// of the plan, and events become flags of the rank itself.
#include "gpu/copy/plan_queue.hpp"

#include <algorithm>

#include "base/text.hpp"
#include "gpu/copy/copy_memory.hpp"
#include "gpu/tile/tile_memory.hpp"
#include "plait/error.hpp"
#include "topo/pair_paths.hpp"

namespace plait::cuda {
namespace {

// Layout of a symbolic address: space, rank, offset.
constexpr unsigned kRankShift = 41, kSpaceShift = 45;
static_assert(1u << (kSpaceShift - kRankShift) >= kMaxCudaRanks);

char* symbol(Space space, int rank, std::uint64_t offset) {
  const auto kind = static_cast<std::uint64_t>(space) + 1;
  return reinterpret_cast<char*>(kind << kSpaceShift |
                                 static_cast<std::uint64_t>(rank) << kRankShift | offset);
}

template <class Handle>
Handle handle(std::size_t number) {
  return reinterpret_cast<Handle>(static_cast<std::uintptr_t>(16 * (number + 1)));
}

template <class Handle>
std::vector<Handle> handles(std::size_t first, std::size_t count) {
  std::vector<Handle> made;
  for (std::size_t i = 0; i < count; ++i) made.push_back(handle<Handle>(first + i));
  return made;
}

constexpr std::size_t kHome = 1000, kFork = 1001, kHostHandles = 500;

std::string lane_name(Stream stream) {
  if (stream == PlanBook::home()) return kHomeLane;
  const auto number = reinterpret_cast<std::uintptr_t>(stream) / 16 - 1;
  return number < kHostHandles ? text("stream {}", number) : text("host {}", number - kHostHandles);
}

int index_in(const void* at, const void* base) {
  const auto apart = static_cast<const char*>(at) - static_cast<const char*>(base);
  return static_cast<int>(apart / static_cast<std::ptrdiff_t>(sizeof(std::uint32_t)));
}

bool is_within(const void* at, const void* base, std::size_t bytes) {
  const auto here = reinterpret_cast<std::uintptr_t>(at);
  const auto from = reinterpret_cast<std::uintptr_t>(base);
  return here >= from && here < from + bytes;
}

}  // namespace

Stream PlanBook::home() { return handle<Stream>(kHome); }
Event PlanBook::fork() { return handle<Event>(kFork); }
EngineQueue& PlanBook::queue(int rank) { return *queues_[static_cast<std::size_t>(rank)]; }
PlanBook::~PlanBook() = default;

PlanBook::PlanBook(const Topology& topology, const Request& request, const Group& group)
    : topology_(topology) {
  plan_.request = request;
  plan_.topology = topology.name;
  const auto ranks = static_cast<std::size_t>(request.ranks);
  plan_.scratch_bytes.assign(ranks, group.sizes[kTileMemory] + inbox_bytes(group) +
                                        group.sizes[kChunkStaging] + group.sizes[kLongInbox]);
  plan_.inbox_bytes.assign(ranks, 0);
  plan_.ring_bytes.assign(ranks, group.host_bytes);
  plan_.enqueued.resize(ranks);
  for (int rank = 0; rank < request.ranks; ++rank) {
    flags_.push_back(std::make_unique<EngineFlags>());
    queues_.push_back(std::make_unique<PlanQueue>(*this, rank));
    path_.flags.push_back(flags_.back().get());
    path_.slots.push_back(symbol(Space::scratch, rank, group.sizes[kTileMemory]));
    path_.borrowed.push_back(symbol(Space::scratch, rank, 0));
    path_.staging.push_back(
        symbol(Space::scratch, rank, group.sizes[kTileMemory] + inbox_bytes(group)));
    path_.long_slots.push_back(
        symbol(Space::scratch, rank,
               group.sizes[kTileMemory] + inbox_bytes(group) + group.sizes[kChunkStaging]));
    path_.rings.push_back(symbol(Space::ring, rank, 0));
  }
  path_.host_rings = path_.rings;
  path_.host_flags = &host_flags_;
  path_.slot_bytes = slot_bytes(group);
  path_.inbox_bytes = inbox_bytes(group);
  path_.borrowed_bytes = borrowed_bytes(group);
  path_.ring_bytes = group.host_bytes;
  path_.streams = handles<Stream>(0, kEngineStreams);
  path_.events = handles<Event>(0, kEngineEvents);
  path_.host_streams = handles<Stream>(kHostHandles, kHostStreams);
  path_.host_events = handles<Event>(kHostHandles, kHostEvents);
  path_.blocks = 1;
  path_.moving_blocks = blocks_that_move(group);
}

CallArgs PlanBook::call(int rank) const {
  CallArgs args{};
  args.input = symbol(Space::input, rank, 0);
  args.output = symbol(Space::output, rank, 0);
  std::fill(std::begin(args.scalars), std::end(args.scalars), 1.0);
  args.rank = rank;
  args.ranks = plan_.request.ranks;
  args.op = static_cast<std::int32_t>(plan_.request.op);
  return args;
}

void PlanBook::stripe(const std::string& route, std::uint64_t from, std::uint64_t bytes) {
  if (bytes != 0) plan_.stripes.push_back({route, from, bytes});
}

// ---- lanes and ops

std::size_t PlanBook::lane(int rank, const std::string& name, LaneKind kind) {
  const auto [entry, is_new] = lane_of_.try_emplace({rank, name}, plan_.lanes.size());
  if (is_new) plan_.lanes.push_back({rank, kind, name, {}});
  return entry->second;
}

std::size_t PlanBook::lane(int rank, Stream stream) {
  return lane(rank, lane_name(stream), LaneKind::kernel);
}

Op& PlanBook::append(std::size_t lane, OpKind kind) {
  Lane& to = plan_.lanes[lane];
  if (to.kind != LaneKind::cpu && !inside_.contains(lane))
    plan_.enqueued[static_cast<std::size_t>(to.rank)].push_back(static_cast<int>(lane));
  Op& op = to.ops.emplace_back();
  op.kind = kind;
  return op;
}

Region PlanBook::region(const void* at, std::uint64_t bytes) const {
  const auto address = reinterpret_cast<std::uintptr_t>(at);
  constexpr std::uintptr_t kRanks = (1u << (kSpaceShift - kRankShift)) - 1;
  return {static_cast<Space>((address >> kSpaceShift) - 1),
          static_cast<int>(address >> kRankShift & kRanks),
          address & ((std::uintptr_t{1} << kRankShift) - 1), bytes};
}

int PlanBook::path_index(const Path& path) {
  const auto [entry, is_new] =
      path_of_.try_emplace(path.name, static_cast<int>(plan_.paths.size()));
  if (is_new) plan_.paths.push_back(path);
  return entry->second;
}

/// A ring lies on a path between two GPUs through host memory: the way down is the first hop, the
/// way up is the last. A copy engine reads a ring of another NUMA node over the bus in one copy.
int PlanBook::path_between(const Region& dst, const Region& src, int& hop) {
  const auto device = [&](int rank) {
    return plan_.request.devices[static_cast<std::size_t>(rank)];
  };
  const int ranks = plan_.request.ranks;
  const bool goes_down = dst.space == Space::ring, goes_up = src.space == Space::ring;
  int from = src.rank, to = dst.rank;
  if (goes_down && from == to) to = (from + 1) % ranks;
  if (goes_up && from == to) from = (to + 1) % ranks;
  const Path path = goes_down || goes_up ? any_host_path(topology_, device(from), device(to))
                                         : direct_path(topology_, device(from), device(to));
  hop = goes_up ? static_cast<int>(path.links.size()) - 1 : 0;
  return path_index(path);
}

void PlanBook::put_copy(std::size_t lane, const Region& dst, const Region& src) {
  Op& op = append(lane, OpKind::copy);
  op.dst = dst;
  op.srcs = {src};
  const bool is_local =
      dst.rank == src.rank && dst.space != Space::ring && src.space != Space::ring;
  if (!is_local) op.path = path_between(dst, src, op.hop);
}

void PlanQueue::copy(Stream stream, char* dst, const char* src, std::uint64_t bytes) {
  const std::size_t lane = book_.lane(rank_, stream);
  Lane& to = book_.plan_.lanes[lane];
  const bool reduces = std::any_of(to.ops.begin(), to.ops.end(),
                                   [](const Op& op) { return op.kind == OpKind::reduce; });
  if (!reduces) to.kind = LaneKind::copy_engine;
  book_.put_copy(lane, book_.region(dst, bytes), book_.region(src, bytes));
}

void PlanQueue::copy_all(Stream stream, const std::vector<OneCopy>& copies) {
  const auto overlap = [](const char* a, const char* b, std::uint64_t a_bytes,
                          std::uint64_t b_bytes) { return a < b + b_bytes && b < a + a_bytes; };
  for (const OneCopy& one : copies)
    for (const OneCopy& other : copies)
      if (overlap(one.dst, other.src, one.bytes, other.bytes) ||
          (&one != &other && overlap(one.dst, other.dst, one.bytes, other.bytes)))
        throw Error(ErrorCode::internal, "copies of a batch touch the same bytes");
  EngineQueue::copy_all(stream, copies);
}

void PlanQueue::reduce(Stream stream, const PieceArgs& args, DataType, unsigned) {
  const std::size_t lane = book_.lane(rank_, stream);
  book_.plan_.lanes[lane].kind = LaneKind::kernel;
  if (args.sources == 1)
    return book_.put_copy(lane, book_.region(args.dst, args.bytes),
                          book_.region(args.source[0], args.bytes));
  Op& op = book_.append(lane, OpKind::reduce);
  op.dst = book_.region(args.dst, args.bytes);
  for (int i = 0; i < args.sources; ++i)
    op.srcs.push_back(book_.region(args.source[i], args.bytes));
  op.finish = true;
}

// ---- flags

PlanBook::FlagAddress PlanBook::flag_address(const std::uint32_t* at) const {
  for (std::size_t rank = 0; rank < flags_.size(); ++rank)
    if (is_within(at, flags_[rank].get(), sizeof(EngineFlags)))
      return {static_cast<int>(rank), kCopyPlanFlags.first + index_in(at, flags_[rank].get())};
  if (is_within(at, &host_flags_, sizeof host_flags_))
    return {-1, kHostPlanFlags.first + index_in(at, &host_flags_)};
  throw Error(ErrorCode::internal,
              "copy step signals or waits on an address that is no rank's flag");
}

int PlanBook::counter_of(const std::uint32_t* counted) const { return flag_address(counted).index; }

std::uint32_t PlanBook::base(int rank, int counter) const {
  const auto grown = grown_.find({rank, counter});
  return grown == grown_.end() ? 0 : grown->second;
}

void PlanBook::grow(int rank, int counter, std::uint32_t more) { grown_[{rank, counter}] += more; }

/// row: this rank's flag in the owner's memory.
void PlanBook::raise(std::size_t lane, const FlagAddress& row, int counter, std::uint32_t value) {
  const int rank = plan_.lanes[lane].rank;
  counters_.insert({row.index, counter});
  for (int owner = 0; owner < plan_.request.ranks; ++owner) {
    if (row.owner >= 0 && row.owner != owner) continue;
    Op& op = append(lane, OpKind::signal);
    op.flag = {owner, rank, row.index};
    op.value = base(rank, counter) + value;
  }
}

void PlanBook::await(std::size_t lane, const FlagAddress& row, int writer, int counter,
                     std::uint32_t value) {
  const int rank = plan_.lanes[lane].rank;
  counters_.insert({row.index, counter});
  Op& op = append(lane, OpKind::wait);
  op.flag = {row.owner < 0 ? rank : row.owner, writer, row.index};
  const auto least = static_cast<std::int32_t>(base(rank, counter) + value);
  (least > 0 ? op.value : op.before) = static_cast<std::uint32_t>(least > 0 ? least : -least);
}

void PlanBook::step(int rank, Stream stream, const EngineStep& step) {
  const std::size_t at = lane(rank, stream);
  const int counter = counter_of(step.counted);
  const auto signal = [&] {
    for (const std::uint32_t* const signal_value : step.signal) {
      if (signal_value == nullptr) continue;
      FlagAddress row = flag_address(signal_value);
      row.index -= rank;  // flags of a row are by writer
      raise(at, row, counter, step.signal_value);
    }
  };
  if (step.signals_first != 0) signal();
  for (const EngineWait& wait : step.waits)
    for (int writer = 0; writer < plan_.request.ranks; ++writer)
      if ((wait.ranks >> writer & 1) != 0)
        await(at, flag_address(wait.flags), writer, counter, wait.value);
  if (step.signals_first == 0) signal();
}

void PlanQueue::step(Stream stream, const EngineStep& step) { book_.step(rank_, stream, step); }

void PlanQueue::end(Stream stream, const EngineEnd& end) {
  book_.step(rank_, stream, end.step);
  for (std::size_t i = 0; i < std::size(end.counts); ++i)
    if (end.counts[i] != nullptr) book_.grow(rank_, book_.counter_of(end.counts[i]), end.more[i]);
}

// ---- events and cores

void PlanBook::signal_self(std::size_t lane, int rank, int index) {
  Op& op = append(lane, OpKind::signal);
  op.flag = {rank, rank, index};
  op.value = 1;
}

void PlanBook::wait_self(std::size_t lane, int rank, int index) {
  Op& op = append(lane, OpKind::wait);
  op.flag = {rank, rank, index};
  op.value = 1;
}

void PlanQueue::record(Event event, Stream stream) {
  const int index = kEventPlanFlags.first + book_.events_[rank_]++;
  book_.recorded_[{rank_, event}] = index;
  book_.signal_self(book_.lane(rank_, stream), rank_, index);
}

/// An event that was never recorded holds nothing up, as in the driver.
void PlanQueue::follow(Stream stream, Event event) {
  const auto recorded = book_.recorded_.find({rank_, event});
  if (recorded != book_.recorded_.end())
    book_.wait_self(book_.lane(rank_, stream), rank_, recorded->second);
}

void PlanQueue::begin_on_host(Stream stream, const HostJob& job) {
  const int begun = kEventPlanFlags.first + book_.events_[rank_]++;
  book_.signal_self(book_.lane(rank_, stream), rank_, begun);
  const std::size_t cores = book_.lane(rank_, "cores", LaneKind::cpu);
  book_.wait_self(cores, rank_, begun);
  const PlanBook::FlagAddress arrived = book_.flag_address(book_.host_flags_.arrived);
  const PlanBook::FlagAddress reduced = book_.flag_address(book_.host_flags_.reduced);
  const int gpus = book_.counter_of(&book_.flags_[0]->host_chunks);
  run_host_job(
      job, rank_,
      [&](std::uint32_t value) {
        for (int rank = 0; rank < job.ranks; ++rank) book_.await(cores, arrived, rank, gpus, value);
        return true;
      },
      [&](std::uint32_t chunk) {
        const ReduceJob reduction = job.reduction(chunk);
        const std::uint64_t bytes = reduction.count * bytes_of(reduction.type);
        Op& op = book_.append(cores, OpKind::reduce);
        op.dst = book_.region(reduction.dst, bytes);
        for (int i = 0; i < reduction.source_count; ++i)
          op.srcs.push_back(book_.region(reduction.sources[i], bytes));
        op.finish = true;
      },
      [&](std::uint32_t value) { book_.raise(cores, reduced, PlanBook::kCores, value); });
  book_.grow(rank_, PlanBook::kCores, job.cut.chunks);
}

// ---- the whole

void PlanBook::add(int rank, const Plan& part, std::uint64_t input_from,
                   std::uint64_t output_from) {
  const std::string prefix = text("{}:", ++parts_of_rank_[rank]);
  const std::size_t caller = lane(rank, home());
  const auto is_gate = [&](const Lane& one) {
    const auto is_home = [&](const Lane& lane) {
      return lane.rank == rank && lane.name == kHomeLane;
    };
    return one.name == kHomeLane || std::none_of(part.lanes.begin(), part.lanes.end(), is_home);
  };
  const int begun = kEventPlanFlags.first + events_[rank]++;
  signal_self(caller, rank, begun);
  std::vector<std::size_t> lanes(part.lanes.size());
  for (std::size_t i = 0; i < lanes.size(); ++i) {
    const Lane& from = part.lanes[i];
    if (from.rank != rank) continue;
    lanes[i] = lane(rank, prefix + from.name, from.kind);
    if (part.enqueued.empty()) inside_.insert(lanes[i]);
    if (is_gate(from)) wait_self(lanes[i], rank, begun);
    const auto move = [&](Region& region) {
      if (region.space == Space::input) region.offset += input_from;
      if (region.space == Space::output) region.offset += output_from;
    };
    for (Op op : from.ops) {
      parts_[rank].move(op);
      const bool has_flag = op.kind == OpKind::signal || op.kind == OpKind::wait;
      if (has_flag && part.counts.empty()) op.flag.index += kPartPlanFlags.first;
      if (!op.srcs.empty()) move(op.dst);
      for (Region& src : op.srcs) move(src);
      if (op.kind == OpKind::copy && op.path >= 0)
        op.path = path_index(part.paths[static_cast<std::size_t>(op.path)]);
      plan_.lanes[lanes[i]].ops.push_back(op);
    }
  }
  if (!part.enqueued.empty())
    for (const int lane : part.enqueued[static_cast<std::size_t>(rank)])
      plan_.enqueued[static_cast<std::size_t>(rank)].push_back(
          static_cast<int>(lanes[static_cast<std::size_t>(lane)]));
  for (std::size_t i = 0; i < lanes.size(); ++i) {
    if (part.lanes[i].rank != rank || !is_gate(part.lanes[i])) continue;
    const int ended = kEventPlanFlags.first + events_[rank]++;
    signal_self(lanes[i], rank, ended);
    wait_self(caller, rank, ended);
  }
  parts_[rank].add(part);
  if (rank != 0) return;
  for (const auto& [index, count] : part.counts) part_counts_[index] += count;
  for (std::size_t i = 0; i < plan_.scratch_bytes.size(); ++i) {
    plan_.scratch_bytes[i] = std::max(plan_.scratch_bytes[i], part.scratch_bytes[i]);
    plan_.inbox_bytes[i] = std::max(plan_.inbox_bytes[i], part.inbox_bytes[i]);
  }
}

Plan PlanBook::plan(const std::string& strategy, std::map<std::string, std::int64_t> params) {
  plan_.strategy = strategy;
  plan_.params = std::move(params);
  plan_.counts = part_counts_;
  for (const auto& [index, counter] : counters_)
    for (int rank = 0; rank < plan_.request.ranks; ++rank) {
      const std::uint32_t more = base(rank, counter);
      if (plan_.counts.try_emplace(index, more).first->second != more)
        throw Error(ErrorCode::internal,
                    text("rank {} counts flag {} of copy engines on by {}, other ranks by {}", rank,
                         index, more, plan_.counts[index]));
    }
  return std::move(plan_);
}

}  // namespace plait::cuda
