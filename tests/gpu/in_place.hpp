// Tells which calls a test may make with the smaller buffer inside the larger.
#pragma once
#include "plait/plan.hpp"

namespace plait::cuda {

inline bool goes_in_place(Collective collective) {
  return collective != Collective::all_to_all && collective != Collective::send_recv &&
         collective != Collective::copy && collective != Collective::gather &&
         collective != Collective::scatter;
}

}  // namespace plait::cuda
