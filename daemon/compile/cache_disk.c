#include "compile/cache_disk_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <sodium.h>

#include "util/clock.h"
#include "util/log.h"
#include "util/path_trust.h"

enum { LOG_EVERY_S = 60 };

/* Makes each directory on the way that is missing. */
static int make_directories(const char *path)
{
    char part[4096];
    size_t n = strlen(path);

    if (!n || n >= sizeof(part)) {
        errno = ENAMETOOLONG;
        return -1;
    }
    for (size_t i = 1; i <= n; i++) {
        if (path[i] != '/' && path[i])
            continue;
        memcpy(part, path, i);
        part[i] = '\0';
        if (mkdir(part, 0700) < 0 && errno != EEXIST && (i == n || errno != EROFS))
            return -1;
    }
    return 0;
}

/* Links on the way are followed, also the last one: the path is the administrator's, and systemd's own cache
 * directories are links. The owner of the directory at the end of the links counts. Root follows no link, and makes and
 * removes nothing, where another user says what the path leads to. */
int cache_directory_open(const char *path, struct error *e)
{
    const bool root = geteuid() == 0;
    struct stat st;
    int fd;

    if (root && path_trust(path, NULL, 0, PATH_OWNERS, NULL, e) < 0)
        return -1;
    fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT && make_directories(path) == 0)
        fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return error_set(e, ERROR_INTERNAL, "it cannot be opened: %s", strerror(errno));
    if (fstat(fd, &st) < 0)
        error_set(e, ERROR_INTERNAL, "it cannot be looked at: %s", strerror(errno));
    else if (st.st_uid != geteuid())
        error_set(e, ERROR_INTERNAL, "it belongs to user %u and not to this daemon's, %u", (unsigned)st.st_uid,
                  (unsigned)geteuid());
    else if (st.st_mode & 022)
        error_set(e, ERROR_INTERNAL, "others can write there (mode %03o): make it 0700", (unsigned)st.st_mode & 0777);
    else if (!root || path_trust(path, &st, 0, PATH_OWNERS, NULL, e) == 0)
        return fd;
    close(fd);
    return -1;
}

int cache_disk_open(const char *directory, uint64_t limit, struct cache_disk **ret_disk, struct error *e)
{
    struct cache_disk *d = calloc(1, sizeof(*d));

    if (!d)
        return error_set(e, ERROR_OUT_OF_MEMORY, "no memory for the cache");
    d->limit = limit;
    d->directory = cache_directory_open(directory, e);
    if (d->directory < 0)
        goto free_disk;
    if (cache_secret_get(d->directory, d->secret, e) < 0)
        goto close_directory;
    pthread_mutex_init(&d->lock, NULL);
    *ret_disk = d;
    return 0;

close_directory:
    close(d->directory);
free_disk:
    free(d);
    return -1;
}

struct cache_disk *cache_disk_close(struct cache_disk *d)
{
    if (d) {
        close(d->directory);
        pthread_mutex_destroy(&d->lock);
        sodium_memzero(d->secret, sizeof(d->secret));
        free(d);
    }
    return NULL;
}

uint64_t cache_disk_limit(const struct cache_disk *d)
{
    return d->limit;
}

struct cache_disk_counters cache_disk_counters(const struct cache_disk *d)
{
    return (struct cache_disk_counters){atomic_load(&d->rejected), atomic_load(&d->failures),
                                        atomic_load(&d->evictions)};
}

/* A line a minute, for errors that come with every file: a full disk, too many open files. */
static bool line_is_due(struct cache_disk *d)
{
    uint64_t now = clock_now_ns(), last = atomic_load(&d->logged_ns);

    if (last && now - last < LOG_EVERY_S * UINT64_C(1000000000))
        return false;
    return atomic_compare_exchange_strong(&d->logged_ns, &last, now);
}

/* A directory in a module's place can only be in its own way: it goes when it is empty. */
static bool remove_name(struct cache_disk *d, const char *name)
{
    return unlinkat(d->directory, name, 0) == 0 || (errno == EISDIR && unlinkat(d->directory, name, AT_REMOVEDIR) == 0);
}

/* One that cannot be removed will be met again. */
static void reject(struct cache_disk *d, const char *name, const char *why)
{
    bool gone = remove_name(d, name);

    atomic_fetch_add(&d->rejected, 1);
    if (gone || line_is_due(d))
        log_warning("cache_file_rejected", "key=%s removed=%d reason=\"%s\"", name, gone, why);
}

static void not_read(struct cache_disk *d, const char *name, const char *why)
{
    if (line_is_due(d))
        log_warning("cache_read_failed", "key=%s reason=\"%s\"", name, why);
}

