/* Binaries that the daemon handed out, loaded in contexts of this process.
 *
 * A binary is kept by its key, once a process, and loaded at its first use in a context. It stays loaded as long as the
 * context: graphs that were captured hold its kernels, and nothing tells when the last one goes. Thread: any. */
#ifndef KOPS_CLIENT_HERE_CODE_H
#define KOPS_CLIENT_HERE_CODE_H

#include "core/kernel.h"
#include "cuda/cuda_driver.h"

struct here_code;

/* A binary's function in one context, with the limits of its launches. */
struct here_function {
    cuda_function function;
    cuda_context context;
    cuda_device device;
    char uuid[CUDA_UUID_TEXT];   /* of the device; "": the driver does not tell */
    struct kernel_limits limits; /* of the device and of the function */
};

/* The kept binary of that key (64 hexadecimal digits); NULL: none yet. */
struct here_code *here_code_find(const char *key);

/* Keeps the `size` bytes of the file, of which it makes a mapping of its own. The kept one where another thread was
 * faster. Errors: os_error, no_memory. */
enum kops_code here_code_keep(const char *key, int fd, size_t size, struct here_code **ret, struct kops_error *e);

/* Finds the symbol in the calling thread's current context, loading the binary there at its first use; also while a
 * stream is captured. Errors: no_cuda (no context is current), unsupported (the binary is for another architecture),
 * device_error. */
enum kops_code here_code_function(struct here_code *code, const struct cuda_driver *d, cuda_context context,
                                  const char *symbol, struct here_function *ret, struct kops_error *e);

#endif
