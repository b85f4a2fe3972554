#include "sandbox/reach.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Descriptors of folders have numbers of their own, above those of anything that these processes open beside. */
enum { FIRST = 100, BEYOND = 132 };

static int close_range_of(int first, unsigned last)
{
    return (int)syscall(SYS_close_range, (unsigned)first, last, 0);
}

void reach_prepare(void)
{
    close_range_of(FIRST, BEYOND - 1);
}

void reach_open(struct reach *r, const char *path)
{
    const char *slash = strrchr(path, '/');
    struct stat st;
    int fd;

    *r = (struct reach){.path = path, .name = "", .folder = -1};
    if (!slash || stat(path, &st) < 0)
        return;
    if (S_ISDIR(st.st_mode))
        snprintf(r->way, sizeof(r->way), "%s", path);
    else
        snprintf(r->way, sizeof(r->way), "%.*s", slash == path ? 1 : (int)(slash - path), path);
    fd = open(r->way, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return;
    r->folder = fcntl(fd, F_DUPFD_CLOEXEC, FIRST);
    close(fd);
    if (r->folder >= BEYOND) {
        close(r->folder);
        r->folder = -1;
    }
    r->name = S_ISDIR(st.st_mode) ? "" : slash;
}

const char *reach_path(struct reach *r)
{
    if (r->folder < 0)
        return r->path;
    if (access(r->path, R_OK) == 0 || errno != EACCES) {
        close(r->folder);
        r->folder = -1;
        return r->path;
    }
    snprintf(r->way, sizeof(r->way), "/proc/self/fd/%d%s", r->folder, r->name);
    return r->way;
}

int reach_close_others(int first)
{
    return first < FIRST && close_range_of(first, FIRST - 1) == 0 ? close_range_of(BEYOND, ~0U) : -1;
}
