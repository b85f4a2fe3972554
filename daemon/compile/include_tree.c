#include "compile/include_tree.h"

#include <errno.h>
#include <fcntl.h>
#include <fts.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SETTING_LENGTH = 160 /* of a path in a message */ };

static int refuse(const char *path, const char *why, struct error *e)
{
    error_set(e, ERROR_INVALID_ARGUMENT, "kernels.include_extra: %.*s %s", (int)SETTING_LENGTH, path, why);
    return error_detail_text(e, "key", "kernels.include_extra");
}

/* ---- who may change it ---- */

static int check_owner(const char *path, const struct stat *s, struct error *e)
{
    if (s->st_uid != 0 && s->st_uid != geteuid())
        return refuse(path, "belongs to another user than root or the daemon's: `chown -R root` the tree", e);
    if (!S_ISLNK(s->st_mode) && (s->st_mode & (S_IWGRP | S_IWOTH)))
        return refuse(path, "can be written by others: `chmod -R go-w` the tree", e);
    return 0;
}

/* The compiler's user is another one where the daemon is root. */
static int check_entry(const char *path, const struct stat *s, struct error *e)
{
    const mode_t needed = S_ISDIR(s->st_mode) ? S_IROTH | S_IXOTH : S_IROTH;

    if (!S_ISREG(s->st_mode) && !S_ISDIR(s->st_mode) && !S_ISLNK(s->st_mode))
        return refuse(path, "is no file, folder or link", e);
    if (geteuid() == 0 && !S_ISLNK(s->st_mode) && (s->st_mode & needed) != needed)
        return refuse(path, "cannot be read by the compiler's user (kernels.user): `chmod -R go+rX` the tree", e);
    return check_owner(path, s, e);
}

/* A folder above in which others could put another tree in place of this one. In one with the sticky bit they cannot.
 */
static int check_above(char *path, struct error *e)
{
    struct stat s;

    for (char *slash; (slash = strrchr(path, '/')) && slash != path;) {
        *slash = '\0';
        if (stat(path, &s) < 0)
            return refuse(path, strerror(errno), e);
        if (s.st_uid != 0 && s.st_uid != geteuid())
            return refuse(path, "is above the tree and belongs to another user than root or the daemon's", e);
        if ((s.st_mode & (S_IWGRP | S_IWOTH)) && !(s.st_mode & S_ISVTX))
            return refuse(path, "is above the tree and can be written by others", e);
    }
    return 0;
}

/* ---- walking ---- */

/* In an order that does not depend on the file system. */
static int by_name(const FTSENT **a, const FTSENT **b)
{
    return strcmp((*a)->fts_name, (*b)->fts_name);
}

/* Called for each entry but the root, folders before what is in them; `name` is relative to the root. */
typedef int visit_entry(void *context, const FTSENT *entry, const char *name, struct error *e);

static int walk(const char *path, visit_entry *visit, void *context, struct error *e)
{
    char *const roots[] = {(char *)(uintptr_t)path, NULL};
    FTS *tree = fts_open(roots, FTS_PHYSICAL | FTS_COMFOLLOW | FTS_NOCHDIR, by_name);
    const FTSENT *entry;
    unsigned n = 0;
    int r = 0;

    if (!tree)
        return refuse(path, strerror(errno), e);
    while (r == 0 && (entry = fts_read(tree))) {
        if (entry->fts_info == FTS_DP)
            continue;
        if (entry->fts_info == FTS_DNR || entry->fts_info == FTS_ERR || entry->fts_info == FTS_NS)
            r = refuse(entry->fts_path, strerror(entry->fts_errno), e);
        else if (++n > INCLUDE_TREE_ENTRIES_MAX)
            r = refuse(path, "has more than 65536 files: name the folder of the headers alone", e);
        else
            r = visit(context, entry, entry->fts_path + strlen(path), e);
    }
    fts_close(tree);
    return r;
}

