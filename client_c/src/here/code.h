/* Binaries that the daemon handed out, loaded in contexts of this process.
 *
 * A binary is kept by its key, once a process, and loaded at its first use in a context. It stays loaded as long as the
 * context: graphs that were captured hold its kernels, and nothing tells when the last one goes. Thread: any. */
#ifndef KOPS_CLIENT_HERE_CODE_H
#define KOPS_CLIENT_HERE_CODE_H

#include <kops/kops.h>

#include "core/kernel.h"
#include "core/tensor.h"
#include "cuda/cuda_driver.h"
#include "ops/launch.h"
#include "util/error.h"
#include "wire/wire.h"

/* Parts that launches here share: tensors of this process in the form that the rules of launches (daemon/core) take,
 * errors of these rules, and the calling thread's CUDA context, where launches run. */

/* Checks the tensor and converts it, with its address as offset. `key` names it in errors. Errors: limit_exceeded,
 * out_of_range, misaligned, out_of_bounds. */
int here_read_tensor(const struct native_tensor *from, const char *key, struct tensor *ret, struct error *e);

/* Writes the words of a call, all that its checks depend on, or compares them with kept words. Counts and ranks come
 * first: they say how many words follow, and calls with other counts or ranks differ in these words. */
struct here_walk {
    const bool writes;
    uint64_t *at;
    uint64_t differs; /* not 0: some word differs */
};

#define HERE_INLINE static inline __attribute__((always_inline))

HERE_INLINE void here_look(struct here_walk *w, uint64_t word)
{
    if (w->writes)
        *w->at = word;
    else
        w->differs |= *w->at ^ word;
    w->at++;
}

/* At most 4 + 2 * TENSOR_MAX_RANK words. False: the tensor has too many dimensions. */
HERE_INLINE bool here_look_at_tensor(struct here_walk *w, const struct native_tensor *t)
{
    if (t->rank > TENSOR_MAX_RANK)
        return false;
    here_look(w, t->offset);
    here_look(w, t->bytes);
    here_look(w, (uint64_t)t->rank << 32 | (uint64_t)t->dtype);
    here_look(w, t->strides != NULL);
    for (unsigned i = 0; i < t->rank; i++)
        here_look(w, (uint64_t)t->shape[i]);
    for (unsigned i = 0; t->strides && i < t->rank; i++)
        here_look(w, (uint64_t)t->strides[i]);
    return true;
}

/* Tells overlap_check() that two operands lie in one memory: all memory of this process is one, and a tensor's offset
 * is its address. */
bool here_one_memory(const void *context, unsigned a, unsigned b);

/* The calling thread's CUDA context, where launches here run. Errors: no_cuda (no driver, after a fork, or no context
 * is current). */
enum kops_code here_context(const struct cuda_driver **ret_driver, cuda_context *ret_context, struct kops_error *e);

/* Errors: device_mismatch, unless the tensors' device (by its number in this process; -1: any) is the context's. */
enum kops_code here_check_device(int tensors, cuda_device context, struct kops_error *e);

/* Converts an error of the rules into one of this library. `to` may be NULL. Returns the code. */
enum kops_code here_error(const struct error *from, struct kops_error *to);

struct here_code;

/* A binary's function in one context, with the limits of its launches. */
struct here_function {
    cuda_function function;
    cuda_context context;
    cuda_device device;
    char uuid[CUDA_UUID_TEXT];   /* UUID of the device; "": the driver does not tell */
    struct kernel_limits limits; /* limits of the device and of the function */
};

/* The kept binary of that key (64 hexadecimal digits); NULL: none yet. */
struct here_code *here_code_find(const char *key);

/* Maps and keeps the first `size` bytes of the file. Returns the binary kept before where another thread was faster.
 * Errors: os_error, no_memory. */
enum kops_code here_code_keep(const char *key, int fd, size_t size, struct here_code **ret, struct kops_error *e);

/* Finds the symbol in the calling thread's current context, loading the binary there at its first use; also while a
 * stream is captured. Errors: no_cuda (no context is current), unsupported (the binary is for another architecture),
 * device_error. */
enum kops_code here_code_function(struct here_code *code, const struct cuda_driver *d, cuda_context context,
                                  const char *symbol, struct here_function *ret, struct kops_error *e);

/* ---- the binaries of the daemon's own kernels that this process has, by name, and their functions in its contexts.
 * One set a process: daemons whose layouts are ours hand out kernels that compute the same. ---- */

/* Errors: unsupported, where the daemon's kernels lay out their parameters differently from this library's. */
enum kops_code here_image_check(uint64_t layout, struct kops_error *e);

/* Keeps the first `size` bytes of the file, whose layout was checked. Errors: bad_argument (no binary has that name),
 * no_memory. */
enum kops_code here_image_keep(const char *name, int fd, size_t size, struct kops_error *e);

/* Finds the kernel in the calling thread's current context. `symbol` is static, as those of struct cuda_launch.
 * *ret_missing: the name of the binary that has to be kept first; NULL: *ret is filled. Errors: those of
 * here_code_function(). */
enum kops_code here_image_function(const struct cuda_driver *d, cuda_context context, const char *symbol,
                                   struct here_function *ret, const char **ret_missing, struct kops_error *e);

/* Returns the lowest device level that has the kernel. A device of that level may still lack it, where the daemon's
 * binaries were built without code for that level: here_image_function() fails with unsupported. */
enum cuda_ops_level here_image_level(const char *symbol);

#endif
