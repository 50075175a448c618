// How many CPU ranks "local-cpu" has where nobody says: one a core, and enough for tests that run
// more ranks than cores.
#pragma once

namespace plait {

int local_rank_count();

}  // namespace plait
