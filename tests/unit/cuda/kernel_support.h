/* Users' kernels for the tests of the CUDA backend: tests/standin_cuda/user_kernels.cu loaded as a cubin, and jobs that
 * launch what is in it. */
#ifndef KOPS_TEST_CUDA_KERNEL_SUPPORT_H
#define KOPS_TEST_CUDA_KERNEL_SUPPORT_H

#include "core/kernel.h"
#include "support.h"

/* One parameter: a tensor of `bytes` from `offset` (bytes), or an int. */
struct arg {
    enum { ARG_IN, ARG_OUT, ARG_INT } kind;
    struct backend_memory *memory;
    uint64_t offset, bytes;
    int number;
    bool sparse;
};

#define IN(m, n)  ((struct arg){.kind = ARG_IN, .memory = (m), .bytes = (n) * sizeof(float)})
#define OUT(m, n) ((struct arg){.kind = ARG_OUT, .memory = (m), .bytes = (n) * sizeof(float)})
#define INT(n)    ((struct arg){.kind = ARG_INT, .number = (n)})

unsigned char *read_file(const char *path, size_t *ret_size);
/* The code of KOPS_TEST_CUBIN on `device`. */
struct backend_code *load_code(void);
/* The function lives as long as the process. */
const struct backend_function *load_function(struct backend_code *code, const char *name);

/* A job of one launch of the function over `threads` threads in blocks of 256; one timed execution. */
void make_kernel_job(struct test_job *t, const struct backend_function *function, unsigned threads,
                     const struct arg *args, unsigned n_args);
#define KERNEL_JOB(t, f, threads, ...)                                                                                 \
    make_kernel_job((t), (f), (threads), (const struct arg[]){__VA_ARGS__},                                            \
                    sizeof((const struct arg[]){__VA_ARGS__}) / sizeof(struct arg))

#endif
