#include "compile/helper_pages.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Larger mappings are reserved, not used: a sanitizer's shadow memory, say. */
#define MAX_RANGE_BYTES (256UL << 20)

enum { MAX_RANGES = 256, POPULATE_READ = 22, POPULATE_WRITE = 23 /* madvise()'s; since Linux 5.14 */ };

static struct range {
    void *begin;
    size_t size;
    int how;
} ranges[MAX_RANGES];
static unsigned n_ranges;

/* "55d0c0000000-55d0c0021000 rw-p 00000000 00:00 0    [heap]" */
static void learn_line(const char *line)
{
    unsigned long begin, end;
    char access[5];
    bool written;

    if (n_ranges == MAX_RANGES || sscanf(line, "%lx-%lx %4s", &begin, &end, access) != 3 || access[3] != 'p' ||
        access[0] != 'r' || end - begin > MAX_RANGE_BYTES || strstr(line, "[stack]") || strstr(line, "[v"))
        return;
    written = access[1] == 'w';
    if (!written && !strstr(line, "nvrtc"))
        return;
    ranges[n_ranges++] =
        (struct range){(void *)(uintptr_t)begin, end - begin, written ? POPULATE_WRITE : POPULATE_READ};
}

void pages_learn(int maps)
{
    static char text[256 << 10];
    size_t length = 0;
    ssize_t n;

    while (length < sizeof(text) - 1 && (n = read(maps, text + length, sizeof(text) - 1 - length)) > 0)
        length += (size_t)n;
    text[length] = '\0';
    n_ranges = 0;
    for (char *line = text, *end; (end = strchr(line, '\n')); line = end + 1) {
        *end = '\0';
        learn_line(line);
    }
}

bool pages_populate(void)
{
    bool any = false;

    for (unsigned i = 0; i < n_ranges; i++)
        any = madvise(ranges[i].begin, ranges[i].size, ranges[i].how) == 0 || any;
    return any;
}
