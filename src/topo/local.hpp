// Default number of CPU ranks of "local-cpu": one for each core, but enough for tests with more
// ranks than cores.
#pragma once

namespace plait {

int local_rank_count();

}  // namespace plait
