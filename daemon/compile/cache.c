/* Compiled modules by key: in memory, and in files that count only with a keyed hash. */
#include "compile/cache.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <search.h>
#include <sodium.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "util/clock.h"
#include "util/error.h"
#include "util/log.h"
#include "util/path_trust.h"

/* ---- in memory ---- */

struct cache_memory {
    struct list used; /* least recently used first */
    void *by_key;     /* a tree of the items */
    uint64_t bytes, limit;
    unsigned count;
};

struct cache_memory *cache_memory_new(uint64_t limit)
{
    struct cache_memory *m = calloc(1, sizeof(*m));

    if (!m)
        return NULL;
    list_init(&m->used);
    m->limit = limit;
    return m;
}

static int by_key(const void *a, const void *b)
{
    const struct cache_item *x = a, *y = b;

    return memcmp(x->key, y->key, KEY_BYTES);
}

static struct cache_item *find(const struct cache_memory *m, const unsigned char *key)
{
    const struct cache_item sought = {.key = key};
    struct cache_item *const *found = tfind(&sought, &m->by_key, by_key);

    return found ? *found : NULL;
}

static void drop(struct cache_memory *m, struct cache_item *item)
{
    tdelete(item, &m->by_key, by_key);
    list_remove(&item->used);
    m->bytes -= item->bytes;
    m->count--;
    compiled_unref(item->compiled);
    free(item);
}

struct cache_memory *cache_memory_free(struct cache_memory *m)
{
    while (m && !list_empty(&m->used))
        drop(m, list_entry(list_first(&m->used), struct cache_item, used));
    free(m);
    return NULL;
}

struct cache_item *cache_memory_get(struct cache_memory *m, const unsigned char key[KEY_BYTES], uint64_t now_ns)
{
    struct cache_item *item = find(m, key);

    if (!item)
        return NULL;
    item->used_ns = now_ns;
    list_remove(&item->used);
    list_append(&m->used, &item->used);
    return item;
}

void cache_memory_put(struct cache_memory *m, struct compiled *compiled, uint64_t now_ns)
{
    struct cache_item *item, *old = find(m, compiled->key);
    size_t bytes = compiled_memory(compiled) + sizeof(*item);

    if (bytes > m->limit)
        return;
    item = malloc(sizeof(*item));
    if (!item)
        return; /* a cache may do without */
    if (old)
        drop(m, old);
    *item = (struct cache_item){
        .key = compiled->key, .compiled = compiled, .bytes = bytes, .used_ns = now_ns, .touched_ns = now_ns};
    if (!tsearch(item, &m->by_key, by_key)) {
        free(item);
        return;
    }
    compiled_ref(compiled);
    while (m->bytes > m->limit - bytes)
        drop(m, list_entry(list_first(&m->used), struct cache_item, used));
    list_append(&m->used, &item->used);
    m->bytes += bytes;
    m->count++;
}

bool cache_memory_remove(struct cache_memory *m, const unsigned char key[KEY_BYTES])
{
    struct cache_item *item = find(m, key);

    if (item)
        drop(m, item);
    return item;
}

uint64_t cache_memory_bytes(const struct cache_memory *m)
{
    return m->bytes;
}

unsigned cache_memory_count(const struct cache_memory *m)
{
    return m->count;
}

struct cache_item *cache_memory_next(struct cache_memory *m, struct cache_item *item)
{
    struct list *next = item ? item->used.next : m->used.next;

    return next == &m->used ? NULL : list_entry(next, struct cache_item, used);
}

/* ---- on disk ---- */

struct cache_disk {
    int directory; /* owned: all names are relative to it */
    uint64_t limit;
    unsigned char secret[CACHE_SECRET_BYTES];
    pthread_mutex_t lock; /* for the next two, and for one look at the whole directory at a time */
    uint64_t bytes;       /* in files, once `scanned`; at most that: removed files count until the next scan */
    bool scanned;
    atomic_uint_fast64_t rejected, failures, evictions;
    atomic_uint_fast64_t logged_ns; /* when a failure that comes again was last logged; 0: never */
};

enum { CACHE_TEMPORARY_SIZE = 32 };

/* ---- the form of a file ---- */

enum { MAGIC_BYTES = 8 };

/* A magic for each enum compiled_from. */
static const unsigned char magics[COMPILED_FROM_COUNT][MAGIC_BYTES] = {
    [COMPILED_HERE] = {'K', 'O', 'P', 'S', 'C', 'O', 'D', '1'},
    [COMPILED_IMPORTED] = {'K', 'O', 'P', 'S', 'C', 'O', 'I', '1'},
    [COMPILED_REMOTE] = {'K', 'O', 'P', 'S', 'C', 'O', 'R', '1'},
};

