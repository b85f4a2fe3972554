#include "server/account/identity.h"

#include <ctype.h>
#include <errno.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/account/account.h"

/* ---- subordinate users: a user with a range in /etc/subuid may become every user of that range ---- */

enum { LINE_BYTES = 512 };

static int parse_number(const char *text, uint64_t *ret)
{
    char *end;

    if (!isdigit((unsigned char)*text))
        return -1;
    errno = 0;
    *ret = strtoull(text, &end, 10);
    return errno || *end ? -1 : 0;
}

static int find_owner(const char *name, uint64_t *ret)
{
    char buffer[4096];
    struct passwd entry, *found;

    if (getpwnam_r(name, &entry, buffer, sizeof(buffer), &found) == 0 && found) {
        *ret = found->pw_uid;
        return 0;
    }
    return parse_number(name, ret);
}

/* "owner:first:count". Changes the line. */
static int parse_line(char *line, struct subordinate *ret)
{
    char *first = strchr(line, ':'), *count = first ? strchr(first + 1, ':') : NULL;
    uint64_t owner, from, n;

    if (!count)
        return -1;
    *first++ = *count++ = '\0';
    count[strcspn(count, " \t\r\n")] = '\0';
    if (parse_number(first, &from) < 0 || parse_number(count, &n) < 0 || !n || from > UINT32_MAX ||
        n - 1 > UINT32_MAX - from || find_owner(line, &owner) < 0 || owner > UINT32_MAX)
        return -1;
    *ret = (struct subordinate){(uint32_t)from, (uint32_t)(from + n - 1), (uint32_t)owner};
    return 0;
}

static int compare(const void *a, const void *b)
{
    const struct subordinate *one = a, *other = b;

    return one->first < other->first ? -1 : one->first > other->first;
}

/* Sorts the ranges. Where two overlap, the first one keeps the common part. */
static void separate(struct subordinates *s)
{
    unsigned kept = 0;

    qsort(s->ranges, s->count, sizeof(s->ranges[0]), compare);
    for (unsigned i = 0; i < s->count; i++) {
        struct subordinate range = s->ranges[i];

        if (kept && range.last <= s->ranges[kept - 1].last)
            continue;
        if (kept && range.first <= s->ranges[kept - 1].last)
            range.first = s->ranges[kept - 1].last + 1;
        s->ranges[kept++] = range;
    }
    s->count = kept;
}

int subordinates_read(struct subordinates *s, const char *path)
{
    char line[LINE_BYTES];
    FILE *file = fopen(path, "re");
    int r = 0;

    *s = (struct subordinates){0};
    if (!file)
        return 0;
    while (r == 0 && fgets(line, sizeof(line), file)) {
        struct subordinate range, *more;

        if (parse_line(line, &range) < 0)
            continue;
        more = realloc(s->ranges, (s->count + 1) * sizeof(range));
        if (!more) {
            r = -1;
            break;
        }
        s->ranges = more;
        s->ranges[s->count++] = range;
    }
    fclose(file);
    if (r < 0)
        subordinates_free(s);
    else if (s->count)
        separate(s);
    return r;
}

void subordinates_free(struct subordinates *s)
{
    free(s->ranges);
    *s = (struct subordinates){0};
}

uid_t subordinates_owner(const struct subordinates *s, uid_t uid)
{
    unsigned low = 0, high = s->count;

    while (low < high) {
        const unsigned middle = low + (high - low) / 2;

        if (uid < s->ranges[middle].first)
            high = middle;
        else if (uid > s->ranges[middle].last)
            low = middle + 1;
        else
            return s->ranges[middle].owner;
    }
    return uid;
}

/* ---- identities ---- */

bool identity_name_is_valid(const char *name)
{
    const size_t length = strlen(name);

    if (!length || length > IDENTITY_NAME_MAX || !isalnum((unsigned char)*name))
        return false;
    for (const char *p = name; *p; p++)
        if ((unsigned char)*p >= 0x80 || (!isalnum((unsigned char)*p) && !strchr("._-", *p)))
            return false;
    return true;
}

static struct identity *at(const struct identities *all, unsigned i)
{
    return atomic_load_explicit(&all->all[i], memory_order_acquire);
}

struct identity *identities_get(struct identities *all, const char *name, struct error *e)
{
    struct identity *new;

    for (unsigned i = 0; i < all->count; i++)
        if (!strcmp(at(all, i)->name, name))
            return at(all, i);
    if (all->count == IDENTITIES_MAX) {
        error_set(e, ERROR_LIMIT_EXCEEDED,
                  "identity \"%s\": there were %d others since the daemon's start, the most that there may be; restart "
                  "it",
                  name, IDENTITIES_MAX);
        return NULL;
    }
    new = calloc(1, sizeof(*new));
    if (!new) {
        error_set(e, ERROR_OUT_OF_MEMORY, "no memory for the identity \"%s\"", name);
        return NULL;
    }
    snprintf(new->name, sizeof(new->name), "%s", name);
    new->number = IDENTITY_FIRST + all->count;
    atomic_store_explicit(&all->all[all->count++], new, memory_order_release);
    return new;
}

struct identity *identities_find(const struct identities *all, uid_t number)
{
    return uid_is_identity(number) ? at(all, number - IDENTITY_FIRST) : NULL;
}

const char *identities_name(const struct identities *all, uid_t number)
{
    const struct identity *identity = identities_find(all, number);

    return identity ? identity->name : "";
}

const char *identities_who(const struct identities *all, uid_t number, char into[WHO_MAX])
{
    const struct identity *identity = identities_find(all, number);

    if (identity)
        snprintf(into, WHO_MAX, "identity=%s", identity->name);
    else
        snprintf(into, WHO_MAX, "uid=%u", (unsigned)number);
    return into;
}

void identities_free(struct identities *all)
{
    while (all->count)
        free(at(all, --all->count));
}
