/* The administrator's actions on the caches: each looks at memory on the loop's thread, at the disk on the pool, and
 * answers on the loop's thread. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "compile/archive.h"
#include "compile/compiled.h"
#include "compile/service_internal.h"
#include "util/clock.h"
#include "util/error.h"

struct loaded {
    struct compiled *compiled; /* a reference */
    double age_s;
    bool on_disk; /* found there */
};

struct code_task {
    struct work work;
    struct code_service *service;
    int (*run)(struct code_task *task, struct error *e); /* on the pool */
    code_task_done *done;
    void *context;
    bool one; /* only the module `key` */
    unsigned char key[KEY_BYTES];
    int fd;                /* import: owned; -1: none */
    struct loaded *loaded; /* in the order of keys */
    unsigned n_loaded;
    struct compiled **collected; /* import without a disk: references, for memory */
    unsigned n_collected;
    int status;
    struct code_result result;
    struct error error;
};

/* ---- binaries that were in memory ---- */

static int by_key(const void *a, const void *b)
{
    const struct loaded *x = a, *y = b;

    return memcmp(x->compiled->key, y->compiled->key, KEY_BYTES);
}

static int take_snapshot(struct code_task *t, struct error *e)
{
    struct cache_memory *m = t->service->memory;
    uint64_t now = clock_now_ns();

    if (!cache_memory_count(m))
        return 0;
    t->loaded = calloc(cache_memory_count(m), sizeof(*t->loaded));
    if (!t->loaded)
        return error_set(e, ERROR_OUT_OF_MEMORY, "no memory to list the cache");
    for (struct cache_item *i = cache_memory_next(m, NULL); i; i = cache_memory_next(m, i))
        if (!t->one || !memcmp(i->compiled->key, t->key, KEY_BYTES))
            t->loaded[t->n_loaded++] =
                (struct loaded){compiled_ref(i->compiled), clock_us_between(i->used_ns, now) * 1e-6, false};
    qsort(t->loaded, t->n_loaded, sizeof(t->loaded[0]), by_key);
    return 0;
}

static int by_its_key(const void *key, const void *loaded)
{
    return memcmp(key, ((const struct loaded *)loaded)->compiled->key, KEY_BYTES);
}

static struct loaded *find_loaded(struct code_task *t, const unsigned char *key)
{
    return t->n_loaded ? bsearch(key, t->loaded, t->n_loaded, sizeof(t->loaded[0]), by_its_key) : NULL;
}

/* ---- walking over all modules: on disk, then those that only memory has. Pool ---- */

/* `compiled` is borrowed; `file` is NULL for one that is not on disk, `loaded` for one that is not in memory. */
typedef int visit(struct code_task *t, void *state, const struct compiled *compiled, const struct cache_disk_file *file,
                  const struct loaded *loaded, struct error *e);

static int visit_file(struct code_task *t, const struct cache_disk_file *file, visit *each, void *state,
                      struct error *e)
{
    struct loaded *loaded = find_loaded(t, file->key);
    struct compiled *compiled;
    int r;

    if (t->one && memcmp(file->key, t->key, KEY_BYTES) != 0)
        return 0;
    if (loaded)
        loaded->on_disk = true;
    compiled = loaded ? compiled_ref(loaded->compiled) : cache_disk_read(t->service->disk, file->key, false);
    if (!compiled)
        return 0; /* damaged, or removed meanwhile */
    r = each(t, state, compiled, file, loaded, e);
    compiled_unref(compiled);
    return r;
}

static int visit_all(struct code_task *t, visit *each, void *state, struct error *e)
{
    struct cache_disk_file *files = NULL;
    unsigned n = 0;
    int r = 0;

    if (t->service->disk && cache_disk_list(t->service->disk, &files, &n, e) < 0)
        return -1;
    for (unsigned i = 0; !r && i < n; i++)
        r = visit_file(t, &files[i], each, state, e);
    free(files);
    for (unsigned i = 0; !r && i < t->n_loaded; i++)
        if (!t->loaded[i].on_disk)
            r = each(t, state, t->loaded[i].compiled, NULL, &t->loaded[i], e);
    return r;
}

static int not_there(struct error *e)
{
    return error_at(e, ERROR_INVALID_ARGUMENT, "", "key", "the cache has no such module");
}

/* ---- list ---- */

static double age(const struct timespec *used)
{
    struct timespec now;
    double s;

    clock_gettime(CLOCK_REALTIME, &now);
    s = (double)(now.tv_sec - used->tv_sec) + (double)(now.tv_nsec - used->tv_nsec) * 1e-9;
    return s > 0 ? s : 0;
}

/* The names lie behind the array of pointers to them. */
static int copy_names(struct code_listed *item, const struct compiled *compiled, struct error *e)
{
    size_t size = compiled->n_entries * sizeof(*item->names);
    char *at;

    for (unsigned i = 0; i < compiled->n_entries; i++)
        size += strlen(compiled->entries[i].name) + 1;
    item->names = malloc(size ? size : 1);
    if (!item->names)
        return error_set(e, ERROR_OUT_OF_MEMORY, "no memory to list the cache");
    at = (char *)(item->names + compiled->n_entries);
    for (; item->n_names < compiled->n_entries; item->n_names++) {
        const char *name = compiled->entries[item->n_names].name;

        item->names[item->n_names] = at;
        at = (char *)mempcpy(at, name, strlen(name) + 1);
    }
    return 0;
}

