// Functions of gpu/device/bulk.cuh for kernels on host threads. A piece is read as late as
// the hardware may read, and arrives no sooner than the thread has waited.
#pragma once
#include <cstring>
#include <vector>

#include "gpu/device/memory.cuh"

namespace plait::cuda {

inline void bulk_follows() {}

template <bool kRead>
void wait_bulk_stores(unsigned pending) {
  if (kRead) return;  // each store has a separate copy
  for (auto& stores = plait_test::bulk_stores; stores.size() > pending; stores.pop_front()) {
    const plait_test::BulkPiece& piece = stores.front();
    std::memcpy(piece.dst, piece.bytes.data(), piece.bytes.size());
    plait_test::note(plait_test::Touch::store, piece.dst, nullptr,
                     static_cast<unsigned>(piece.bytes.size()));
  }
}

template <unsigned kStages>
class BulkRing {
 public:
  BulkRing(char*, unsigned long long*) {}
  unsigned held() const { return loaded_ - stored_; }
  unsigned stored() const { return stored_; }
  void load(const char* src, unsigned bytes) {
    must_be_aligned(src, 16);
    must_be_multiple(bytes, 16);
    loads_[loaded_++ % kStages] = {src, bytes};
  }
  void await_load() {
    const BulkLoad& load = loads_[stored_ % kStages];
    read_.assign(load.src, load.src + load.bytes);
    plait_test::note(plait_test::Touch::load, load.src, nullptr, load.bytes);
  }
  void store(char* dst, unsigned) {
    must_be_aligned(dst, 16);
    plait_test::bulk_stores.push_back({dst, std::move(read_)});
    ++stored_;
  }
  void end() {
    stored_ = loaded_;
    wait_bulk_stores<false>(0);
  }

 private:
  struct BulkLoad {
    const char* src;
    unsigned bytes;
  };
  BulkLoad loads_[kStages] = {};
  std::vector<char> read_;
  unsigned loaded_ = 0, stored_ = 0;
};

}  // namespace plait::cuda
