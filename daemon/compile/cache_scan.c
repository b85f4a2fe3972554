/* A cache directory as a whole: its size, and the files to remove. */
#include "compile/cache_disk_internal.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { ABANDONED_S = 3600 }; /* no write takes that long: a temporary file of that age has lost its writer */

struct files {
    struct cache_disk_file *list;
    unsigned n, capacity;
};

static int add(struct files *files, const struct cache_disk_file *file, struct error *e)
{
    if (files->n == files->capacity) {
        unsigned capacity = files->capacity ? 2 * files->capacity : 64;
        struct cache_disk_file *list = realloc(files->list, capacity * sizeof(*list));

        if (!list)
            return error_set(e, ERROR_OUT_OF_MEMORY, "no memory to list the cache");
        files->list = list;
        files->capacity = capacity;
    }
    files->list[files->n++] = *file;
    return 0;
}

/* Files with other names are not the cache's and stay. */
static int look_at(struct cache_disk *d, const char *name, struct files *files, struct error *e)
{
    bool temporary = !strncmp(name, ".new-", 5);
    struct cache_disk_file file;
    struct stat st;

    if (!temporary && !key_from_hex(name, file.key))
        return 0;
    if (fstatat(d->directory, name, &st, AT_SYMLINK_NOFOLLOW) < 0 || !S_ISREG(st.st_mode))
        return 0;
    if (temporary) {
        if (time(NULL) - st.st_mtime > ABANDONED_S)
            unlinkat(d->directory, name, 0);
        return 0;
    }
    file.bytes = (uint64_t)st.st_size;
    file.used = st.st_mtim;
    return add(files, &file, e);
}

int cache_disk_list(struct cache_disk *d, struct cache_disk_file **ret_files, unsigned *ret_n, struct error *e)
{
    /* Opened anew: a copy of the descriptor would share its position with other readers. */
    int fd = openat(d->directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *stream = fd < 0 ? NULL : fdopendir(fd);
    struct files files = {0};
    struct dirent *entry;
    int r = 0;

    if (!stream) {
        error_set(e, ERROR_INTERNAL, "the cache directory cannot be read: %s", strerror(errno));
        if (fd >= 0)
            close(fd);
        return -1;
    }
    for (errno = 0; !r && (entry = readdir(stream)); errno = 0)
        r = look_at(d, entry->d_name, &files, e);
    if (!r && errno)
        r = error_set(e, ERROR_INTERNAL, "reading the cache directory: %s", strerror(errno));
    closedir(stream);
    if (r < 0) {
        free(files.list);
        return -1;
    }
    *ret_files = files.list;
    *ret_n = files.n;
    return 0;
}

static int by_use(const void *a, const void *b)
{
    const struct cache_disk_file *x = a, *y = b;

    if (x->used.tv_sec != y->used.tv_sec)
        return x->used.tv_sec < y->used.tv_sec ? -1 : 1;
    return (x->used.tv_nsec > y->used.tv_nsec) - (x->used.tv_nsec < y->used.tv_nsec);
}

/* With the lock. Goes an eighth below the limit, so that not each further file costs a look at all of them. */
static void evict(struct cache_disk *d, struct cache_disk_file *files, unsigned n, const unsigned char *kept)
{
    uint64_t enough = d->limit - d->limit / 8;
    char name[KEY_HEX + 1];

    qsort(files, n, sizeof(files[0]), by_use);
    for (unsigned i = 0; i < n && d->bytes > enough; i++) {
        if (!memcmp(files[i].key, kept, KEY_BYTES))
            continue;
        key_to_hex(files[i].key, name);
        if (unlinkat(d->directory, name, 0) < 0 && errno != ENOENT)
            continue;
        d->bytes -= files[i].bytes;
        atomic_fetch_add(&d->evictions, 1);
    }
}

/* With the lock. */
static void make_room(struct cache_disk *d, const unsigned char *kept)
{
    struct cache_disk_file *files = NULL;
    struct error e;
    unsigned n;

    if ((d->scanned && d->bytes <= d->limit) || cache_disk_list(d, &files, &n, &e) < 0)
        return;
    d->scanned = true;
    d->bytes = 0;
    for (unsigned i = 0; i < n; i++)
        d->bytes += files[i].bytes;
    if (d->bytes > d->limit)
        evict(d, files, n, kept);
    free(files);
}

void cache_disk_added(struct cache_disk *d, uint64_t bytes, const unsigned char kept[KEY_BYTES])
{
    pthread_mutex_lock(&d->lock);
    d->bytes += bytes;
    make_room(d, kept);
    pthread_mutex_unlock(&d->lock);
}
