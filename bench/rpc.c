/* The no-op call of libkops against a raw ping-pong, in alternating blocks of one run. Prints JSON.
 *
 * The raw pair is a socket that moves as many bytes as a ping with an empty map does, or two polled words of shared
 * memory, or a socket of one raw server for all clients. Each client is a process; all are at the same side at a time.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <kops/kops.h>

#include "measure.h"
#include "options.h"
#include "pair.h"
#include "team.h"

enum {
    REQUEST_BYTES = 14, /* [0, msgid of five bytes, "ping", [{}]] */
    REPLY_BYTES = 9,    /* [1, msgid, nil, {}] */
    AFTER_A_TURN = 10   /* calls that only warm up what the other side's block cooled down */
};

struct setting {
    struct bench_connection connection;
    const char *peer;
    size_t blocks, calls, warmup, clients, peer_spin_us;
    struct pair_server server; /* with --peer server */
};

/* Where a client's samples of one side are. */
static double *samples_of(struct team *team, const struct setting *setting, size_t client, size_t side)
{
    return (double *)team_shared(team) + (client * 2 + side) * setting->blocks * setting->calls;
}

static int run_ours(kops_client *client, size_t calls, double *samples)
{
    struct kops_error error;

    for (size_t i = 0; i < calls; i++) {
        uint64_t start = now_ns();

        if (kops_ping(client, 0, &error)) {
            fprintf(stderr, "bench_rpc: %s\n", error.message);
            return -1;
        }
        if (samples)
            samples[i] = (double)(now_ns() - start) * 1e-3;
    }
    return 0;
}

static int run_peer(const struct pair *pair, size_t calls, double *samples)
{
    for (size_t i = 0; i < calls; i++) {
        uint64_t start = now_ns();
        int r = pair_call(pair);

        if (r) {
            fprintf(stderr, "bench_rpc: raw pair: %s\n", strerror(-r));
            return -1;
        }
        if (samples)
            samples[i] = (double)(now_ns() - start) * 1e-3;
    }
    return 0;
}

static int measure(struct team *team, size_t member, const struct setting *setting, kops_client *client,
                   const struct pair *pair)
{
    double *ours = samples_of(team, setting, member, 0), *peer = samples_of(team, setting, member, 1);

    if (run_ours(client, setting->warmup, NULL) || run_peer(pair, setting->warmup, NULL))
        return 1;
    for (size_t block = 0; block < setting->blocks; block++) {
        team_meet(team);
        if (run_ours(client, AFTER_A_TURN, NULL) || run_ours(client, setting->calls, ours + block * setting->calls))
            return 1;
        team_meet(team);
        if (run_peer(pair, AFTER_A_TURN, NULL) || run_peer(pair, setting->calls, peer + block * setting->calls))
            return 1;
    }
    return 0;
}

static int work(struct team *team, size_t member, void *context)
{
    const struct setting *setting = context;
    kops_client *client;
    struct pair pair;
    int r;

    /* The child comes first: it must not inherit a connection. */
    r = strcmp(setting->peer, "words") == 0 ? pair_start_words(&pair)
                                            : pair_start(&pair, REQUEST_BYTES, REPLY_BYTES, setting->peer_spin_us);
    if (r) {
        fprintf(stderr, "bench_rpc: %s\n", strerror(-r));
        return 1;
    }
    client = connect_or_exit(&setting->connection);
    r = measure(team, member, setting, client, &pair);
    kops_close(client);
    pair_stop(&pair);
    return r;
}

static void print(struct team *team, const struct setting *setting)
{
    struct series ours, peer, *all[] = {&ours, &peer};
    size_t each = setting->blocks * setting->calls;

    series_init(&ours, "kops_ping", setting->clients * each);
    series_init(&peer, "raw", setting->clients * each);
    for (size_t client = 0; client < setting->clients; client++) {
        for (size_t i = 0; i < each; i++) {
            series_add_us(&ours, samples_of(team, setting, client, 0)[i]);
            series_add_us(&peer, samples_of(team, setting, client, 1)[i]);
        }
    }
    series_print(all, 2);
    series_deinit(&peer);
    series_deinit(&ours);
}

int main(int argc, char **argv)
{
    struct setting setting = {.peer = "socket", .blocks = 5, .calls = 1000, .warmup = 500, .clients = 1};
    const struct bench_option options[] = {
        {.name = "socket", .text = &setting.connection.socket},
        {.name = "transport", .text = &setting.connection.transport},
        {.name = "spin", .text = &setting.connection.spin},
        {.name = "peer", .text = &setting.peer},
        {.name = "peer-spin-us", .count = &setting.peer_spin_us},
        {.name = "blocks", .count = &setting.blocks},
        {.name = "calls", .count = &setting.calls},
        {.name = "warmup", .count = &setting.warmup},
        {.name = "clients", .count = &setting.clients},
        {0},
    };
    struct team *team;
    int r;

    options_read(argc, argv, options);
    team = team_new(setting.clients, setting.clients * 2 * setting.blocks * setting.calls * sizeof(double));
    if (!team)
        return 1;
    if (strcmp(setting.peer, "server") == 0 &&
        pair_server_start(&setting.server, setting.clients, REQUEST_BYTES, REPLY_BYTES)) {
        fprintf(stderr, "bench_rpc: no raw server\n");
        return 1;
    }
    r = team_run(team, work, &setting);
    if (!r)
        print(team, &setting);
    team_free(team);
    return r;
}
