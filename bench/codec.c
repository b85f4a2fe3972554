/* The codec beside msgpack-c, on the golden messages, in turns: `read` visits every value of every message, `fields`
 * takes the `run` requests apart down to the tensors' declared fields, `write` writes every message again. Both sides
 * are given the scan, which has the limits that msgpack-c has not. Prints JSON: microseconds a message, "…_msgpack_c"
 * for the peer, and "read_msgpack_c_alone" without the scan. */
#include <msgpack.h>
#include <stdio.h>
#include <string.h>

#include "codec/read.h"
#include "codec/scan.h"
#include "codec/write.h"
#include "golden_vectors.h"
#include "measure.h"
#include "options.h"
#include "proto/generated/methods.h"
#include "rpc/message.h"
#include "rpc/value.h"

enum { MESSAGE_MAX = 1 << 20, ZONE_CHUNK = 8192 };

struct message {
    const unsigned char *bytes;
    size_t length;
    bool run;
    msgpack_object object;
};

struct state {
    struct message messages[GOLDEN_VECTORS];
    unsigned n, n_runs;
    msgpack_zone kept, zone; /* of `object`; of one pass */
    msgpack_sbuffer buffer;
    unsigned char *written;
    uint64_t sum; /* so that no work is left out */
};

static void fail_with(const char *what)
{
    fprintf(stderr, "bench_codec: %s\n", what);
    exit(EXIT_FAILURE);
}

static uint64_t scan(const struct message *m)
{
    struct scan s;

    scan_reset(&s);
    if (scan_value(&s, m->bytes, m->length, MESSAGE_MAX) != SCAN_COMPLETE)
        fail_with("a golden message is not whole");
    return s.values;
}

/* ---- read ---- */

static uint64_t visit(const unsigned char *at, const unsigned char *end)
{
    struct codec_item item = {.count = 0};
    uint64_t sum = 0;

    for (; at < end; at = item.next) {
        codec_read(at, &item);
        sum += item.type + item.count + (item.type == CODEC_UINT ? item.u : 0);
    }
    return sum;
}

static uint64_t visit_object(const msgpack_object *o)
{
    uint64_t sum = o->type;

    switch (o->type) {
    case MSGPACK_OBJECT_POSITIVE_INTEGER:
        return sum + o->via.u64;
    case MSGPACK_OBJECT_STR:
    case MSGPACK_OBJECT_BIN:
        return sum + o->via.str.size;
    case MSGPACK_OBJECT_ARRAY:
        for (uint32_t i = 0; i < o->via.array.size; i++)
            sum += visit_object(&o->via.array.ptr[i]);
        return sum;
    case MSGPACK_OBJECT_MAP:
        for (uint32_t i = 0; i < o->via.map.size; i++)
            sum += visit_object(&o->via.map.ptr[i].key) + visit_object(&o->via.map.ptr[i].val);
        return sum;
    default:
        return sum;
    }
}

static void unpack(const struct message *m, msgpack_zone *zone, msgpack_object *ret)
{
    size_t offset = 0;

    msgpack_zone_clear(zone);
    if (msgpack_unpack((const char *)m->bytes, m->length, &offset, zone, ret) != MSGPACK_UNPACK_SUCCESS)
        fail_with("msgpack-c does not take a golden message");
}

static void read_ours(struct state *s)
{
    for (unsigned i = 0; i < s->n; i++) {
        s->sum += scan(&s->messages[i]);
        s->sum += visit(s->messages[i].bytes, s->messages[i].bytes + s->messages[i].length);
    }
}

static void read_alone(struct state *s)
{
    msgpack_object o;

    for (unsigned i = 0; i < s->n; i++) {
        unpack(&s->messages[i], &s->zone, &o);
        s->sum += visit_object(&o);
    }
}

static void read_peer(struct state *s)
{
    for (unsigned i = 0; i < s->n; i++)
        s->sum += scan(&s->messages[i]);
    read_alone(s);
}

/* ---- fields ---- */

static const struct rpc_field run_fields[] = {KOPS_PARAMS_RUN(RPC_FIELD)};
static const struct rpc_field tensor_fields[] = {KOPS_PARAMS_TENSOR(RPC_FIELD)};

enum {
    RUN_FIELDS = sizeof(run_fields) / sizeof(run_fields[0]),
    TENSOR_FIELDS = sizeof(tensor_fields) / sizeof(tensor_fields[0])
};

