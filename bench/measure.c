#include "measure.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

uint64_t now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000U + (uint64_t)t.tv_nsec;
}

void series_init(struct series *series, const char *name, size_t capacity)
{
    *series = (struct series){.name = name, .capacity = capacity};
    series->samples = calloc(capacity, sizeof(*series->samples));
    if (!series->samples) {
        fprintf(stderr, "bench: no memory for %zu samples\n", capacity);
        exit(1);
    }
}

void series_deinit(struct series *series)
{
    free(series->samples);
    series->samples = NULL;
}

void series_add_us(struct series *series, double microseconds)
{
    if (series->n < series->capacity)
        series->samples[series->n++] = microseconds;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double quantile(const struct series *series, double q)
{
    if (!series->n)
        return 0;
    return series->samples[(size_t)(q * (double)(series->n - 1) + 0.5)];
}

void series_print(struct series *const *all, size_t n_all)
{
    printf("{");
    for (size_t i = 0; i < n_all; i++) {
        struct series *series = all[i];
        double sum = 0;

        qsort(series->samples, series->n, sizeof(*series->samples), compare);
        for (size_t j = 0; j < series->n; j++)
            sum += series->samples[j];
        printf("%s\"%s\": {\"p50\": %.3f, \"p90\": %.3f, \"p99\": %.3f, \"min\": %.3f, \"max\": %.3f, "
               "\"mean\": %.3f, \"n\": %zu}",
               i ? ", " : "", series->name, quantile(series, 0.5), quantile(series, 0.9), quantile(series, 0.99),
               quantile(series, 0), quantile(series, 1), series->n ? sum / (double)series->n : 0, series->n);
    }
    printf("}\n");
}

enum { SIDES_MAX = 8, LEAST_BLOCKS = 4, SECONDS = 25 };

static int run_block(const struct side *side, void *bench, size_t calls, size_t per, struct series *series)
{
    for (size_t i = 0; i < calls; i++) {
        uint64_t start = now_ns();

        if (side->call(bench))
            return -1;
        if (series)
            series_add_us(series, (double)(now_ns() - start) * 1e-3 / (double)per);
    }
    return 0;
}

int sides_measure(const struct side *sides, size_t n, void *bench, const struct turns *turns)
{
    struct series series[SIDES_MAX], *all[SIDES_MAX] = {0};
    uint64_t until = now_ns() + SECONDS * UINT64_C(1000000000);
    int r = 1;

    for (size_t i = 0; i < n; i++) {
        series_init(&series[i], sides[i].name, turns->blocks * turns->calls);
        all[i] = &series[i];
    }
    for (size_t block = 0; block < turns->blocks && (block < LEAST_BLOCKS || now_ns() < until); block++) {
        for (size_t i = 0; i < n; i++) {
            if (run_block(&sides[i], bench, block ? turns->again : turns->warmup, 1, NULL) ||
                run_block(&sides[i], bench, turns->calls, turns->per, &series[i]))
                goto free_series;
        }
    }
    series_print(all, n);
    r = 0;

free_series:
    for (size_t i = 0; i < n; i++)
        series_deinit(&series[i]);
    return r;
}

size_t parse_count(const char *option, const char *text)
{
    char *end;
    unsigned long long value;

    errno = 0;
    value = strtoull(text, &end, 10);
    if (errno || *end || end == text || !value || value > 100000000) {
        fprintf(stderr, "bench: %s: \"%s\" is no number from 1 to 100000000\n", option, text);
        exit(2);
    }
    return (size_t)value;
}
