#include "backend/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "util/error.h"
#include "util/log.h"

/* ---- ids ---- */

/* The arrays take no memory until ids are used. */
enum { IDS_MAX = 1 << 20 };
static _Atomic(struct backend_memory *) memories[IDS_MAX];
static uint32_t free_ids[IDS_MAX]; /* ids that were given back */
static uint32_t n_free, highest;   /* number of free_ids; the highest id so far */

uint32_t memory_id_new(struct error *e)
{
    if (n_free)
        return free_ids[--n_free];
    if (highest < IDS_MAX - 1)
        return ++highest;
    error_set(e, ERROR_OUT_OF_MEMORY, "the daemon has %d mappings, the most that it can", IDS_MAX - 1);
    return 0;
}

void memory_id_set(uint32_t id, struct backend_memory *memory)
{
    atomic_store_explicit(&memories[id], memory, memory_order_release);
}

void memory_id_free(uint32_t id)
{
    if (!id)
        return;
    memory_id_set(id, NULL);
    free_ids[n_free++] = id;
}

struct backend_memory *memory_by_id(uint32_t id)
{
    return atomic_load_explicit(&memories[id], memory_order_acquire);
}

/* ---- memfds ---- */

static bool keeps_fds;

void memfd_keep_fds(void)
{
    keeps_fds = true;
}

static int refuse(struct error *e, const char *why)
{
    error_set(e, ERROR_INVALID_FD, "%s", why);
    return error_detail_text(e, "key", "fd");
}

/* Seals are read first. Only a file that can carry seals is asked anything else, so that a device or network file
 * system chosen by the client cannot make the daemon wait. */
int memfd_check(int fd, uint64_t size, bool writable, struct error *e)
{
    int seals = fcntl(fd, F_GET_SEALS);
    struct statfs fs;
    struct stat st;

    if (seals < 0)
        return refuse(e, "the descriptor is no memfd; make one with memfd_create(MFD_ALLOW_SEALING)");
    if (!(seals & F_SEAL_SHRINK))
        return refuse(e, "the memfd can shrink; seal it with fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK)");
    if (fstatfs(fd, &fs) < 0 || fs.f_type != TMPFS_MAGIC)
        return refuse(e, "the memfd is not on tmpfs; make it without MFD_HUGETLB");
    if (fstat(fd, &st) < 0)
        return refuse(e, "the memfd's size cannot be read");
    if ((uint64_t)st.st_size < size) {
        error_set(e, ERROR_INVALID_FD, "the memfd has %lld bytes, less than the declared %llu", (long long)st.st_size,
                  (unsigned long long)size);
        error_detail_text(e, "key", "size");
        return error_detail_number(e, "size", (int64_t)st.st_size);
    }
    if (writable && (seals & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE))) {
        error_set(e, ERROR_READ_ONLY, "the memfd is sealed against writing; register it with access \"r\"");
        return error_detail_text(e, "key", "access");
    }
    return 0;
}

int memfd_map(int fd, uint64_t size, bool writable, struct backend_memory **ret_memory, struct error *e)
{
    struct backend_memory *m;
    struct stat st;
    void *at;

    if (memfd_check(fd, size, writable, e) < 0)
        return -1;
    m = calloc(1, sizeof(*m));
    if (!m)
        return error_set(e, ERROR_OUT_OF_MEMORY, "no memory for a mapping");
    at = mmap(NULL, size, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED) {
        int error = errno;

        free(m);
        if (error == EPERM || error == EACCES) {
            error_set(e, ERROR_READ_ONLY, "the descriptor cannot be mapped for writing; register it with access \"r\"");
            return error_detail_text(e, "key", "access");
        }
        return error_set(e, ERROR_OUT_OF_MEMORY, "mapping %llu bytes: %s", (unsigned long long)size, strerror(error));
    }
    *m = (struct backend_memory){.kind = MEMORY_MEMFD, .size = size, .writable = writable, .host = at, .fd = -1};
    if (fstat(fd, &st) == 0)
        m->file = st.st_ino;
    if (keeps_fds && (m->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0)) < 0) {
        error_shortage(e, errno, "a descriptor of shared memory");
        memfd_unmap(m);
        return -1;
    }
    *ret_memory = m;
    return 0;
}

int memfd_new(uint64_t size, struct backend_memory **ret_memory, int *ret_fd, struct error *e)
{
    int fd = memfd_create("kopsd", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    if (fd < 0)
        return error_shortage(e, errno, "memfd_create");
    if (size > INT64_MAX || ftruncate(fd, (off_t)size) < 0 ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0) {
        error_set(e, ERROR_OUT_OF_MEMORY, "making shared memory of %llu bytes: %s", (unsigned long long)size,
                  strerror(errno));
        goto close_fd;
    }
    if (memfd_map(fd, size, true, ret_memory, e) < 0)
        goto close_fd;
    *ret_fd = fd;
    return 0;

close_fd:
    close(fd);
    return -1;
}

/* Keeps the addresses mapped, to nothing, where a device failed to unregister the old memory: new memory at the same
 * addresses would be read wrongly, or could not be registered. */
static void hold_addresses(const struct backend_memory *memory)
{
    void *at =
        mmap(memory->host, memory->size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);

    if (at == MAP_FAILED)
        log_warning("addresses_not_kept", "bytes=%llu why=\"%s\"", (unsigned long long)memory->size, strerror(errno));
}

struct backend_memory *memfd_unmap(struct backend_memory *memory)
{
    if (!memory)
        return NULL;
    if (memory->address_taken)
        hold_addresses(memory);
    else
        munmap(memory->host, memory->size);
    if (memory->fd >= 0)
        close(memory->fd);
    free(memory);
    return NULL;
}
