#include "module.h"

#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "base/table.h"

void module_print(const struct kops_module_info *info, const char *name)
{
    struct table t;

    printf("%s: %s for %s, %llu bytes, %s (%.1f ms)\nkey %s\n\n", name, info->compiler, info->arch,
           (unsigned long long)info->image_bytes,
           strcmp(info->cached, "no") == 0       ? "compiled now"
           : strcmp(info->cached, "disk") == 0   ? "found on disk"
           : strcmp(info->cached, "memory") == 0 ? "found in memory"
           : strcmp(info->cached, "remote") == 0 ? "found in the remote cache"
                                                 : info->cached,
           info->compile_us * 1e-3, info->key);
    table_init(&t, "lrrrrrrl",
               (const char *const[]){"entry", "registers", "shared", "local", "const", "threads", "params", "bytes"});
    for (const struct kops_entry *const *e = info->entries; *e; e++) {
        char sizes[TABLE_CELL] = "";
        size_t n = 0;

        for (size_t i = 0; i < (*e)->n_params && n < sizeof(sizes); i++)
            n += (size_t)snprintf(sizes + n, sizeof(sizes) - n, "%s%u", i ? " " : "", (*e)->params[i]);
        table_cell(&t, "%s", (*e)->name);
        table_cell(&t, "%u", (*e)->registers);
        table_cell(&t, "%u", (*e)->shared_bytes);
        table_cell(&t, "%u", (*e)->local_bytes);
        table_cell(&t, "%u", (*e)->const_bytes);
        table_cell(&t, "%u", (*e)->max_threads);
        table_cell(&t, "%zu", (*e)->n_params);
        table_cell(&t, "%s", sizes);
    }
    table_print(&t);
    printf(
        "(threads: of a block at most; bytes: of each parameter; local: spilled registers and arrays of a thread)\n");
    if (*info->log)
        printf("\n%s%s", info->log, info->log[strlen(info->log) - 1] == '\n' ? "" : "\n");
}

void module_json(const struct kops_module_info *info)
{
    json_text("key", info->key);
    json_text("arch", info->arch);
    json_text("compiler", info->compiler);
    json_text("cached", info->cached);
    json_number("compile_us", info->compile_us);
    json_text("log", info->log);
    json_uint("image_bytes", info->image_bytes);
    json_begin("entries", '[');
    for (const struct kops_entry *const *e = info->entries; *e; e++) {
        json_begin(NULL, '{');
        json_text("name", (*e)->name);
        json_text("lowered", (*e)->lowered);
        json_uint("registers", (*e)->registers);
        json_uint("shared_bytes", (*e)->shared_bytes);
        json_uint("local_bytes", (*e)->local_bytes);
        json_uint("const_bytes", (*e)->const_bytes);
        json_uint("max_threads", (*e)->max_threads);
        json_begin("params", '[');
        for (size_t i = 0; i < (*e)->n_params; i++)
            json_uint(NULL, (*e)->params[i]);
        json_end(']');
        json_end('}');
    }
    json_end(']');
}
