#include "server/observe/report.h"

#include <stdlib.h>

#include "server/peer/connection.h"
#include "server/peer/request.h"

static struct request *first_request(const struct connection *c)
{
    return (struct request *)(void *)((char *)list_first(&c->reports) - offsetof(struct request, barrier.link));
}

static bool (*first_step(const struct request *r))(struct report *)
{
    return r->method == METHOD_STATS ? stats_begin : r->method == METHOD_CLIENTS ? clients_begin : metrics_begin;
}

void report_enqueue(struct request *r)
{
    struct connection *c = r->connection;

    _Static_assert(offsetof(struct request, barrier.link) == offsetof(struct request, watch.link),
                   "one link for every kind of report");
    if (c->closed) {
        request_abandon(r);
        return;
    }
    list_append(&c->reports, &r->barrier.link);
    connection_mark_dirty(c);
}

static void report_free(struct report *report)
{
    list_remove(&report->walk);
    rpc_output_free(&report->out);
    buffer_free(&report->metrics.text.bytes);
    free(report->rows);
    free(report);
}

/* The user may have the next one built, on whichever connection waits for it first. */
static void release(struct connection *c)
{
    struct account *a = c->account;
    struct list *next;

    list_remove(&c->report_link);
    if (a->reporting == c)
        a->reporting = NULL;
    next = a->reporting ? NULL : list_first(&a->reports);
    if (next)
        connection_mark_dirty(list_entry(next, struct connection, report_link));
}

/* Whether the connection is the one of its user's that a report is built for; else it waits until it is. */
static bool may_build(struct connection *c)
{
    struct account *a = c->account;

    if (!a->reporting) {
        list_remove(&c->report_link);
        a->reporting = c;
    }
    if (a->reporting != c && list_empty(&c->report_link))
        list_append(&a->reports, &c->report_link);
    return a->reporting == c;
}

static struct report *report_new(struct request *r)
{
    struct report *report = calloc(1, sizeof(*report));

    if (!report)
        return NULL;
    report->request = r;
    report->step = first_step(r);
    rpc_output_init(&report->out, OUTPUT_MAX);
    list_init(&report->walk);
    return report;
}

/* Answers with what was built, or with the want of memory. */
static void finish(struct connection *c)
{
    struct report *report = c->report;
    struct request *r = report ? report->request : first_request(c);
    struct error e;

    list_remove(&r->barrier.link);
    c->report = NULL;
    if (!report || report->failed || report->out.bytes.failed) {
        error_set(&e, ERROR_OUT_OF_MEMORY, "no memory for so long an answer");
        request_error(r, &e);
    } else {
        struct rpc_output *out = request_result(r);

        if (out)
            rpc_write_raw(out, report->out.bytes.data, buffer_length(&report->out.bytes));
    }
    if (report)
        report_free(report);
    release(c);
    request_end(r);
}

void reports_step(struct connection *c)
{
    if (list_empty(&c->reports))
        return;
    if (!c->report && connection_is_stuck(c) && !c->server->cancelled_all) {
        release(c);
        return;
    }
    if (!may_build(c))
        return;
    if (!c->report)
        c->report = report_new(first_request(c));
    while (c->report && !c->report->step(c->report))
        if (schedule_is_over_now(&c->server->schedule)) {
            connection_mark_dirty(c);
            return;
        }
    finish(c);
    if (!list_empty(&c->reports))
        connection_mark_dirty(c);
}

void reports_abandon(struct connection *c)
{
    if (c->report)
        report_free(c->report);
    c->report = NULL;
    release(c);
    while (!list_empty(&c->reports)) {
        struct request *r = first_request(c);

        list_remove(&r->barrier.link);
        request_abandon(r);
    }
}

void reports_pass_by(struct connection *c)
{
    list_for_each_safe (node, after, &c->server->walks) {
        struct report *report = list_entry(node, struct report, walk);

        if (report->at == &c->link)
            report->at = c->link.next;
    }
}
