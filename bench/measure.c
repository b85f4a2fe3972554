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

void series_add(struct series *series, uint64_t start_ns)
{
    series_add_us(series, (double)(now_ns() - start_ns) * 1e-3);
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
