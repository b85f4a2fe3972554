/* The machine that processes see: the same everywhere, so that a seed is the same run everywhere. */
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "preload.h"

/* ---- files that say how the machine is ---- */

static const struct {
    const char *path, *text;
} files[] = {
    {"/proc/meminfo", "MemTotal:       33554432 kB\nMemFree:        25165824 kB\nMemAvailable:   25165824 kB\n"},
    {"/proc/cpuinfo", "model name\t: Simulated processor\n"},
    {"/proc/self/cgroup", "\n"},
    {"/proc/self/status", "RssShmem:\t0 kB\n"},
    {"/proc/self/statm", "100000 10000 5000 500 0 20000 0\n"},
};

EXPORT FILE *fopen(const char *restrict path, const char *restrict mode)
{
    for (unsigned i = 0; simulated() && i < sizeof(files) / sizeof(files[0]); i++)
        if (!strcmp(path, files[i].path))
            return fmemopen((void *)(uintptr_t)files[i].text, strlen(files[i].text), "r");
    return REAL(fopen)(path, mode);
}

/* ---- processors ---- */

EXPORT int sched_getaffinity(pid_t pid, size_t bytes, cpu_set_t *set)
{
    if (!simulated())
        return REAL(sched_getaffinity)(pid, bytes, set);
    CPU_ZERO_S(bytes, set);
    for (unsigned i = 0; i < world->processors; i++)
        CPU_SET_S(i, bytes, set);
    return 0;
}

EXPORT int sched_setaffinity(pid_t pid, size_t bytes, const cpu_set_t *set)
{
    return simulated() ? 0 : REAL(sched_setaffinity)(pid, bytes, set);
}

EXPORT int sched_getcpu(void)
{
    return simulated() ? 0 : REAL(sched_getcpu)();
}

EXPORT long sysconf(int name)
{
    if (simulated() && (name == _SC_NPROCESSORS_ONLN || name == _SC_NPROCESSORS_CONF))
        return world->processors;
    if (simulated() && name == _SC_PHYS_PAGES)
        return 8L << 20;
    return REAL(sysconf)(name);
}

/* ---- numbers of files ---- */

/* Of memory without a name: the system counts up for all processes of the machine, and programs sort by the number. */
static ino_t number_of(ino_t inode)
{
    for (unsigned i = world->n_inodes; i > 0; i--)
        if (world->inodes[i - 1] == (uint64_t)inode)
            return i;
    if (world->n_inodes == INODES)
        return inode;
    world->inodes[world->n_inodes++] = (uint64_t)inode;
    return world->n_inodes;
}

static ino_t number_of_file(int fd)
{
    struct stat st;

    return REAL(fstat)(fd, &st) < 0 ? 0 : number_of(st.st_ino);
}

/* The system orders files by where its own entries for them lie. */
long order_of_files(long order, int a, int b)
{
    enum { SAME = 0, FIRST_IS_LESS = 1, SECOND_IS_LESS = 2 };
    const ino_t x = order > SAME ? number_of_file(a) : 0, y = order > SAME ? number_of_file(b) : 0;

    return x == y ? order : x < y ? FIRST_IS_LESS : SECOND_IS_LESS;
}

EXPORT int fstat(int fd, struct stat *ret)
{
    const int r = REAL(fstat)(fd, ret);

    if (r == 0 && simulated() && S_ISREG(ret->st_mode) && !ret->st_nlink)
        ret->st_ino = number_of(ret->st_ino);
    return r;
}
