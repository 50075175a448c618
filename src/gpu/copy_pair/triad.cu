// STREAM-like load on a GPU's memory, run beside a copy by `plait bench copy --interference`.
/// a := b + 3 c, `rounds` times: a memory-bound kernel on a relay GPU.
extern "C" __global__ void plait_stream_triad(float4* a, const float4* b, const float4* c,
                                              unsigned long long count, int rounds) {
  const unsigned long long stride = static_cast<unsigned long long>(gridDim.x) * blockDim.x;
  for (int round = 0; round < rounds; ++round)
    for (unsigned long long i =
             static_cast<unsigned long long>(blockIdx.x) * blockDim.x + threadIdx.x;
         i < count; i += stride) {
      const float4 x = b[i], y = c[i];
      a[i] = make_float4(x.x + 3 * y.x, x.y + 3 * y.y, x.z + 3 * y.z, x.w + 3 * y.w);
    }
}
