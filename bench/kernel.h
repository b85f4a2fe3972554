/* A small add of this process: vectors in its own CUDA memory, a kernel equal to the daemon's, a stream to launch it
 * on. */
#ifndef KOPS_BENCH_KERNEL_H
#define KOPS_BENCH_KERNEL_H

#include <stddef.h>
#include <stdint.h>

#include <kops/kops.h>

#include "driver.h"
#include "options.h"

enum { ADD_VECTORS = 4 };

struct add_kernel {
    struct driver driver;
    uint32_t elements;
    cu_function function;
    cu_stream stream;
    cu_deviceptr memory[ADD_VECTORS];
    kops_buffer *buffers[ADD_VECTORS]; /* owned, after add_kernel_register() */
    struct kops_tensor tensors[ADD_VECTORS];
};

/* 0, an exit status otherwise. */
int add_kernel_prepare(struct add_kernel *kernel, size_t elements);

/* Makes the vectors known to the daemon. The buffers are released before the client is closed. */
int add_kernel_register(struct add_kernel *kernel, kops_client *client);
void add_kernel_release(struct add_kernel *kernel);
void add_kernel_free(struct add_kernel *kernel);

/* out = a + b of the vectors with these numbers, on the stream. The driver's result. */
int add_kernel_launch(struct add_kernel *kernel, unsigned a, unsigned b, unsigned out);

#endif
