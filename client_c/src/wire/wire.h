/* MessagePack on both sides of the protocol, by codec/.
 *
 * request.c appends requests to a struct bytes, result.c takes messages apart and reads results. Requests
 * contain plain values only: buffers are resolved to ids (0: none) before. Bytes are checked by codec/scan.h before
 * they come here; a value is a position in them. Thread: any. */
#ifndef KOPS_CLIENT_WIRE_H
#define KOPS_CLIENT_WIRE_H

#include <kops/kops.h>

#include "base/arena.h"
#include "base/bytes.h"

enum { WIRE_PROTOCOL = 1, WIRE_MAX_FDS = 16, WIRE_HANDLE_SIZE = 64 };

/* An operand: by the id that `register` gave, or for a launch in this process by its address. Nothing is copied: the
 * pointers are read during the call. */
struct native_tensor {
    uint64_t buffer; /* 0: none, for a tensor without elements; not read by launches here */
    uint64_t offset; /* bytes from the start of the registration; here the address */
    uint64_t bytes;  /* here: usable bytes from `offset` on; 0: unknown, the caller vouches for them */
    const int64_t *shape;
    const int64_t *strides; /* elements; NULL: contiguous */
    unsigned rank;
    enum kops_dtype dtype;
};

/* An undecoded reply, for callers that decode it themselves. Zeroed before its first use; `data` is kept from call to
 * call and grows. */
struct native_reply {
    char *data; /* the result's map, or the error's: one MessagePack value */
    size_t length;
    size_t capacity;
    bool is_error;
    unsigned n_fds;
    int fds[WIRE_MAX_FDS]; /* the receiver must close them */
    uint32_t generation;   /* generation of the connection that answered */
};

/* Frees the bytes, closes the descriptors, and zeroes the rest. NULL is allowed. */
void native_reply_free(struct native_reply *r);

/* ---- requests. The last argument of each is what session_call() passes on. ---- */

typedef void wire_pack(struct bytes *out, uint32_t msgid, const void *request);

struct wire_register {
    const char *kind;
    uint64_t size;
    const unsigned char *handle; /* cuda_ipc, cuda_pool; else NULL */
    uint64_t alloc_id;
    bool fd;              /* a descriptor goes with the message */
    uint64_t chunk_bytes; /* cuda_vmm: size of the descriptor's allocation; 0: not said */
    uint64_t extend;      /* cuda_vmm: the buffer that the chunk continues; 0: none */
    const char *device;   /* NULL: none */
    enum kops_access access;
};

struct wire_alloc {
    uint64_t size;
    const char *device; /* NULL: the default */
};

/* Options of every request that runs something. */
struct wire_how {
    const struct kops_options *options; /* NULL: the defaults; its variant, samples and timeout are not for the wire */
    unsigned stream;
    bool no_timing, exact, exclusive;
    const char *priority; /* NULL: normal, or the daemon has none */
    uint64_t ready, done; /* values of an ordered call; 0: none */
};

struct wire_run {
    const char *op;
    unsigned n_inputs, n_outputs;
    const struct native_tensor *tensors; /* inputs, then outputs */
    const struct kops_attr *attrs;
    size_t n_attrs;
    const char *variant;
    const char *packed_attrs; /* a map in place of the three members above; NULL: none */
    size_t packed_attrs_length;
    struct wire_how how;

    const char *caches; /* count with these caches; NULL: run */

    uint64_t kernel; /* kernel to launch in place of the op, whose name is then the kernel's; all tensors are inputs; 0:
                        none */
    const struct kops_argument *args;
    size_t n_args;
    const struct kops_launch_geometry *launch_geometry; /* NULL: the kernel's, or `geometry` */
    const char *geometry;                               /* a packed map; NULL: none */
    size_t geometry_length;
};

struct wire_kernel {
    uint64_t module;
    const struct bytes *signature; /* as wire_pack_signature() wrote it */
};

/* A module's code, or one of the daemon's own kernels. */
struct wire_code {
    uint64_t module;   /* 0: `image` */
    const char *image; /* NULL: `module` */
    bool fd;           /* a descriptor goes with the message; without it, the request asks for size and layout only */
};

struct wire_cache {
    const char *action;
    const char *key; /* NULL: none */
    bool fd;         /* a descriptor goes with the message */
};

struct wire_tuning {
    uint64_t from;
    bool clear;
};

struct wire_sequence {
    const struct native_tensor *tensors;
    size_t n_tensors;
    const struct kops_step *steps;
    size_t n_steps;
    const uint64_t *kernels; /* kernel ids, one for each step; NULL: no step launches a kernel */
    const char *device;      /* set for programs only */
    struct wire_how how;
};