static int visit_check(void *context, const FTSENT *entry, const char *name, struct error *e)
{
    (void)context;
    (void)name;
    return check_entry(entry->fts_path, entry->fts_statp, e);
}

int include_tree_check(const char *path, char ret_path[PATH_MAX], struct error *e)
{
    char above[PATH_MAX];
    struct stat s;

    if (*path != '/')
        return refuse(path, "is no absolute path", e);
    if (!realpath(path, ret_path) || stat(ret_path, &s) < 0)
        return refuse(path, strerror(errno), e);
    if (!S_ISDIR(s.st_mode) || !strcmp(ret_path, "/"))
        return refuse(path, "is no folder of headers", e);
    memcpy(above, ret_path, PATH_MAX);
    if (check_above(above, e) < 0)
        return -1;
    return walk(ret_path, visit_check, NULL, e);
}

/* ---- what it is ---- */

static int add_content(crypto_generichash_state *h, const char *path, struct error *e)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    unsigned char bytes[1 << 14];
    ssize_t n = fd < 0 ? -1 : 1;

    while (n > 0 && (n = read(fd, bytes, sizeof(bytes))) > 0)
        crypto_generichash_update(h, bytes, (size_t)n);
    if (n < 0)
        refuse(path, strerror(errno), e);
    if (fd >= 0)
        close(fd);
    return n < 0 ? -1 : 0;
}

static int visit_digest(void *context, const FTSENT *entry, const char *name, struct error *e)
{
    const struct stat *s = entry->fts_statp;
    const uint64_t about[] = {s->st_mode & S_IFMT, S_ISREG(s->st_mode) ? (uint64_t)s->st_size : 0};
    crypto_generichash_state *h = context;
    char target[PATH_MAX];
    ssize_t n;

    crypto_generichash_update(h, (const unsigned char *)name, strlen(name) + 1);
    crypto_generichash_update(h, (const unsigned char *)about, sizeof(about));
    if (S_ISREG(s->st_mode))
        return add_content(h, entry->fts_path, e);
    if (!S_ISLNK(s->st_mode))
        return 0;
    n = readlink(entry->fts_path, target, sizeof(target));
    if (n < 0)
        return refuse(entry->fts_path, strerror(errno), e);
    crypto_generichash_update(h, (const unsigned char *)target, (size_t)n);
    return 0;
}

int include_tree_digest(const char *path, uint64_t *ret_digest, struct error *e)
{
    unsigned char digest[crypto_generichash_BYTES];
    crypto_generichash_state h;

    crypto_generichash_init(&h, NULL, 0, sizeof(digest));
    if (walk(path, visit_digest, &h, e) < 0)
        return -1;
    crypto_generichash_final(&h, digest, sizeof(digest));
    memcpy(ret_digest, digest, sizeof(*ret_digest));
    return 0;
}

static uint64_t mix(uint64_t hash, const void *data, size_t size)
{
    const unsigned char *at = data;

    for (size_t i = 0; i < size; i++)
        hash = (hash ^ at[i]) * 0x100000001b3U;
    return hash;
}

static int visit_stamp(void *context, const FTSENT *entry, const char *name, struct error *e)
{
    const struct stat *s = entry->fts_statp;
    const uint64_t about[] = {s->st_dev,
                              s->st_ino,
                              s->st_mode,
                              (uint64_t)s->st_size,
                              (uint64_t)s->st_mtim.tv_sec,
                              (uint64_t)s->st_mtim.tv_nsec,
                              (uint64_t)s->st_ctim.tv_sec,
                              (uint64_t)s->st_ctim.tv_nsec};
    uint64_t *stamp = context;

    (void)e;
    *stamp = mix(mix(*stamp, name, strlen(name) + 1), about, sizeof(about));
    return 0;
}

uint64_t include_tree_stamp(const char *path)
{
    uint64_t stamp = 0xcbf29ce484222325U;
    struct error ignored;

    return walk(path, visit_stamp, &stamp, &ignored) < 0 ? 0 : stamp;
}