static void take_tensors(struct state *s, const struct rpc_arg *list)
{
    const struct rpc_value *tensor = NULL;
    struct rpc_arg args[TENSOR_FIELDS];
    struct error e;

    for (uint32_t i = 0; i < list->length; i++) {
        tensor = rpc_list_next(list, tensor);
        if (rpc_decode_map(tensor, tensor_fields, TENSOR_FIELDS, "in[0].", args, &e) < 0)
            fail_with(e.message);
        s->sum += args[0].u;
    }
}

static void fields_ours(struct state *s)
{
    for (unsigned i = 0; i < s->n; i++) {
        const struct message *m = &s->messages[i];
        struct rpc_arg args[RUN_FIELDS];
        struct rpc_message message;
        struct error e;

        if (!m->run)
            continue;
        if (rpc_message_parse(&(struct rpc_frame){m->bytes, m->length, scan(m)}, &message, &e) < 0 ||
            rpc_decode_map(message.params, run_fields, RUN_FIELDS, "", args, &e) < 0)
            fail_with(e.message);
        for (unsigned f = 0; f < RUN_FIELDS; f++)
            if (args[f].present && run_fields[f].type == RPC_LIST)
                take_tensors(s, &args[f]);
    }
}

/* What a program does that has objects: fills the places of the fields, with the checks of their types. */
static void match_objects(const msgpack_object *map, const struct rpc_field *fields, unsigned n,
                          const msgpack_object **ret)
{
    memset(ret, 0, n * sizeof(*ret));
    for (uint32_t i = 0; i < map->via.map.size; i++) {
        const msgpack_object_kv *kv = &map->via.map.ptr[i];
        unsigned f = 0;

        while (f < n && (strlen(fields[f].key) != kv->key.via.str.size ||
                         memcmp(fields[f].key, kv->key.via.str.ptr, kv->key.via.str.size) != 0))
            f++;
        if (f == n || ret[f] || (fields[f].type == RPC_UINT && kv->val.type != MSGPACK_OBJECT_POSITIVE_INTEGER))
            fail_with("a golden request has a key that is not declared");
        ret[f] = &kv->val;
    }
}

static void match_tensors(struct state *s, const msgpack_object *list)
{
    const msgpack_object *args[TENSOR_FIELDS];

    for (uint32_t i = 0; i < list->via.array.size; i++) {
        match_objects(&list->via.array.ptr[i], tensor_fields, TENSOR_FIELDS, args);
        s->sum += args[0] ? args[0]->via.u64 : 0;
    }
}

static void fields_peer(struct state *s)
{
    for (unsigned i = 0; i < s->n; i++) {
        const msgpack_object *args[RUN_FIELDS];
        const struct message *m = &s->messages[i];
        msgpack_object o;

        if (!m->run)
            continue;
        s->sum += scan(m);
        unpack(m, &s->zone, &o);
        match_objects(&o.via.array.ptr[3].via.array.ptr[0], run_fields, RUN_FIELDS, args);
        for (unsigned f = 0; f < RUN_FIELDS; f++)
            if (args[f] && run_fields[f].type == RPC_LIST)
                match_tensors(s, args[f]);
    }
}

/* ---- write ---- */

static void write_object(unsigned char **at, const msgpack_object *o)
{
    switch (o->type) {
    case MSGPACK_OBJECT_BOOLEAN:
        codec_write_bool(at, o->via.boolean);
        break;
    case MSGPACK_OBJECT_POSITIVE_INTEGER:
        codec_write_uint64(at, o->via.u64);
        break;
    case MSGPACK_OBJECT_NEGATIVE_INTEGER:
        codec_write_int64(at, o->via.i64);
        break;
    case MSGPACK_OBJECT_FLOAT32:
        codec_write_float(at, (float)o->via.f64);
        break;
    case MSGPACK_OBJECT_FLOAT64:
        codec_write_double(at, o->via.f64);
        break;
    case MSGPACK_OBJECT_STR:
        codec_write_text(at, o->via.str.ptr, o->via.str.size);
        break;
    case MSGPACK_OBJECT_BIN:
        codec_write_binary(at, o->via.bin.ptr, o->via.bin.size);
        break;
    case MSGPACK_OBJECT_ARRAY:
        codec_write_array(at, o->via.array.size);
        for (uint32_t i = 0; i < o->via.array.size; i++)
            write_object(at, &o->via.array.ptr[i]);
        break;
    case MSGPACK_OBJECT_MAP:
        codec_write_map(at, o->via.map.size);
        for (uint32_t i = 0; i < o->via.map.size; i++) {
            write_object(at, &o->via.map.ptr[i].key);
            write_object(at, &o->via.map.ptr[i].val);
        }
        break;
    default:
        codec_write_nil(at);
    }
}