/* A sequence whose tensors and ops were packed before, by wire_gather_…(). */
struct wire_gathered {
    const struct bytes *tensors, *ops;
    size_t n_tensors, n_ops;
    struct wire_how how;
};

struct wire_bound {
    uint32_t index;
    uint64_t buffer, offset;
};

struct wire_run_program {
    uint64_t program;
    const struct wire_bound *bound;
    size_t n_bound;
    struct wire_how how;
};

/* A request of any method; `params` is a packed map. */
struct wire_raw {
    const char *method;
    const void *params;
    size_t length;
    unsigned stream; /* with `ready` or `done`: added to the map unchanged */
    uint64_t ready, done;
};

struct wire_hello {
    const char *client;
    unsigned protocol;
    bool shm;
    const char *isolate; /* NULL: as the daemon is configured */
};

struct wire_conditions_of {
    const char *device; /* NULL: the default */
};

struct wire_tracing {
    bool begin, end, everybody;
    uint64_t events;
};

wire_pack wire_pack_hello;       /* struct wire_hello */
wire_pack wire_pack_plain;       /* const char *: a method without parameters */
wire_pack wire_pack_register;    /* struct wire_register */
wire_pack wire_pack_alloc;       /* struct wire_alloc */
wire_pack wire_pack_run;         /* struct wire_run: an op or a launch */
wire_pack wire_pack_sequence;    /* struct wire_sequence */
wire_pack wire_pack_gathered;    /* struct wire_gathered */
wire_pack wire_pack_program;     /* struct wire_sequence: its device, not its `how` */
wire_pack wire_pack_run_program; /* struct wire_run_program */
wire_pack wire_pack_raw;         /* struct wire_raw */
wire_pack wire_pack_kernel;      /* struct wire_kernel */
wire_pack wire_pack_code;        /* struct wire_code */
wire_pack wire_pack_cache;       /* struct wire_cache */
wire_pack wire_pack_stats;       /* struct kops_stats_filter */
wire_pack wire_pack_conditions;  /* struct wire_conditions_of */
wire_pack wire_pack_drain;       /* struct kops_drain_options */
wire_pack wire_pack_trace;       /* struct wire_tracing */
wire_pack wire_pack_tune;        /* struct wire_run: the op, tensors without buffers, and the device */
wire_pack wire_pack_tuning;      /* struct wire_tuning */

/* The params of `compile` alone. */
void wire_pack_source(struct bytes *out, const struct kops_source *s);
/* Both write the params of `kernel`: the first without `module`, the second with it. */
void wire_pack_signature(struct bytes *out, const struct kops_signature *s);
void wire_pack_declaration(struct bytes *out, const struct wire_kernel *w);
/* An op's attributes alone, as a map. `variant` NULL: not forced. */
void wire_pack_attrs(struct bytes *out, const struct kops_attr *attrs, size_t n, const char *variant);

/* The parts of a gathered sequence. */
void wire_gather_tensor(struct bytes *out, const struct native_tensor *t);
void wire_gather_op(struct bytes *out, const struct wire_run *run, const uint32_t *indices);

/* Notifications: carried out, never answered. */
void wire_pack_release(struct bytes *out, const char *what, uint64_t id); /* "buffer", "program", "module", "kernel" */
void wire_pack_notification(struct bytes *out, const char *method, const void *params, size_t length);
void wire_pack_cancel(struct bytes *out, uint32_t msgid);

/* ---- replies ---- */

enum wire_kind { WIRE_RESPONSE, WIRE_ERROR_NOTIFICATION, WIRE_OTHER_NOTIFICATION };

struct wire_message {
    enum wire_kind kind;
    uint32_t msgid;
    const unsigned char *error;  /* NULL: none */
    const unsigned char *result; /* NULL where there is an error */
    size_t length;               /* bytes of a response's error or result */
    unsigned nfds;               /* descriptors that the result claims */
};

/* Parses one whole message. *ret_message points into `data`. Returns NULL on success, else a static description of the
 * fault. */
const char *wire_parse(const void *data, size_t length, struct wire_message *ret_message);

/* Fills *e (not NULL) from an error map; a malformed one becomes bad_reply. */
void wire_decode_error(const unsigned char *error, struct kops_error *e);

/* Decodes a result. Descriptors of `fds` that are kept are replaced by -1. Returns false when the result lacks
 * something. */
typedef bool wire_decode(const unsigned char *result, int *fds, unsigned nfds, void *into);

