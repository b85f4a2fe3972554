/* Messages as text: {op: 'gemm', in: [{shape: [2, 3]}], alpha: 0.5, fast: true, of: null, raw: <xyz>}. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fake.h"

static const char *pack_value(msgpack_packer *p, const char *at);

static const char *skip(const char *at)
{
    while (isspace((unsigned char)*at))
        at++;
    return at;
}

static bool in_word(char c)
{
    return isalnum((unsigned char)c) || c == '_';
}

/* A key: a word, or a text. */
static const char *pack_key(msgpack_packer *p, const char *at)
{
    size_t n = 0;

    if (*at == '\'')
        return pack_value(p, at);
    while (in_word(at[n]))
        n++;
    must(n);
    msgpack_pack_str_with_body(p, at, n);
    return at + n;
}

/* The members of a map or of a list, up to its end. */
static const char *pack_members(msgpack_packer *p, const char *at, char end)
{
    msgpack_sbuffer members;
    msgpack_packer q;
    size_t n = 0;

    msgpack_sbuffer_init(&members);
    msgpack_packer_init(&q, &members, msgpack_sbuffer_write);
    for (at = skip(at); *at != end; n++) {
        if (end == '}') {
            at = skip(pack_key(&q, at));
            must(*at == ':');
            at++;
        }
        at = skip(pack_value(&q, skip(at)));
        must(*at == ',' || *at == end);
        if (*at == ',')
            at = skip(at + 1);
    }
    if (end == '}')
        msgpack_pack_map(p, n);
    else
        msgpack_pack_array(p, n);
    if (n)
        p->callback(p->data, members.data, members.size);
    msgpack_sbuffer_destroy(&members);
    return at + 1;
}

static const char *pack_number(msgpack_packer *p, const char *at)
{
    char *end, *end_of_integer;
    const double real = strtod(at, &end);
    const uint64_t integer = strtoull(at, &end_of_integer, 10);

    must(end != at);
    if (end != end_of_integer)
        msgpack_pack_double(p, real);
    else if (*at == '-')
        msgpack_pack_int64(p, (int64_t)integer);
    else
        msgpack_pack_uint64(p, integer);
    return end;
}

static const char *pack_value(msgpack_packer *p, const char *at)
{
    const char *end;

    switch (*at) {
    case '{':
        return pack_members(p, at + 1, '}');
    case '[':
        return pack_members(p, at + 1, ']');
    case '\'':
        end = strchr(at + 1, '\'');
        must(end);
        msgpack_pack_str_with_body(p, at + 1, (size_t)(end - at - 1));
        return end + 1;
    case '<':
        end = strchr(at + 1, '>');
        must(end);
        msgpack_pack_bin_with_body(p, at + 1, (size_t)(end - at - 1));
        return end + 1;
    case 't':
        msgpack_pack_true(p);
        return at + strlen("true");
    case 'f':
        msgpack_pack_false(p);
        return at + strlen("false");
    case 'n':
        msgpack_pack_nil(p);
        return at + strlen("null");
    default:
        return pack_number(p, at);
    }
}

void fake_pack(msgpack_sbuffer *ret, const char *text)
{
    msgpack_packer p;

    msgpack_sbuffer_init(ret);
    msgpack_packer_init(&p, ret, msgpack_sbuffer_write);
    must(*skip(pack_value(&p, skip(text))) == 0);
}

static void print(FILE *to, const msgpack_object *o, bool is_key)
{
    char number[32];

    switch (o->type) {
    case MSGPACK_OBJECT_MAP:
        for (uint32_t i = 0; i < o->via.map.size; i++) {
            fputs(i ? ", " : "{", to);
            print(to, &o->via.map.ptr[i].key, true);
            fputs(": ", to);
            print(to, &o->via.map.ptr[i].val, false);
        }
        fputs(o->via.map.size ? "}" : "{}", to);
        break;
    case MSGPACK_OBJECT_ARRAY:
        for (uint32_t i = 0; i < o->via.array.size; i++) {
            fputs(i ? ", " : "[", to);
            print(to, &o->via.array.ptr[i], false);
        }
        fputs(o->via.array.size ? "]" : "[]", to);
        break;
    case MSGPACK_OBJECT_STR:
        fprintf(to, is_key ? "%.*s" : "'%.*s'", (int)o->via.str.size, o->via.str.ptr);
        break;
    case MSGPACK_OBJECT_BIN:
        fprintf(to, "<%.*s>", (int)o->via.bin.size, o->via.bin.ptr);
        break;
    case MSGPACK_OBJECT_FLOAT32:
    case MSGPACK_OBJECT_FLOAT64:
        snprintf(number, sizeof(number), "%.17g", o->via.f64);
        fprintf(to, "%s%s", number, strspn(number, "-0123456789") == strlen(number) ? ".0" : "");
        break;
    case MSGPACK_OBJECT_NIL:
        fputs("null", to);
        break;
    default:
        msgpack_object_print(to, *o);
    }
}

void fake_print(const msgpack_object *o, char *into, size_t size)
{
    FILE *to = fmemopen(into, size, "w");

    must(to);
    into[0] = 0;
    print(to, o, false);
    fclose(to);
    into[size - 1] = 0;
}
