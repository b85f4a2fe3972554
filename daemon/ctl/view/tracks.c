#include "tracks.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEVICE_PID = INT32_MAX, UNKNOWN_PID = 1 << 30 }; /* no process has one that large */

/* ---- lists ---- */

/* Room for one more. A list has room for a power of two. `at` is where its pointer is. */
static bool grow(void *at, size_t n, size_t size)
{
    void *list;

    if (n & (n - 1))
        return true;
    memcpy(&list, at, sizeof(list));
    list = realloc(list, (n ? 2 * n : 1) * size);
    if (!list)
        return false;
    memcpy(at, &list, sizeof(list));
    return true;
}
#define GROW(list, n) grow(&(list), (n), sizeof(*(list)))

/* The first place whose number is not smaller. */
static size_t search(const struct tracks_place *places, size_t n, uint64_t number)
{
    size_t from = 0;

    while (n > from) {
        const size_t middle = from + (n - from) / 2;

        if (places[middle].number < number)
            from = middle + 1;
        else
            n = middle;
    }
    return from;
}

static uint32_t find(const struct tracks_place *places, size_t n, uint64_t number)
{
    const size_t i = search(places, n, number);

    return i < n && places[i].number == number ? places[i].at : TRACKS_NONE;
}

/* The list's next element has that number. There is room. */
static void enter(struct tracks_place *places, size_t n, uint64_t number)
{
    const size_t i = search(places, n, number);

    memmove(&places[i + 1], &places[i], (n - i) * sizeof(*places));
    places[i] = (struct tracks_place){number, (uint32_t)n};
}

/* ---- processes and devices ---- */

static int add_device(struct tracks *t, const char *uuid, const char *name, uint64_t index)
{
    struct tracks_process *d;

    if (!GROW(t->devices, t->n_devices) || !GROW(t->uuids, t->n_devices))
        return -ENOMEM;
    snprintf(t->uuids[t->n_devices], sizeof(t->uuids[0]), "%s", uuid);
    d = &t->devices[t->n_devices++];
    *d = (struct tracks_process){.id = DEVICE_PID - index};
    if (name)
        snprintf(d->name, sizeof(d->name), "%s (%s)", name, uuid);
    else
        snprintf(d->name, sizeof(d->name), "%s", uuid);
    return 0;
}

int tracks_init(struct tracks *t, const struct kops_device *const *devices)
{
    int r = 0;

    *t = (struct tracks){.n_events = 0};
    for (; !r && *devices; devices++)
        r = add_device(t, (*devices)->uuid, (*devices)->name, (*devices)->index);
    return r;
}

/* A device that the daemon did not tell of before gets the next number. */
static int place_of_device(struct tracks *t, const char *uuid, uint32_t *ret)
{
    uint32_t i = 0;

    while (i < t->n_devices && strncmp(t->uuids[i], uuid, sizeof(t->uuids[i]) - 1) != 0)
        i++;
    *ret = i;
    return i < t->n_devices ? 0 : add_device(t, uuid, NULL, i);
}

static int add_process(struct tracks *t, const struct kops_trace_client *client, uint32_t *ret)
{
    const char *name = *client->name ? client->name : client->comm;
    struct tracks_process *p;
    char number[32], pid[32];
    uint32_t i = 0;

    while (client->pid && i < t->n_processes && t->processes[i].id != (uint64_t)client->pid)
        i++;
    if (client->pid && i < t->n_processes) {
        t->processes[i].n_clients++;
        *ret = i;
        return 0;
    }
    if (!GROW(t->processes, t->n_processes))
        return -ENOMEM;
    *ret = (uint32_t)t->n_processes;
    p = &t->processes[t->n_processes++];
    *p = (struct tracks_process){.n_clients = 1};
    p->id = client->pid ? (uint64_t)client->pid : UNKNOWN_PID + client->client % (UNKNOWN_PID / 2);
    snprintf(number, sizeof(number), "client %llu", (unsigned long long)client->client);
    snprintf(pid, sizeof(pid), client->pid ? "%lld" : "unknown", (long long)client->pid);
    snprintf(p->name, sizeof(p->name), "%.128s (pid %s)", *name ? name : number, pid);
    return 0;
}

static int add_client(struct tracks *t, const struct kops_trace_client *told)
{
    struct tracks_client client = {.number = told->client};

    if (find(t->client_places, t->n_clients, told->client) != TRACKS_NONE)
        return 0;
    if (!GROW(t->clients, t->n_clients) || !GROW(t->client_places, t->n_clients) ||
        add_process(t, told, &client.process))
        return -ENOMEM;
    enter(t->client_places, t->n_clients, told->client);
    t->clients[t->n_clients++] = client;
    return 0;
}

/* ---- kinds ---- */

