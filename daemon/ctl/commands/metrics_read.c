/* The daemon's metrics as text, and whether it answers. */
#include "metrics.h"

#include <stdio.h>
#include <string.h>

#include "base/complain.h"

static const char up_text[] = "# HELP kopsd_up Whether the daemon answers.\n# TYPE kopsd_up gauge\n";

/* The daemon does not answer, which is no fault of this program's. */
static bool is_away(enum kops_code code)
{
    return code == KOPS_ERR_CONNECT_FAILED || code == KOPS_ERR_CONNECTION_LOST || code == KOPS_ERR_TIMEOUT ||
           code == KOPS_ERR_SHUTTING_DOWN || code == KOPS_ERR_DEVICE_LOST;
}

static enum kops_code ask(struct ctl *ctl, char **ret_text, struct kops_error *e)
{
    enum kops_code r = ctl->client ? KOPS_OK : ctl_try_connect(ctl, e);

    if (!r)
        r = kops_metrics(ctl->client, ret_text, e);
    if (r) {
        ctl->client = kops_close(ctl->client); /* the next time begins anew, at once */
    }
    return r;
}

/* Once for each time that it goes or comes. */
static void tell(struct metrics_source *s, bool up, const struct kops_error *e)
{
    if (!up && !s->was_away)
        ctl_note("the daemon does not answer: %s", e->message);
    if (up && s->was_away)
        ctl_note("the daemon answers again");
    s->was_away = !up;
}

char *metrics_read(struct metrics_source *s, bool *ret_up, struct kops_error *e)
{
    char *text = NULL, *all = NULL;
    enum kops_code r = ask(s->ctl, &text, e);
    const char *rest = text ? text : "";

    if (r && !is_away(r))
        return NULL;
    tell(s, !r, e);
    *ret_up = !r;
    /* The daemon need not say that it is up, but may. */
    if (!strncmp(rest, "kopsd_up ", 9) || strstr(rest, "\nkopsd_up "))
        return text;
    if (asprintf(&all, "%skopsd_up %d\n%s", up_text, !r, rest) < 0) {
        e->code = KOPS_ERR_NO_MEMORY;
        snprintf(e->message, sizeof(e->message), "there is no memory for the metrics");
        all = NULL;
    }
    kops_metrics_free(text);
    return all;
}