static int list_one(struct code_task *t, void *state, const struct compiled *compiled,
                    const struct cache_disk_file *file, const struct loaded *loaded, struct error *e)
{
    static const char *const froms[COMPILED_FROM_COUNT] = {
        [COMPILED_HERE] = "compiler", [COMPILED_IMPORTED] = "import", [COMPILED_REMOTE] = "remote"};
    struct code_result *r = &t->result;
    unsigned *capacity = state;
    struct code_listed item = {.loaded = loaded, .on_disk = file, .from = froms[compiled->from]};

    if (r->n_listed == *capacity) {
        unsigned wanted = *capacity ? 2 * *capacity : 64;
        struct code_listed *listed = realloc(r->listed, wanted * sizeof(*listed));

        if (!listed)
            return error_set(e, ERROR_OUT_OF_MEMORY, "no memory to list the cache");
        r->listed = listed;
        *capacity = wanted;
    }
    key_to_hex(compiled->key, item.key);
    memcpy(item.arch, compiled->arch, sizeof(item.arch));
    memcpy(item.compiler, compiled->compiler, sizeof(item.compiler));
    item.bytes = file ? file->bytes : compiled_memory(compiled);
    item.age_s = loaded ? loaded->age_s : age(&file->used);
    if (copy_names(&item, compiled, e) < 0)
        return -1;
    if (file || !t->service->disk)
        r->bytes += item.bytes;
    r->listed[r->n_listed++] = item;
    return 0;
}

static int by_age(const void *a, const void *b)
{
    const struct code_listed *x = a, *y = b;

    return x->age_s < y->age_s ? -1 : x->age_s > y->age_s ? 1 : strcmp(x->key, y->key);
}

static int list_run(struct code_task *t, struct error *e)
{
    unsigned capacity = 0;

    t->result.limit = t->service->disk ? cache_disk_limit(t->service->disk) : t->service->memory_bytes;
    if (visit_all(t, list_one, &capacity, e) < 0)
        return -1;
    if (t->result.n_listed)
        qsort(t->result.listed, t->result.n_listed, sizeof(t->result.listed[0]), by_age);
    return 0;
}

/* ---- clear ---- */

/* Memory was cleared when the task began, and files to be written were dropped; its binaries count once. Files are
 * removed unread, also damaged ones. */
static int clear_files(struct code_task *t, struct error *e)
{
    struct cache_disk_file *files = NULL;
    struct loaded *loaded;
    unsigned n = 0;

    t->result.removed = t->n_loaded;
    if (t->service->disk && cache_disk_list(t->service->disk, &files, &n, e) < 0)
        return -1;
    for (unsigned i = 0; i < n; i++) {
        if (t->one && memcmp(files[i].key, t->key, KEY_BYTES) != 0)
            continue;
        loaded = find_loaded(t, files[i].key);
        if (cache_disk_remove(t->service->disk, files[i].key) && !loaded)
            t->result.removed++;
    }
    free(files);
    return t->one && !t->result.removed ? not_there(e) : 0;
}

static int clear_run(struct code_task *t, struct error *e)
{
    int r;

    pthread_rwlock_wrlock(&t->service->storing);
    r = clear_files(t, e);
    pthread_rwlock_unlock(&t->service->storing);
    return r;
}

/* ---- export ---- */

static int export_one(struct code_task *t, void *state, const struct compiled *compiled,
                      const struct cache_disk_file *file, const struct loaded *loaded, struct error *e)
{
    (void)t;
    (void)file;
    (void)loaded;
    return archive_add(state, compiled, e);
}

static int export_run(struct code_task *t, struct error *e)
{
    struct archive_writer w = {0};
    int fd = memfd_create("kops-modules", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    if (fd < 0)
        return error_shortage(e, errno, "memfd_create");
    if (archive_begin(&w, fd, e) < 0 || visit_all(t, export_one, &w, e) < 0 || archive_end(&w, e) < 0)
        goto free_writer;
    if (t->one && !w.count) {
        not_there(e);
        goto free_writer;
    }
    if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL) < 0) {
        error_set(e, ERROR_INTERNAL, "sealing the archive: %s", strerror(errno));
        goto free_writer;
    }
    archive_writer_free(&w);
    t->result.fd = fd;
    t->result.bytes = w.bytes;
    return 0;

free_writer:
    archive_writer_free(&w);
    close(fd);
    return -1;
}

/* ---- import ---- */

static int import_to_disk(struct code_task *t, struct compiled *compiled, struct error *e)
{
    struct compiled *old = cache_disk_read(t->service->disk, compiled->key, false);

    if (old) {
        compiled_unref(old);
        t->result.skipped++;
        return 0;
    }
    if (cache_disk_write(t->service->disk, compiled, e) < 0)
        return error_prefix(e, "the module cannot be kept: ");
    t->result.imported++;
    return 0;
}

