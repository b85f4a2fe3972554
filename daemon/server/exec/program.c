/* Programs: recorded sequences, which a connection runs by id. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/code/kernel.h"
#include "server/exec/room.h"
#include "server/exec/run.h"
#include "server/memory/connection_resources.h"
#include "server/peer/connection.h"
#include "server/peer/request.h"

static const struct rpc_field binding_fields[] = {KOPS_PARAMS_BINDING(RPC_FIELD)};

enum { PATH_MAX_LENGTH = 32, SPARE_LISTS = 8 };

struct program {
    uint64_t id;
    unsigned references; /* the connection's, and one a run */
    struct backend_device *device;
    struct backend_program *replay; /* the device's own */
    /* The list that every run copies. Its refs hold references, not uses, and only where a tensor has no buffer. */
    struct command_list commands;
    uint64_t *buffers;                       /* buffers of the tensors; 0: an inline reference, or none needed */
    struct command_list spares[SPARE_LISTS]; /* copies of `commands` that ended runs left behind */
    unsigned n_spares;
    struct server *server;
    uid_t uid;        /* the connection's, by link */
    struct list link; /* in the server's */
    uint64_t untold;  /* runs that the observer has not been told of, all with the variants of commands.steps */
};

/* ---- life ---- */

/* Tells the observer of the runs since the last time. */
static void tell_observer(struct program *p)
{
    const struct run_observer *observer = p->server->exec->observer;
    const struct command_list *b = &p->commands;

    for (unsigned i = 0; p->untold && i < b->n_steps; i++) {
        const struct op_call call = command_list_call(b, i);

        observer->program_ran(p->server, p->uid, &call, p->device, b->steps[i].variant_used, p->untold);
    }
    p->untold = 0;
}

void program_count_run(struct run *run)
{
    struct program *p = run->program;
    const struct command_list *b = &run->commands;
    bool same = true;

    for (unsigned i = 0; same && i < b->n_steps; i++)
        same = !strcmp(b->steps[i].variant_used, p->commands.steps[i].variant_used);
    if (!same) {
        tell_observer(p);
        for (unsigned i = 0; i < b->n_steps; i++)
            step_copy_variant(p->commands.steps[i].variant_used, b->steps[i].variant_used);
    }
    p->untold++;
}

void exec_tell_programs(struct server *s)
{
    list_for_each_safe (node, after, &s->exec->programs) {
        tell_observer(list_entry(node, struct program, link));
    }
}

static void program_free(struct program *p)
{
    trimming_note(&p->server->trimming, p->commands.bytes * (1 + p->n_spares));
    tell_observer(p);
    list_remove(&p->link);
    if (p->replay)
        p->device->backend->program_free(p->device, p->replay);
    for (unsigned i = 0; i < p->commands.n_tensors; i++) {
        p->commands.refs[i].shared = shared_charge_unref(p->commands.refs[i].shared);
        if (p->commands.refs[i].mapping)
            mapping_unref(p->commands.refs[i].mapping);
        p->commands.refs[i].mapping = NULL;
    }
    command_list_release(&p->commands);
    for (unsigned i = 0; i < p->n_spares; i++)
        command_list_release(&p->spares[i]);
    free(p->buffers);
    free(p);
}

static void unref(struct program *p)
{
    if (--p->references == 0)
        program_free(p);
}

static void program_drop(struct connection *c, struct program *p)
{
    idtable_remove(&c->exec->programs, p->id);
    unref(p);
}

int connection_release_program(struct connection *c, uint64_t id, struct error *e)
{
    struct program *p = idtable_get(&c->exec->programs, id);

    if (!p) {
        error_set(e, ERROR_UNKNOWN_PROGRAM, "this connection has no program %llu", (unsigned long long)id);
        return error_detail_text(e, "key", "program");
    }
    program_drop(c, p);
    return 0;
}

void programs_drop_all(struct connection *c)
{
    for (uint32_t i = 0; i < c->exec->programs.capacity; i++)
        if (idtable_at(&c->exec->programs, i))
            program_drop(c, idtable_at(&c->exec->programs, i));
}

/* Turns the uses that decoding took into the references that the program keeps. */
static void settle(struct program *p)
{
    for (unsigned i = 0; i < p->commands.n_tensors; i++) {
        struct mapping *m = p->commands.refs[i].mapping;

        if (!m)
            continue;
        if (p->buffers[i]) {
            p->commands.refs[i].shared = shared_charge_unref(p->commands.refs[i].shared);
            p->commands.refs[i].mapping = NULL;
        } else {
            mapping_ref(m);
        }
        mapping_unuse(m);
    }
}

/* Drops the spare copies of all programs of the connection's user; they are kept for speed alone. */
static void drop_spares(struct connection *c)
{
    list_for_each_safe (node, after, &c->server->exec->programs) {
        struct program *p = list_entry(node, struct program, link);

        while (p->n_spares && p->commands.charge.account == c->account)
            command_list_release(&p->spares[--p->n_spares]);
    }
}

