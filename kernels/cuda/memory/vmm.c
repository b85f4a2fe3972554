/* Owns ranges of addresses and the allocations mapped in them. A range is reserved for all its allocations at once, so
 * more can be mapped while jobs use the first ones. Unmapped guard addresses lie before and behind each range, so that
 * a kernel that runs out of its range faults. */
#include "mapping.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static CUmemAllocationProp shareable_on(const struct cuda_device *d)
{
    return (CUmemAllocationProp){
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = d->ordinal},
    };
}

static int find_granularity(struct cuda_device *d, size_t *ret, struct error *e)
{
    const CUmemAllocationProp prop = shareable_on(d);

    return CUDA_CALL(d, e, MemGetAllocationGranularity, ret, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
}

/* Guard addresses before and behind a range. They cost nothing, since a process has 2^47 addresses. */
enum { GUARD_BYTES = 16 << 20 };

static uint64_t round_up(uint64_t size, uint64_t granularity)
{
    return (size + granularity - 1) / granularity * granularity;
}

static void unreserve(const struct cuda_device *d, const struct cuda_memory *m)
{
    cuda_on(d)->MemAddressFree(m->base.address - m->guard, m->guard + m->reserved + m->guard);
}

static void free_record(struct cuda_memory *m)
{
    free(m->chunks);
    free(m);
}

/* Reserves addresses for `size` bytes, rounded up to the driver's granularity. Maps nothing. */
static struct cuda_memory *reserve(struct cuda_device *d, uint64_t size, bool writable, struct error *e)
{
    struct cuda_memory *m = NULL;
    CUdeviceptr address;
    size_t granularity;

    if (find_granularity(d, &granularity, e) < 0)
        return NULL;
    if (size > INT64_MAX / 2) {
        error_set(e, ERROR_OUT_OF_MEMORY, "no device has that much memory");
        return NULL;
    }
    m = cuda_memory_new(d, MEMORY_CUDA_VMM, 0, 0, writable, e);
    if (!m)
        return NULL;
    m->reserved = round_up(size, granularity);
    m->guard = round_up(GUARD_BYTES, granularity);
    m->chunks = malloc(sizeof(*m->chunks));
    if (!m->chunks) {
        error_set(e, ERROR_OUT_OF_MEMORY, "no memory for a mapping's record");
        goto free_memory;
    }
    if (CUDA_CALL(d, e, MemAddressReserve, &address, m->guard + m->reserved + m->guard, 0, 0, 0) < 0)
        goto free_memory;
    m->base.address = address + m->guard;
    return m;

free_memory:
    free_record(m);
    return NULL;
}

/* False: pieces stay mapped, so nothing else may be mapped there. On a broken device all stay: its work may run on. */
static bool unmap_pieces(const struct cuda_device *d, CUdeviceptr address, const uint64_t *pieces, unsigned n)
{
    bool gone = true;

    if (cuda_device_is_broken(d))
        return false;
    for (unsigned i = 0; i < n; address += pieces[i++])
        gone = cuda_on(d)->MemUnmap(address, pieces[i]) == CUDA_SUCCESS && gone;
    return gone;
}

void cuda_vmm_close(struct cuda_memory *m)
{
    const struct cuda_device *d = cuda_device(m->base.device);

    if (unmap_pieces(d, m->base.address, m->chunks, m->n_chunks) && !m->stuck)
        unreserve(d, m);
}

/* ---- memory of other processes ---- */

static int bad_chunks(struct error *e, enum error_code code, const char *why)
{
    error_set(e, code, "%s", why);
    return error_detail_text(e, "key", "chunk_bytes");
}

static int check_chunks(struct cuda_device *d, const struct backend_import *import, uint64_t room, struct error *e)
{
    size_t granularity;

    if (find_granularity(d, &granularity, e) < 0)
        return -1;
    for (unsigned i = 0; i < import->n_fds; i++) {
        if (!import->fd_bytes[i] || import->fd_bytes[i] % granularity) {
            bad_chunks(e, ERROR_INVALID_ARGUMENT,
                       "chunk_bytes are the sizes of allocations, so multiples of the granularity; without them size "
                       "is divided evenly");
            return error_detail_number(e, "needed", (int64_t)granularity);
        }
        if (import->fd_bytes[i] > room)
            return bad_chunks(e, ERROR_INVALID_ARGUMENT, "the chunks are more than the declared size needs");
        room -= import->fd_bytes[i];
    }
    return 0;
}

static int check_allocation(struct cuda_device *d, CUmemGenericAllocationHandle handle, struct error *e)
{
    CUmemAllocationProp prop;

    if (CUDA_CALL(d, e, MemGetAllocationPropertiesFromHandle, &prop, handle) < 0)
        return -1;
    if (prop.location.type != CU_MEM_LOCATION_TYPE_DEVICE || prop.location.id != d->ordinal)
        return error_set(e, ERROR_INVALID_HANDLE, "the memory is not on %s; say its own device", d->base.info.uuid);
    return 0;
}

static int map_chunk(struct cuda_device *d, uint64_t address, int fd, uint64_t bytes, struct error *e)
{
    CUmemGenericAllocationHandle handle;
    CUresult r = cuda_on(d)->MemImportFromShareableHandle(&handle, (void *)(intptr_t)fd,
                                                          CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    int result = -1;

    if (r != CUDA_SUCCESS)
        return cuda_memory_refused(
            d, r, "cuMemImportFromShareableHandle",
            "the descriptor is not that of shareable device memory on a GPU that the daemon uses", e);
    if (check_allocation(d, handle, e) < 0)
        goto release_handle;
    r = cuda_on(d)->MemMap(address, bytes, 0, handle, 0);
    if (r == CUDA_ERROR_NOT_SUPPORTED || r == CUDA_ERROR_INVALID_VALUE) {
        bad_chunks(e, ERROR_OUT_OF_BOUNDS, "an allocation is smaller than declared");
        error_detail_number(e, "needed", (int64_t)bytes);
        error_detail_text(e, "driver", cuda_result_name(r));
    } else {
        result = cuda_check(d, r, "cuMemMap", e);
    }

release_handle:
    cuda_on(d)->MemRelease(handle); /* the mapping keeps the memory alive */
    return result;
}

static int map_chunks(struct cuda_device *d, struct cuda_memory *m, const struct backend_import *import,
                      struct error *e)
{
    uint64_t *chunks = realloc(m->chunks, (m->n_chunks + import->n_fds) * sizeof(*chunks));
    uint64_t start = m->base.address + m->mapped, bytes = 0;
    unsigned n = 0;

    if (!chunks)
        return error_set(e, ERROR_OUT_OF_MEMORY, "no memory for a mapping's record");
    m->chunks = chunks;
    for (; n < import->n_fds; n++) {
        if (map_chunk(d, start + bytes, import->fds[n], import->fd_bytes[n], e) < 0)
            goto unmap;
        chunks[m->n_chunks + n] = import->fd_bytes[n];
        bytes += import->fd_bytes[n];
    }
    if (cuda_peer_extend(m, start, bytes, e) < 0)
        goto unmap;
    m->n_chunks += n;
    return 0;

unmap:
    m->stuck = !unmap_pieces(d, start, import->fd_bytes, n);
    return -1;
}

int cuda_vmm_import(struct cuda_device *d, const struct backend_import *given, struct cuda_memory **ret_memory,
                    struct error *e)
{
    struct backend_import rounded, *import = &rounded;
    struct cuda_memory *m;

    if (given->size > d->base.info.memory_bytes)
        return cuda_memory_too_small(given->size, d->base.info.memory_bytes, e);
    m = reserve(d, given->size, given->writable, e);
    if (!m)
        return -1;
    rounded = *given;
    if (!rounded.fd_bytes[0])
        rounded.fd_bytes[0] = m->reserved;
    if (check_chunks(d, import, m->reserved, e) < 0 || map_chunks(d, m, import, e) < 0)
        goto free_memory;
    m->base.size = m->mapped;
    *ret_memory = m;
    return 0;

free_memory:
    if (!m->stuck)
        unreserve(d, m);
    free_record(m);
    return -1;
}

int cuda_memory_extend(struct backend_memory *memory, const struct backend_import *more, uint64_t *ret_size,
                       struct error *e)
{
    struct cuda_memory *m = cuda_memory(memory);
    struct cuda_device *d = cuda_device(memory->device);

    if (cuda_enter(d, e) < 0)
        return -1;
    if (m->stuck)
        return error_set(e, ERROR_DEVICE_ERROR, "the driver did not undo an extension that failed: register it anew");
    if (check_chunks(d, more, m->reserved - m->mapped, e) < 0 || map_chunks(d, m, more, e) < 0)
        return -1;
    *ret_size = m->mapped;
    return 0;
}

/* ---- memory of the daemon ---- */

/* Zeroes new memory, so that no client reads what another one left there. */
static int zero(struct cuda_device *d, CUdeviceptr address, uint64_t size, struct error *e)
{
    if (CUDA_CALL(d, e, MemsetD8Async, address, 0, size, d->service) < 0)
        return -1;
    return cuda_stream_wait(d, d->service, e);
}

/* Maps the allocation to the whole range of the memory. */
static int map_own(struct cuda_device *d, CUmemGenericAllocationHandle handle, struct cuda_memory *m, struct error *e)
{
    const CUdeviceptr address = m->base.address;
    const uint64_t size = m->reserved;

    if (CUDA_CALL(d, e, MemMap, address, size, 0, handle, 0) < 0)
        return -1;
    if (cuda_check(d, cuda_peer_set_access(d, address, size, true), "cuMemSetAccess", e) < 0 ||
        zero(d, address, size, e) < 0)
        goto unmap;
    m->base.size = m->mapped = m->chunks[0] = size;
    m->n_chunks = 1;
    return 0;

unmap:
    m->stuck = !unmap_pieces(d, address, &size, 1);
    return -1;
}

static int export_fd(struct cuda_device *d, CUmemGenericAllocationHandle handle, int *ret_fd, struct error *e)
{
    int fd = -1;

    if (CUDA_CALL(d, e, MemExportToShareableHandle, &fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) < 0)
        return -1;
    if (fcntl(fd, F_SETFD, FD_CLOEXEC) < 0) {
        close(fd);
        return error_set(e, ERROR_INTERNAL, "fcntl on an exported descriptor: %s", strerror(errno));
    }
    *ret_fd = fd;
    return 0;
}

int cuda_memory_alloc(struct backend_device *base, uint64_t size, struct backend_memory **ret_memory, int *ret_fd,
                      struct error *e)
{
    struct cuda_device *d = cuda_device(base);
    CUmemAllocationProp prop = shareable_on(d);
    CUmemGenericAllocationHandle handle;
    struct cuda_memory *m;
    int fd = -1;

    if (cuda_enter(d, e) < 0)
        return -1;
    m = reserve(d, size, true, e);
    if (!m)
        return -1;
    if (CUDA_CALL(d, e, MemCreate, &handle, m->reserved, &prop, 0) < 0)
        goto free_memory;
    if (map_own(d, handle, m, e) < 0)
        goto release_handle;
    if (export_fd(d, handle, &fd, e) < 0)
        goto unmap;
    m->base.made = true;
    cuda_on(d)->MemRelease(handle); /* the mapping and the descriptor keep the memory alive */
    *ret_memory = &m->base;
    *ret_fd = fd;
    return 0;

unmap:
    m->stuck = !unmap_pieces(d, m->base.address, m->chunks, m->n_chunks);
release_handle:
    cuda_on(d)->MemRelease(handle);
free_memory:
    if (!m->stuck)
        unreserve(d, m);
    free_record(m);
    return -1;
}
