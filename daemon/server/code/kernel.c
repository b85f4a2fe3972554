#include "server/code/kernel.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/decode.h"
#include "server/code/code.h"
#include "server/code/room.h"
#include "server/memory/connection_resources.h"
#include "server/peer/connection.h"
#include "server/peer/request.h"

/* ---- modules ---- */

/* Unused modules that stay loaded: their number, and the size of each on its device at most. */
enum { IDLE_MODULES = 128, IDLE_BYTES = 2 << 20 };

/* ---- architectures ---- */

struct arch {
    unsigned major, minor;
    char suffix;
};

/* "sm_90a": 9.0, 'a'. */
static bool parse_arch(const char *text, struct arch *ret)
{
    unsigned number = 0, digits = 0;

    if (strncmp(text, "sm_", 3) != 0)
        return false;
    for (text += 3; isdigit((unsigned char)*text) && digits < 4; text++, digits++)
        number = number * 10 + (unsigned)(*text - '0');
    if (digits < 2 || (*text && text[1]))
        return false;
    *ret = (struct arch){.major = number / 10, .minor = number % 10, .suffix = *text};
    return true;
}

bool module_runs_on(const char *arch, const struct backend_device *device)
{
    struct arch made, here;

    if (!device->backend->code_load || !parse_arch(arch, &made) || !parse_arch(device->info.arch, &here) ||
        made.major != here.major)
        return false;
    return made.suffix == 'a' ? made.minor == here.minor : made.minor <= here.minor;
}

void module_default_arch(const struct backend_device *device, char into[COMPILED_ARCH_SIZE])
{
    struct arch here;

    into[0] = '\0';
    if (!device->backend->code_load || !parse_arch(device->info.arch, &here))
        return;
    /* From 9.0 on some features need a binary for exactly this architecture. */
    snprintf(into, COMPILED_ARCH_SIZE, "sm_%u%u%s", here.major % 1000, here.minor % 10, here.major >= 9 ? "a" : "");
}

/* ---- loading ---- */

static int load(struct module *module)
{
    const struct backend *backend = module->device->backend;
    const struct compiled *c = module->compiled;

    if (backend->code_load(module->device, module->domain, c->image, c->image_size, &module->loaded, &module->error) <
        0) {
        module->loaded = NULL;
        return -1;
    }
    for (unsigned i = 0; i < c->n_entries; i++)
        if (backend->code_function(module->device, module->loaded, c->entries[i].lowered, &module->functions[i],
                                   &module->error) < 0) {
            backend->code_unload(module->device, module->loaded);
            module->loaded = NULL;
            return -1;
        }
    return 0;
}

static void load_on_pool(struct work *work)
{
    load(list_entry(work, struct module, work));
}

static int load_in_domain(struct backend_work *work)
{
    return load(list_entry(work, struct module, domain_work));
}

static void module_free(struct module *module)
{
    list_remove(&module->link);
    compiled_unref(module->compiled);
    free(module->functions);
    free(module);
}

static void unload(struct work *work)
{
    struct module *module = list_entry(work, struct module, work);

    module->device->backend->code_unload(module->device, module->loaded);
}

static void unloaded(struct work *work)
{
    module_free(list_entry(work, struct module, work));
}

/* The last reference is gone. Keeps the module for later, or unloads it. One of a connection's own domain is of no use
 * to others. */
static void retire(struct module *module)
{
    struct server *s = module->server;

    list_remove(&module->link);
    if (!module->loaded) {
        module_free(module);
        return;
    }
    if (compiled_device_bytes(module->compiled) <= IDLE_BYTES && !domain_is_of_connection(module->domain)) {
        list_append(&s->modules->idle, &module->link);
        if (++s->modules->n_idle <= IDLE_MODULES)
            return;
        module = list_entry(list_first(&s->modules->idle), struct module, link);
        s->modules->n_idle--;
        list_remove(&module->link);
    }
    work_submit(&s->loop, &module->work, unload, unloaded);
}

static void loaded(struct module *module)
{
    struct list *node;

    module->server->modules->n_loading--;
    module->state = module->loaded ? MODULE_READY : MODULE_FAILED;
    while ((node = list_pop(&module->waiters))) {
        struct module_waiter *waiter = list_entry(node, struct module_waiter, link);

        waiter->ready(waiter);
    }
    module_unref(module); /* the load's own reference */
}

static void loaded_on_pool(struct work *work)
{
    loaded(list_entry(work, struct module, work));
}

static void loaded_in_domain(struct backend_work *work, const struct error *refused)
{
    struct module *module = list_entry(work, struct module, domain_work);

    if (refused)
        module->error = *refused;
    loaded(module);
}

/* -1: no memory. */
static int begin_loading(struct server *s, struct module *module)
{
    const struct backend *backend = module->device->backend;
    struct error e;

    module->domain_work = (struct backend_work){.run = load_in_domain, .done = loaded_in_domain};
    if (!backend->work || module->domain == DOMAIN_COMMON)
        work_submit(&s->loop, &module->work, load_on_pool, loaded_on_pool);
    else if (backend->work(module->device, module->domain, &module->domain_work, &e) < 0)
        return -1;
    module->refs++;
    s->modules->n_loading++;
    return 0;
}

/* ---- sharing ---- */

void modules_unload(struct server *s)
{
    list_for_each_safe (node, after, &s->modules->idle) {
        struct module *module = list_entry(node, struct module, link);

        module->device->backend->code_unload(module->device, module->loaded);
        module_free(module);
    }
}

