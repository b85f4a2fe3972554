#include "compile/helper_pages.h"

#include <malloc.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Larger mappings are reserved, not used: a sanitizer's shadow memory, say. */
#define MAX_RANGE_BYTES (256UL << 20)

enum {
    MAX_RANGES = 256,
    MAX_RUNS = 4096,
    MAX_GAP = 4 /* pages */,
    POPULATE_WRITE = 23 /* madvise()'s; since Linux 5.14 */
};

/* A sanitizer's own memory would be most of what is looked at, and takes longer than it saves. */
#ifdef __SANITIZE_ADDRESS__
static const bool sanitized = true;
#else
static const bool sanitized = false;
#endif

struct range {
    unsigned char *begin;
    size_t pages;
    uint64_t *sums; /* one a page; NULL: not known */
};

/* What was mapped at first, and what is mapped after the compile. */
static struct ranges {
    struct range all[MAX_RANGES];
    unsigned n;
} watched, now;

static struct run {
    void *begin;
    size_t size;
} runs[MAX_RUNS];
static unsigned n_runs;

static size_t page_size;

/* "55d0c0000000-55d0c0021000 rw-p 00000000 00:00 0    [heap]" */
static void add_line(struct ranges *into, const char *line)
{
    unsigned long begin, end;
    char access[5];

    if (into->n == MAX_RANGES || sscanf(line, "%lx-%lx %4s", &begin, &end, access) != 3 || strcmp(access, "rw-p") ||
        end - begin > MAX_RANGE_BYTES || strstr(line, "[stack]") || strstr(line, "[v"))
        return;
    into->all[into->n++] = (struct range){(void *)(uintptr_t)begin, (end - begin) / page_size, NULL};
}

/* Words of memory that others have written, as whatever type. */
typedef uint64_t __attribute__((may_alias)) word;

/* A sanitizer would find that the heap's unused memory is read. */
__attribute__((no_sanitize("address"))) static uint64_t sum_of(const unsigned char *page)
{
    const word *words = (const void *)page;
    uint64_t sum = 0xcbf29ce484222325U;

    for (size_t i = 0; i < page_size / sizeof(*words); i++) {
        sum = (sum ^ words[i]) * 0x9e3779b97f4a7c15U;
        sum ^= sum >> 29;
    }
    return sum;
}

/* Not by malloc(), whose memory is what is watched. */
static void *map(size_t size)
{
    void *made = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    return made == MAP_FAILED ? NULL : made;
}

static void watch_content(struct range *r)
{
    r->sums = map(r->pages * sizeof(*r->sums));
    for (size_t i = 0; r->sums && i < r->pages; i++)
        r->sums[i] = sum_of(r->begin + i * page_size);
}

static void read_ranges(int maps, struct ranges *into)
{
    static char text[256 << 10];
    size_t length = 0;
    ssize_t n;

    into->n = 0;
    if (lseek(maps, 0, SEEK_SET) < 0)
        return;
    while (length < sizeof(text) - 1 && (n = read(maps, text + length, sizeof(text) - 1 - length)) > 0)
        length += (size_t)n;
    text[length] = '\0';
    for (char *line = text, *end; (end = strchr(line, '\n')); line = end + 1) {
        *end = '\0';
        add_line(into, line);
    }
}

bool pages_watch(int maps)
{
    if (sanitized)
        return false;
    page_size = (size_t)sysconf(_SC_PAGESIZE);
    read_ranges(maps, &watched);
    for (unsigned i = 0; i < watched.n; i++)
        watch_content(&watched.all[i]);
    return watched.n > 0;
}

static void add_page(const struct range *r, size_t page)
{
    unsigned char *at = r->begin + page * page_size;
    struct run *last = n_runs ? &runs[n_runs - 1] : NULL;
    size_t gap = last ? (size_t)(at - ((unsigned char *)last->begin + last->size)) : 0;

    if (last && (unsigned char *)last->begin >= r->begin && gap <= MAX_GAP * page_size)
        last->size += gap + page_size;
    else if (n_runs < MAX_RUNS)
        runs[n_runs++] = (struct run){at, page_size};
}

static bool is_within(const unsigned char *page, const struct range *r)
{
    return page >= r->begin && page < r->begin + r->pages * page_size;
}

/* What of a range is still mapped: the compile may have given some of it back. */
static void learn(struct range *r)
{
    for (unsigned k = 0; k < now.n; k++)
        for (size_t i = 0; r->sums && i < r->pages; i++)
            if (is_within(r->begin + i * page_size, &now.all[k]) && r->sums[i] != sum_of(r->begin + i * page_size))
                add_page(r, i);
    if (r->sums)
        munmap(r->sums, r->pages * sizeof(*r->sums));
    r->sums = NULL;
}

void pages_learn(int maps)
{
    n_runs = 0;
    if (!watched.n)
        return;
    read_ranges(maps, &now);
    for (unsigned i = 0; i < watched.n; i++)
        learn(&watched.all[i]);
}

void pages_release(void)
{
    const unsigned char *end = sbrk(0);
    void *volatile again;
    ptrdiff_t less;

    malloc_trim(0);
    less = end - (const unsigned char *)sbrk(0);
    if (less <= 0)
        return;
    again = malloc((size_t)less); /* the heap ends where it did, without pages behind it */
    free(again);
}

bool pages_populate(void)
{
    bool any = false;

    for (unsigned i = 0; i < n_runs; i++)
        any = madvise(runs[i].begin, runs[i].size, POPULATE_WRITE) == 0 || any;
    return any;
}
