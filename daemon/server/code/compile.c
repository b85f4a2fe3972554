/* The method compile: from a source to a module that is loaded on its device. Requests for the same source share one
 * compile (single flight, compile/service.c). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compile/service.h"
#include "server/code/code.h"
#include "server/code/kernel.h"
#include "server/code/room.h"
#include "server/memory/connection_resources.h"
#include "server/peer/connection.h"
#include "server/peer/request.h"
#include "util/clock.h"
#include "util/log.h"

/* The state of a compile request. */
struct compile {
    struct code_request *request; /* NULL once there is a binary */
    uint64_t bytes;               /* bytes of the source with its files, counted in the connection's request_bytes */
    struct charge charge;         /* QUOTA_WAITING, for `bytes` */
    struct backend_device *device;
    enum code_origin origin;
    struct module *module; /* a reference */
    struct module_waiter waiter;
};
const size_t compile_state_bytes = sizeof(struct compile);

static struct compile *compile_of(const struct request *r)
{
    return request_state(r);
}

/* ---- the request ---- */

/* A compile_input with its texts, which end with a zero where C needs it. */
struct input {
    struct compile_input input;
    struct compile_file *files;
    const char **options, **entries;
    char *texts, *next;
    char arch[COMPILED_ARCH_SIZE];
};

static char *keep(struct input *in, const char *text, size_t length)
{
    char *start = in->next;

    memcpy(start, text, length);
    start[length] = '\0';
    in->next += length + 1;
    return start;
}

static int count_texts(const struct rpc_arg *list, const char *key, size_t *bytes, struct error *e)
{
    struct rpc_field item = {.type = RPC_STR};
    const struct rpc_value *value = NULL;
    struct rpc_arg arg;
    char name[24];

    for (uint32_t i = 0; list->present && i < list->length; i++) {
        snprintf(name, sizeof(name), "%s[%u]", key, i);
        item.key = name;
        value = rpc_list_next(list, value);
        if (rpc_decode_value(value, &item, "", &arg, e) < 0)
            return -1;
        if (memchr(arg.text, '\0', arg.length))
            return error_at(e, ERROR_INVALID_ARGUMENT, "", name, "has a zero byte");
        *bytes += arg.length + 1;
    }
    return 0;
}

static int count_files(const struct rpc_arg *map, size_t *bytes, struct error *e)
{
    static const struct rpc_field text = {.key = "(file)", .type = RPC_STR};
    struct rpc_entries entries = rpc_map_entries(map->items);
    struct rpc_entry file;

    while (rpc_map_next(&entries, &file)) {
        struct rpc_arg arg;

        if (!file.key)
            return error_at(e, ERROR_WRONG_TYPE, "files.", "(key)", "must be str: a file's name");
        if (rpc_decode_value(file.value, &text, "files.", &arg, e) < 0)
            return -1;
        if (!file.length || memchr(file.key, '\0', file.length))
            return error_at(e, ERROR_INVALID_ARGUMENT, "files.", "(key)", "a file's name is empty or has a zero byte");
        *bytes += file.length + 1;
    }
    return 0;
}

static void fill_texts(struct input *in, const struct rpc_arg *list, const char **into)
{
    static const struct rpc_field item = {.key = "", .type = RPC_STR};
    const struct rpc_value *value = NULL;
    struct error ignored;
    struct rpc_arg arg;

    for (uint32_t i = 0; list->present && i < list->length; i++) {
        value = rpc_list_next(list, value);
        if (rpc_decode_value(value, &item, "", &arg, &ignored) == 0)
            into[i] = keep(in, arg.text, arg.length);
    }
}

static void fill_files(struct input *in, const struct rpc_arg *map)
{
    static const struct rpc_field text = {.key = "", .type = RPC_STR};
    struct rpc_entries entries = rpc_map_entries(map->items);
    struct rpc_entry file;
    struct error ignored;

    for (uint32_t i = 0; rpc_map_next(&entries, &file); i++) {
        struct rpc_arg arg = {0};

        rpc_decode_value(file.value, &text, "", &arg, &ignored);
        in->files[i] = (struct compile_file){keep(in, file.key, file.length), arg.text, arg.length};
    }
}

static void input_free(struct input *in)
{
    free(in->files);
    free(in->options);
    free(in->entries);
    free(in->texts);
}