static int check_bytes(struct connection *c, struct error *e)
{
    const uint64_t bytes = c->exec->program_bytes;

    if (bytes <= PROGRAM_BYTES_MAX)
        return 0;
    error_set(e, ERROR_QUOTA_EXCEEDED, "this connection's programs take %llu bytes, more than they may; release some",
              (unsigned long long)bytes);
    error_detail_text(e, "quota", "program_bytes");
    error_detail_number(e, "limit", PROGRAM_BYTES_MAX);
    account_refused(c->account, c->pid, REFUSED_LIMITS, bytes, PROGRAM_BYTES_MAX);
    return error_detail_number(e, "current", (int64_t)bytes);
}

static int define(struct connection *c, const struct rpc_arg *args, struct program **ret_program, struct error *e)
{
    struct program *p = calloc(1, sizeof(*p));
    uint32_t n = args[PROGRAM_tensors].length;

    if (p && !(p->buffers = calloc(n < SEQUENCE_TENSORS_MAX ? n + 1 : SEQUENCE_TENSORS_MAX, sizeof(*p->buffers)))) {
        free(p);
        p = NULL;
    }
    if (!p)
        return error_set(e, ERROR_OUT_OF_MEMORY, "no memory for a program");
    p->references = 1;
    p->server = c->server;
    p->uid = c->uid;
    list_init(&p->link);
    if (command_list_decode(c, &args[PROGRAM_tensors], &args[PROGRAM_ops], &args[PROGRAM_device], p->buffers,
                            &c->exec->program_memory, &p->commands, &p->device, e) < 0) {
        command_list_release(&p->commands);
        free(p->buffers);
        free(p);
        return -1;
    }
    settle(p);
    list_append(&c->server->exec->programs, &p->link);
    if (c->exec->program_bytes > PROGRAM_BYTES_MAX || !account_has_room(c->account, QUOTA_PROGRAMS))
        drop_spares(c);
    if (check_bytes(c, e) < 0 || charge_check(&p->commands.charge, c->pid, e) < 0) {
        unref(p);
        return -1;
    }
    p->id = idtable_add(&c->exec->programs, p);
    if (!p->id) {
        unref(p);
        return connection_full(c, &c->exec->programs, "programs", e);
    }
    *ret_program = p;
    return 0;
}

void handle_program(struct request *r, const struct rpc_arg *args, struct request_fds *fds)
{
    struct program *p = NULL;
    struct error e;

    (void)fds;
    if (define(r->connection, args, &p, &e) < 0) {
        request_end_error(r, &e);
        return;
    }
    request_end_record(r, RECORD(program_reply, .program = p->id, .device = p->device->info.uuid));
}

/* ---- running ---- */

static int copy_commands(const struct command_list *from, struct command_list *ret_commands,
                         struct command_memory *counted_in, struct error *e)
{
    if (command_list_new(ret_commands, from->n_tensors, from->n_steps, counted_in, e) < 0)
        return -1;
    ret_commands->n_launches = from->n_launches;
    memcpy(ret_commands->tensors, from->tensors, from->n_tensors * sizeof(*from->tensors));
    memcpy(ret_commands->steps, from->steps, from->n_steps * sizeof(*from->steps));
    memcpy(ret_commands->ops, from->ops, from->n_steps * sizeof(*from->ops));
    for (unsigned i = 0; i < from->n_steps; i++)
        ret_commands->kernels[i] = from->kernels[i] ? kernel_ref(from->kernels[i]) : NULL;
    return 0;
}

/* Takes into use the memory that the program was defined on, for tensors that were not bound anew. */
static int use_own_memory(struct connection *c, const struct program *p, struct command_list *commands, struct error *e)
{
    for (unsigned i = 0; i < commands->n_tensors; i++) {
        struct operand_ref *ref = &commands->refs[i];
        uint64_t size;

        if (ref->mapping)
            continue;
        if (p->buffers[i]) {
            if (tensor_use_buffer(c, p->buffers[i], tensor_path(i), ref, &size, e) < 0)
                return -1;
        } else if (p->commands.refs[i].mapping) {
            if (p->commands.refs[i].mapping->stale) {
                error_set(e, ERROR_STALE_BUFFER, "%sipc: its allocation was freed and replaced by its owner",
                          tensor_path(i));
                return error_detail_text(e, "key", "program");
            }
            ref->mapping = p->commands.refs[i].mapping;
            ref->shared = shared_charge_ref(p->commands.refs[i].shared);
            ref->writable = true;
            mapping_use(ref->mapping);
        }
    }
    return 0;
}

/* Writes "bind[7" and `after`. A message may have many bindings, and printf() takes a third of a binding's time. */
static void binding_path(unsigned i, const char *after, char into[PATH_MAX_LENGTH])
{
    static const char key[] = "bind[";
    char digits[10];
    unsigned n = 0, at = sizeof(key) - 1;

    memcpy(into, key, at);
    do
        digits[n++] = (char)('0' + i % 10);
    while (i /= 10);
    while (n)
        into[at++] = digits[--n];
    do
        into[at++] = *after;
    while (*after++);
}

