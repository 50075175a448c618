// A page is a header and a ring in a sealed memfd.
#include "comm/liveness/flight_page.hpp"

#include <unistd.h>

#include <cstdio>

#include "base/text.hpp"
#include "plait/error.hpp"

namespace plait {
namespace {

constexpr std::uint64_t kMagic = 0x74696c616c706631;  // "1fplalit": ends in the layout's version

struct Page {
  std::uint64_t magic;
  FlightRing ring;
};
constexpr std::uint64_t kPageBytes = (sizeof(Page) + 4095) / 4096 * 4096;

Page& page_of(const Mapping& memory) { return *reinterpret_cast<Page*>(memory.base()); }

}  // namespace

FlightPage::FlightPage() : process_(::getpid()), file_(make_shared_memory(kPageBytes, 0)) {
  memory_ = map_shared_memory(file_, kPageBytes);
  page_of(memory_).magic = kMagic;
}

FlightPage::FlightPage(const std::string& shown) {
  int file = -1;
  if (std::sscanf(shown.c_str(), "%d %d", &process_, &file) != 2)
    throw Error(ErrorCode::mismatch, text("flight page: wanted 'PID FILE', found '{}'", shown));
  const Fd opened = open_of_process(process_, file, MapAccess::read);
  memory_ = map_shared_memory(opened, kPageBytes, MapAccess::read);
  if (page_of(memory_).magic != kMagic)
    throw Error(ErrorCode::mismatch,
                text("flight page of process {}: of another version", process_));
}

std::string FlightPage::shown() const { return text("{} {}", process_, file_.get()); }

FlightRing& FlightPage::ring() const { return page_of(memory_).ring; }

}  // namespace plait
