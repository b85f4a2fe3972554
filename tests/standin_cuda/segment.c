/* Device memory is a memfd: its data, and behind it a page that tells what it is. Another process opens it through
 * /proc, and the pages live as long as anyone maps them, as those of a real device do. */
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "standin.h"

enum { PATTERN = 0xa5, PATTERN_ALL = 64 << 20, PATTERN_END = 16 << 20 };

static const char tail_magic[16] = "kops standin 01";

const unsigned char *process_token(void)
{
    static unsigned char token[16];
    static bool made;

    if (!made)
        made = getrandom(token, sizeof(token), 0) == sizeof(token);
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

/* Fresh memory holds a pattern, never zeros. Fills in magic, token, sizes and buffer id of *tail. */
int segment_new(struct segment_tail *tail, size_t size, bool pooled)
{
    int fd = memfd_create(pooled ? "standin-pool-memory" : "standin-device-memory", MFD_CLOEXEC);

    if (fd < 0)
        return -1;
    memcpy(tail->magic, tail_magic, sizeof(tail_magic));
    memcpy(tail->token, process_token(), sizeof(tail->token));
    tail->size = size;
    tail->data_bytes = round_up(size, PAGE);
    tail->buffer_id = buffer_id_next();
    if (ftruncate(fd, (off_t)(tail->data_bytes + PAGE)) < 0 ||
        pwrite(fd, tail, sizeof(*tail), (off_t)tail->data_bytes) != sizeof(*tail) || !fill_pattern(fd, size)) {
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
