#include "executors.h"

#include <math.h>
#include <string.h>

#include "base/json.h"
#include "base/table.h"
#include "base/text.h"

static double executor_share(const struct kops_executor *x)
{
    return x->uptime_s > 0 ? x->device_us * 1e-6 / x->uptime_s : (double)NAN;
}

static void cell_domain(struct table *t, const struct kops_executor *x)
{
    char user[TABLE_CELL], text[TABLE_CELL];

    if (!x->domain)
        table_cell(t, "-");
    else if (strcmp(x->domain, "user") == 0)
        table_cell(t, "user %s", text_owner(x->uid, x->identity, user, sizeof(user)));
    else if (strcmp(x->domain, "connection") != 0)
        table_cell(t, "%s", text_clean(x->domain, text, sizeof(text)));
    else if (x->uid < 0)
        table_cell(t, "connection %llu (closed)", (unsigned long long)x->connection);
    else
        table_cell(t, "connection %llu (pid %lld, user %s)", (unsigned long long)x->connection,
                   (long long)x->client_pid, text_owner(x->uid, x->identity, user, sizeof(user)));
}

void executors_print(const struct kops_executor *const *list, const double *shares, FILE *to, size_t max_rows)
{
    char text[TABLE_CELL];
    struct table t;

    if (!*list)
        return;
    table_init(&t, "rllrrr", (const char *const[]){"executor", "state", "works for", "jobs", "up", "device"});
    for (size_t i = 0; list[i]; i++) {
        const struct kops_executor *x = list[i];

        table_cell(&t, "%lld", (long long)x->pid);
        table_cell(&t, "%s", text_clean(x->state, text, sizeof(text)));
        cell_domain(&t, x);
        table_cell(&t, "%llu", (unsigned long long)x->jobs);
        table_cell(&t, "%s", text_duration(x->uptime_s, text, sizeof(text)));
        table_cell(&t, "%s", text_percent(shares ? shares[i] : executor_share(x), text, sizeof(text)));
    }
    table_write(&t, to, max_rows);
}

static bool has_had_executors(const struct kops_stats *s)
{
    for (const struct kops_counter *const *c = s->executor_counts; *c; c++)
        if ((*c)->value)
            return true;
    return *s->executors != NULL;
}

void executors_text(const struct kops_stats *s)
{
    if (!has_had_executors(s))
        return;
    printf("executors:");
    for (const struct kops_counter *const *c = s->executor_counts; *c; c++)
        printf(" %s %llu%s", (*c)->name, (unsigned long long)(*c)->value, c[1] ? "," : "");
    printf("\n");
    if (*s->executors)
        printf("\n");
    executors_print(s->executors, NULL, stdout, SIZE_MAX);
}

void executor_json(const struct kops_executor *x)
{
    json_int("pid", x->pid);
    json_text("state", x->state);
    if (x->domain)
        json_text("domain", x->domain);
    if (x->uid >= 0)
        json_int("uid", x->uid);
    if (*x->identity)
        json_text("identity", x->identity);
    if (x->connection)
        json_uint("connection", x->connection);
    if (x->client_pid)
        json_int("client_pid", x->client_pid);
    json_uint("jobs", x->jobs);
    json_number("uptime_s", x->uptime_s);
    json_number("device_us", x->device_us);
}

void executor_counts_json(const struct kops_stats *s)
{
    json_begin("executor_counts", '{');
    for (const struct kops_counter *const *c = s->executor_counts; *c; c++)
        json_uint((*c)->name, (*c)->value);
    json_end('}');
}

void executors_json(const struct kops_stats *s)
{
    json_begin("executors", '[');
    for (const struct kops_executor *const *x = s->executors; *x; x++) {
        json_begin(NULL, '{');
        executor_json(*x);
        json_end('}');
    }
    json_end(']');
    executor_counts_json(s);
}
