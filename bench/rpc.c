/* The no-op call of libkops against a raw ping-pong, in turns of one run. Prints JSON.
 *
 * The raw pair is a socket that moves as many bytes as a ping with an empty map does, or with `--peer words` two polled
 * words of shared memory. */
#include <stdio.h>
#include <string.h>

#include "measure.h"
#include "options.h"
#include "pair.h"

enum {
    REQUEST_BYTES = 14, /* [0, msgid of five bytes, "ping", [{}]] */
    REPLY_BYTES = 9     /* [1, msgid, nil, {}] */
};

struct bench {
    kops_client *client;
    struct pair pair;
};

static int ping(void *bench)
{
    struct kops_error error;

    return check_kops(kops_ping(((struct bench *)bench)->client, 0, &error), &error, "ping");
}

static int raw(void *bench)
{
    int r = pair_call(&((struct bench *)bench)->pair);

    if (r)
        fprintf(stderr, "bench_rpc: raw pair: %s\n", strerror(-r));
    return r ? -1 : 0;
}

int main(int argc, char **argv)
{
    static const struct side sides[] = {{"kops_ping", ping}, {"raw", raw}};
    struct turns turns = {.blocks = 5, .calls = 1000, .warmup = 500, .again = 10, .per = 1};
    struct bench_connection connection = {0};
    const char *peer = "socket";
    size_t peer_spin_us = 0;
    const struct bench_option options[] = {
        BENCH_CONNECTION_OPTIONS(connection),
        {.name = "peer", .text = &peer},
        {.name = "peer-spin-us", .count = &peer_spin_us},
        {.name = "blocks", .count = &turns.blocks},
        {.name = "calls", .count = &turns.calls},
        {.name = "warmup", .count = &turns.warmup},
        {0},
    };
    struct bench bench;
    int r;

    options_read(argc, argv, options);
    /* The child comes first: it must not inherit a connection. */
    r = strcmp(peer, "words") == 0 ? pair_start_words(&bench.pair)
                                   : pair_start(&bench.pair, REQUEST_BYTES, REPLY_BYTES, peer_spin_us);
    if (r) {
        fprintf(stderr, "bench_rpc: %s\n", strerror(-r));
        return 1;
    }
    bench.client = connect_or_exit(&connection);
    r = sides_measure(sides, 2, &bench, &turns);
    kops_close(bench.client);
    pair_stop(&bench.pair);
    return r;
}