static void write_shape(FILE *to, const struct kops_shape *shape)
{
    if (!shape->rank)
        fputs("scalar", to);
    for (unsigned i = 0; i < shape->rank; i++)
        fprintf(to, "%s%lld", i ? "x" : "", (long long)shape->dims[i]);
}

static void write_label(FILE *to, const struct kops_trace_kind *kind)
{
    const bool compiles = !strcmp(kind->what, "compile");

    fprintf(to, "%s%s", compiles && *kind->op ? "compile " : "", *kind->op ? kind->op : kind->what);
    if (kind->ops > 1) {
        fprintf(to, ", … (%llu ops)", (unsigned long long)kind->ops);
        return;
    }
    if (*kind->dtype)
        fprintf(to, " %s", kind->dtype);
    if (kind->n_shapes) {
        putc(' ', to);
        write_shape(to, &kind->shapes[kind->n_shapes - 1]);
    }
}

static void write_shapes(FILE *to, const struct kops_trace_kind *kind)
{
    for (size_t i = 0; i < kind->n_shapes; i++) {
        if (i)
            fputs(", ", to);
        write_shape(to, &kind->shapes[i]);
    }
}

/* NULL: there is no memory. */
static char *text_of(void (*write)(FILE *to, const struct kops_trace_kind *kind), const struct kops_trace_kind *kind)
{
    char *text = NULL;
    size_t length;
    FILE *to = open_memstream(&text, &length);

    if (!to)
        return NULL;
    write(to, kind);
    if (fclose(to)) {
        free(text);
        return NULL;
    }
    return text;
}

static void free_kind(struct tracks_kind *k)
{
    free(k->label);
    free(k->uuid);
    free(k->variant);
    free(k->dtype);
    free(k->shapes);
}

static int add_kind(struct tracks *t, const struct kops_trace_kind *told)
{
    struct tracks_kind k = {.number = told->kind, .device = TRACKS_NONE};

    if (find(t->kind_places, t->n_kinds, told->kind) != TRACKS_NONE)
        return 0;
    k.compiles = !strcmp(told->what, "compile");
    k.label = text_of(write_label, told);
    k.uuid = strdup(told->device);
    k.variant = strdup(told->variant);
    k.dtype = strdup(told->dtype);
    k.shapes = text_of(write_shapes, told);
    if (!k.label || !k.uuid || !k.variant || !k.dtype || !k.shapes || !GROW(t->kinds, t->n_kinds) ||
        !GROW(t->kind_places, t->n_kinds) || (*told->device && place_of_device(t, told->device, &k.device))) {
        free_kind(&k);
        return -ENOMEM;
    }
    enter(t->kind_places, t->n_kinds, told->kind);
    t->kinds[t->n_kinds++] = k;
    return 0;
}

/* ---- events ---- */

static int add_event(struct tracks *t, const struct kops_trace_event *event)
{
    const struct kops_trace_client stranger = {.client = event->client, .name = "", .comm = ""};
    const uint32_t kind = find(t->kind_places, t->n_kinds, event->kind);
    struct tracks_event *added;

    if (kind == TRACKS_NONE)
        return -EBADMSG;
    if (t->n_events == TRACKS_MAX_EVENTS)
        return -E2BIG;
    if (!GROW(t->events, t->n_events) || add_client(t, &stranger)) /* a client that was told stays as it is */
        return -ENOMEM;
    added = &t->events[t->n_events++];
    *added = (struct tracks_event){.e = *event, .row = TRACKS_NONE, .device_row = TRACKS_NONE};
    added->e.kind = kind;
    added->e.client = find(t->client_places, t->n_clients, event->client);
    return 0;
}

int tracks_add(struct tracks *t, const struct kops_trace *part)
{
    int r = 0;

    for (const struct kops_trace_kind *const *kind = part->kinds; !r && *kind; kind++)
        r = add_kind(t, *kind);
    for (const struct kops_trace_client *const *client = part->clients; !r && *client; client++)
        r = add_client(t, *client);
    for (size_t i = 0; !r && i < part->n_events; i++)
        r = add_event(t, &part->events[i]);
    return r;
}

/* ---- rows ---- */

static int compare(uint64_t a, uint64_t b)
{
    return (a > b) - (a < b);
}

/* A group of rows: for the calls of a connection and stream, or for the compilations of a process. */
static struct tracks_row row_of(const struct tracks *t, const struct tracks_event *event)
{
    const struct tracks_client *client = &t->clients[event->e.client];

    if (t->kinds[event->e.kind].compiles)
        return (struct tracks_row){.process = client->process, .of_compiler = true};
    return (struct tracks_row){.process = client->process, .client = client->number, .stream = event->e.stream};
}

static struct tracks_row device_row_of(const struct tracks *t, const struct tracks_event *event)
{
    return (struct tracks_row){.process = t->kinds[event->e.kind].device, .of_device = true};
}

