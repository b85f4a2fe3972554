#include "server/observe/sampling.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "server/observe/report.h"
#include "server/peer/request.h"

enum { LATE_MS = 100 };

void sampling_init(struct server *s)
{
    list_init(&s->sampling.waiting);
    uv_timer_init(&s->loop, &s->sampling.timer);
    s->sampling.timer.data = s;
    memset(s->sampling.memory_free, 0xff, sizeof(s->sampling.memory_free));
    s->sampling.resident_bytes = s->sampling.open_fds = UINT64_MAX;
}

void sampling_close(struct server *s)
{
    uv_close((uv_handle_t *)&s->sampling.timer, NULL);
}

/* ---- on the pool ---- */

static uint64_t resident_bytes(void)
{
    FILE *file = fopen("/proc/self/statm", "re");
    unsigned long long size, resident;
    uint64_t bytes = UINT64_MAX;

    if (!file)
        return bytes;
    if (fscanf(file, "%llu %llu", &size, &resident) == 2)
        bytes = resident * (uint64_t)sysconf(_SC_PAGESIZE);
    fclose(file);
    return bytes;
}

static uint64_t open_fds(void)
{
    DIR *folder = opendir("/proc/self/fd");
    uint64_t n = 0;

    if (!folder)
        return UINT64_MAX;
    for (const struct dirent *entry; (entry = readdir(folder));)
        n += entry->d_name[0] != '.';
    closedir(folder);
    return n - 1; /* the folder's own */
}

static void sample(struct work *work)
{
    struct sampling *sampling = list_entry(work, struct sampling, work);
    const struct server *s = list_entry(sampling, struct server, sampling);

    for (unsigned i = 0; i < s->devices.count; i++) {
        struct backend_device *d = s->devices.all[i];
        uint64_t bytes;

        sampling->fresh_free[i] = UINT64_MAX;
        if (d->backend->memory_free && d->backend->memory_free(d, &bytes) == 0)
            sampling->fresh_free[i] = bytes;
    }
    sampling->fresh_resident_bytes = resident_bytes();
    sampling->fresh_open_fds = open_fds();
}

/* ---- on the loop ---- */

static void on_late(uv_timer_t *timer);

/* Everybody who waits. */
static void answer_all(struct server *s)
{
    uv_timer_stop(&s->sampling.timer);
    while (!list_empty(&s->sampling.waiting)) {
        struct list *node = list_first(&s->sampling.waiting);

        list_remove(node);
        report_enqueue((struct request *)(void *)((char *)node - offsetof(struct request, watch.link)));
    }
}

static void sampled(struct work *work)
{
    struct sampling *sampling = list_entry(work, struct sampling, work);

    sampling->busy = false;
    memcpy(sampling->memory_free, sampling->fresh_free, sizeof(sampling->memory_free));
    sampling->resident_bytes = sampling->fresh_resident_bytes;
    sampling->open_fds = sampling->fresh_open_fds;
    answer_all(list_entry(sampling, struct server, sampling));
}

static void on_late(uv_timer_t *timer)
{
    answer_all(timer->data);
}

void sampling_enqueue(struct request *r)
{
    struct server *s = r->connection->server;

    list_append(&s->sampling.waiting, &r->watch.link);
    if (!uv_is_active((uv_handle_t *)&s->sampling.timer))
        uv_timer_start(&s->sampling.timer, on_late, LATE_MS, 0);
    if (s->sampling.busy)
        return;
    s->sampling.busy = true;
    work_submit(&s->loop, &s->sampling.work, sample, sampled);
}
