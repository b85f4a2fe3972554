/* watch: a client that looks at the daemon while others work, as an administrator does, or when they have ended, and
 * tells what should not be.
 *
 *     watch --socket PATH --seed N --looks N --timeout S [--rude yes] [--small-quotas yes] [--slow-starts yes]
 *           [--last yes]
 *
 * --rude: others are, so that broken messages are no wonder. --last: nobody else is there any more, so nothing may be
 * held or charged. Prints a line of JSON, {"found": a sentence}, whose sentence is empty when all is well. */
#include <err.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <kops/admin.h>
#include <kops/cache.h>
#include <kops/counters.h>
#include <kops/stats.h>
#include <kops/tune.h>

#include "../soak/expect.h"
#include "../soak/random.h"

enum { ELEMENTS = 1000, COUNTS = 5, PAUSE_US = 20000, CONNECT_TRIES = 300, CONNECT_PAUSE_US = 100000 };

static kops_client *client;
static struct random dice;
static char found[200];
static struct expect since; /* the begin of what it does now */
static bool others_are_rude, is_last;

__attribute__((format(printf, 1, 2))) static void tell(const char *format, ...)
{
    va_list list;

    va_start(list, format);
    if (!found[0])
        vsnprintf(found, sizeof(found), format, list);
    va_end(list);
}

/* Whether the call went well. It may not where what happened explains that, or it was refused. */
static bool is_well(const struct kops_error *e, const char *what)
{
    const char *why;

    switch (e->code) {
    case KOPS_OK:
        return true;
    case KOPS_ERR_DEADLINE_EXCEEDED:
    case KOPS_ERR_LIMIT_EXCEEDED: /* one at a time of each user */
    case KOPS_ERR_UNSUPPORTED:
        return false;
    case KOPS_ERR_CANCELLED: /* of a tuning, when its daemon ends */
        if (!expect_times(&since, HAPPENED_DAEMON_ENDS, 0))
            tell("%s: %s", what, e->message);
        return false;
    case KOPS_ERR_CONNECTION_LOST:
    case KOPS_ERR_CONNECT_FAILED:
    case KOPS_ERR_SHUTTING_DOWN:
    case KOPS_ERR_QUOTA_EXCEEDED:
    case KOPS_ERR_OUT_OF_MEMORY:
    case KOPS_ERR_DEVICE_LOST:
    case KOPS_ERR_DEVICE_FAULT:
    case KOPS_ERR_DEVICE_ERROR:
    case KOPS_ERR_JOB_TIMEOUT:
        why = expect_wrong(&since, EXPECT_ONCE, e);
        if (why)
            tell("%s: %s (%s)", what, why, e->message);
        return false;
    default:
        tell("%s: %s", what, e->message);
        return false;
    }
}

/* ---- what may be at no time ---- */

static double metric(const char *text, const char *name)
{
    const char *at = text;
    const size_t n = strlen(name);

    while (at && (strncmp(at, name, n) != 0 || at[n] != ' ')) {
        at = strchr(at, '\n');
        at = at ? at + 1 : NULL;
    }
    return at ? strtod(at + n, NULL) : 0;
}

static void look_at_metrics(void)
{
    struct kops_error e;
    char *text = NULL;

    if (kops_metrics(client, &text, &e) && !is_well(&e, "metrics"))
        return;
    if (metric(text, "kopsd_errors_total{code=\"internal\"}") > 0)
        tell("the daemon counts internal errors");
    if (!others_are_rude && metric(text, "kopsd_protocol_errors_total") > 0)
        tell("the daemon counts broken messages of honest clients");
    kops_metrics_free(text);
}

/* Beyond this one client's own. */
static void check_charge(const char *what, uint64_t amount, uint64_t limit, uint64_t own)
{
    if (amount > limit)
        tell("a user has %llu %s, of %llu", (unsigned long long)amount, what, (unsigned long long)limit);
    else if (is_last && amount != own)
        tell("the user of clients that are gone is charged: %llu %s", (unsigned long long)amount, what);
}

