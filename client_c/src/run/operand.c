#include "operand.h"

#include <string.h>

#include "base/fail.h"

enum kops_code operand_refuse(enum operand_fault fault, const struct kops_tensor *t, const char *list, size_t place,
                              struct kops_error *e)
{
    switch (fault) {
    case OPERAND_HAS_TOO_MANY_DIMENSIONS:
        return fail(e, KOPS_ERR_BAD_ARGUMENT, "%s[%zu].rank is %u, more than %d", list, place, t->rank, KOPS_MAX_RANK);
    case OPERAND_HAS_NO_DTYPE:
        return fail(e, KOPS_ERR_BAD_ARGUMENT, "%s[%zu].dtype is %d, which is no dtype", list, place, (int)t->dtype);
    case OPERAND_IS_FOREIGN:
        return fail(e, KOPS_ERR_BAD_ARGUMENT, "%s[%zu].buffer belongs to another client", list, place);
    case OPERAND_LIES_TOO_FAR:
        return fail(e, KOPS_ERR_BAD_ARGUMENT, "%s[%zu].offset is too large", list, place);
    case OPERAND_IS_GOOD:
        break;
    }
    return KOPS_OK;
}

enum kops_code attrs_check(const struct kops_attr *attrs, size_t n, struct kops_error *e)
{
    for (size_t i = 0; i < n; i++)
        if (!attrs[i].name || attrs[i].type < KOPS_ATTR_BOOL || attrs[i].type > KOPS_ATTR_TEXT ||
            (attrs[i].type == KOPS_ATTR_TEXT && !attrs[i].value.text))
            return fail(e, KOPS_ERR_BAD_ARGUMENT, "attrs[%zu] has no name, type or text", i);
    return KOPS_OK;
}

bool attrs_only_write(const struct kops_attr *attrs, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!strcmp(attrs[i].name, "beta") &&
            (attrs[i].type == KOPS_ATTR_FLOAT ? attrs[i].value.real != 0.0
                                              : attrs[i].type != KOPS_ATTR_INT || attrs[i].value.integer != 0))
            return false;
    return true;
}

enum kops_code options_check(const struct kops_options *options, struct kops_error *e)
{
    for (size_t i = 0; i < sizeof(options->reserved) / sizeof(options->reserved[0]); i++)
        if (options->reserved[i])
            return fail(e, KOPS_ERR_BAD_ARGUMENT, "options.reserved is not zero: initialise the struct with {0}");
    if (options->priority > KOPS_PRIORITY_LOW)
        return fail(e, KOPS_ERR_BAD_ARGUMENT, "options.priority is none of enum kops_priority");
    if (options->where > KOPS_WHERE_HERE)
        return fail(e, KOPS_ERR_BAD_ARGUMENT, "options.where is none of enum kops_where");
    return KOPS_OK;
}
