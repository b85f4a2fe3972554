/* Device memory is a file: the data, then one page that describes it. Like a real device's, it lives as long as any
 * process maps it.
 *
 * Memory that other processes name by bytes alone lies in a folder that all of them reach, also those in a sandbox. Its
 * file is named by the owner's token and the slot, and removed when the memory is freed. The owner holds a lock on it:
 * a file without a lock was left by a process that was killed, and is not opened. All other memory is a memfd. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include "standin.h"

enum { PATTERN = 0xa5, PATTERN_ALL = 64 << 20, PATTERN_END = 16 << 20 };

static const char tail_magic[16] = "kops standin 01";
static pid_t owner; /* of the token: a fork has the same, and removes nothing */

const unsigned char *process_token(void)
{
    static unsigned char token[16];

    if (!owner && getrandom(token, sizeof(token), 0) == sizeof(token))
        owner = getpid();
    return token;
}

uint64_t buffer_id_next(void)
{
    static uint64_t last;

    return ++last;
}

size_t round_up(size_t size, size_t unit)
{
    return (size + unit - 1) / unit * unit;
}

static bool fill_pattern(int fd, size_t size)
{
    unsigned char *bytes = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    if (bytes == MAP_FAILED)
        return false;
    if (size <= PATTERN_ALL) {
        memset(bytes, PATTERN, size);
    } else {
        memset(bytes, PATTERN, PATTERN_END);
        memset(bytes + size - PATTERN_END, PATTERN, PATTERN_END);
    }
    munmap(bytes, size);
    return true;
}

/* ---- memory with a name ---- */

static void folder(char *ret_path, size_t size)
{
    const char *given = getenv("KOPS_STANDIN_MEMORY");

    if (given && *given)
        snprintf(ret_path, size, "%s", given);
    else
        snprintf(ret_path, size, P_tmpdir "/kops-standin-%u", (unsigned)getuid());
}

static void name_of(const unsigned char *token, uint32_t slot, char *ret_path, size_t size)
{
    uint64_t words[2];
    char path[128];

    folder(path, sizeof(path));
    memcpy(words, token, sizeof(words));
    snprintf(ret_path, size, "%s/%016llx%016llx-%u", path, (unsigned long long)words[0], (unsigned long long)words[1],
             slot);
}

/* A process in a sandbox can make no file there: its memory then has no name, and no other process opens it. */
static int open_named(uint32_t slot)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    char path[192];
    int fd;

    folder(path, sizeof(path));
    mkdir(path, 0700); /* the user's own; one that was named is there */
    name_of(process_token(), slot, path, sizeof(path));
    fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0 && (errno == EACCES || errno == EPERM))
        return memfd_create("standin-device-memory", MFD_CLOEXEC);
    if (fd < 0) {
        fprintf(stderr, "cuda_standin: cannot make %s: %s\n", path, strerror(errno));
        return -1;
    }
    if (fchmod(fd, 0666) == 0 && fcntl(fd, F_OFD_SETLK, &lock) == 0)
        return fd;
    unlink(path);
    close(fd);
    return -1;
}

void segment_forget(uint32_t slot)
{
    char path[192];

    name_of(process_token(), slot, path, sizeof(path));
    unlink(path);
}

__attribute__((destructor)) static void forget_all(void)
{
    for (unsigned i = 0; owner == getpid() && i < MAX_SLOTS; i++)
        if (standin_slots[i].live && standin_slots[i].named)
            segment_forget(i);
}

int segment_open(const unsigned char *token, uint32_t slot, uint64_t buffer_id, struct segment_tail *ret_tail)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    char path[192];
    int fd;

    name_of(token, slot, path, sizeof(path));
    fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return -1;
    if (fcntl(fd, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK && segment_read_tail(fd, ret_tail) &&
        memcmp(ret_tail->token, token, sizeof(ret_tail->token)) == 0 && ret_tail->slot == slot &&
        (!buffer_id || ret_tail->buffer_id == buffer_id))
        return fd;
    close(fd);
    return -1;
}

/* ---- any memory ---- */

/* Fresh memory holds a pattern, never zeros. Fills in magic, token, sizes and buffer id of *tail. */
int segment_new(struct segment_tail *tail, size_t size, enum segment_kind kind)
{
    int fd;

    if (kind == SEGMENT_NAMED)
        fd = open_named(tail->slot);
    else
        fd = memfd_create(kind == SEGMENT_POOLED ? "standin-pool-memory" : "standin-device-memory", MFD_CLOEXEC);
    if (fd < 0)
        return -1;
    memcpy(tail->magic, tail_magic, sizeof(tail_magic));
    memcpy(tail->token, process_token(), sizeof(tail->token));
    tail->size = size;
    tail->data_bytes = round_up(size, PAGE);
    tail->buffer_id = buffer_id_next();
    /* The pattern first: who sees the tail sees it. */
    if (ftruncate(fd, (off_t)(tail->data_bytes + PAGE)) < 0 || !fill_pattern(fd, size) ||
        pwrite(fd, tail, sizeof(*tail), (off_t)tail->data_bytes) != sizeof(*tail)) {
        if (kind == SEGMENT_NAMED)
            segment_forget(tail->slot);
        close(fd);
        return -1;
    }
    return fd;
}

bool segment_read_tail(int fd, struct segment_tail *ret_tail)
{
    struct stat status;

    if (fstat(fd, &status) < 0 || !S_ISREG(status.st_mode) || status.st_size < 2 * PAGE)
        return false;
    return pread(fd, ret_tail, sizeof(*ret_tail), status.st_size - PAGE) == sizeof(*ret_tail) &&
           memcmp(ret_tail->magic, tail_magic, sizeof(tail_magic)) == 0 &&
           ret_tail->data_bytes == (uint64_t)status.st_size - PAGE && ret_tail->size <= ret_tail->data_bytes;
}

uint64_t address_reserve(size_t size)
{
    size_t whole = round_up(size, GRANULARITY) + 2 * (size_t)GRANULARITY;
    uint64_t start, aligned;
    void *mapped;

    if (whole < size)
        return 0;
    mapped = mmap(NULL, whole, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED)
        return 0;
    start = (uint64_t)(uintptr_t)mapped;
    aligned = round_up(start, GRANULARITY);
    if (aligned > start)
        munmap(mapped, aligned - start);
    if (aligned < start + GRANULARITY)
        munmap((void *)(uintptr_t)(aligned + whole - GRANULARITY), start + GRANULARITY - aligned);
    return aligned;
}

bool segment_map(uint64_t address, int fd, size_t size, int protection)
{
    return mmap((void *)(uintptr_t)address, round_up(size, PAGE), protection, MAP_SHARED | MAP_FIXED, fd, 0) !=
           MAP_FAILED;
}

/* Whoever still touches it faults. */
void address_clear(uint64_t address, size_t size)
{
    mmap((void *)(uintptr_t)address, round_up(size, PAGE), PROT_NONE,
         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

void address_free(uint64_t address, size_t size)
{
    munmap((void *)(uintptr_t)address, round_up(size, GRANULARITY) + GRANULARITY);
}