static void look_at_clients(void)
{
    struct kops_clients *all;
    struct kops_error e;

    if (kops_clients(client, &all, &e) && !is_well(&e, "clients"))
        return;
    for (const struct kops_user_info *const *u = all->users; *u; u++) {
        const struct kops_user_limits *most = &(*u)->limits;

        check_charge("connections", (*u)->connections, most->connections, 1);
        check_charge("buffers", (*u)->buffers, most->buffers, 0);
        check_charge("mappings", (*u)->mappings, most->mappings, 0);
        check_charge("mapped bytes", (*u)->mapped_bytes, most->mapped_bytes, 0);
        check_charge("allocated bytes", (*u)->allocated_bytes, most->allocated_bytes, 0);
        check_charge("host bytes", (*u)->host_bytes, most->host_bytes, 0);
        check_charge("program bytes", (*u)->program_bytes, most->program_bytes, 0);
        check_charge("kernel bytes", (*u)->kernel_bytes, most->kernel_bytes, 0);
        if (!is_last)
            continue;
        check_charge("waiting bytes", (*u)->waiting_bytes, KOPS_NO_LIMIT, 0);
        check_charge("requests in flight", (*u)->inflight, KOPS_NO_LIMIT, 1);
        check_charge("descriptors", (*u)->fds, KOPS_NO_LIMIT, 2);
    }
    kops_clients_free(all);
}

static uint64_t counter(const struct kops_stats *stats, const char *name)
{
    for (const struct kops_counter *const *c = stats->counters; *c; c++)
        if (!strcmp((*c)->name, name))
            return (*c)->value;
    return 0;
}

static void look_at_stats(void)
{
    struct kops_stats *stats;
    struct kops_error e;
    unsigned mappings = 0;
    uint64_t jobs = 0;

    if (kops_stats_get(client, NULL, &stats, &e) && !is_well(&e, "statistics"))
        return;
    while (stats->mappings[mappings])
        mappings++;
    for (const struct kops_executor *const *x = stats->executors; *x; x++)
        jobs += (*x)->jobs;
    if (is_last && counter(stats, "connections") != 1)
        tell("%llu connections are left", (unsigned long long)counter(stats, "connections"));
    if (is_last && (mappings || jobs))
        tell("%u mappings and %llu jobs are left", mappings, (unsigned long long)jobs);
    kops_stats_free(stats);
}

/* ---- what else administrators do ---- */

static void cache(void)
{
    struct kops_cache *list = NULL;
    struct kops_error e;
    uint64_t bytes;
    int fd;

    if (!kops_cache_list(client, &list, &e) || is_well(&e, "a list of the cache"))
        kops_cache_free(list);
    if (kops_cache_export(client, NULL, &fd, &bytes, &e)) {
        is_well(&e, "an export");
        return;
    }
    if (random_chance(&dice, 50) && kops_cache_import(client, fd, NULL, NULL, &e))
        is_well(&e, "an import");
    close(fd);
}

static void tuning(void)
{
    const int64_t n = random_between(&dice, 1, 64);
    const struct kops_tensor in[] = {kops_matrix(NULL, KOPS_F32, n, n), kops_matrix(NULL, KOPS_F32, n, n)};
    struct kops_tensor out = kops_matrix(NULL, KOPS_F32, n, n);
    const struct kops_request request = {.op = "gemm", .inputs = in, .n_inputs = 2, .outputs = &out, .n_outputs = 1};
    struct kops_tuning *all;
    struct kops_tune *one;
    struct kops_error e;

    if (!kops_tune(client, &request, &one, &e) || is_well(&e, "a tuning"))
        kops_tune_free(one);
    if (!kops_tuning(client, 0, random_chance(&dice, 20), &all, &e) || is_well(&e, "what was tuned"))
        kops_tuning_free(all);
}

