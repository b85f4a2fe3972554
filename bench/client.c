/* One of many clients that make small blocking adds on memory of the daemon. Says `"ready"`; reads a line, two moments
 * of CLOCK_MONOTONIC in ns, and works from the first to the second. Prints a line of JSON: calls, and the median and
 * 99th percentile of their times in µs. A further line is a further round; ends at end of file. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "measure.h"
#include "options.h"

enum { SAMPLES = 65536, WARMUP = 100 };

struct bench {
    kops_client *client;
    struct kops_tensor tensors[3];
    size_t calls, n_samples;
    float samples[SAMPLES]; /* the latest ones, microseconds */
};

static int call(struct bench *bench)
{
    const struct kops_request request = {
        .op = "add", .inputs = bench->tensors, .n_inputs = 2, .outputs = &bench->tensors[2], .n_outputs = 1};
    struct kops_error error;

    return check_kops(kops_run(bench->client, &request, NULL, &error), &error, "add");
}

static int compare(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;

    return (x > y) - (x < y);
}

static int work(struct bench *bench, uint64_t begin, uint64_t end)
{
    uint64_t now = now_ns();

    if (now < begin)
        nanosleep(&(struct timespec){.tv_sec = (time_t)((begin - now) / 1000000000),
                                     .tv_nsec = (long)((begin - now) % 1000000000)},
                  NULL);
    for (bench->calls = 0, now = now_ns(); now < end; bench->calls++) {
        uint64_t before = now;

        if (call(bench))
            return -1;
        now = now_ns();
        bench->samples[bench->calls % SAMPLES] = (float)((double)(now - before) * 1e-3);
    }
    bench->n_samples = bench->calls < SAMPLES ? bench->calls : SAMPLES;
    qsort(bench->samples, bench->n_samples, sizeof(float), compare);
    return 0;
}

int main(int argc, char **argv)
{
    static struct bench bench;
    struct bench_connection connection = {0};
    const struct bench_option options[] = {BENCH_CONNECTION_OPTIONS(connection), {0}};
    kops_buffer *buffers[3];
    struct kops_error error;
    uint64_t begin, end;

    options_read(argc, argv, options);
    bench.client = connect_or_exit(&connection);
    for (size_t i = 0; i < 3; i++) {
        if (check_kops(kops_buffer_alloc(bench.client, 4096, NULL, &buffers[i], &error), &error, "alloc"))
            return 1;
        bench.tensors[i] = kops_vector(buffers[i], KOPS_F32, 1024);
    }
    for (size_t i = 0; i < WARMUP; i++) {
        if (call(&bench))
            return 1;
    }
    for (printf("\"ready\"\n"); fflush(stdout), scanf(" [%" SCNu64 ", %" SCNu64 "]", &begin, &end) == 2;) {
        if (work(&bench, begin, end))
            return 1;
        printf("{\"calls\": %zu, \"p50_us\": %.2f, \"p99_us\": %.2f}\n", bench.calls,
               bench.n_samples ? (double)bench.samples[bench.n_samples / 2] : 0,
               bench.n_samples ? (double)bench.samples[bench.n_samples * 99 / 100] : 0);
    }
    for (size_t i = 0; i < 3; i++)
        kops_buffer_release(buffers[i]);
    kops_close(bench.client);
    return 0;
}