static int decode_binding(struct connection *c, struct command_list *commands, const struct rpc_value *value,
                          unsigned i, unsigned *ret_index, struct error *e)
{
    struct rpc_arg args[BINDING_KEYS];
    char path[PATH_MAX_LENGTH], dotted[PATH_MAX_LENGTH];
    struct operand_ref *ref;
    struct tensor *t;
    uint64_t size;

    binding_path(i, "]", path);
    binding_path(i, "].", dotted);
    if (rpc_decode_map(value, binding_fields, BINDING_KEYS, dotted, args, e) < 0)
        return -1;
    if (args[BINDING_index].u >= commands->n_tensors || commands->refs[args[BINDING_index].u].mapping) {
        error_set(e, ERROR_INVALID_ARGUMENT, "index: %s",
                  args[BINDING_index].u >= commands->n_tensors ? "the program has no such tensor" : "bound twice");
        error_detail_text(e, "key", "index");
        return error_prefix(e, dotted);
    }
    *ret_index = (unsigned)args[BINDING_index].u;
    t = &commands->tensors[*ret_index];
    ref = &commands->refs[*ret_index];
    t->offset = args[BINDING_offset].u;
    if (tensor_measure(t, path, e) < 0 || tensor_use_buffer(c, args[BINDING_buffer].u, dotted, ref, &size, e) < 0)
        return -1;
    return tensor_check_bounds(t, size, path, e);
}

/* Checks again after binding: operands, overlap, write access and device may differ. */
static int recheck(const struct program *p, struct command_list *commands, struct error *e)
{
    static const struct rpc_arg none;
    struct backend_device *device = p->device;
    char prefix[PATH_MAX_LENGTH];

    for (unsigned i = 0; i < commands->n_tensors; i++) {
        const struct mapping *m = commands->refs[i].mapping;

        if (!m || !m->device || device_can_access(device, m->device))
            continue;
        error_set(e, ERROR_DEVICE_MISMATCH, "the program runs on %s, but tensor %u is bound to memory of %s",
                  device->info.uuid, i, m->device->info.uuid);
        return error_detail_text(e, "key", "bind");
    }
    if (command_list_check_handles(commands, e) < 0)
        return -1;
    commands->search_steps = STEP_SEARCH_MAX;
    for (unsigned i = 0; i < commands->n_steps; i++) {
        if (step_plan(commands, i, e) < 0 || step_place(commands, i, device, &none, e) < 0) {
            snprintf(prefix, sizeof(prefix), "ops[%u].", i);
            return error_prefix(e, prefix);
        }
    }
    return 0;
}

static int bind_memory(struct connection *c, const struct program *p, struct command_list *commands,
                       const struct rpc_arg *list, struct error *e)
{
    const struct rpc_value *value = NULL;

    for (uint32_t i = 0; list->present && i < list->length; i++) {
        unsigned index;

        value = rpc_list_next(list, value);
        if (decode_binding(c, commands, value, i, &index, e) < 0)
            return -1;
    }
    if (use_own_memory(c, p, commands, e) < 0)
        return -1;
    return list->present && list->length ? recheck(p, commands, e) : 0;
}

int program_bind(struct connection *c, struct run *run, const struct rpc_arg *args, struct error *e)
{
    struct program *p = idtable_get(&c->exec->programs, args[RUN_PROGRAM_program].u);

    if (!p) {
        error_set(e, ERROR_UNKNOWN_PROGRAM, "this connection has no program %llu",
                  (unsigned long long)args[RUN_PROGRAM_program].u);
        return error_detail_text(e, "key", "program");
    }
    if (p->n_spares) {
        run->commands = p->spares[--p->n_spares];
        command_list_move(&run->commands, &c->exec->run_memory);
    } else if (copy_commands(&p->commands, &run->commands, &c->exec->run_memory, e) < 0) {
        return -1;
    }
    run->commands.search_steps = STEP_SEARCH_MAX; /* earlier checks have used theirs */
    p->references++;
    run->program = p;
    run->rebound = args[RUN_PROGRAM_bind].present && args[RUN_PROGRAM_bind].length;
    run->device = p->device;
    if (p->device->backend->program_free)
        run->job.program = &p->replay;
    return bind_memory(c, p, &run->commands, &args[RUN_PROGRAM_bind], e);
}

void program_end_run(struct run *run)
{
    struct program *p = run->program;

    if (!p)
        return;
    if (!run->rebound && p->n_spares < SPARE_LISTS && p->references > 1 &&
        *p->commands.counted_in->bytes + run->commands.bytes <= PROGRAM_BYTES_MAX &&
        account_has_room(p->commands.counted_in->account, QUOTA_PROGRAMS)) {
        command_list_unuse(&run->commands);
        command_list_move(&run->commands, p->commands.counted_in);
        p->spares[p->n_spares++] = run->commands;
        run->commands = (struct command_list){0};
    }
    run->program = NULL;
    command_list_release(&run->commands);
    unref(p);
}
