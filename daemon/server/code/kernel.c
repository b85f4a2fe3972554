#include "server/code/kernel.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/decode.h"
#include "server/code/code.h"
#include "server/code/module.h"
#include "server/code/room.h"
#include "server/memory/connection_resources.h"
#include "server/peer/connection.h"
#include "server/peer/request.h"

/* ---- life ---- */

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

/* ---- the method ---- */

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
