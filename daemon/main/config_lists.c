/* The lists of users and groups among the settings. */
#include "main/config.h"

int config_resolve_access(struct config *c, struct error *e)
{
    const struct {
        const char *name, *text;
        struct access_list *into;
    } lists[] = {
        {"access.allow", c->access_allow, &c->access.allow},
        {"access.deny", c->access_deny, &c->access.deny},
        {"access.tune", c->access_tune, &c->access.tune},
        {"access.administer", c->access_administer, &c->access.administer},
    };

    for (unsigned i = 0; i < sizeof(lists) / sizeof(lists[0]); i++)
        if (access_list_parse(lists[i].name, lists[i].text, lists[i].into, e) < 0)
            return -1;
    return 0;
}
