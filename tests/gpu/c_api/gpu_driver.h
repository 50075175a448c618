/* The CUDA driver for a C program: context, memory, one stream and graphs of one GPU.
 * Every function returns 0 or the driver's error code. */
#ifndef TESTS_GPU_DRIVER_H
#define TESTS_GPU_DRIVER_H

#include <stddef.h>

/* Number of GPUs; 0 without a driver. */
int gpu_count(void);
/* Makes the GPU current on this thread and creates its stream. */
int gpu_open(int ordinal, void** stream);
int gpu_allocate(void** memory, size_t bytes);
int gpu_release(void* memory);
int gpu_fill(void* dst, unsigned char value, size_t bytes);
int gpu_write(void* dst, const void* src, size_t bytes);
int gpu_read(void* dst, const void* src, size_t bytes);
int gpu_wait(void* stream);
int gpu_wait_all(void);
int gpu_free_bytes(size_t* bytes);
int gpu_begin_capture(void* stream);
int gpu_end_capture(void* stream, void** graph);
int gpu_replay(void* graph, void* stream);
int gpu_end_graph(void* graph);

#endif