static struct module *find(struct list *list, const struct compiled *compiled, const struct backend_device *device,
                           uint64_t domain)
{
    for (struct list *node = list->prev; node != list; node = node->prev) {
        struct module *module = list_entry(node, struct module, link);

        if (module->device == device && module->domain == domain && module->state != MODULE_FAILED &&
            !memcmp(module->compiled->key, compiled->key, sizeof(compiled->key)))
            return module;
    }
    return NULL;
}

struct module *module_take(struct server *s, struct compiled *compiled, struct backend_device *device, uint64_t domain)
{
    struct module *module = find(&s->modules->used, compiled, device, domain);

    if (module)
        return module_ref(module);
    module = find(&s->modules->idle, compiled, device, domain);
    if (module) {
        list_remove(&module->link);
        list_append(&s->modules->used, &module->link);
        s->modules->n_idle--;
        return module_ref(module);
    }
    module = calloc(1, sizeof(*module));
    if (!module || !(module->functions = calloc(compiled->n_entries, sizeof(*module->functions)))) {
        free(module);
        return NULL;
    }
    module->server = s;
    module->refs = 1;
    module->compiled = compiled_ref(compiled);
    module->device = device;
    module->domain = domain;
    module->state = device ? MODULE_LOADING : MODULE_READY;
    list_init(&module->waiters);
    list_init(&module->link);
    list_append(&s->modules->used, &module->link);
    if (!device || begin_loading(s, module) == 0)
        return module;
    module_unref(module);
    return NULL;
}

struct module *module_ref(struct module *module)
{
    module->refs++;
    return module;
}

void module_unref(struct module *module)
{
    if (module && --module->refs == 0)
        retire(module);
}

void module_wait(struct module *module, struct module_waiter *waiter)
{
    list_append(&module->waiters, &waiter->link);
}

/* ---- kernels ---- */

struct kernel *kernel_ref(struct kernel *k)
{
    k->refs++;
    return k;
}

void kernel_unref(struct kernel *k)
{
    if (!k || --k->refs)
        return;
    kernel_signature_free(k->signature);
    shared_charge_unref(k->shared);
    module_unref(k->module);
    free(k);
}

const char *kernel_operand_key(const struct kernel *k, unsigned o, char into[16])
{
    snprintf(into, 16, "args[%u]", k->signature->operands[o]->index);
    return into;
}

/* ---- the method kernel ---- */

int connection_find_entry(const struct connection *c, const struct rpc_arg *module, const struct rpc_arg *entry,
                          const struct client_module **ret_module, unsigned *ret_entry, struct error *e)
{
    const struct client_module *m = idtable_get(&c->code->modules, module->u);
    const struct compiled *compiled;

    if (!m) {
        error_set(e, ERROR_UNKNOWN_KERNEL, "this connection has no module %llu", (unsigned long long)module->u);
        return error_detail_text(e, "key", "module");
    }
    compiled = m->module->compiled;
    for (unsigned i = 0; i < compiled->n_entries; i++)
        if (rpc_text_is(entry, compiled->entries[i].name)) {
            *ret_module = m;
            *ret_entry = i;
            return 0;
        }
    error_set(e, ERROR_UNKNOWN_KERNEL, "entry: the module was compiled without it; its first one is %.64s",
              compiled->n_entries ? compiled->entries[0].name : "none");
    return error_detail_text(e, "key", "entry");
}

uint64_t kernel_identity(const struct compiled *c, unsigned entry)
{
    uint64_t id;

    memcpy(&id, c->key, sizeof(id));
    id += entry;
    return id ? id : 1;
}

static int kernel_new(struct connection *c, const struct rpc_arg *args, struct kernel **ret, struct error *e)
{
    struct kernel_param_declaration params[KERNEL_MAX_PARAMS];
    struct kernel_declaration declaration;
    const struct compiled_entry *of;
    struct kernel *k;
    const struct client_module *named = NULL;
    struct module *module;
    unsigned entry = 0;

    if (connection_find_entry(c, &args[KERNEL_module], &args[KERNEL_entry], &named, &entry, e) < 0)
        return -1;
    module = named->module;
    of = &module->compiled->entries[entry];
    declaration = (struct kernel_declaration){
        .entry = of->name,
        .entry_length = strlen(of->name),
        .n_binary = of->n_params,
        .offsets = of->param_offsets,
        .sizes = of->param_sizes,
    };
    if (kernel_declaration_decode(args, params, &declaration, e) < 0)
        return -1;
    if (!module->device) {
        error_set(e, ERROR_UNSUPPORTED, "the module is for %s, and no GPU here runs that: it cannot be launched",
                  module->compiled->arch);
        return error_detail_text(e, "key", "module");
    }
    k = calloc(1, sizeof(*k));
    if (!k)
        return error_set(e, ERROR_OUT_OF_MEMORY, "no memory for a kernel");
    if (kernel_signature_new(&declaration, &k->signature, e) < 0) {
        free(k);
        return -1;
    }
    k->refs = 1;
    k->module = module_ref(module);
    k->shared = shared_charge_ref(named->shared);
    k->function = &module->functions[entry];
    k->signature->op.code = kernel_identity(module->compiled, entry);
    module->device->backend->kernel_limits(module->device, &k->limits);
    k->limits.function_threads = k->function->max_threads;
    k->limits.static_shared = k->function->static_shared;
    k->id = idtable_add(&c->code->kernels, k);
    if (!k->id) {
        kernel_unref(k);
        return connection_full(c, &c->code->kernels, "kernels", e);
    }
    *ret = k;
    return 0;
}

void handle_kernel(struct request *r, const struct rpc_arg *args, struct request_fds *fds)
{
    struct kernel *k;
    struct error e;

    (void)fds;
    if (kernel_new(r->connection, args, &k, &e) < 0) {
        request_end_error(r, &e);
        return;
    }
    request_end_record(r, RECORD(kernel_reply, .kernel = k->id));
}
