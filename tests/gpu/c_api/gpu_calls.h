/* One rank of the test, in C99: makes a communicator on its GPU, calls it and destroys it. */
#ifndef TESTS_GPU_CALLS_H
#define TESTS_GPU_CALLS_H

#ifdef __cplusplus
extern "C" {
#endif

int gpu_count(void);
/* Returns 0, or 1 with an error text. */
int gpu_c_api_calls(const char* rendezvous, int rank, int ranks, char* sentence,
                    unsigned long sentence_bytes);

#ifdef __cplusplus
}
#endif

#endif
