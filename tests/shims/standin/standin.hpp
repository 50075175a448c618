// Stand-in for a GPU runtime, used with the stand-in libnccl.so.2. Streams are threads that run
// tasks in order, hence calls are as asynchronous as on a GPU; ranks are processes or threads.
#pragma once
#include <cstddef>
#include <cstdint>

#include "comm/transport/nccl/abi.hpp"

#define STANDIN_API extern "C" [[gnu::visibility("default")]]

// Functions for test programs, in place of a GPU runtime.
STANDIN_API plait::cuda::Stream standin_stream_create();
STANDIN_API void standin_stream_destroy(void* stream);
STANDIN_API void standin_stream_synchronize(void* stream);
/// Makes the stream report an error from now on, as after a trapped kernel.
STANDIN_API void standin_stream_fail(void* stream);
STANDIN_API int standin_stream_failed(void* stream);
/// Returns 1 if all tasks have ended.
STANDIN_API int standin_stream_idle(void* stream);
/// Runs task(argument) in stream order; stream null = the process's default stream.
STANDIN_API void standin_stream_push(void* stream, void (*task)(void*), void* argument);
/// Destroys the stream at once; the stream's work continues.
STANDIN_API void standin_stream_let_go(void* stream);
/// Makes the drop-in's next "place" (question of the stream's capture), "record" or "wait" (of an
/// event) on the stream fail, as CUDA does if another stream's capture forbids the call.
STANDIN_API void standin_refuse_next(void* stream, const char* call);
STANDIN_API void* standin_event_create();
STANDIN_API void standin_event_destroy(void* event);
STANDIN_API void standin_event_record(void* event, void* stream);
STANDIN_API void standin_event_wait(void* stream, void* event);
/// Capture as in CUDA: events lead other streams in and back.
STANDIN_API void standin_capture_begin(void* stream);
STANDIN_API void* standin_capture_end(void* stream);
STANDIN_API std::size_t standin_graph_nodes(void* graph);
STANDIN_API void standin_graph_launch(void* graph, void* stream);
STANDIN_API void standin_graph_destroy(void* graph);
/// Counts a call of that name by the stand-in libnccl.
STANDIN_API void standin_count(const char* name);
STANDIN_API std::uint64_t standin_calls(const char* name);
