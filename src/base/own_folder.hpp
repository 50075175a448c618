// Folder of the files installed with this library.
#pragma once
#include <string>

namespace plait {

/// Returns the folder, with the last slash, of the file that holds this code or constant; empty if
/// no file does. Uses the kernel's absolute path: the loader's (dladdr) may be relative to a former
/// working folder.
std::string folder_of(const void* code);

}  // namespace plait