struct wire_buffer {
    uint64_t id, size;
    bool vmm; /* alloc: device memory */
    int fd;   /* alloc: the receiver must close it; register: -1 */
};

struct wire_image_info {
    uint64_t bytes, layout;
};

struct wire_timings {
    struct kops_result result;
    uint64_t sent_ns; /* CLOCK_MONOTONIC; 0: not asked for */
    double *samples;  /* NULL: not wanted */
    size_t samples_room;
};

struct wire_shm {
    int fd, doorbell, wake; /* the receiver must close them */
    uint64_t request_bytes, reply_bytes;
};

struct wire_timelines {
    int fd; /* the receiver must close it */
    uint64_t size, streams;
};

/* Results with texts and lists, which live in the arena before them. Callers of the library get the public struct
 * behind it, which wire_result_free() takes. */
#define WIRE_WITH_ARENA(name, type, member)                                                                            \
    struct name {                                                                                                      \
        struct arena arena;                                                                                            \
        struct type member;                                                                                            \
    };                                                                                                                 \
    _Static_assert(offsetof(struct name, member) == sizeof(struct arena), "the public struct lies behind the arena")
WIRE_WITH_ARENA(wire_info, kops_info, info);
WIRE_WITH_ARENA(wire_stats, kops_stats, stats);
WIRE_WITH_ARENA(wire_cache_list, kops_cache, cache);
WIRE_WITH_ARENA(wire_clients, kops_clients, clients);
WIRE_WITH_ARENA(wire_conditions, kops_conditions, conditions);
WIRE_WITH_ARENA(wire_counters, kops_counters, counters);
WIRE_WITH_ARENA(wire_trace, kops_trace, trace);
WIRE_WITH_ARENA(wire_tuned, kops_tune, tune);
WIRE_WITH_ARENA(wire_choices, kops_tuning, tuning);

/* Frees a result that malloc() gave, with its arena. NULL is allowed. Returns NULL. */
void *wire_result_free(void *public_struct);

struct wire_module {
    uint64_t id;
    struct kops_module_info info;
    struct arena arena;
};

struct wire_cache_file {
    int fd; /* the receiver must close it */
    uint64_t bytes;
};

struct wire_cache_counts {
    uint64_t removed, imported, skipped;
};

/* Reads an undecoded reply of `compile`. An error is in *e, and the compiler's log in *log (malloc'd; NULL: none). */
enum kops_code wire_read_module(const struct native_reply *reply, struct wire_module *ret, char **log,
                                struct kops_error *e);

/* Reads the error of an undecoded reply. */
void wire_reply_error(const struct native_reply *reply, struct kops_error *ret_error);

/* hello's answer, whose bytes are kept, too. */
struct wire_greeting {
    struct wire_info *info;     /* gets all of it, */
    struct kops_limits *limits; /* unless only the limits are to be read */
    struct bytes *kept;
};

/* Fills the result of a run of which no time is known. */
void wire_no_timings(struct kops_result *ret);

wire_decode wire_decode_nothing;
wire_decode wire_decode_image;        /* struct wire_image_info */
wire_decode wire_decode_register;     /* struct wire_buffer */
wire_decode wire_decode_alloc;        /* struct wire_buffer */
wire_decode wire_decode_run;          /* struct wire_timings; without a variant for sequences and programs */
wire_decode wire_decode_program;      /* uint64_t: id */
wire_decode wire_decode_module;       /* uint64_t: id */
wire_decode wire_decode_kernel;       /* uint64_t: id */
wire_decode wire_decode_shm;          /* struct wire_shm */
wire_decode wire_decode_timelines;    /* struct wire_timelines */
wire_decode wire_decode_trim;         /* uint64_t: bytes */
wire_decode wire_decode_info;         /* struct wire_info */
wire_decode wire_decode_greeting;     /* struct wire_greeting */
wire_decode wire_decode_stats;        /* struct wire_stats */
wire_decode wire_decode_cache_list;   /* struct wire_cache_list */
wire_decode wire_decode_cache_file;   /* struct wire_cache_file */
wire_decode wire_decode_cache_counts; /* struct wire_cache_counts */
wire_decode wire_decode_clients;      /* struct wire_clients */
wire_decode wire_decode_conditions;   /* struct wire_conditions */
wire_decode wire_decode_metrics;      /* char *: malloc'd text */
wire_decode wire_decode_drain;        /* struct kops_drain_result */
wire_decode wire_decode_counters;     /* struct wire_counters */
wire_decode wire_decode_trace;        /* struct wire_trace */
wire_decode wire_decode_tune;         /* struct wire_tuned */
wire_decode wire_decode_tuning;       /* struct wire_choices */

#endif
