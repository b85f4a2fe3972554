/* kopsctl clients */
#include <math.h>
#include <string.h>

#include "base/table.h"
#include "commands.h"
#include "view/rows.h"

static const char usage[] =
    "Usage: kopsctl clients [--users] [--json]\n\n"
    "Lists the daemon's connections with their memory, requests and latency. Administrators (by default root and the\n"
    "daemon's own user) see all connections, others their own. \"executor\" is the process that the client's own\n"
    "kernels run in. A \"user\" in brackets is an identity: the name of the socket that the client connected to.\n\n"
    "      --users   add a table of users: the use of all connections of a user together, and the limits\n"
    "      --json    print JSON: clients, users and devices\n";

static void clients_text(const struct kops_clients *s)
{
    struct table t;

    table_init(&t, ">pid\tuser\tprocess\t>for s\t>requests\t>here\t>errors\t>in flight\t>queued\t>buffers\t>mapped\t"
                   ">allocated\t>p50 us\t>p99 us\t>executor\tstate\tcalls itself");
    for (const struct kops_client_info *const *p = s->clients; *p; p++) {
        const struct kops_client_info *c = *p;

        table_row(&t, "%lld\t%s\t%s\t%.0f\t%llu\t%llu\t%llu\t%llu\t%llu\t%llu\t%s\t%s\t%s\t%s\t%s\t%s\t%s",
                  (long long)c->pid, text_owner(c->uid, c->identity), text_clean(*c->comm ? c->comm : "-"),
                  c->connected_s, (unsigned long long)c->requests, (unsigned long long)c->here,
                  (unsigned long long)c->errors, (unsigned long long)c->inflight, (unsigned long long)c->queued,
                  (unsigned long long)c->buffers, text_bytes(c->mapped_bytes), text_bytes(c->allocated_bytes),
                  text_us(c->latency.total.p50), text_us(c->latency.total.p99),
                  c->executor ? text_format("%lld", (long long)c->executor) : "-", client_state(c),
                  text_clean(c->client));
    }
    table_print(&t);
}

/* "3 of 1024"; where there is no limit, "3". */
static const char *of_limit(uint64_t n, uint64_t limit)
{
    const char *text = text_format("%llu", (unsigned long long)n);

    return limit == KOPS_NO_LIMIT ? text : text_format("%s of %llu", text, (unsigned long long)limit);
}

static const char *bytes_of_limit(uint64_t n, uint64_t limit)
{
    return limit == KOPS_NO_LIMIT ? text_bytes(n) : text_format("%s of %s", text_bytes(n), text_bytes(limit));
}

static void users_text(const struct kops_clients *s)
{
    struct table t;

    table_init(&t, "user\t>connections\t>buffers\t>mappings\t>mapped\t>allocated\t>host memory\t>programs\t>waiting\t"
                   ">in flight\t>descriptors\t>kernels\t>requests\t>refused\t>device s");
    for (const struct kops_user_info *const *p = s->users; *p; p++) {
        const struct kops_user_info *u = *p;
        const struct kops_user_limits *l = &u->limits;

#define N(member)     of_limit(u->member, l->member)
#define BYTES(member) bytes_of_limit(u->member, l->member)
        table_row(&t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%llu\t%llu\t%s", text_owner(u->uid, u->identity),
                  N(connections), N(buffers), N(mappings), BYTES(mapped_bytes), BYTES(allocated_bytes),
                  BYTES(host_bytes), BYTES(program_bytes), BYTES(waiting_bytes), N(inflight), N(fds),
                  BYTES(kernel_bytes), (unsigned long long)u->requests, (unsigned long long)u->refused,
                  isnan(u->device_us) ? "-" : text_format("%.3f", u->device_us * 1e-6));
#undef N
#undef BYTES
    }
    printf("\n");
    table_print(&t);
}

enum ctl_exit ctl_clients(struct ctl *ctl, int argc, char **argv)
{
    bool users = false;
    const struct ctl_option options[] = {{"--users", 'u', OPTION_FLAG, &users}, {0}};
    struct kops_clients *clients;
    enum ctl_exit status;

    if (!ctl_begin(ctl, argc, argv, usage, options, 0, &status))
        return status;
    if (kops_clients(ctl->client, &clients, &ctl->error))
        return ctl_failed("clients", &ctl->error);
    if (ctl->json) {
        JSON_MAP(NULL, json_text("state", clients->state), json_number("uptime_s", clients->uptime_s),
                 json_list("clients", client_fields, clients->clients), json_list("users", user_fields, clients->users),
                 json_each("devices", clients->devices, device_json));
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
