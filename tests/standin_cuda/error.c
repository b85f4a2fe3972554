/* Names of results, which are their texts as well. */
#include <stddef.h>

#include "standin.h"

#define NAMED(result)                                                                                                  \
    {                                                                                                                  \
        result, #result                                                                                                \
    }

static const struct {
    CUresult result;
    const char *name;
} names[] = {NAMED(CUDA_SUCCESS),
             NAMED(CUDA_ERROR_INVALID_VALUE),
             NAMED(CUDA_ERROR_OUT_OF_MEMORY),
             NAMED(CUDA_ERROR_NOT_INITIALIZED),
             NAMED(CUDA_ERROR_DEINITIALIZED),
             NAMED(CUDA_ERROR_DEVICE_UNAVAILABLE),
             NAMED(CUDA_ERROR_NO_DEVICE),
             NAMED(CUDA_ERROR_INVALID_DEVICE),
             NAMED(CUDA_ERROR_INVALID_IMAGE),
             NAMED(CUDA_ERROR_INVALID_CONTEXT),
             NAMED(CUDA_ERROR_MAP_FAILED),
             NAMED(CUDA_ERROR_UNMAP_FAILED),
             NAMED(CUDA_ERROR_ALREADY_MAPPED),
             NAMED(CUDA_ERROR_NO_BINARY_FOR_GPU),
             NAMED(CUDA_ERROR_NOT_MAPPED),
             NAMED(CUDA_ERROR_ECC_UNCORRECTABLE),
             NAMED(CUDA_ERROR_OPERATING_SYSTEM),
             NAMED(CUDA_ERROR_INVALID_HANDLE),
             NAMED(CUDA_ERROR_NOT_FOUND),
             NAMED(CUDA_ERROR_NOT_READY),
             NAMED(CUDA_ERROR_ILLEGAL_ADDRESS),
             NAMED(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES),
             NAMED(CUDA_ERROR_LAUNCH_TIMEOUT),
             NAMED(CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE),
             NAMED(CUDA_ERROR_CONTEXT_IS_DESTROYED),
             NAMED(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED),
             NAMED(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED),
             NAMED(CUDA_ERROR_HARDWARE_STACK_ERROR),
             NAMED(CUDA_ERROR_ILLEGAL_INSTRUCTION),
             NAMED(CUDA_ERROR_MISALIGNED_ADDRESS),
             NAMED(CUDA_ERROR_LAUNCH_FAILED),
             NAMED(CUDA_ERROR_INVALID_CLUSTER_SIZE),
             NAMED(CUDA_ERROR_NOT_PERMITTED),
             NAMED(CUDA_ERROR_NOT_SUPPORTED),
             NAMED(CUDA_ERROR_SYSTEM_NOT_READY),
             NAMED(CUDA_ERROR_MPS_CONNECTION_FAILED),
             NAMED(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED),
             NAMED(CUDA_ERROR_ILLEGAL_STATE),
             NAMED(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED),
             NAMED(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED),
             NAMED(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED),
             NAMED(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED),
             NAMED(CUDA_ERROR_STREAM_CAPTURE_MERGE),
             NAMED(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED),
             NAMED(CUDA_ERROR_STREAM_CAPTURE_UNJOINED),
             NAMED(CUDA_ERROR_STREAM_CAPTURE_ISOLATION),
             NAMED(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT),
             NAMED(CUDA_ERROR_CAPTURED_EVENT),
             NAMED(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD),
             NAMED(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE),
             NAMED(CUDA_ERROR_UNKNOWN)};

API cuGetErrorName(CUresult result, const char **ret_name)
{
    *ret_name = NULL;
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++)
        if (names[i].result == result)
            *ret_name = names[i].name;
    return *ret_name ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API cuGetErrorString(CUresult result, const char **ret_text)
{
    return cuGetErrorName(result, ret_text);
}
