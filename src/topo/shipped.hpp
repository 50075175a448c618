// The topologies inside the library: one row a file of topologies/, made by cmake/topologies.cmake.
// Data in the program needs no install path and cannot be missing.
#pragma once
#include <vector>

namespace plait {

struct ShippedFile {
  const char* name;   ///< "hgx-h200"
  const char* begin;  ///< the JSON text
  const char* end;
};

const std::vector<ShippedFile>& shipped_files();

}  // namespace plait