static int decode_input(const struct connection *owner, const struct rpc_arg *args, struct input *in, struct error *e)
{
    const struct rpc_arg *files = &args[COMPILE_files], *options = &args[COMPILE_options];
    const struct rpc_arg *entries = &args[COMPILE_entries], *name = &args[COMPILE_name];
    size_t bytes = name->length + sizeof("kernel.cu") + 1;

    *in = (struct input){0};
    if (count_texts(options, "options", &bytes, e) < 0 || count_texts(entries, "entries", &bytes, e) < 0 ||
        count_files(files, &bytes, e) < 0)
        return -1;
    if (name->present && (!name->length || name->length > 128 || memchr(name->text, '\0', name->length)))
        return error_at(e, ERROR_INVALID_ARGUMENT, "", "name", "must have 1 to 128 bytes, none of them zero");
    in->files = calloc(files->length + 1, sizeof(*in->files));
    in->options = calloc(options->length + 1, sizeof(*in->options));
    in->entries = calloc(entries->length + 1, sizeof(*in->entries));
    in->next = in->texts = malloc(bytes);
    if (!in->files || !in->options || !in->entries || !in->texts) {
        input_free(in);
        return error_set(e, ERROR_OUT_OF_MEMORY, "no memory for a source");
    }
    fill_texts(in, options, in->options);
    fill_texts(in, entries, in->entries);
    fill_files(in, files);
    in->input = (struct compile_input){
        .name = name->present ? keep(in, name->text, name->length) : "kernel.cu",
        .source = args[COMPILE_source].text,
        .length = args[COMPILE_source].length,
        .files = in->files,
        .n_files = files->length,
        .options = in->options,
        .n_options = options->length,
        .entries = in->entries,
        .n_entries = entries->length,
        .arch = in->arch,
        .user = owner->uid,
        .connection = (uintptr_t)owner, /* a connection outlives its requests */
    };
    return 0;
}

static uint64_t input_bytes(const struct compile_input *input)
{
    uint64_t bytes = input->length;

    for (unsigned i = 0; i < input->n_files; i++)
        bytes += input->files[i].length;
    return bytes;
}

/* Chooses the architecture, and the device to load the module on; *ret_device NULL: no device here runs that
 * architecture. */
static int choose_target(struct server *s, const struct rpc_arg *args, char arch[COMPILED_ARCH_SIZE],
                         struct backend_device **ret_device, struct error *e)
{
    const struct rpc_arg *given = &args[COMPILE_arch];
    struct backend_device *d = user_code_device(s);

    if (args[COMPILE_device].present && !(d = server_device(s, &args[COMPILE_device], e)))
        return -1;
    if (given->present) {
        if (given->length >= COMPILED_ARCH_SIZE || !given->length)
            return error_at(e, ERROR_INVALID_ARGUMENT, "", "arch", "must be sm_ and a number, such as sm_90a");
        memcpy(arch, given->text, given->length);
        arch[given->length] = '\0';
        *ret_device = d && module_runs_on(arch, d) ? d : NULL;
        return 0;
    }
    if (!d || !d->backend->code_load) {
        /* Where no compiler is usable the error says so: giving `arch` would not help. */
        if (!compiler_usable(code_service_compiler(s->modules->service), e))
            return -1;
        return error_at(e, ERROR_MISSING_KEY, "", "arch",
                        d ? "that device runs no kernels of users: say what to compile for, such as sm_90a"
                          : "there is no GPU here: say what to compile for, such as sm_90a");
    }
    module_default_arch(d, arch);
    *ret_device = d;
    return 0;
}

/* ---- the answer ---- */

static void write_entry(struct rpc_output *out, const void *of, uint32_t i)
{
    const struct compiled_entry *entry = (const struct compiled_entry *)of + i;

    rpc_write_record(out,
                     RECORD(entry_map, .name = entry->name, .lowered = entry->lowered, .registers = entry->registers,
                            .shared_bytes = entry->shared_bytes, .local_bytes = entry->local_bytes,
                            .const_bytes = entry->const_bytes, .max_threads = entry->max_threads,
                            .params = {entry->n_params, rpc_each_u32, entry->param_sizes},
                            .offsets = {entry->n_params, rpc_each_u32, entry->param_offsets}));
}

static void reply(struct request *r, const struct client_module *m)
{
    const struct compiled *c = m->module->compiled;
    char key[2 * KEY_BYTES + 1];

    for (unsigned i = 0; i < KEY_BYTES; i++)
        snprintf(key + 2 * i, 3, "%02x", c->key[i]);
    request_end_record(r, RECORD(compile_reply, .module = m->id, .key = key, .arch = c->arch, .compiler = c->compiler,
                                 .cached = code_origin_name(compile_of(r)->origin), .compile_us = c->compile_us,
                                 .log = c->log, .image_bytes = c->image_size,
                                 .entries = {c->n_entries, write_entry, c->entries}));
}

static struct client_module *add_client_module(struct connection *c, struct module *module, struct error *e)
{
    struct client_module *m = calloc(1, sizeof(*m));

    if (!m) {
        error_set(e, ERROR_OUT_OF_MEMORY, "no memory for a module");
        return NULL;
    }
    m->shared = shared_charge_take(c->account, c->pid, QUOTA_KERNEL, module, module->compiled->image_size, e);
    if (!m->shared)
        goto free_module;
    m->id = idtable_add(&c->code->modules, m);
    if (!m->id) {
        connection_full(c, &c->code->modules, "modules", e);
        goto unref_shared;
    }
    m->module = module_ref(module);
    return m;

unref_shared:
    shared_charge_unref(m->shared);
free_module:
    free(m);
    return NULL;
}

