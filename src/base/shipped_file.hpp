// A data file inside the library (cmake/embedded.cmake). Data in the library needs no install path.
#pragma once

namespace plait {

struct ShippedFile {
  const char* name;   ///< "hgx-h200"
  const char* begin;  ///< the text
  const char* end;
};

}  // namespace plait
