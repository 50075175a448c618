// Default number of CPU ranks of "local-cpu": a rank per core, but enough for tests with more ranks
// than cores.
#pragma once

namespace plait {

int local_rank_count();

}  // namespace plait