void cache_put64(unsigned char into[8], uint64_t value)
{
    for (unsigned i = 0; i < 8; i++)
        into[i] = (unsigned char)(value >> (8 * i));
}

uint64_t cache_get64(const unsigned char from[8])
{
    uint64_t value = 0;

    for (unsigned i = 0; i < 8; i++)
        value |= (uint64_t)from[i] << (8 * i);
    return value;
}

static void make_mac(const unsigned char *bytes, size_t size, const unsigned char *secret, unsigned char *ret_mac)
{
    crypto_generichash(ret_mac, CACHE_MAC_BYTES, bytes, size, secret, CACHE_SECRET_BYTES);
}

/* Appends the whole file to `into`, whose maximum is CACHE_FILE_MAX or more; -1 when it does not fit in memory. */
static int cache_file_make(const struct compiled *compiled, const unsigned char secret[CACHE_SECRET_BYTES],
                           struct buffer *into)
{
    unsigned char header[CACHE_HEADER_BYTES] = {0}, mac[CACHE_MAC_BYTES];

    memcpy(header, magics[compiled->from], MAGIC_BYTES);
    buffer_append(into, header, sizeof(header));
    compiled_serialize(compiled, into);
    if (into->failed)
        return -1;
    cache_put64(into->data + into->start + MAGIC_BYTES, buffer_length(into) - sizeof(header));
    make_mac(into->data + into->start, buffer_length(into), secret, mac);
    buffer_append(into, mac, sizeof(mac));
    return into->failed ? -1 : 0;
}

int cache_file_open(const void *bytes, size_t size, const unsigned char secret[CACHE_SECRET_BYTES],
                    const unsigned char key[KEY_BYTES], struct compiled **ret_compiled, struct error *e)
{
    const unsigned char *at = bytes;
    unsigned char mac[CACHE_MAC_BYTES];
    struct compiled *compiled;
    enum compiled_from from = COMPILED_HERE;

    if (size < CACHE_HEADER_BYTES + CACHE_MAC_BYTES || size > CACHE_FILE_MAX)
        return error_set(e, ERROR_INVALID_ARGUMENT, "its size is wrong");
    while (from < COMPILED_FROM_COUNT && memcmp(at, magics[from], MAGIC_BYTES) != 0)
        from++;
    if (from == COMPILED_FROM_COUNT)
        return error_set(e, ERROR_INVALID_ARGUMENT, "it is of another kind or version");
    if (cache_get64(at + MAGIC_BYTES) != size - CACHE_HEADER_BYTES - CACHE_MAC_BYTES)
        return error_set(e, ERROR_INVALID_ARGUMENT, "it is cut off");
    make_mac(at, size - CACHE_MAC_BYTES, secret, mac);
    if (sodium_memcmp(mac, at + size - CACHE_MAC_BYTES, sizeof(mac)) != 0)
        return error_set(e, ERROR_INVALID_ARGUMENT, "it was changed, or made by somebody else");
    if (compiled_parse(at + CACHE_HEADER_BYTES, size - CACHE_HEADER_BYTES - CACHE_MAC_BYTES, &compiled, e) < 0)
        return -1;
    if (memcmp(compiled->key, key, KEY_BYTES) != 0) {
        compiled_unref(compiled);
        return error_set(e, ERROR_INVALID_ARGUMENT, "it has another module's name");
    }
    compiled->from = from;
    *ret_compiled = compiled;
    return 0;
}

/* ---- the secret, and how files get into the directory ---- */

static const char secret_name[] = "secret";

