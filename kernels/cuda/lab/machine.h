/* Runs launches: a GPU through its driver, or an emulator in the unit tests. */
#ifndef KOPS_CUDA_LAB_MACHINE_H
#define KOPS_CUDA_LAB_MACHINE_H

#include "ops/launch.h"

struct lab_machine {
    struct cuda_ops_device device;
    void *context;
    /* Memory whose address is a multiple of 16; 0: there is none. `size` may be 0. */
    uint64_t (*alloc)(void *context, size_t size);
    void (*free)(void *context, uint64_t address, size_t size);
    int (*write)(void *context, uint64_t to, const void *from, size_t size);
    int (*read)(void *context, void *to, uint64_t from, size_t size);
    /* Runs the launch to its end. */
    int (*launch)(void *context, const struct cuda_launch *launch);
};

#endif
