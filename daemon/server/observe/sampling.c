#include "server/observe/sampling.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "server/observe/room.h"
#include "server/peer/long_reply.h"
#include "server/peer/request.h"
#include "util/clock.h"

enum { LATE_MS = 100, CONDITIONS_AGE_MS = 1000 };

void sampling_init(struct server *s)
{
    list_init(&s->observe->sampling.waiting);
    uv_timer_init(&s->loop, &s->observe->sampling.timer);
    s->observe->sampling.timer.data = s;
    memset(s->observe->sampling.memory_free, 0xff, sizeof(s->observe->sampling.memory_free));
    s->observe->sampling.resident_bytes = s->observe->sampling.open_fds = UINT64_MAX;
    for (unsigned i = 0; i < BACKEND_MAX_DEVICES; i++)
        conditions_miss(&s->observe->sampling.conditions[i], "%s", "not read yet");
    memcpy(s->observe->sampling.fresh_conditions, s->observe->sampling.conditions,
           sizeof(s->observe->sampling.conditions));
}

void sampling_close(struct server *s)
{
    uv_close((uv_handle_t *)&s->observe->sampling.timer, NULL);
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
    const struct dirent *entry;
    uint64_t n = 0;
    bool whole;

    if (!folder)
        return UINT64_MAX;
    for (errno = 0; (entry = readdir(folder)); errno = 0)
        n += entry->d_name[0] != '.';
    whole = errno == 0;
    closedir(folder);
    return whole ? n - 1 : UINT64_MAX; /* without the folder's own */
}

/* Seldom: it takes some milliseconds of a driver. */
static void sample_conditions(const struct server *s, struct sampling *sampling)
{
    const uint64_t now = clock_now_ns();

    if (sampling->conditions_ns && now - sampling->conditions_ns < CONDITIONS_AGE_MS * UINT64_C(1000000))
        return;
    sampling->conditions_ns = now;
    for (unsigned i = 0; i < s->devices.count; i++)
        if (s->devices.all[i]->backend->conditions)
            s->devices.all[i]->backend->conditions(s->devices.all[i], &sampling->fresh_conditions[i]);
}

static void sample(struct work *work)
{
    struct sampling *sampling = list_entry(work, struct sampling, work);
    const struct server *s = list_entry(sampling, struct observe, sampling)->server;

    for (unsigned i = 0; i < s->devices.count; i++) {
        struct backend_device *d = s->devices.all[i];
        uint64_t bytes;

        sampling->fresh_free[i] = UINT64_MAX;
        if (d->backend->memory_free && d->backend->memory_free(d, &bytes) == 0)
            sampling->fresh_free[i] = bytes;
    }
    sample_conditions(s, sampling);
    sampling->fresh_resident_bytes = resident_bytes();
    sampling->fresh_open_fds = open_fds();
}

/* ---- on the loop ---- */

static void on_late(uv_timer_t *timer);

/* Answers all requests that wait. */
static void answer_all(struct server *s)
{
    struct list *node;

    uv_timer_stop(&s->observe->sampling.timer);
    while ((node = list_pop(&s->observe->sampling.waiting))) {
        struct request *r = list_entry(node, struct request, queue_link);

        long_reply_enqueue(r, r->first_piece);
    }
}

static void sampled(struct work *work)
{
    struct sampling *sampling = list_entry(work, struct sampling, work);

    sampling->busy = false;
    memcpy(sampling->memory_free, sampling->fresh_free, sizeof(sampling->memory_free));
    memcpy(sampling->conditions, sampling->fresh_conditions, sizeof(sampling->conditions));
    sampling->resident_bytes = sampling->fresh_resident_bytes;
    sampling->open_fds = sampling->fresh_open_fds;
    answer_all(list_entry(sampling, struct observe, sampling)->server);
}

static void on_late(uv_timer_t *timer)
{
    answer_all(timer->data);
}

void sampling_enqueue(struct request *r, bool (*first)(struct long_reply *reply))
{
    struct server *s = r->connection->server;

    r->first_piece = first;
    list_append(&s->observe->sampling.waiting, &r->queue_link);
    if (!uv_is_active((uv_handle_t *)&s->observe->sampling.timer))
        uv_timer_start(&s->observe->sampling.timer, on_late, LATE_MS, 0);
    if (s->observe->sampling.busy)
        return;
    s->observe->sampling.busy = true;
    work_submit(&s->loop, &s->observe->sampling.work, sample, sampled);
}