static int import_to_memory(struct code_task *t, struct compiled *compiled, struct error *e)
{
    struct compiled **collected;

    if (find_loaded(t, compiled->key)) {
        t->result.skipped++;
        return 0;
    }
    collected = realloc(t->collected, (t->n_collected + 1) * sizeof(struct compiled *));
    if (!collected)
        return error_set(e, ERROR_OUT_OF_MEMORY, "no memory for a module");
    t->collected = collected;
    t->collected[t->n_collected++] = compiled_ref(compiled);
    t->result.imported++;
    return 0;
}

static int read_archive(struct code_task *t, bool keep, struct error *e)
{
    struct archive_reader reader;
    struct compiled *compiled;
    uint64_t bytes = 0;
    int r = archive_open_fd(&reader, &t->fd, e);

    while (!r && (r = archive_next(&reader, &compiled, e)) == 1) {
        compiled->from = COMPILED_IMPORTED;
        bytes += compiled_memory(compiled) + sizeof(struct cache_item);
        r = 0;
        if (keep && t->service->disk)
            r = import_to_disk(t, compiled, e);
        else if (keep && bytes <= t->service->memory_bytes)
            r = import_to_memory(t, compiled, e);
        else if (keep)
            t->result.skipped++;
        compiled_unref(compiled);
    }
    archive_reader_free(&reader);
    return r < 0 ? -1 : 0;
}

/* Twice: an archive that is damaged at its end must not be taken over in part. The second time checks as well, since
 * the file's owner can write to it meanwhile. */
static int import_run(struct code_task *t, struct error *e)
{
    return read_archive(t, false, e) < 0 ? -1 : read_archive(t, true, e);
}

/* ---- tasks ---- */

static void task_free(struct code_task *t)
{
    for (unsigned i = 0; i < t->n_loaded; i++)
        compiled_unref(t->loaded[i].compiled);
    free(t->loaded);
    for (unsigned i = 0; i < t->n_collected; i++)
        compiled_unref(t->collected[i]);
    free(t->collected);
    for (unsigned i = 0; i < t->result.n_listed; i++)
        free(t->result.listed[i].names);
    free(t->result.listed);
    if (t->result.fd >= 0)
        close(t->result.fd);
    if (t->fd >= 0)
        close(t->fd);
    free(t);
}

static void run_on_pool(struct work *work)
{
    struct code_task *t = list_entry(work, struct code_task, work);

    t->status = t->run(t, &t->error);
    if (t->fd >= 0) /* on this thread, since closing can take long */
        close(t->fd);
    t->fd = -1;
}

static void task_done(struct work *work)
{
    struct code_task *t = list_entry(work, struct code_task, work);
    struct code_service *s = t->service;

    for (unsigned i = 0; i < t->n_collected && !t->status && !s->closing; i++)
        cache_memory_put(s->memory, t->collected[i], clock_now_ns());
    if (!s->closing)
        t->done(t->context, t->status < 0 ? NULL : &t->result, &t->error);
    task_free(t);
    service_let_go(s);
}

static int begin(struct code_service *s, int (*run)(struct code_task *, struct error *), const char *key, int fd,
                 code_task_done *done, void *context, struct error *e)
{
    struct code_task *t = calloc(1, sizeof(*t));

    if (!t) {
        if (fd >= 0)
            close(fd);
        return error_set(e, ERROR_OUT_OF_MEMORY, "no memory for a task");
    }
    *t = (struct code_task){.service = s, .run = run, .done = done, .context = context, .one = key, .fd = fd};
    t->result.fd = -1;
    if (s->closing)
        error_set(e, ERROR_SHUTTING_DOWN, "the daemon is ending");
    else if (key && !key_from_hex(key, t->key))
        error_at(e, ERROR_INVALID_ARGUMENT, "", "key", "must be 64 hexadecimal digits in lower case");
    else if (take_snapshot(t, e) == 0)
        goto submit;
    task_free(t);
    return -1;

submit:
    for (unsigned i = 0; run == clear_run && i < t->n_loaded; i++)
        cache_memory_remove(s->memory, t->loaded[i].compiled->key);
    if (run == clear_run)
        service_drop_stores(s, key ? t->key : NULL);
    service_hold(s);
    work_submit(s->loop, &t->work, run_on_pool, task_done); /* the pool may have run it before this returns */
    return 0;
}

int code_cache_list(struct code_service *service, code_task_done *done, void *context, struct error *e)
{
    return begin(service, list_run, NULL, -1, done, context, e);
}

int code_cache_clear(struct code_service *service, const char *key, code_task_done *done, void *context,
                     struct error *e)
{
    return begin(service, clear_run, key, -1, done, context, e);
}

int code_cache_export(struct code_service *service, const char *key, code_task_done *done, void *context,
                      struct error *e)
{
    return begin(service, export_run, key, -1, done, context, e);
}

int code_cache_import(struct code_service *service, int fd, code_task_done *done, void *context, struct error *e)
{
    return begin(service, import_run, NULL, fd, done, context, e);
}
