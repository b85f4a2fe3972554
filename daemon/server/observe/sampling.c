/* Numbers that only the system or a driver knows: samples for `clients` and `metrics`, and readings of the conditions
 * that devices' speed depends on. They are asked for on the pool, so a driver that hangs never blocks the loop. Thread:
 * loop. */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "server/base/shared.h"
#include "server/observe/room.h"
#include "server/peer/request.h"
#include "util/clock.h"

enum { SAMPLE_LATE_MS = 100, CONDITIONS_AGE_MS = 1000 };

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

/* ---- samples: on the pool ---- */

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

/* ---- samples: on the loop ---- */

static void on_late_sample(uv_timer_t *timer);

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

static void on_late_sample(uv_timer_t *timer)
{
    answer_all(timer->data);
}

void sampling_enqueue(struct request *r, bool (*first)(struct long_reply *reply))
{
    struct server *s = r->connection->server;

    r->first_piece = first;
    list_append(&s->observe->sampling.waiting, &r->queue_link);
    if (!uv_is_active((uv_handle_t *)&s->observe->sampling.timer))
        uv_timer_start(&s->observe->sampling.timer, on_late_sample, SAMPLE_LATE_MS, 0);
    if (s->observe->sampling.busy)
        return;
    s->observe->sampling.busy = true;
    work_submit(&s->loop, &s->observe->sampling.work, sample, sampled);
}

/* The method `conditions`. A reading begins after the request came, on the pool, since a driver may block. Requests
 * that come meanwhile wait for the next one together. After a reading the pool rests for a multiple of the time that it
 * took, so that no number of requests costs more than a part of one thread: one question took the driver up to 3 ms on
 * an H200. */

enum {
    READING_LATE_MS = 250, /* then a request is answered without a reading */
    RESTS = 4,             /* the pool works a fifth of the time at most */
    SHORTEST_US = 500      /* a reading counts for so much at least */
};

struct question {
    struct backend_device *device;
};
const size_t conditions_state_bytes = sizeof(struct question);

static struct backend_device *device_of(const struct request *r)
{
    const struct question *q = request_state(r);

    return q->device;
}

int readings_init(struct server *s, struct error *e)
{
    struct readings *x = &s->observe->readings;

    list_init(&x->waiting);
    list_init(&x->asked);
    uv_timer_init(&s->loop, &x->late);
    uv_timer_init(&s->loop, &x->pause);
    x->late.data = x->pause.data = s;
    x->read = calloc(BACKEND_MAX_DEVICES, sizeof(*x->read));
    return x->read ? 0 : error_set(e, ERROR_OUT_OF_MEMORY, "no memory to start");
}

void readings_close(struct server *s)
{
    uv_close((uv_handle_t *)&s->observe->readings.late, NULL);
    uv_close((uv_handle_t *)&s->observe->readings.pause, NULL);
}

/* ---- readings: replies ---- */

static void write_reason(struct rpc_output *out, const void *of, uint32_t i)
{
    uint32_t reasons = *(const uint32_t *)of;

    while (i--)
        reasons &= reasons - 1;
    rpc_write_text(out, condition_reason_names[__builtin_ctz(reasons)]);
}

struct conditions_map conditions_reply(const struct backend_conditions *c)
{
    return (struct conditions_map){
        .missing = *c->missing ? c->missing : NULL,
        .clock_mhz = c->clock_mhz,
        .clock_max_mhz = c->clock_max_mhz,
        .memory_clock_mhz = c->memory_clock_mhz,
        .memory_clock_max_mhz = c->memory_clock_max_mhz,
        .temperature_c = c->temperature_c,
        .power_w = c->power_w,
        .power_limit_w = c->power_limit_w,
        .power_slowed_us = c->power_slowed_us,
        .thermal_slowed_us = c->thermal_slowed_us,
        .reasons = {(uint32_t)__builtin_popcount(c->reasons), *c->missing ? NULL : write_reason, &c->reasons},
    };
}

