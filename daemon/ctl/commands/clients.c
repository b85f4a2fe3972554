/* kopsctl clients */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/complain.h"
#include "base/json.h"
#include "base/options.h"
#include "base/table.h"
#include "base/text.h"
#include "commands.h"
#include "view/clients.h"

static const char usage[] =
    "Usage: kopsctl clients [--users] [--json]\n\n"
    "Lists the daemon's connections with their memory, requests and latency. Administrators (by default root and the\n"
    "daemon's own user) see all connections, others their own. \"executor\" is the process that the client's own\n"
    "kernels run in. A \"user\" in brackets is an identity: the name of the socket that the client connected to.\n\n"
    "      --users   add a table of users: the use of all connections of a user together, and the limits\n"
    "      --json    print JSON: clients, users and devices\n";

/* ---- JSON ---- */

static void print_json(const struct kops_clients *s)
{
    json_begin(NULL, '{');
    json_text("state", s->state);
    json_number("uptime_s", s->uptime_s);
    json_begin("clients", '[');
    for (const struct kops_client_info *const *c = s->clients; *c; c++) {
        json_begin(NULL, '{');
        view_client_json(*c);
        json_end('}');
    }
    json_end(']');
    view_users_json(s);
    json_begin("devices", '[');
    for (const struct kops_device_load *const *d = s->devices; *d; d++) {
        json_begin(NULL, '{');
        view_device_json(*d);
        json_end('}');
    }
    json_end(']');
    json_end('}');
}

/* ---- tables ---- */

static void cell_user(struct table *t, int64_t uid, const char *identity)
{
    char text[TABLE_CELL];

    table_cell(t, "%s", text_owner(uid, identity, text, sizeof(text)));
}

static void cell_bytes(struct table *t, uint64_t bytes)
{
    char text[TABLE_CELL];

    table_cell(t, "%s", text_bytes(bytes, text, sizeof(text)));
}

static void clients_text(const struct kops_clients *s)
{
    char text[TABLE_CELL];
    struct table t;

    table_init(&t, "rllrrrrrrrrrrrrll",
               (const char *const[]){"pid", "user", "process", "for s", "requests", "here", "errors", "in flight",
                                     "queued", "buffers", "mapped", "allocated", "p50 us", "p99 us", "executor",
                                     "state", "calls itself"});
    for (const struct kops_client_info *const *p = s->clients; *p; p++) {
        const struct kops_client_info *c = *p;

        table_cell(&t, "%lld", (long long)c->pid);
        cell_user(&t, c->uid, c->identity);
        table_cell(&t, "%s", text_clean(*c->comm ? c->comm : "-", text, sizeof(text)));
        table_cell(&t, "%.0f", c->connected_s);
        table_cell(&t, "%llu", (unsigned long long)c->requests);
        table_cell(&t, "%llu", (unsigned long long)c->here);
        table_cell(&t, "%llu", (unsigned long long)c->errors);
        table_cell(&t, "%llu", (unsigned long long)c->inflight);
        table_cell(&t, "%llu", (unsigned long long)c->queued);
        table_cell(&t, "%llu", (unsigned long long)c->buffers);
        cell_bytes(&t, c->mapped_bytes);
        cell_bytes(&t, c->allocated_bytes);
        table_us(&t, c->latency.total.p50);
        table_us(&t, c->latency.total.p99);
        if (c->executor)
            table_cell(&t, "%lld", (long long)c->executor);
        else
            table_cell(&t, "-");
        table_cell(&t, "%s", view_client_state(c));
        table_cell(&t, "%s", text_clean(c->client, text, sizeof(text)));
    }
    table_print(&t);
}

/* "3 of 1024"; a limit that there is not is left out. */
static void cell_of(struct table *t, uint64_t n, uint64_t limit)
{
    if (limit == KOPS_NO_LIMIT)
        table_cell(t, "%llu", (unsigned long long)n);
    else
        table_cell(t, "%llu of %llu", (unsigned long long)n, (unsigned long long)limit);
}

static void cell_bytes_of(struct table *t, uint64_t n, uint64_t limit)
{
    char text[32], of[32];

    if (limit == KOPS_NO_LIMIT)
        cell_bytes(t, n);
    else
        table_cell(t, "%s of %s", text_bytes(n, text, sizeof(text)), text_bytes(limit, of, sizeof(of)));
}

static void users_text(const struct kops_clients *s)
{
    struct table t;

    table_init(&t, "lrrrrrrrrrrrrrr",
               (const char *const[]){"user", "connections", "buffers", "mappings", "mapped", "allocated", "host memory",
                                     "programs", "waiting", "in flight", "descriptors", "kernels", "requests",
                                     "refused", "device s"});
    for (const struct kops_user_info *const *p = s->users; *p; p++) {
        const struct kops_user_info *u = *p;

        cell_user(&t, u->uid, u->identity);
        cell_of(&t, u->connections, u->limits.connections);
        cell_of(&t, u->buffers, u->limits.buffers);
        cell_of(&t, u->mappings, u->limits.mappings);
        cell_bytes_of(&t, u->mapped_bytes, u->limits.mapped_bytes);
        cell_bytes_of(&t, u->allocated_bytes, u->limits.allocated_bytes);
        cell_bytes_of(&t, u->host_bytes, u->limits.host_bytes);
        cell_bytes_of(&t, u->program_bytes, u->limits.program_bytes);
        cell_bytes_of(&t, u->waiting_bytes, u->limits.waiting_bytes);
        cell_of(&t, u->inflight, u->limits.inflight);
        cell_of(&t, u->fds, u->limits.fds);
        cell_bytes_of(&t, u->kernel_bytes, u->limits.kernel_bytes);
        table_cell(&t, "%llu", (unsigned long long)u->requests);
        table_cell(&t, "%llu", (unsigned long long)u->refused);
        if (isnan(u->device_us))
            table_cell(&t, "-");
        else
            table_cell(&t, "%.3f", u->device_us * 1e-6);
    }
    printf("\n");
    table_print(&t);
}

enum ctl_exit ctl_clients(struct ctl *ctl, int argc, char **argv)
{
    static const struct option options[] = {{"users", no_argument, NULL, 'u'}, CTL_COMMON_OPTIONS};
    struct kops_clients *clients;
    struct kops_error error;
    enum ctl_exit status;
    bool users = false;
    int option, end;

    while ((option = getopt_long(argc, argv, "uh", options, NULL)) != -1) {
        if (option == 'u')
            users = true;
        else if ((end = ctl_common(ctl, option, usage)) >= 0)
            return (enum ctl_exit)end;
    }
    if (optind < argc)
        return ctl_usage("clients takes no `%s`", argv[optind]);
    status = ctl_connect(ctl);
    if (status)
        return status;
    if (kops_clients(ctl->client, &clients, &error))
        return ctl_failed("clients", &error);
    if (ctl->json) {
        print_json(clients);
    } else {
        clients_text(clients);
        if (users)
            users_text(clients);
        if (strcmp(clients->state, "serving") != 0)
            printf("the daemon is %s\n", clients->state);
    }
    kops_clients_free(clients);
    return CTL_OK;
}
