/* The lists of users and groups among the settings. */
#include "main/config.h"

int config_resolve_access(struct config *c, struct error *e)
{
    struct access_policy policy;
    const struct {
        const char *name, *text;
        struct access_list *into;
    } lists[] = {
        {"access.allow", c->access_allow, &policy.allow},
        {"access.deny", c->access_deny, &policy.deny},
        {"access.tune", c->access_tune, &policy.tune},
        {"access.administer", c->access_administer, &policy.administer},
    };

    for (unsigned i = 0; i < sizeof(lists) / sizeof(lists[0]); i++)
        if (access_list_parse(lists[i].name, lists[i].text, lists[i].into, e) < 0)
            return -1;
    c->access = policy;
    return 0;
}