static double now_s(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* How long counters take; 0: they cannot be had. */
static double count(const struct kops_request *request)
{
    const double begin = now_s();
    struct kops_counters *got;
    struct kops_error e;

    if (kops_counters_run(client, request, KOPS_CACHES_COLD, &got, &e)) {
        is_well(&e, "counters");
        return 0;
    }
    kops_counters_free(got);
    return now_s() - begin;
}

/* Counters, some right behind others. Where nobody else is there these take no longer. */
static void counters(void)
{
    struct kops_tensor in = {.dtype = KOPS_F32, .rank = 1, .shape = {ELEMENTS}}, out = in;
    const struct kops_request request = {.op = "square", .inputs = &in, .n_inputs = 1, .outputs = &out, .n_outputs = 1};
    double alone = 0, behind = 0;
    struct kops_buffer *buffer;
    struct kops_error e;

    if (kops_buffer_alloc(client, 2 * ELEMENTS * sizeof(float), NULL, &buffer, &e)) {
        is_well(&e, "memory");
        return;
    }
    in.buffer = out.buffer = buffer;
    out.offset = ELEMENTS * sizeof(float);
    for (unsigned i = 0; i < COUNTS; i++) {
        const double first = count(&request), second = count(&request);

        if (first <= 0 || second <= 0)
            break;
        alone = i && first > alone ? first : alone; /* the very first one makes a process ready */
        behind = !i || second < behind ? second : behind;
        usleep(PAUSE_US);
    }
    if (is_last && alone > 0 && behind > 1.5 * alone)
        tell("counters take %.0f us, and right behind others %.0f us", alone * 1e6, behind * 1e6);
    kops_buffer_release(buffer);
}

/* One of what administrators do. */
static void look(void)
{
    static void (*const ways[])(void) = {look_at_metrics, look_at_clients, look_at_stats, cache, tuning, counters};

    since = expect_now();
    ways[random_below(&dice, sizeof(ways) / sizeof(ways[0]))]();
    usleep(random_below(&dice, PAUSE_US));
}

int main(int argc, char **argv)
{
    struct kops_connect_options options = {.name = "watch"};
    bool small_quotas = false, slow_starts = false;
    unsigned looks = 0, tries = 0;
    struct kops_error e;

    for (int i = 1; i + 1 < argc; i += 2) {
        if (!strcmp(argv[i], "--socket"))
            options.socket = argv[i + 1];
        else if (!strcmp(argv[i], "--seed"))
            dice.state = strtoull(argv[i + 1], NULL, 10);
        else if (!strcmp(argv[i], "--looks"))
            looks = (unsigned)strtoul(argv[i + 1], NULL, 10);
        else if (!strcmp(argv[i], "--timeout"))
            options.timeout_ms = options.connect_timeout_ms = 1000 * (unsigned)strtoul(argv[i + 1], NULL, 10);
        else if (!strcmp(argv[i], "--rude"))
            others_are_rude = !strcmp(argv[i + 1], "yes");
        else if (!strcmp(argv[i], "--last"))
            is_last = !strcmp(argv[i + 1], "yes");
        else if (!strcmp(argv[i], "--small-quotas"))
            small_quotas = !strcmp(argv[i + 1], "yes");
        else if (!strcmp(argv[i], "--slow-starts"))
            slow_starts = !strcmp(argv[i + 1], "yes");
    }
    if (!options.socket)
        errx(2, "usage: watch --socket PATH --seed N --looks N --timeout S [--rude yes] [--small-quotas yes] "
                "[--slow-starts yes] [--last yes]");
    expect_open(small_quotas, slow_starts);
    while (kops_connect(&options, &client, &e) && ++tries < CONNECT_TRIES)
        usleep(CONNECT_PAUSE_US); /* it may not have begun yet */
    if (!client)
        errx(EXIT_FAILURE, "%s", e.message);
    for (unsigned i = 0; i < looks && !found[0]; i++)
        look();
    since = expect_now();
    look_at_metrics();
    look_at_clients();
    look_at_stats();
    if (is_last)
        counters();
    kops_close(client);
    printf("{\"found\": \"%s\"}\n", found);
    return 0;
}
