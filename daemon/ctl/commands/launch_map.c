/* What a --param of `kopsctl launch` says of a tensor map: "tma const half* a[m,k] box[64,64] swizzle 128". */
#include <ctype.h>
#include <string.h>

#include "base/complain.h"
#include "base/options.h"
#include "launch.h"

static char *skip(char *text)
{
    return text + strspn(text, " \t");
}

/* Cuts "[a, b]" into its expressions. Returns what follows; NULL: it is none, or has more than a map has dimensions. */
static char *cut_list(char *text, const char **into, unsigned *ret_n)
{
    unsigned depth = 0, n = 0;

    if (*text != '[')
        return NULL;
    into[n++] = skip(text + 1);
    for (char *c = text + 1; *c; c++) {
        depth += *c == '(';
        depth -= *c == ')' && depth;
        if (*c == ']') {
            *c = 0;
            *ret_n = n;
            return c + 1;
        }
        if (*c != ',' || depth)
            continue;
        if (n == KOPS_MAX_MAP_RANK)
            return NULL;
        *c = 0;
        into[n++] = skip(c + 1);
    }
    return NULL;
}

static char *take_box(struct kops_tensor_map *m, char *rest)
{
    return cut_list(rest, m->box, &m->rank);
}

static char *take_steps(struct kops_tensor_map *m, char *rest)
{
    const char *steps[KOPS_MAX_MAP_RANK];
    unsigned n = 0;

    rest = cut_list(rest, steps, &n);
    for (unsigned i = 0; rest && i < n; i++) {
        uint64_t value;

        if (!ctl_parse_uint(steps[i], 1, UINT32_MAX, &value))
            return NULL;
        m->steps[i] = (unsigned)value;
    }
    return rest;
}

/* A word or number, up to the next space. Returns what follows. */
static char *cut_word(char *text, const char **ret)
{
    char *end = text + strcspn(text, " \t");

    *ret = text;
    if (*end)
        *end++ = 0;
    return end;
}

static char *take_number(unsigned *into, char *rest)
{
    const char *word;
    uint64_t value;

    rest = cut_word(rest, &word);
    if (!ctl_parse_uint(word, 0, UINT32_MAX, &value))
        return NULL;
    *into = (unsigned)value;
    return rest;
}

static char *take_flag(bool *into, const char *wanted, char *rest)
{
    const char *word;

    rest = cut_word(rest, &word);
    *into = true;
    return strcmp(word, wanted) != 0 ? NULL : rest;
}

/* One thing that is said of the map; returns what follows, NULL where it is not understood. */
static char *take(struct kops_tensor_map *m, char *text)
{
    const size_t length = strspn(text, "abcdefghijklmnopqrstuvwxyz2");
    char *rest = skip(text + length);

#define IS(word) (length == sizeof(word) - 1 && !memcmp(text, word, length))
    if (IS("box"))
        return take_box(m, rest);
    if (IS("steps"))
        return take_steps(m, rest);
    if (IS("swizzle"))
        return take_number(&m->swizzle, rest);
    if (IS("interleave"))
        return take_number(&m->interleave, rest);
    if (IS("l2"))
        return take_number(&m->l2, rest);
    if (IS("fill"))
        return take_flag(&m->nan, "nan", rest);
    if (IS("as"))
        return take_flag(&m->tf32, "tf32", rest);
#undef IS
    return NULL;
}

char *launch_map_cut(struct launch_param *p, char *text)
{
    char *end;

    if (strncmp(text, "tma", 3) != 0 || !isspace((unsigned char)text[3]))
        return text;
    text = skip(text + 3);
    end = strchr(text, ']');
    if (!end)
        return NULL;
    p->declared.map = &p->map;
    for (char *rest = skip(end + 1); *rest; rest = skip(rest)) {
        rest = take(&p->map, rest);
        if (!rest)
            return NULL;
    }
    end[1] = 0;
    return p->map.rank ? text : NULL;
}
