/* Owns the modules of one device. */
#include "kernels.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "device.h"
#include "ops/launch.h"

static unsigned hash(const char *name)
{
    unsigned h = 2166136261U;

    for (; *name; name++)
        h = (h ^ (unsigned char)*name) * 16777619U;
    return h;
}

/* The kernel of that name, or the free place where it belongs. */
static struct cuda_kernel *place(struct cuda_kernels *k, const char *name)
{
    unsigned i = hash(name) & k->mask;

    while (k->table[i].name && k->table[i].name != name && strcmp(k->table[i].name, name) != 0)
        i = (i + 1) & k->mask;
    return &k->table[i];
}

/* Lets launches ask for all of the shared memory that a block may have here; by itself this changes nothing. */
static int allow_shared_memory(struct cuda_device *d, CUfunction function, int device_max, struct error *e)
{
    int fixed;

    if (CUDA_OPEN_CALL(d, e, FuncGetAttribute, &fixed, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, function) < 0)
        return -1;
    return CUDA_OPEN_CALL(d, e, FuncSetAttribute, function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                          device_max - fixed);
}

static int load_kernel(struct cuda_device *d, struct cuda_kernels *k, const struct cuda_ops_kernel *declared,
                       int max_shared, struct error *e)
{
    struct cuda_kernel *kernel = place(k, declared->name);

    if (CUDA_OPEN_CALL(d, e, ModuleGetFunction, &kernel->function, k->modules[declared->image], declared->name) < 0)
        return -1;
    kernel->name = declared->name;
    /* Eager even where the environment asks for lazy loading. */
    if (CUDA_HAS(FuncLoad) && CUDA_OPEN_CALL(d, e, FuncLoad, kernel->function) < 0)
        return -1;
    return allow_shared_memory(d, kernel->function, max_shared, e);
}

int cuda_kernels_load(struct cuda_device *d, struct cuda_kernels *k, struct error *e)
{
    unsigned count = 0, places = 16;
    int max_shared;

    *k = (struct cuda_kernels){0};
    pthread_mutex_init(&k->lock, NULL);
    while (cuda_ops_kernels[count].name)
        count++;
    while (places < 2 * count)
        places *= 2;
    k->mask = places - 1;
    k->table = calloc(places, sizeof(*k->table));
    k->modules = calloc(cuda_ops_image_count, sizeof(CUmodule));
    if (!k->table || !k->modules) {
        error_set(e, ERROR_OUT_OF_MEMORY, "no memory for the table of kernels");
        goto unload;
    }
    if (CUDA_DRIVER_CALL(e, DeviceGetAttribute, &max_shared, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
                         d->ordinal) < 0)
        goto unload;
    for (; k->n_modules < cuda_ops_image_count; k->n_modules++)
        if (CUDA_OPEN_CALL(d, e, ModuleLoadData, &k->modules[k->n_modules], cuda_ops_images[k->n_modules].data) < 0)
            goto unload;
    for (unsigned i = 0; i < count; i++)
        if (load_kernel(d, k, &cuda_ops_kernels[i], max_shared, e) < 0)
            goto unload;
    return 0;

unload:
    cuda_kernels_unload(d, k);
    return -1;
}

void cuda_kernels_unload(struct cuda_device *d, struct cuda_kernels *k)
{
    while (k->n_modules > 0)
        cuda_on(d)->ModuleUnload(k->modules[--k->n_modules]);
    free(k->modules);
    free(k->table);
    pthread_mutex_destroy(&k->lock);
}

CUfunction cuda_kernels_find(struct cuda_kernels *k, const char *name)
{
    return place(k, name)->function;
}

static unsigned query_occupancy(struct cuda_device *d, const struct cuda_kernel *kernel, unsigned block,
                                unsigned shared)
{
    int blocks = 0;

    /* A guess is enough where the driver has no answer: kernels loop over their work, so any grid is right. */
    if (cuda_on(d)->OccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel->function, (int)block, shared) !=
        CUDA_SUCCESS)
        return 1;
    return blocks > 0 ? (unsigned)blocks : 1;
}

unsigned cuda_kernels_occupancy(struct cuda_device *d, struct cuda_kernels *k, const char *name, unsigned block,
                                unsigned shared)
{
    struct cuda_kernel *kernel = place(k, name);
    unsigned blocks = 0, i;

    if (!kernel->name)
        return 1;
    pthread_mutex_lock(&k->lock);
    for (i = 0; i < CUDA_OCCUPANCIES && kernel->occupancies[i].blocks; i++) {
        if (kernel->occupancies[i].block == block && kernel->occupancies[i].shared == shared) {
            blocks = kernel->occupancies[i].blocks;
            break;
        }
    }
    if (!blocks) {
        blocks = query_occupancy(d, kernel, block, shared);
        if (i == CUDA_OCCUPANCIES)
            i = block % CUDA_OCCUPANCIES;
        kernel->occupancies[i].block = block;
        kernel->occupancies[i].shared = shared;
        kernel->occupancies[i].blocks = blocks;
    }
    pthread_mutex_unlock(&k->lock);
    return blocks;
}