static void answer(struct request *r, const struct backend_conditions *c)
{
    request_end_record(r,
                       RECORD(conditions_reply, .device = device_of(r)->info.uuid, .conditions = conditions_reply(c)));
}

/* ---- readings: on the pool ---- */

static void read_devices(struct work *work)
{
    const struct readings *x = list_entry(work, struct readings, work);
    const struct server *s = list_entry(x, struct observe, readings)->server;
    const uint64_t began_ns = clock_now_ns();

    for (unsigned i = 0; i < s->devices.count; i++)
        if (x->devices & 1U << i)
            s->devices.all[i]->backend->conditions(s->devices.all[i], &x->read[i]);
    s->observe->readings.took_ns = clock_now_ns() - began_ns;
}

/* ---- readings: on the loop ---- */

static void go_on(struct server *s);

static void answer_missing(struct list *requests, const char *why)
{
    struct backend_conditions missing;
    struct list *node;

    conditions_miss(&missing, "%s", why);
    while ((node = list_pop(requests)))
        answer(list_entry(node, struct request, queue_link), &missing);
}

static void on_late_reading(uv_timer_t *timer)
{
    struct server *s = timer->data;

    answer_missing(&s->observe->readings.asked, "the driver does not answer");
    answer_missing(&s->observe->readings.waiting, "the driver does not answer");
}

static void on_pause(uv_timer_t *timer)
{
    go_on(timer->data);
}

static void devices_read(struct work *work)
{
    struct readings *x = list_entry(work, struct readings, work);
    const uint64_t shortest_ns = SHORTEST_US * UINT64_C(1000);
    struct list *node;

    x->busy = false;
    x->next_ns = clock_now_ns() + RESTS * (x->took_ns > shortest_ns ? x->took_ns : shortest_ns);
    uv_timer_stop(&x->late);
    while ((node = list_pop(&x->asked))) {
        struct request *r = list_entry(node, struct request, queue_link);

        answer(r, &x->read[device_of(r)->index]);
    }
    go_on(list_entry(x, struct observe, readings)->server);
}

/* Begins the next reading, if requests wait for one and it may begin. */
static void go_on(struct server *s)
{
    struct readings *x = &s->observe->readings;
    const uint64_t now = clock_now_ns();
    struct list *node;

    if (list_empty(&x->waiting))
        return;
    if (x->busy) {
        if (!uv_is_active((uv_handle_t *)&x->late))
            uv_timer_start(&x->late, on_late_reading, READING_LATE_MS, 0);
        return;
    }
    if (now < x->next_ns) {
        const uint64_t rest_ms = (x->next_ns - now) / 1000000 + 1;

        if (rest_ms > READING_LATE_MS)
            answer_missing(&x->waiting, "the driver answers slowly, and was asked a moment ago");
        else if (!uv_is_active((uv_handle_t *)&x->pause))
            uv_timer_start(&x->pause, on_pause, rest_ms, 0);
        return;
    }
    x->busy = true;
    x->devices = 0;
    while ((node = list_pop(&x->waiting))) {
        x->devices |= 1U << device_of(list_entry(node, struct request, queue_link))->index;
        list_append(&x->asked, node);
    }
    uv_timer_start(&x->late, on_late_reading, READING_LATE_MS, 0);
    work_submit(&s->loop, &x->work, read_devices, devices_read);
}

void handle_conditions(struct request *r, const struct rpc_arg *args, struct request_fds *fds)
{
    struct server *s = r->connection->server;
    struct question *q = request_state(r);
    struct backend_conditions none;
    struct error e;

    (void)fds;
    q->device = server_device(s, &args[CONDITIONS_device], &e);
    if (!q->device) {
        request_end_error(r, &e);
        return;
    }
    if (!q->device->backend->conditions) {
        conditions_miss(&none, "this device does not tell");
        answer(r, &none);
        return;
    }
    list_append(&s->observe->readings.waiting, &r->queue_link);
    go_on(s);
}
