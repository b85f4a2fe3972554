#include "errors.h"

#include "base/fail.h"

#include <string.h>

/* Both enumerations come of proto/errors.json, with the same numbers. */
#define X(NAME, name, value)                                                                                           \
    _Static_assert((int)ERROR_##NAME == (int)KOPS_ERR_##NAME, "the codes of both sides have the same numbers");
KOPS_ERRORS(X)
#undef X

enum kops_code here_error(const struct error *from, struct kops_error *to)
{
    const enum kops_code code = (enum kops_code)from->code;

    fail(to, code, "%s", from->message);
    for (unsigned i = 0; i < from->n_details; i++) {
        const struct error_detail *d = &from->details[i];

        if (d->is_text)
            fail_text(to, code, d->key, d->text, strlen(d->text));
        else
            fail_number(to, code, d->key, d->number);
    }
    return code;
}
