// Where the files lie that come with this library.
#pragma once
#include <string>

namespace plait {

/// The folder, with its last slash, of the file that holds this code or constant; empty where no
/// file does. The kernel knows its whole path; what the loader was given (dladdr) may start at a
/// working folder that has changed since.
std::string folder_of(const void* code);

}  // namespace plait
