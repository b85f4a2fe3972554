/* The metrics of the daemon itself: its process, connections, requests and users. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "server/code/code.h"
#include "server/exec/exec.h"
#include "server/observe/metrics.h"
#include "server/observe/room.h"
#include "server/peer/connection.h"
#include "server/peer/request.h"
#include "util/clock.h"
#include "util/log.h"

/* ---- the process ---- */

METRIC(build_info)
{
    metrics_sample(&m->text, METRIC_build_info, "");
    metrics_label(&m->text, "version", KOPS_VERSION);
    metrics_uint(&m->text, 1);
}

METRIC(start_time_seconds)
{
    metrics_one_double(m, METRIC_start_time_seconds, m->s->started_s);
}

METRIC(uptime_seconds)
{
    metrics_one_double(m, METRIC_uptime_seconds, clock_us_between(m->s->started_ns, clock_now_ns()) * 1e-6);
}

METRIC(state)
{
    for (unsigned i = 0; i < STATE_COUNT; i++) {
        metrics_sample(&m->text, METRIC_state, "");
        metrics_label(&m->text, "state", server_state_names[i]);
        metrics_uint(&m->text, server_state(m->s) == i);
    }
}

METRIC(resident_memory_bytes)
{
    if (m->s->observe->sampling.resident_bytes != UINT64_MAX)
        metrics_one(m, METRIC_resident_memory_bytes, m->s->observe->sampling.resident_bytes);
}

METRIC(open_fds)
{
    if (m->s->observe->sampling.open_fds != UINT64_MAX)
        metrics_one(m, METRIC_open_fds, m->s->observe->sampling.open_fds);
}

METRIC(max_fds)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) == 0)
        metrics_one(m, METRIC_max_fds, limit.rlim_cur);
}

METRIC(cpu_seconds_total)
{
    struct timespec t;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    metrics_one_double(m, METRIC_cpu_seconds_total, (double)t.tv_sec + (double)t.tv_nsec * 1e-9);
}

METRIC_VALUE(log_lines_held_back_total, log_lines_held_back())
METRIC_VALUE(log_lines_lost_total, log_lines_lost())

/* ---- connections ---- */

METRIC_VALUE(connections, peers_open_connections(m->s))
METRIC_VALUE(connections_total, m->s->counters.connections_total)
METRIC_VALUE(connections_turned_away_total, m->s->totals.turned_away)
METRIC_VALUE(protocol_errors_total, m->s->counters.protocol_errors)
METRIC_VALUE(received_bytes_total, m->s->counters.bytes_in)
METRIC_VALUE(sent_bytes_total, m->s->counters.bytes_out)

METRIC(clients_dropped_total)
{
    metrics_sample(&m->text, METRIC_clients_dropped_total, "");
    metrics_label(&m->text, "why", "stuck_reader");
    metrics_uint(&m->text, m->s->totals.dropped_readers);
    metrics_sample(&m->text, METRIC_clients_dropped_total, "");
    metrics_label(&m->text, "why", "partial_message");
    metrics_uint(&m->text, m->s->totals.dropped_senders);
}

/* The client's name as the text will have it. Names that differ only before the replacement are one series: a scraper
 * that finds two series with the same labels rejects the whole answer. */
static void name_of(const struct connection *c, char into[CLIENT_NAME_MAX + 1])
{
    memcpy(into, c->client, CLIENT_NAME_MAX + 1);
    for (char *p = into; *p; p++)
        if (((unsigned char)*p < 0x20 && *p != '\n') || *p == 0x7f)
            *p = '?';
    rpc_make_text(into);
}

METRIC(client_connections)
{
    enum { NAMES_MAX = 32 };
    static const char others[] = "(other)";
    char names[NAMES_MAX + 1][CLIENT_NAME_MAX + 1];
    unsigned counts[NAMES_MAX + 1] = {0}, n = 0;

    list_for_each_safe (node, after, peers_connections(m->s)) {
        const struct connection *c = list_entry(node, struct connection, link);
        unsigned i = 0;

        if (c->closed || !may_see(m->viewer, c->uid))
            continue;
        name_of(c, names[n]);
        while (i < n && strcmp(names[i], names[n]) != 0)
            i++;
        if (i == n && n < NAMES_MAX && strcmp(names[n], others) != 0)
            n++;
        counts[i < n ? i : NAMES_MAX]++;
    }
    for (unsigned i = 0; i < n; i++) {
        metrics_sample(&m->text, METRIC_client_connections, "");
        metrics_label(&m->text, "client", names[i]);
        metrics_uint(&m->text, counts[i]);
    }
    if (!counts[NAMES_MAX])
        return;
    metrics_sample(&m->text, METRIC_client_connections, "");
    metrics_label(&m->text, "client", others);
    metrics_uint(&m->text, counts[NAMES_MAX]);
}

/* ---- requests ---- */