static void write_ours(struct state *s)
{
    for (unsigned i = 0; i < s->n; i++) {
        unsigned char *at = s->written;

        write_object(&at, &s->messages[i].object);
        s->sum += (uint64_t)(at - s->written);
    }
}

static void write_peer(struct state *s)
{
    msgpack_packer p;

    msgpack_packer_init(&p, &s->buffer, msgpack_sbuffer_write);
    for (unsigned i = 0; i < s->n; i++) {
        msgpack_sbuffer_clear(&s->buffer);
        msgpack_pack_object(&p, s->messages[i].object);
        s->sum += s->buffer.size;
    }
}

/* ---- measuring ---- */

/* Requests and responses of ordinary length. The vectors of long messages would take nearly all of the time. */
static bool is_usual(const struct golden_vector *v)
{
    return (!strcmp(v->file, "requests") || !strcmp(v->file, "responses")) && v->length <= 4096;
}

static void load(struct state *s)
{
    if (!msgpack_zone_init(&s->kept, ZONE_CHUNK) || !msgpack_zone_init(&s->zone, ZONE_CHUNK) ||
        !(s->written = malloc(MESSAGE_MAX)))
        fail_with("no memory");
    msgpack_sbuffer_init(&s->buffer);
    for (unsigned i = 0; i < GOLDEN_VECTORS; i++) {
        const struct golden_vector *v = &golden_vectors[i];
        struct message *m = &s->messages[s->n];
        struct rpc_message message;
        size_t offset = 0;
        struct error e;

        if (!is_usual(v))
            continue;
        *m = (struct message){.bytes = v->bytes, .length = v->length};
        if (msgpack_unpack((const char *)m->bytes, m->length, &offset, &s->kept, &m->object) != MSGPACK_UNPACK_SUCCESS)
            fail_with("msgpack-c does not take a golden message");
        m->run = !strcmp(v->file, "requests") &&
                 !rpc_message_parse(&(struct rpc_frame){m->bytes, m->length, 0}, &message, &e) &&
                 !message.notification && message.method_length == 3 && !memcmp(message.method, "run", 3);
        s->n_runs += m->run;
        s->n++;
    }
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(struct state *s);
        bool runs_alone;
    } sides[] = {
        {"read", read_ours, false},
        {"read_msgpack_c", read_peer, false},
        {"read_msgpack_c_alone", read_alone, false},
        {"fields", fields_ours, true},
        {"fields_msgpack_c", fields_peer, true},
        {"write", write_ours, false},
        {"write_msgpack_c", write_peer, false},
    };
    enum { SIDES = sizeof(sides) / sizeof(sides[0]) };
    static struct state state;
    size_t rounds = 20000, passes = 2;
    const struct bench_option options[] = {
        {.name = "rounds", .count = &rounds}, {.name = "passes", .count = &passes}, {0}};
    struct series series[SIDES], *all[SIDES];

    options_read(argc, argv, options);
    load(&state);
    for (unsigned i = 0; i < SIDES; i++) {
        series_init(&series[i], sides[i].name, rounds);
        all[i] = &series[i];
    }
    for (size_t round = 0; round < rounds; round++) {
        for (unsigned i = 0; i < SIDES; i++) {
            const double messages = (double)passes * (sides[i].runs_alone ? state.n_runs : state.n);
            uint64_t start;

            sides[i].run(&state); /* into the caches */
            start = now_ns();
            for (size_t pass = 0; pass < passes; pass++)
                sides[i].run(&state);
            series_add_us(&series[i], (double)(now_ns() - start) * 1e-3 / messages);
        }
    }
    series_print(all, SIDES);
    for (unsigned i = 0; i < SIDES; i++)
        series_deinit(&series[i]);
    msgpack_sbuffer_destroy(&state.buffer);
    msgpack_zone_destroy(&state.zone);
    msgpack_zone_destroy(&state.kept);
    free(state.written);
    return state.sum ? 0 : 1;
}
