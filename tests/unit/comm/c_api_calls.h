/* What the C half of the C API's test does: 0, or 1 and a sentence. */
#ifndef PLAIT_TESTS_C_API_CALLS_H
#define PLAIT_TESTS_C_API_CALLS_H

#ifdef __cplusplus
extern "C" {
#endif
int c_api_calls(const char* rendezvous, int rank, char* sentence, unsigned long sentence_bytes);
#ifdef __cplusplus
}
#endif

#endif
