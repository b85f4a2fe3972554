/* The result of a compile: a cubin with what is known of the kernels in it. Shared by everybody who asked for the same
 * source, so it never changes once it is given out.
 *
 * Owns all that it points at. Thread: references are counted atomically; the rest is read only. */
#ifndef KOPS_COMPILE_COMPILED_H
#define KOPS_COMPILE_COMPILED_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "util/buffer.h"
#include "util/error.h"

enum {
    COMPILED_MAX_ENTRIES = 64,
    COMPILED_MAX_PARAMS = 64,         /* of one kernel */
    COMPILED_MAX_PARAM_BYTES = 32764, /* of all parameters of one kernel: CUDA's own limit */
    COMPILED_MAX_NAME = 4096,         /* bytes of an entry's name, or of its lowered name */
    COMPILED_MAX_LOG = 256 << 10,
    COMPILED_MAX_IMAGE = 64 << 20,
    COMPILED_KEY_BYTES = 32,
    COMPILED_ARCH_SIZE = 16,     /* with the ending zero */
    COMPILED_COMPILER_SIZE = 32, /* likewise */
};

struct compiled_entry {
    char *name;            /* as asked for */
    char *lowered;         /* as the cubin calls it */
    uint32_t registers;    /* of a thread */
    uint32_t shared_bytes; /* static */
    uint32_t local_bytes;  /* of a thread: spilled registers, local arrays */
    uint32_t const_bytes;  /* constant memory of the kernel, without its parameters */
    uint32_t max_threads;  /* of a block: by its registers, and by __launch_bounds__ where the source has it */
    uint32_t n_params;
    uint32_t param_sizes[COMPILED_MAX_PARAMS], param_offsets[COMPILED_MAX_PARAMS]; /* in the order of the source */
};

struct compiled {
    atomic_uint refs;
    unsigned char key[COMPILED_KEY_BYTES]; /* of the cache; zero as long as nobody has set it */
    char arch[COMPILED_ARCH_SIZE];         /* "sm_90a" */
    char compiler[COMPILED_COMPILER_SIZE]; /* "NVRTC 13.0" */
    double compile_us;                     /* what NVRTC took */
    char *log;                             /* warnings; "" when there are none, never NULL */
    unsigned n_entries;
    struct compiled_entry *entries;
    unsigned char *image; /* the cubin */
    size_t image_size;
};

/* One reference; empty, for its maker to fill in before anybody else sees it. NULL when memory is short. All that the
 * maker puts in is allocated with malloc(). */
struct compiled *compiled_new(void);

struct compiled *compiled_ref(struct compiled *c);
/* NULL is allowed; returns NULL. */
struct compiled *compiled_unref(struct compiled *c);

/* What it takes in memory, about. */
size_t compiled_memory(const struct compiled *c);

/* Appends a form of all its fields that compiled_parse() reads, the same for equal contents on every machine. */
void compiled_serialize(const struct compiled *c, struct buffer *into);

/* Bytes from anywhere; refuses (`malformed`-like: ERROR_INVALID_ARGUMENT) what is cut off, too long, has anything
 * behind its end, or breaks one of the limits above. It does not look into the image: see compiled_verify(). */
int compiled_parse(const void *bytes, size_t size, struct compiled **ret_compiled, struct error *e);

/* Reads the image and refuses a `c` whose entries are not in it, or that says something else of them than the image
 * does. Who launches a kernel relies on sizes and offsets of parameters: this must hold for code from outside. */
int compiled_verify(const struct compiled *c, struct error *e);

/* About what it takes on a device when it is loaded: code and variables. */
uint64_t compiled_device_bytes(const struct compiled *c);

#endif
