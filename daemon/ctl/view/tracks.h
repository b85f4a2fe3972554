/* The events of a trace, and the rows of a timeline that show them: a row has no two events at a time.
 *
 * Calls of one connection and stream that overlap go to different rows, each to the first one that is free when the
 * call was received. A process has its compilations in rows of its own, and a device its work. */
#ifndef KOPS_CTL_TRACKS_H
#define KOPS_CTL_TRACKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <kops/kops.h>

enum { TRACKS_MAX_EVENTS = 4000000, TRACKS_NONE = UINT32_MAX };

/* A process that called, or a device. */
struct tracks_process {
    uint64_t id;    /* what the timeline has as its pid */
    char name[160]; /* cut to fit */
    uint32_t n_clients;
};

struct tracks_kind {
    uint64_t number;
    bool compiles;
    uint32_t device; /* of `devices`; TRACKS_NONE: none */
    char *label;     /* these are owned */
    char *uuid, *variant, *dtype;
    char *shapes; /* such as "4x1024, scalar" */
};

struct tracks_client {
    uint64_t number;
    uint32_t process; /* of `processes` */
};

struct tracks_event {
    struct kops_trace_event e; /* but `kind` and `client` are places of the lists below */
    uint32_t row, device_row;  /* of `rows`, after tracks_arrange(); device_row TRACKS_NONE: no device had it */
};

struct tracks_row {
    bool of_device, of_compiler;
    uint32_t process; /* of `processes`, or `devices` where of_device */
    uint64_t client, stream;
    uint32_t lane; /* from 0 on among those of the same kind */
    uint32_t tid;  /* from 1 on in its process */
};

/* Where a number has its place in a list. */
struct tracks_place {
    uint64_t number;
    uint32_t at;
};

struct tracks {
    struct tracks_event *events;
    struct tracks_kind *kinds;
    struct tracks_client *clients;
    struct tracks_process *processes, *devices;
    struct tracks_row *rows; /* of all processes, then of all devices; those of one are neighbours */
    char (*uuids)[64];       /* of `devices` */
    struct tracks_place *kind_places, *client_places;
    size_t n_events, n_kinds, n_clients, n_processes, n_devices, n_rows;
};

/* A zeroed `t` is empty. `devices` is NULL-terminated. Returns 0 or -ENOMEM; tracks_free() in any case. */
int tracks_init(struct tracks *t, const struct kops_device *const *devices);

/* Takes copies. Returns 0, -ENOMEM, -EBADMSG (an event has a kind that the daemon did not tell) or -E2BIG: there are
 * TRACKS_MAX_EVENTS, and the rest was left out. */
int tracks_add(struct tracks *t, const struct kops_trace *part);

/* Gives every event its rows, once. *ret_order has the events' places in the order of their rows, and within one of
 * their begin; to be freed. Returns 0 or -ENOMEM. */
int tracks_arrange(struct tracks *t, uint32_t **ret_order);

void tracks_free(struct tracks *t);

/* The device told when it had the work. */
static inline bool tracks_device_knows(const struct kops_trace_event *e)
{
    return e->began && e->finished >= e->began;
}

/* When the device began and ended, to the trace's knowledge. */
static inline uint64_t tracks_device_begin(const struct kops_trace_event *e)
{
    const uint64_t begin = e->ended > e->busy ? e->ended - e->busy : 0;

    if (tracks_device_knows(e))
        return e->began;
    return e->busy && begin > e->started ? begin : e->started;
}

static inline uint64_t tracks_device_end(const struct kops_trace_event *e)
{
    return tracks_device_knows(e) ? e->finished : e->ended;
}

#endif
