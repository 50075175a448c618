/* The CUDA driver as a C program opens it: one GPU's context, memory, one stream and graphs of it.
 * Every function returns 0, or the driver's number of what went wrong. */
#ifndef TESTS_GPU_DRIVER_H
#define TESTS_GPU_DRIVER_H

#include <stddef.h>

/* GPUs there are; 0 without a driver. */
int gpu_count(void);
/* Makes the GPU this thread's, with a stream of its own. */
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