static int compare_rows(const struct tracks_row *a, const struct tracks_row *b)
{
    int r = compare(a->process, b->process);

    r = r ? r : compare(a->of_compiler, b->of_compiler);
    r = r ? r : compare(a->client, b->client);
    return r ? r : compare(a->stream, b->stream);
}

static int compare_calls(const void *left, const void *right, void *context)
{
    const uint32_t a = *(const uint32_t *)left, b = *(const uint32_t *)right;
    const struct tracks *t = context;
    const struct tracks_row row_a = row_of(t, &t->events[a]), row_b = row_of(t, &t->events[b]);
    int r = compare_rows(&row_a, &row_b);

    r = r ? r : compare(t->events[a].e.received, t->events[b].e.received);
    return r ? r : compare(a, b);
}

static int compare_work(const void *left, const void *right, void *context)
{
    const uint32_t a = *(const uint32_t *)left, b = *(const uint32_t *)right;
    const struct tracks *t = context;
    const struct tracks_row row_a = device_row_of(t, &t->events[a]), row_b = device_row_of(t, &t->events[b]);
    int r = compare_rows(&row_a, &row_b);

    r = r ? r : compare(tracks_device_begin(&t->events[a].e), tracks_device_begin(&t->events[b].e));
    return r ? r : compare(a, b);
}

/* The rows of the present kind, which are the list's last, and until when each one is taken. */
struct lanes {
    size_t first, n;
    uint64_t *taken;
};

/* The first row that is free at `begin`, or a new one. False: there is no memory. */
static bool take_lane(struct tracks *t, struct lanes *l, const struct tracks_row *row, uint64_t begin, uint64_t end,
                      uint32_t *ret)
{
    const struct tracks_row *last = t->n_rows ? &t->rows[t->n_rows - 1] : NULL;
    const bool same_process = last && last->of_device == row->of_device && last->process == row->process;
    uint32_t lane = 0;

    if (!same_process || compare_rows(last, row)) {
        l->first = t->n_rows;
        l->n = 0;
    }
    while (lane < l->n && l->taken[lane] > begin)
        lane++;
    if (lane == l->n) {
        const uint32_t tid = same_process ? last->tid + 1 : 1;

        if (!GROW(t->rows, t->n_rows) || !GROW(l->taken, l->n))
            return false;
        t->rows[t->n_rows] = *row;
        t->rows[t->n_rows].lane = lane;
        t->rows[t->n_rows++].tid = tid;
        l->n++;
    }
    l->taken[lane] = end > begin ? end : begin + 1; /* of two slices without a length one would be in the other */
    *ret = (uint32_t)(l->first + lane);
    return true;
}

static bool arrange_calls(struct tracks *t, const uint32_t *order, size_t n)
{
    struct lanes lanes = {.taken = NULL};
    bool ok = true;

    for (size_t i = 0; ok && i < n; i++) {
        struct tracks_event *event = &t->events[order[i]];
        const struct tracks_row row = row_of(t, event);

        ok = take_lane(t, &lanes, &row, event->e.received, event->e.ended, &event->row);
    }
    free(lanes.taken);
    return ok;
}

static bool arrange_work(struct tracks *t, const uint32_t *order, size_t n)
{
    struct lanes lanes = {.taken = NULL};
    bool ok = true;

    for (size_t i = 0; ok && i < n; i++) {
        struct tracks_event *event = &t->events[order[i]];
        const struct tracks_row row = device_row_of(t, event);

        ok = take_lane(t, &lanes, &row, tracks_device_begin(&event->e), tracks_device_end(&event->e),
                       &event->device_row);
    }
    free(lanes.taken);
    return ok;
}

int tracks_arrange(struct tracks *t, uint32_t **ret_order)
{
    uint32_t *order = malloc((t->n_events + 1) * sizeof(*order)), *work = malloc((t->n_events + 1) * sizeof(*work));
    size_t n_work = 0;
    int r = -ENOMEM;

    if (!order || !work)
        goto free_order;
    for (uint32_t i = 0; i < t->n_events; i++) {
        order[i] = i;
        if (t->events[i].e.started && t->kinds[t->events[i].e.kind].device != TRACKS_NONE)
            work[n_work++] = i;
    }
    qsort_r(order, t->n_events, sizeof(*order), compare_calls, t);
    qsort_r(work, n_work, sizeof(*work), compare_work, t);
    if (!arrange_calls(t, order, t->n_events) || !arrange_work(t, work, n_work))
        goto free_order;
    *ret_order = order;
    order = NULL;
    r = 0;
free_order:
    free(order);
    free(work);
    return r;
}

void tracks_free(struct tracks *t)
{
    for (size_t i = 0; i < t->n_kinds; i++)
        free_kind(&t->kinds[i]);
    free(t->events);
    free(t->kinds);
    free(t->clients);
    free(t->processes);
    free(t->devices);
    free(t->rows);
    free(t->uuids);
    free(t->kind_places);
    free(t->client_places);
    *t = (struct tracks){.n_events = 0};
}
