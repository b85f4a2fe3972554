/* The no-op call of libkops against a raw socket ping-pong, in alternating blocks of one run. Prints JSON.
 *
 * The raw pair moves as many bytes as a ping with an empty map does. Every process sleeps while it waits. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <kops/kops.h>

#include "measure.h"
#include "pair.h"

enum {
    REQUEST_BYTES = 12, /* [0, msgid of three bytes, "ping", [{}]] */
    REPLY_BYTES = 7,    /* [1, msgid, nil, {}] */
    AFTER_A_TURN = 10   /* calls that only warm up what the other side's block cooled down */
};

struct setting {
    const char *socket;
    size_t blocks, calls, warmup;
};

static int read_setting(struct setting *setting, int argc, char **argv)
{
    static const struct option options[] = {
        {"socket", required_argument, NULL, 's'},
        {"blocks", required_argument, NULL, 'b'},
        {"calls", required_argument, NULL, 'c'},
        {"warmup", required_argument, NULL, 'w'},
        {0},
    };
    int option;

    *setting = (struct setting){.blocks = 5, .calls = 1000, .warmup = 500};
    while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
        switch (option) {
        case 's':
            setting->socket = optarg;
            break;
        case 'b':
            setting->blocks = parse_count("--blocks", optarg);
            break;
        case 'c':
            setting->calls = parse_count("--calls", optarg);
            break;
        case 'w':
            setting->warmup = parse_count("--warmup", optarg);
            break;
        default:
            fprintf(stderr, "usage: %s [--socket PATH] [--blocks N] [--calls N a block] [--warmup N]\n", argv[0]);
            return -1;
        }
    }
    return 0;
}

/* `series` NULL: only warms up. */
static int run_ours(kops_client *client, size_t calls, struct series *series)
{
    struct kops_error error;

    for (size_t i = 0; i < calls; i++) {
        uint64_t start = now_ns();

        if (kops_ping(client, 0, &error)) {
            fprintf(stderr, "bench_rpc: %s\n", error.message);
            return -1;
        }
        if (series)
            series_add(series, start);
    }
    return 0;
}

static int run_peer(const struct pair *pair, size_t calls, struct series *series)
{
    for (size_t i = 0; i < calls; i++) {
        uint64_t start = now_ns();
        int r = pair_call(pair);

        if (r) {
            fprintf(stderr, "bench_rpc: raw pair: %s\n", strerror(-r));
            return -1;
        }
        if (series)
            series_add(series, start);
    }
    return 0;
}

static int measure(const struct setting *setting, kops_client *client, const struct pair *pair)
{
    struct series ours, peer, *all[] = {&ours, &peer};
    int r = -1;

    series_init(&ours, "kops_ping", setting->blocks * setting->calls);
    series_init(&peer, "raw", setting->blocks * setting->calls);
    if (run_ours(client, setting->warmup, NULL) || run_peer(pair, setting->warmup, NULL))
        goto free_series;
    for (size_t block = 0; block < setting->blocks; block++) {
        if (run_ours(client, AFTER_A_TURN, NULL) || run_ours(client, setting->calls, &ours))
            goto free_series;
        if (run_peer(pair, AFTER_A_TURN, NULL) || run_peer(pair, setting->calls, &peer))
            goto free_series;
    }
    series_print(all, 2);
    r = 0;

free_series:
    series_deinit(&peer);
    series_deinit(&ours);
    return r;
}

int main(int argc, char **argv)
{
    struct setting setting;
    struct kops_connect_options options = {0};
    struct kops_error error;
    kops_client *client;
    struct pair pair;
    int r;

    if (read_setting(&setting, argc, argv))
        return 2;
    /* The child comes first: it must not inherit a connection. */
    r = pair_start(&pair, REQUEST_BYTES, REPLY_BYTES);
    if (r) {
        fprintf(stderr, "bench_rpc: %s\n", strerror(-r));
        return 1;
    }
    options.socket = setting.socket;
    r = 1;
    if (kops_connect(&options, &client, &error)) {
        fprintf(stderr, "bench_rpc: %s\n", error.message);
        goto stop_pair;
    }
    r = measure(&setting, client, &pair) ? 1 : 0;
    kops_close(client);

stop_pair:
    pair_stop(&pair);
    return r;
}
