#include "util/loop.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>
#include <uv.h>

#include "util/process.h"

enum { UNUSED_ENTRIES = 64 }; /* libuv rounds up, and keeps two entries for itself */

/* The table is the only thing that libuv makes by realloc(). */
static void *table;
static size_t table_bytes;
static unsigned table_descriptors;
static atomic_bool taken;

static void *table_realloc(void *old, size_t size)
{
    void *moved;

    if (!old && table && size <= table_bytes && !atomic_exchange(&taken, true))
        return table;
    if (!old || old != table)
        return realloc(old, size);
    if (size <= table_bytes)
        return table;
    moved = malloc(size);
    if (moved) {
        memcpy(moved, table, table_bytes);
        atomic_store(&taken, false);
    }
    return moved;
}

static void table_free(void *at)
{
    if (at && at == table)
        atomic_store(&taken, false);
    else
        free(at);
}

int loop_memory_reserve(unsigned descriptors, struct error *e)
{
    size_t entries = UNUSED_ENTRIES;

    if (table)
        return 0;
    while (entries < descriptors + UNUSED_ENTRIES)
        entries *= 2;
    table = malloc(entries * sizeof(void *));
    if (!table)
        return error_set(e, ERROR_OUT_OF_MEMORY, "no memory to watch %u descriptors", descriptors);
    table_bytes = entries * sizeof(void *);
    table_descriptors = (unsigned)entries - UNUSED_ENTRIES;
    uv_replace_allocator(malloc, table_realloc, calloc, table_free);
    return 0;
}

unsigned loop_memory_descriptors(void)
{
    return table ? table_descriptors : UINT32_MAX;
}

/* ---- watching a descriptor ---- */

/* libuv adds a descriptor when it next waits, and aborts if it cannot. For a descriptor that is watched already it only
 * changes the events, which needs no memory. */
static int add(uv_loop_t *loop, int fd)
{
    struct epoll_event nothing_yet = {.data.fd = fd};

    return epoll_ctl(uv_backend_fd(loop), EPOLL_CTL_ADD, fd, &nothing_yet) < 0 && errno != EEXIST ? -errno : 0;
}

int watch_loop(uv_loop_t *loop)
{
    int r = loop->async_io_watcher.fd >= 0 ? add(loop, loop->async_io_watcher.fd) : 0;

    return r < 0 || loop->signal_pipefd[0] < 0 ? r : add(loop, loop->signal_pipefd[0]);
}

int watch_start(uv_poll_t *poll, int events, uv_poll_cb callback)
{
    uv_os_fd_t fd;
    int r = uv_poll_start(poll, events, callback);

    if (r < 0 || (r = uv_fileno((const uv_handle_t *)poll, &fd)) < 0)
        return r;
    r = add(poll->loop, fd);
    if (r < 0)
        uv_poll_stop(poll);
    return r;
}

/* ---- work ---- */

static void run(uv_work_t *request)
{
    static _Thread_local bool begun;
    struct work *work = request->data;

    if (!begun)
        priority_lower();
    begun = true;
    work->run(work);
}

static void done(uv_work_t *request, int status)
{
    struct work *work = request->data;

    (void)status; /* nothing here is ever cancelled */
    work->done(work);
}

void work_submit(uv_loop_t *loop, struct work *work, void (*run_function)(struct work *),
                 void (*done_function)(struct work *))
{
    work->request.data = work;
    work->run = run_function;
    work->done = done_function;
    uv_queue_work(loop, &work->request, run, done);
}

struct closing {
    struct work work; /* first: freed as the whole */
    unsigned count;
    int fds[];
};

static void close_run(struct work *work)
{
    struct closing *c = (struct closing *)work;

    for (unsigned i = 0; i < c->count; i++)
        close(c->fds[i]);
}

static void close_done(struct work *work)
{
    free(work);
}

void work_close_fds(uv_loop_t *loop, const int *fds, unsigned count)
{
    struct closing *c;

    if (!count)
        return;
    c = malloc(sizeof(*c) + count * sizeof(c->fds[0]));
    if (!c) {
        for (unsigned i = 0; i < count; i++)
            close(fds[i]);
        return;
    }
    c->count = count;
    memcpy(c->fds, fds, count * sizeof(c->fds[0]));
    work_submit(loop, &c->work, close_run, close_done);
}
