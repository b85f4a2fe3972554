/* Owns the imported pools. The exporter sends the same descriptor with each pointer, and a pool is imported once. */
#include "mapping.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "util/list.h"

#ifndef KCMP_FILE
#define KCMP_FILE 0 /* some systems lack linux/kcmp.h */
#endif

_Static_assert(sizeof(CUmemPoolPtrExportData) == BACKEND_IPC_HANDLE_SIZE, "the wire's handles are the driver's");

struct cuda_pool {
    struct list link;
    struct cuda_device *device;
    CUmemoryPool pool;
    int fd; /* identifies the pool */
    unsigned references;
};

/* Held while a pool is imported, so that no pool is imported twice. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct list pools = {&pools, &pools};

bool cuda_pools_import(void)
{
    return CUDA_HAS(MemPoolImportFromShareableHandle) && CUDA_HAS(MemPoolImportPointer) && CUDA_HAS(MemPoolSetAccess);
}

CUresult cuda_pool_allow(const struct cuda_pool *pool, const struct cuda_device *peer)
{
    const CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = peer->ordinal},
                                    .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};

    return cuda_on(pool->device)->MemPoolSetAccess(pool->pool, &access, 1);
}

static struct cuda_pool *pool_new(struct cuda_device *d, int fd, struct error *e)
{
    struct cuda_pool *p = calloc(1, sizeof(*p));
    CUresult r;

    if (!p) {
        error_set(e, ERROR_OUT_OF_MEMORY, "no memory for a pool's record");
        return NULL;
    }
    p->device = d;
    p->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (p->fd < 0) {
        error_set(e, ERROR_OUT_OF_MEMORY, "duplicating a pool's descriptor: %s", strerror(errno));
        goto free_record;
    }
    r = cuda_on(d)->MemPoolImportFromShareableHandle(&p->pool, (void *)(intptr_t)fd,
                                                     CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    if (r != CUDA_SUCCESS) {
        cuda_memory_refused(d, r, "cuMemPoolImportFromShareableHandle",
                            "the descriptor is not that of a memory pool on a GPU that the daemon uses", e);
        goto close_fd;
    }
    if (cuda_check(d, cuda_pool_allow(p, d), "cuMemPoolSetAccess", e) < 0)
        goto destroy_pool;
    list_append(&pools, &p->link);
    return p;

destroy_pool:
    cuda_on(p->device)->MemPoolDestroy(p->pool);
close_fd:
    close(p->fd);
free_record:
    free(p);
    return NULL;
}

static struct cuda_pool *pool_get(struct cuda_device *d, int fd, struct error *e)
{
    struct cuda_pool *found = NULL;

    pthread_mutex_lock(&lock);
    list_for_each_safe (node, after, &pools) {
        struct cuda_pool *p = list_entry(node, struct cuda_pool, link);

        if (p->device == d && syscall(SYS_kcmp, getpid(), getpid(), KCMP_FILE, p->fd, fd) == 0)
            found = p;
    }
    if (!found)
        found = pool_new(d, fd, e);
    if (found)
        found->references++;
    pthread_mutex_unlock(&lock);
    return found;
}

static void pool_put(struct cuda_pool *p)
{
    pthread_mutex_lock(&lock);
    if (--p->references == 0) {
        list_remove(&p->link);
        cuda_on(p->device)->MemPoolDestroy(p->pool);
        close(p->fd);
        free(p);
    }
    pthread_mutex_unlock(&lock);
}

/* Frees the pointer, which tells the exporter's driver that this process no longer uses the memory. */
static void give_back(struct cuda_device *d, CUdeviceptr address)
{
    if (cuda_on(d)->MemFreeAsync(address, d->service) == CUDA_SUCCESS)
        cuda_on(d)->StreamSynchronize(d->service);
}

int cuda_pool_import(struct cuda_device *d, const struct backend_import *import, struct cuda_memory **ret_memory,
                     struct error *e)
{
    CUmemPoolPtrExportData data;
    struct cuda_pool *pool;
    struct cuda_memory *m;
    CUdeviceptr address;
    uint64_t size = 0;
    CUresult r;

    if (!cuda_pools_import())
        return error_set(e, ERROR_UNSUPPORTED, "this machine's driver does not share pools between processes");
    pool = pool_get(d, import->fds[0], e);
    if (!pool)
        return -1;
    memcpy(&data, import->handle, sizeof(data));
    r = cuda_on(d)->MemPoolImportPointer(&address, pool->pool, &data);
    if (r != CUDA_SUCCESS) {
        cuda_memory_refused(d, r, "cuMemPoolImportPointer",
                            "the handle is no pointer of this pool: its memory was freed or its owner has ended", e);
        goto put_pool;
    }
    if (cuda_memory_check(d, address, import->size, &size, e) < 0)
        goto free_pointer;
    m = cuda_memory_new(d, MEMORY_CUDA_POOL, address, size, import->writable, e);
    if (!m)
        goto free_pointer;
    m->pool = pool;
    *ret_memory = m;
    return 0;

free_pointer:
    give_back(d, address);
put_pool:
    pool_put(pool);
    return -1;
}

void cuda_pool_close(struct cuda_device *d, struct cuda_memory *m)
{
    give_back(d, m->base.address);
    pool_put(m->pool);
}