/* All of a file that may be ours, in memory of its own: a file that is mapped could shrink under the reader. */
static int slurp(int fd, unsigned char **ret_bytes, size_t *ret_size, struct error *e)
{
    unsigned char *bytes;
    struct stat st;
    ssize_t n;

    if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
        return error_set(e, ERROR_INVALID_ARGUMENT, "it is no regular file");
    if (st.st_uid != geteuid() || (st.st_mode & 022))
        return error_set(e, ERROR_INVALID_ARGUMENT, "others own it or can write it");
    if (st.st_size > CACHE_FILE_MAX || st.st_size < CACHE_HEADER_BYTES)
        return error_set(e, ERROR_INVALID_ARGUMENT, "its size is wrong");
    bytes = malloc((size_t)st.st_size);
    if (!bytes)
        return error_set(e, ERROR_OUT_OF_MEMORY, "no memory for it");
    n = cache_read_all(fd, bytes, (size_t)st.st_size);
    if (n < 0) {
        error_set(e, ERROR_INTERNAL, "reading it: %s", strerror(errno));
        free(bytes);
        return -1;
    }
    *ret_bytes = bytes;
    *ret_size = (size_t)n;
    return 0;
}

struct compiled *cache_disk_read(struct cache_disk *d, const unsigned char key[KEY_BYTES], bool use)
{
    struct compiled *compiled = NULL;
    unsigned char *bytes = NULL;
    char name[KEY_HEX + 1];
    struct error e;
    size_t size = 0;
    int fd;

    key_to_hex(key, name);
    /* Not blocking: a pipe in the file's place must not hold the pool. */
    fd = openat(d->directory, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) {
        if (errno == ELOOP || errno == ENXIO || errno == EACCES)
            reject(d, name, strerror(errno));
        else if (errno != ENOENT)
            not_read(d, name, strerror(errno));
        return NULL;
    }
    if (slurp(fd, &bytes, &size, &e) < 0 || cache_file_open(bytes, size, d->secret, key, &compiled, &e) < 0) {
        if (e.code == ERROR_INVALID_ARGUMENT)
            reject(d, name, e.message);
        else
            not_read(d, name, e.message);
    } else if (use) {
        futimens(fd, NULL); /* where that is refused, the order of eviction suffers and nothing else */
    }
    free(bytes);
    close(fd);
    return compiled;
}

void cache_disk_touch(struct cache_disk *d, const unsigned char key[KEY_BYTES])
{
    char name[KEY_HEX + 1];

    key_to_hex(key, name);
    utimensat(d->directory, name, NULL, AT_SYMLINK_NOFOLLOW);
}

bool cache_disk_remove(struct cache_disk *d, const unsigned char key[KEY_BYTES])
{
    char name[KEY_HEX + 1];

    key_to_hex(key, name);
    return remove_name(d, name);
}

static void failed(struct cache_disk *d, const char *name, const struct error *e)
{
    uint64_t count = atomic_fetch_add(&d->failures, 1) + 1;

    if (line_is_due(d))
        log_warning("cache_write_failed", "key=%s failures=%llu reason=\"%s\"", name, (unsigned long long)count,
                    e->message);
}

static int put_file(struct cache_disk *d, const char *name, const struct buffer *file, struct error *e)
{
    char temporary[CACHE_TEMPORARY_SIZE];
    int fd = cache_temporary(d->directory, temporary);

    if (fd < 0)
        return error_set(e, ERROR_INTERNAL, "making a file: %s", strerror(errno));
    if (cache_write_all(fd, file->data + file->start, buffer_length(file)) < 0) {
        error_set(e, ERROR_INTERNAL, "writing %zu bytes: %s", buffer_length(file), strerror(errno));
        close(fd);
        goto remove_temporary;
    }
    if (close(fd) < 0) { /* some file systems find out only here that they are full */
        error_set(e, ERROR_INTERNAL, "closing the file: %s", strerror(errno));
        goto remove_temporary;
    }
    if (renameat(d->directory, temporary, d->directory, name) < 0) {
        error_set(e, ERROR_INTERNAL, "putting the file in place: %s", strerror(errno));
        goto remove_temporary;
    }
    return 0;

remove_temporary:
    unlinkat(d->directory, temporary, 0);
    return -1;
}

int cache_disk_write(struct cache_disk *d, const struct compiled *compiled, struct error *e)
{
    char name[KEY_HEX + 1];
    struct buffer file;
    int r;

    key_to_hex(compiled->key, name);
    buffer_init(&file, CACHE_FILE_MAX);
    r = cache_file_make(compiled, d->secret, &file);
    if (r < 0)
        error_set(e, ERROR_OUT_OF_MEMORY, "no memory for the file");
    else if (buffer_length(&file) <= d->limit) {
        r = put_file(d, name, &file, e);
        if (!r)
            cache_disk_added(d, buffer_length(&file), compiled->key);
    }
    buffer_free(&file);
    if (r < 0)
        failed(d, name, e);
    return r;
}
