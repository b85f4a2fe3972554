/* Small blocking adds of many processes at once, each with a connection of its own. Prints JSON: the calls a second of
 * each client in the same stretch of time, their sum, Jain's index of fairness, and the latencies. */
#include <stdio.h>
#include <stdlib.h>

#include "measure.h"
#include "operands.h"
#include "options.h"
#include "team.h"

enum { SAMPLES_OF_A_CLIENT = 4096 };

struct setting {
    struct bench_connection connection;
    size_t clients, milliseconds, warmup, elements;
};

/* What a client found, in the team's memory. */
struct found {
    size_t calls, n_samples;
    uint64_t ns;
    float samples[SAMPLES_OF_A_CLIENT]; /* the latest ones, microseconds */
};

static int call(kops_client *client, const struct operands *operands)
{
    struct kops_error error;

    return check_kops(kops_run(client, &operands->request, NULL, &error), &error, "add");
}

static int measure(struct team *team, const struct setting *setting, kops_client *client, struct operands *operands,
                   struct found *found)
{
    uint64_t start, until, now;

    for (size_t i = 0; i < setting->warmup; i++) {
        if (call(client, operands))
            return 1;
    }
    team_meet(team);
    /* The first quarter is not counted: in it the last ones are still starting. */
    for (start = now_ns(), until = start + setting->milliseconds * 250000; now_ns() < until;) {
        if (call(client, operands))
            return 1;
    }
    start = now = now_ns();
    until = start + setting->milliseconds * 1000000;
    while (now < until) {
        uint64_t before = now;

        if (call(client, operands))
            return 1;
        now = now_ns();
        found->samples[found->calls++ % SAMPLES_OF_A_CLIENT] = (float)((double)(now - before) * 1e-3);
    }
    found->ns = now - start;
    found->n_samples = found->calls < SAMPLES_OF_A_CLIENT ? found->calls : SAMPLES_OF_A_CLIENT;
    /* The last ones are counted as long as all others are there. */
    for (until += setting->milliseconds * 250000; now_ns() < until;) {
        if (call(client, operands))
            return 1;
    }
    return 0;
}

static int work(struct team *team, size_t member, void *context)
{
    const struct setting *setting = context;
    struct found *found = (struct found *)team_shared(team) + member;
    int64_t elements = (int64_t)setting->elements;
    kops_client *client = connect_or_exit(&setting->connection);
    struct operands operands;
    int r = 1;

    if (!operands_make(&operands, client, "add", KOPS_F32, 1, &elements)) {
        r = measure(team, setting, client, &operands, found);
        operands_release(&operands);
    }
    kops_close(client);
    return r;
}

static void print(const struct found *found, size_t clients)
{
    struct series latency, *all[] = {&latency};
    double sum = 0, squares = 0;

    series_init(&latency, "latency", clients * SAMPLES_OF_A_CLIENT);
    printf("{\"clients\": %zu, \"rates\": [", clients);
    for (size_t i = 0; i < clients; i++) {
        double rate = (double)found[i].calls * 1e9 / (double)found[i].ns;

        sum += rate;
        squares += rate * rate;
        printf("%s%.1f", i ? ", " : "", rate);
        for (size_t j = 0; j < found[i].n_samples; j++)
            series_add_us(&latency, (double)found[i].samples[j]);
    }
    printf("], \"total_per_s\": %.1f, \"jain\": %.5f, \"series\": ", sum,
           squares > 0 ? sum * sum / ((double)clients * squares) : 0);
    series_print(all, 1);
    printf("}\n");
    series_deinit(&latency);
}

int main(int argc, char **argv)
{
    struct setting setting = {.clients = 1, .milliseconds = 500, .warmup = 50, .elements = 1024};
    const struct bench_option options[] = {
        {.name = "socket", .text = &setting.connection.socket},
        {.name = "transport", .text = &setting.connection.transport},
        {.name = "spin", .text = &setting.connection.spin},
        {.name = "clients", .count = &setting.clients},
        {.name = "milliseconds", .count = &setting.milliseconds},
        {.name = "warmup", .count = &setting.warmup},
        {.name = "elements", .count = &setting.elements},
        {0},
    };
    struct team *team;
    int r;

    options_read(argc, argv, options);
    team = team_new(setting.clients, setting.clients * sizeof(struct found));
    if (!team)
        return 1;
    r = team_run(team, work, &setting);
    if (!r)
        print(team_shared(team), setting.clients);
    team_free(team);
    return r;
}
