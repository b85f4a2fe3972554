/* The result of a compile: a binary (a cubin) and the properties of its kernels. All requests for the same source share
 * it, so it never changes once it is returned.
 *
 * Owns all that it points at. Thread: references are counted atomically; the rest is read only. */
#ifndef KOPS_COMPILE_COMPILED_H
#define KOPS_COMPILE_COMPILED_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "util/buffer.h"
#include "util/error.h"

enum {
    COMPILED_MAX_ENTRIES = 64,
    COMPILED_MAX_PARAMS = 64,         /* a kernel's */
    COMPILED_MAX_PARAM_BYTES = 32764, /* a kernel's parameters together: CUDA's own limit */
    COMPILED_MAX_NAME = 4096,         /* bytes of an entry's name, or of its lowered name */
    COMPILED_MAX_LOG = 256 << 10,
    COMPILED_MAX_IMAGE = 64 << 20,
    KEY_BYTES = 32,
    KEY_HEX = 2 * KEY_BYTES,
    COMPILED_ARCH_SIZE = 16,     /* with the ending zero */
    COMPILED_COMPILER_SIZE = 32, /* likewise */
};

struct compiled_entry {
    char *name;            /* as asked for */
    char *lowered;         /* the name in the binary */
    uint32_t registers;    /* a thread's */
    uint32_t shared_bytes; /* static */
    uint32_t local_bytes;  /* a thread's spilled registers and local arrays */
    uint32_t const_bytes;  /* constant memory of the kernel, without its parameters */
    uint32_t max_threads;  /* a block's, by registers and by __launch_bounds__ where the source has it */
    uint32_t n_params;
    uint32_t param_sizes[COMPILED_MAX_PARAMS], param_offsets[COMPILED_MAX_PARAMS]; /* in the order of the source */
};

/* Origin of the module on this machine. Only its own caches know it; compiled_serialize() leaves it out. */
enum compiled_from { COMPILED_HERE, COMPILED_IMPORTED, COMPILED_REMOTE, COMPILED_FROM_COUNT };

struct compiled {
    atomic_uint refs;
    enum compiled_from from;               /* set before others see it */
    unsigned char key[KEY_BYTES];          /* in the cache; zero until it is set */
    char arch[COMPILED_ARCH_SIZE];         /* "sm_90a" */
    char compiler[COMPILED_COMPILER_SIZE]; /* "NVRTC 13.0" */
    double compile_us;                     /* NVRTC's time */
    char *log;                             /* warnings; "" when there are none, never NULL */
    unsigned n_entries;
    struct compiled_entry *entries;
    unsigned char *image; /* the binary, a cubin */
    size_t image_size;
};

/* Makes an empty binary with one reference. The caller fills it in before others see it, with memory of malloc(). NULL
 * when memory is short. */
struct compiled *compiled_new(void);

struct compiled *compiled_ref(struct compiled *c);
/* Drops a reference. NULL is allowed; returns NULL. */
struct compiled *compiled_unref(struct compiled *c);

size_t compiled_memory(const struct compiled *c);

/* Appends all fields in a form that compiled_parse() reads, equal for equal contents on every machine. */
void compiled_serialize(const struct compiled *c, struct buffer *into);

/* Reads bytes from anywhere. Refuses (ERROR_INVALID_ARGUMENT) bytes that are cut off, too long, followed by others, or
 * that break one of the limits above. The binary itself is not read: see compiled_verify(). */
int compiled_parse(const void *bytes, size_t size, struct compiled **ret_compiled, struct error *e);

/* Reads the binary and refuses a `c` whose entries are not in it, or differ from it. Launches rely on the sizes and
 * offsets of parameters, so binaries from outside must pass this check. */
int compiled_verify(const struct compiled *c, struct error *e);

/* Returns the approximate size on a device: code and variables. */
uint64_t compiled_device_bytes(const struct compiled *c);

/* Writes a key in lower case, with an ending zero. */
void key_to_hex(const unsigned char key[KEY_BYTES], char ret_hex[KEY_HEX + 1]);

/* Reads exactly KEY_HEX digits in lower case and nothing more. */
bool key_from_hex(const char *hex, unsigned char ret_key[KEY_BYTES]);

#endif
