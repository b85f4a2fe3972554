/**
 * @file info.h
 * @brief What a daemon has: devices, ops, limits, features. <kops/kops.h> includes it.
 */
#ifndef KOPS_INFO_H
#define KOPS_INFO_H

#include <kops/kops.h>

#ifdef __cplusplus
extern "C" {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wshadow" /* a function and a struct of one name, as C has them */
#endif

/** A device that runs ops. */
struct kops_device {
    unsigned index;
    const char *name;    /**< "NVIDIA H200" */
    const char *uuid;    /**< "GPU-…" as `nvidia-smi -L` prints it; "host" */
    const char *backend; /**< "cuda" or "host" */
    const char *arch;    /**< "sm_90", "avx512" */
    uint64_t memory_bytes;
    unsigned compute_units;
    bool is_default; /**< Runs requests that name no device and have all their tensors in shared memory. */
    bool mps;        /**< Shared by CUDA's Multi-Process Service: a fault of any process there ends all. */
};

/** An attribute that an op takes. */
struct kops_op_attr {
    const char *name, *doc;
    struct kops_attr fallback;  /**< Type, and the value when the attribute is not given. */
    const char *const *choices; /**< Texts that are allowed, NULL-terminated; NULL: any value. */
};

/** The kernels that kops_options.variant may name on one device. */
struct kops_op_variants {
    const char *device;       /**< UUID */
    const char *const *names; /**< NULL-terminated, best first */
};

/** The dtypes that the outputs of an op may have beside inputs of one dtype, NULL-terminated. */
struct kops_op_out_dtypes {
    const char *dtype;
    const char *const *names;
};

/** The dtypes that an input may have whose dtype does not follow from the first one's, NULL-terminated. */
struct kops_op_in_dtypes {
    const char *input;
    const char *const *names;
};

/** An op. Every list is NULL-terminated. */
struct kops_op {
    const char *name, *summary, *doc;
    const char *const *inputs, *const *outputs,
                                   *const *dtypes;      /**< dtypes of the inputs that in_dtypes does not name */
    const struct kops_op_out_dtypes *const *out_dtypes; /**< without an entry the outputs' are the inputs' */
    const struct kops_op_attr *const *attrs;
    const struct kops_op_variants *const *variants;
    const struct kops_op_in_dtypes *const *in_dtypes; /**< NULL: the daemon has no such inputs */
};

/** Limits of a connection. */
struct kops_limits {
    uint64_t message_bytes, depth, nfds, inflight, buffers, streams, rank, repeat, warmup, inline_mappings;
    uint64_t sequence_ops; /**< Ops of a sequence or program. */
    uint64_t spin_us;      /**< Time that the daemon polls before it sleeps; 0: it sleeps at once. */
    uint64_t source_bytes; /**< Size of a source to compile, with its files. */
};

/** Facts that the daemon gave when kops_connect() connected. Every list is NULL-terminated. */
struct kops_info {
    const char *server; /**< "kopsd <version>" */
    const char *socket; /**< the path that was connected to */
    int64_t pid;
    unsigned protocol, protocol_min;
    const struct kops_device *const *devices;
    const struct kops_op *const *ops;
    const char *const *features;
    struct kops_limits limits;
    const struct kops_kernels_info *kernels; /**< NULL: the daemon is older than users' kernels. */
    const char *instance; /**< 32 random hex digits that name this start of the daemon; "": the daemon is older than
                               this member. */
    /** Work that shares a process with this client's kernels: "none" (no isolation: all work), "user" (kernels of the
     * same user), "connection" (nothing else). "": the daemon is older than this member. */
    const char *isolation;
    /** Name of the identity socket that this client connected to. Limits then count for that identity, not for the
     * user. "": the daemon's own socket, where limits count for the user. */
    const char *identity;
};

/** The client's copy: valid as long as the client. */
KOPS_API const struct kops_info *kops_info(const kops_client *client);

/** The device of that UUID or index ("0"), the default one for NULL; NULL when there is none. */
KOPS_API const struct kops_device *kops_info_device(const kops_client *client, const char *device);

/** The op of that name; NULL when there is none. */
KOPS_API const struct kops_op *kops_info_op(const kops_client *client, const char *name);

/** Whether the daemon lists a feature. */
KOPS_API bool kops_info_feature(const kops_client *client, const char *feature);

#ifdef __cplusplus
#pragma GCC diagnostic pop
}
#endif

#endif