/* Tells of the compilation; NULL: it failed. */
static void tell(const struct request *r, const struct compiled *compiled)
{
    const bool now = compiled && compile_of(r)->origin == CODE_COMPILED;

    r->connection->server->modules->observer->ended(r, compiled && compiled->n_entries ? compiled->entries[0].name : "",
                                                    now ? clock_now_ns() - (uint64_t)(compiled->compile_us * 1e3) : 0,
                                                    !compiled);
}

/* The module is loaded, or failed to load. */
static void finish(struct request *r)
{
    struct connection *c = r->connection;
    struct module *module = compile_of(r)->module;
    struct client_module *m = NULL;
    struct error e;

    list_remove(&r->queue_link);
    if (module->state == MODULE_FAILED)
        e = module->error;
    else if (!c->closed)
        m = add_client_module(c, module, &e);
    else
        error_set(&e, ERROR_CANCELLED, "the connection ended");
    tell(r, m ? module->compiled : NULL);
    if (m)
        reply(r, m);
    else
        request_end_error(r, &e);
    module_unref(module);
}

static void on_loaded(struct module_waiter *waiter)
{
    finish(request_of(list_entry(waiter, struct compile, waiter)));
}

/* Forgets the source and its charges. */
static void forget_source(struct request *r)
{
    compile_of(r)->request = NULL;
    r->connection->request_bytes -= compile_of(r)->bytes;
    charge_free(&compile_of(r)->charge);
    compile_of(r)->bytes = 0;
}

static void on_compiled(void *context, struct compiled *compiled, enum code_origin origin, const struct error *e,
                        const struct compile_failure *failure)
{
    struct request *r = context;
    char who[CONNECTION_WHO_MAX];
    struct error error;

    forget_source(r);
    if (!compiled) {
        log_debug("compile", "%s failed=%s", connection_who(r->connection, who),
                  failure ? failure->reason : error_code_name(e->code));
        tell(r, NULL);
        list_remove(&r->queue_link);
        if (failure)
            request_error_log(r, e, failure->reason, failure->log);
        else
            request_error(r, e);
        request_end(r);
        return;
    }
    compile_of(r)->origin = origin;
    r->connection->has_loaded = true;
    compile_of(r)->module =
        module_take(r->connection->server, compiled, compile_of(r)->device, connection_domain(r->connection));
    compiled_unref(compiled);
    if (!compile_of(r)->module) {
        error_set(&error, ERROR_OUT_OF_MEMORY, "no memory for a module");
        list_remove(&r->queue_link);
        request_end_error(r, &error);
        return;
    }
    if (compile_of(r)->module->state != MODULE_LOADING) {
        finish(r);
        return;
    }
    compile_of(r)->waiter.ready = on_loaded;
    module_wait(compile_of(r)->module, &compile_of(r)->waiter);
}

void handle_compile(struct request *r, const struct rpc_arg *args, struct request_fds *fds)
{
    struct server *s = r->connection->server;
    struct input in;
    struct error e;
    int result;

    (void)fds;
    if (user_code_check(r->connection, &e) < 0 || decode_input(r->connection, args, &in, &e) < 0) {
        request_end_error(r, &e);
        return;
    }
    /* Waiting sources count as runs do: beyond a bound the connection is paused. */
    compile_of(r)->bytes = input_bytes(&in.input);
    r->connection->request_bytes += compile_of(r)->bytes;
    charge_count(&compile_of(r)->charge, r->connection->account, QUOTA_WAITING, compile_of(r)->bytes);
    compile_of(r)->request = NULL;
    list_append(&r->connection->code->compiles, &r->queue_link);
    result = choose_target(s, args, in.arch, &compile_of(r)->device, &e);
    if (result == 0)
        result = code_get(s->modules->service, &in.input, on_compiled, r, &compile_of(r)->request, &e);
    input_free(&in);
    if (result == 0)
        return;
    forget_source(r);
    list_remove(&r->queue_link);
    request_end_error(r, &e);
}

bool compile_can_cancel(const struct request *r)
{
    return r->method == METHOD_COMPILE && compile_of(r)->request; /* a compile past the compiler ends soon */
}

bool compile_cancel(struct request *r, const struct error *e)
{
    if (!compile_can_cancel(r))
        return false;
    code_request_cancel(compile_of(r)->request);
    forget_source(r);
    list_remove(&r->queue_link);
    request_end_error(r, e);
    return true;
}

void compiles_cancel_all(struct connection *c, const struct error *e)
{
    /* Cancelling one may end others, so the search begins anew each time. */
    for (struct list *node = c->code->compiles.next; node != &c->code->compiles;)
        node = compile_cancel(list_entry(node, struct request, queue_link), e) ? c->code->compiles.next : node->next;
}