METRIC(requests_total)
{
    for (unsigned i = 0; i <= METHOD_COUNT; i++) {
        metrics_sample(&m->text, METRIC_requests_total, "");
        metrics_label(&m->text, "method", request_method_name(m->s, i));
        metrics_uint(&m->text, m->s->totals.requests[i]);
    }
}

METRIC_VALUE(replies_total, m->s->counters.replies)

/* All errors that the daemon itself raises, so that each series exists before its first error. */
METRIC(errors_total)
{
#define X(NAME, name, value)                                                                                           \
    if (ERROR_##NAME < ERROR_CONNECT_FAILED) {                                                                         \
        metrics_sample(&m->text, METRIC_errors_total, "");                                                             \
        metrics_label(&m->text, "code", name);                                                                         \
        metrics_uint(&m->text, m->s->totals.errors[ERROR_##NAME]);                                                     \
    }
    KOPS_ERRORS(X)
#undef X
}

METRIC(requests_in_flight)
{
    uint64_t n = 0;

    list_for_each_safe (node, after, peers_connections(m->s)) {
        n += list_entry(node, struct connection, link)->inflight;
    }
    metrics_one(m, METRIC_requests_in_flight, n);
}

METRIC_VALUE(work_in_flight, m->s->admission.work)
METRIC_VALUE(jobs_total, m->s->counters.jobs)
METRIC_VALUE(jobs_cancelled_total, m->s->counters.jobs_cancelled)
METRIC_VALUE(launches_total, m->s->counters.launches)
METRIC_VALUE(faults_total, m->s->totals.faults)
METRIC_VALUE(profile_rows_dropped, profile_rows_dropped(m->s->observe->profile))

/* ---- users ---- */

/* The number of an identity says nothing to people. */
static void label_account(struct metrics *m, const struct account *a)
{
    if (uid_is_identity(a->uid))
        metrics_label(&m->text, "uid", "");
    else
        metrics_label_uint(&m->text, "uid", a->uid);
    metrics_label(&m->text, "identity", identities_name(&m->s->accounts.identities, a->uid));
}

/* An account is kept for a while after the user's last connection, and so are its series. */
static void of_users(struct metrics *m, enum metric metric, uint64_t (*value)(const struct account *a))
{
    list_for_each_safe (node, after, &m->s->accounts.all) {
        const struct account *a = list_entry(node, struct account, link);

        if (!may_see_account(m->viewer, a))
            continue;
        metrics_sample(&m->text, metric, "");
        label_account(m, a);
        metrics_uint(&m->text, value(a));
    }
}

#define METRIC_OF_USERS(id, value)                                                                                     \
    static uint64_t id##_of(const struct account *a)                                                                   \
    {                                                                                                                  \
        return (value);                                                                                                \
    }                                                                                                                  \
    METRIC(id)                                                                                                         \
    {                                                                                                                  \
        of_users(m, METRIC_##id, id##_of);                                                                             \
    }

METRIC_OF_USERS(user_connections, a->used[QUOTA_CONNECTIONS])
METRIC_OF_USERS(user_buffers, a->used[QUOTA_BUFFERS])
METRIC_OF_USERS(user_mapped_bytes, a->used[QUOTA_MAPPED])
METRIC_OF_USERS(user_allocated_bytes, a->used[QUOTA_ALLOCATED])
METRIC_OF_USERS(user_kernel_bytes, a->used[QUOTA_KERNEL])
METRIC_OF_USERS(user_fds, a->used[QUOTA_FDS])
METRIC_OF_USERS(user_mappings, a->used[QUOTA_MAPPINGS])
METRIC_OF_USERS(user_host_bytes, a->used[QUOTA_HOST])
METRIC_OF_USERS(user_program_bytes, a->used[QUOTA_PROGRAMS])
METRIC_OF_USERS(user_waiting_bytes, a->used[QUOTA_WAITING])
METRIC_OF_USERS(user_requests_in_flight, a->used[QUOTA_INFLIGHT])
METRIC_OF_USERS(user_requests_total, a->requests)
METRIC_OF_USERS(user_refused_total, a->refused)

METRIC(user_device_seconds_total)
{
    list_for_each_safe (node, after, &m->s->accounts.all) {
        const struct account *a = list_entry(node, struct account, link);

        if (!may_see_account(m->viewer, a))
            continue;
        metrics_sample(&m->text, METRIC_user_device_seconds_total, "");
        label_account(m, a);
        metrics_double(&m->text, a->device_us * 1e-6);
    }
}

METRIC(refusals_total)
{
    for (unsigned i = 0; i < REFUSED_COUNT; i++) {
        metrics_sample(&m->text, METRIC_refusals_total, "");
        metrics_label(&m->text, "what", account_refused_name(i));
        metrics_uint(&m->text, m->s->accounts.refused[i]);
    }
}
