#include "sandbox/files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Landlock's numbers, for builds with headers older than the kernel that the daemon meets. */
struct ruleset_attributes {
    uint64_t files, network, scoped;
};
struct path_beneath {
    uint64_t allowed;
    int32_t parent;
} __attribute__((packed));
enum { RULESET_VERSION = 1, RULE_PATH_BENEATH = 1 };
enum {
    ACCESS_EXECUTE = 1 << 0,
    ACCESS_WRITE_FILE = 1 << 1,
    ACCESS_READ_FILE = 1 << 2,
    ACCESS_READ_DIRECTORY = 1 << 3,
    ACCESS_REMOVE_FILE = 1 << 5,
    ACCESS_MAKE_REGULAR = 1 << 8,
    ACCESS_FIRST = (1 << 13) - 1, /* all bits of version 1 */
    ACCESS_REFER = 1 << 13,       /* version 2 */
    ACCESS_TRUNCATE = 1 << 14,    /* version 3 */
    ACCESS_DEVICE = 1 << 15,      /* version 5 */
    ACCESS_OF_FILES = ACCESS_EXECUTE | ACCESS_WRITE_FILE | ACCESS_READ_FILE | ACCESS_TRUNCATE | ACCESS_DEVICE,
    NETWORK_ALL = 3, /* version 4: bind and connect */
    SCOPE_ALL = 3,   /* version 6: abstract sockets, signals */
};

unsigned files_version(void)
{
    long version = syscall(SYS_landlock_create_ruleset, NULL, 0, RULESET_VERSION);

    return version < 0 ? 0 : (unsigned)version;
}

static int failed(struct error *e)
{
    return error_set(e, ERROR_UNSUPPORTED, "Landlock: %s", strerror(errno));
}

static int begin(struct files *f, bool network, struct error *e)
{
    const unsigned version = files_version();
    struct ruleset_attributes a = {.files = ACCESS_FIRST};
    const size_t size = version < 4 ? 8 : version < 6 ? 16 : 24; /* the struct's size in each version */
    int ruleset;

    if (!version)
        return failed(e);
    a.files |=
        (version >= 2 ? ACCESS_REFER : 0) | (version >= 3 ? ACCESS_TRUNCATE : 0) | (version >= 5 ? ACCESS_DEVICE : 0);
    a.network = version >= 4 && !network ? NETWORK_ALL : 0;
    a.scoped = version >= 6 ? SCOPE_ALL : 0;
    ruleset = (int)syscall(SYS_landlock_create_ruleset, &a, size, 0);
    if (ruleset < 0)
        return failed(e);
    *f = (struct files){.ruleset = ruleset, .known = a.files};
    return 0;
}

int files_begin(struct files *f, struct error *e)
{
    return begin(f, false, e);
}

int files_begin_with_network(struct files *f, struct error *e)
{
    return begin(f, true, e);
}

static uint64_t rights(unsigned what)
{
    uint64_t r = 0;

    if (what & FILES_READ)
        r |= ACCESS_READ_FILE | ACCESS_READ_DIRECTORY;
    if (what & FILES_WRITE)
        r |= ACCESS_WRITE_FILE | ACCESS_TRUNCATE;
    if (what & FILES_MAKE)
        r |= ACCESS_MAKE_REGULAR | ACCESS_REMOVE_FILE;
    if (what & FILES_DEVICE)
        r |= ACCESS_DEVICE;
    return r;
}

int files_allow(struct files *f, const char *path, unsigned what, int *ret_fd)
{
    struct path_beneath rule = {.allowed = rights(what) & f->known};
    int fd = open(path, O_PATH | O_CLOEXEC), r, saved;
    struct stat st;

    if (fd < 0)
        return -1;
    r = fstat(fd, &st);
    if (r == 0) {
        rule.parent = fd;
        if (!S_ISDIR(st.st_mode))
            rule.allowed &= ACCESS_OF_FILES;
        r = (int)syscall(SYS_landlock_add_rule, f->ruleset, RULE_PATH_BENEATH, &rule, 0);
    }
    if (r == 0 && ret_fd) {
        *ret_fd = fd;
        return 0;
    }
    saved = errno;
    close(fd);
    errno = saved;
    return r;
}

int files_enter(struct files *f, struct error *e)
{
    int r = (int)syscall(SYS_landlock_restrict_self, f->ruleset, 0);

    if (r < 0)
        failed(e);
    close(f->ruleset);
    return r;
}

void files_abandon(struct files *f)
{
    close(f->ruleset);
}

/* ---- files below folders that only the present user can enter ---- */

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