static int cache_temporary(int directory, char ret_name[CACHE_TEMPORARY_SIZE])
{
    unsigned char random[8];

    if (getrandom(random, sizeof(random), 0) != sizeof(random))
        return -1;
    snprintf(ret_name, CACHE_TEMPORARY_SIZE, ".new-%016llx", (unsigned long long)cache_get64(random));
    return openat(directory, ret_name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
}

int cache_write_all(int fd, const void *bytes, size_t size)
{
    const unsigned char *at = bytes;

    while (size) {
        ssize_t n = write(fd, at, size);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return -1;
        at += n;
        size -= (size_t)n;
    }
    return 0;
}

ssize_t cache_read_all(int fd, void *bytes, size_t size)
{
    size_t done = 0;

    while (done < size) {
        ssize_t n = read(fd, (unsigned char *)bytes + done, size - done);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -1;
        if (!n)
            break;
        done += (size_t)n;
    }
    return (ssize_t)done;
}

/* 1: read; 0: there is none; -1: there is one that cannot be trusted. */
static int read_secret(int directory, unsigned char *ret_secret)
{
    unsigned char bytes[CACHE_SECRET_BYTES + 1];
    int fd = openat(directory, secret_name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    struct stat st;
    int r = -1;

    if (fd < 0)
        return errno == ENOENT ? 0 : -1;
    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_uid == geteuid() && !(st.st_mode & 077) &&
        cache_read_all(fd, bytes, sizeof(bytes)) == CACHE_SECRET_BYTES) {
        memcpy(ret_secret, bytes, CACHE_SECRET_BYTES);
        r = 1;
    }
    close(fd);
    return r;
}

/* Two daemons may begin at once: the link lets one of them make the secret, and both read that. */
static int make_secret(int directory, struct error *e)
{
    unsigned char bytes[CACHE_SECRET_BYTES];
    char name[CACHE_TEMPORARY_SIZE];
    int fd, r = -1;

    if (getrandom(bytes, sizeof(bytes), 0) != sizeof(bytes))
        return error_set(e, ERROR_INTERNAL, "getrandom: %s", strerror(errno));
    fd = cache_temporary(directory, name);
    if (fd < 0)
        return error_set(e, ERROR_INTERNAL, "a file cannot be made in it: %s", strerror(errno));
    /* Flushed, unlike modules: with an empty secret after a power cut all of them would be lost. */
    if (cache_write_all(fd, bytes, sizeof(bytes)) < 0 || fsync(fd) < 0)
        error_set(e, ERROR_INTERNAL, "its secret cannot be written: %s", strerror(errno));
    else if (linkat(directory, name, directory, secret_name, 0) < 0 && errno != EEXIST)
        error_set(e, ERROR_INTERNAL, "its secret cannot be put in place: %s", strerror(errno));
    else
        r = 0;
    unlinkat(directory, name, 0);
    close(fd);
    return r;
}

static int cache_secret_get(int directory, unsigned char ret_secret[CACHE_SECRET_BYTES], struct error *e)
{
    int r = read_secret(directory, ret_secret);

    if (r < 0) {
        log_warning("cache_secret_replaced", "reason=\"it is no file of 32 bytes that only this daemon can read\"");
        if (unlinkat(directory, secret_name, 0) < 0 && errno != ENOENT)
            return error_set(e, ERROR_INTERNAL, "its secret cannot be replaced: %s", strerror(errno));
    }
    if (r < 1) {
        if (make_secret(directory, e) < 0)
            return -1;
        if (read_secret(directory, ret_secret) < 1)
            return error_set(e, ERROR_INTERNAL, "its secret cannot be read back");
    }
    return 0;
}

enum { LOG_EVERY_S = 60 };

/* ---- the cache ---- */

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

/* Limits errors that come with every file to a line a minute: a full disk, too many open files. */
static bool line_is_due(struct cache_disk *d)
{
    uint64_t now = clock_now_ns(), last = atomic_load(&d->logged_ns);

    if (last && now - last < LOG_EVERY_S * UINT64_C(1000000000))
        return false;
    return atomic_compare_exchange_strong(&d->logged_ns, &last, now);
}

/* An empty directory in a module's place is removed, too. */
static bool remove_name(struct cache_disk *d, const char *name)
{
    return unlinkat(d->directory, name, 0) == 0 || (errno == EISDIR && unlinkat(d->directory, name, AT_REMOVEDIR) == 0);
}

/* A file that is not ours is removed; where that fails it will be met again. */
static void not_read(struct cache_disk *d, const char *name, bool wrong, const char *why)
{
    const bool gone = wrong && remove_name(d, name);

    atomic_fetch_add(&d->rejected, wrong);
    if (!gone && !line_is_due(d))
        return;
    if (wrong)
        log_warning("cache_file_rejected", "key=%s removed=%d reason=\"%s\"", name, gone, why);
    else
        log_warning("cache_read_failed", "key=%s reason=\"%s\"", name, why);
}

int cache_slurp(int fd, size_t size, unsigned char **ret_bytes, size_t *ret_size, struct error *e)
{
    unsigned char *bytes = malloc(size ? size : 1);
    ssize_t n;

    if (!bytes)
        return error_set(e, ERROR_OUT_OF_MEMORY, "no memory for it");
    n = cache_read_all(fd, bytes, size);
    if (n < 0) {
        error_set(e, ERROR_INTERNAL, "reading it: %s", strerror(errno));
        free(bytes);
        return -1;
    }
    *ret_bytes = bytes;
    *ret_size = (size_t)n;
    return 0;
}

static int read_ours(int fd, unsigned char **ret_bytes, size_t *ret_size, struct error *e)
{
    struct stat st;

    if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
        return error_set(e, ERROR_INVALID_ARGUMENT, "it is no regular file");
    if (st.st_uid != geteuid() || (st.st_mode & 022))
        return error_set(e, ERROR_INVALID_ARGUMENT, "others own it or can write it");
    if (st.st_size > CACHE_FILE_MAX || st.st_size < CACHE_HEADER_BYTES)
        return error_set(e, ERROR_INVALID_ARGUMENT, "its size is wrong");
    return cache_slurp(fd, (size_t)st.st_size, ret_bytes, ret_size, e);
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
    /* O_NONBLOCK: a pipe in the file's place must not hold the pool. */
    fd = openat(d->directory, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) {
        if (errno != ENOENT)
            not_read(d, name, errno == ELOOP || errno == ENXIO || errno == EACCES, strerror(errno));
        return NULL;
    }
    if (read_ours(fd, &bytes, &size, &e) < 0 || cache_file_open(bytes, size, d->secret, key, &compiled, &e) < 0) {
        not_read(d, name, e.code == ERROR_INVALID_ARGUMENT, e.message);
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

/* ---- the directory as a whole ---- */

enum { ABANDONED_S = 3600 }; /* no write takes that long: a temporary file of that age has lost its writer */

struct files {
    struct cache_disk_file *list;
    unsigned n, capacity;
};

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
    if (files->n == files->capacity) {
        unsigned capacity = files->capacity ? 2 * files->capacity : 64;
        struct cache_disk_file *list = realloc(files->list, capacity * sizeof(*list));

        if (!list)
            return error_set(e, ERROR_OUT_OF_MEMORY, "no memory to list the cache");
        files->list = list;
        files->capacity = capacity;
    }
    file.bytes = (uint64_t)st.st_size;
    file.used = st.st_mtim;
    files->list[files->n++] = file;
    return 0;
}

int cache_disk_list(struct cache_disk *d, struct cache_disk_file **ret_files, unsigned *ret_n, struct error *e)
{
    /* A copy of the descriptor would share its position with other readers. */
    int fd = openat(d->directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *stream = fd < 0 ? NULL : fdopendir(fd);
    struct files files = {0};
    struct dirent *entry;
    int r = 0;

    if (!stream) {
        if (errno == EMFILE || errno == ENFILE)
            error_shortage(e, errno, "the list of the cache");
        else
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

/* A file of `bytes` has got its name: removes the least recently used other ones when there is too much. */
static void make_room(struct cache_disk *d, uint64_t bytes, const unsigned char *kept)
{
    struct cache_disk_file *files = NULL;
    struct error e;
    unsigned n;

    pthread_mutex_lock(&d->lock);
    d->bytes += bytes;
    if ((!d->scanned || d->bytes > d->limit) && cache_disk_list(d, &files, &n, &e) == 0) {
        d->scanned = true;
        d->bytes = 0;
        for (unsigned i = 0; i < n; i++)
            d->bytes += files[i].bytes;
        if (d->bytes > d->limit)
            evict(d, files, n, kept);
    }
    pthread_mutex_unlock(&d->lock);
    free(files);
}

/* ---- writing ---- */

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
    uint64_t failures;
    int r;

    key_to_hex(compiled->key, name);
    buffer_init(&file, CACHE_FILE_MAX);
    r = cache_file_make(compiled, d->secret, &file);
    if (r < 0)
        error_set(e, ERROR_OUT_OF_MEMORY, "no memory for the file");
    else if (buffer_length(&file) <= d->limit) {
        r = put_file(d, name, &file, e);
        if (!r)
            make_room(d, buffer_length(&file), compiled->key);
    }
    buffer_free(&file);
    if (r == 0)
        return 0;
    failures = atomic_fetch_add(&d->failures, 1) + 1;
    if (line_is_due(d))
        log_warning("cache_write_failed", "key=%s failures=%llu reason=\"%s\"", name, (unsigned long long)failures,
                    e->message);
    return -1;
}
