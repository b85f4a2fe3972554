/* A compiled module, as text and as JSON. */
#ifndef KOPS_CTL_MODULE_H
#define KOPS_CTL_MODULE_H

#include <kops/kops.h>

/* A line on the module, a table of its entries, and the compiler's warnings. */
void module_print(const struct kops_module_info *info, const char *name);

/* A map without its brackets. */
void module_json(const struct kops_module_info *info);

#endif
