/* kopsctl metrics: prints the daemon's metrics, or writes them to a file. metrics_http.c serves them. */
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/output.h"
#include "commands.h"
#include "metrics.h"

static const char usage[] =
    "Usage: kopsctl metrics [--json]\n"
    "       kopsctl metrics --textfile PATH [--interval SECONDS]\n"
    "       kopsctl metrics --listen ADDRESS:PORT [--allow-remote]\n\n"
    "Prints the daemon's metrics in Prometheus' text format, writes them to a file or serves them on a port. The\n"
    "daemon itself needs no network. When no daemon answers, the text has `kopsd_up 0`.\n\n"
    "      --textfile PATH         write them to PATH, for node_exporter's textfile collector: as one step, so that a\n"
    "                              reader never sees half of it; mode 0644. A symbolic link at PATH is replaced\n"
    "      --interval SECONDS      write repeatedly, until ended (at least 0.1)\n"
    "      --listen ADDRESS:PORT   serve http://ADDRESS:PORT/metrics until ended, such as 127.0.0.1:9464 or "
    "[::1]:9464\n"
    "      --allow-remote          … also to other machines: ADDRESS need not be of this machine alone\n"
    "      --timeout SECONDS       longest wait for the daemon (default 5)\n"
    "      --json                  print {\"text\": …}\n\n"
    "Exit status with --textfile and without --interval: 3 when no daemon answers; the file says so, too.\n";

static const int64_t answer_ms = 5000; /* a scrape waits 10 s by default */

/* ---- the text, and whether the daemon answers ---- */

static const char up_text[] = "# HELP kopsd_up Whether the daemon answers.\n# TYPE kopsd_up gauge\n";

static enum kops_code ask(struct ctl *ctl, char **ret_text, struct kops_error *e)
{
    enum kops_code r = ctl->client ? KOPS_OK : ctl_try_connect(ctl, e);

    if (!r)
        r = kops_metrics(ctl->client, ret_text, e);
    if (r)
        ctl->client = kops_close(ctl->client); /* the next time begins anew, at once */
    return r;
}

/* Prints a note each time that the daemon goes or comes. */
static void tell(struct metrics_source *s, bool up, const struct kops_error *e)
{
    if (!up && !s->was_away)
        ctl_note("the daemon does not answer: %s", e->message);
    if (up && s->was_away)
        ctl_note("the daemon answers again");
    s->was_away = !up;
}

static char *read_metrics(struct metrics_source *s, bool *ret_up)
{
    struct kops_error *e = &s->ctl->error;
    char *text = NULL, *all = NULL;
    enum kops_code r = ask(s->ctl, &text, e);
    const char *rest = text ? text : "";

    if (r && !ctl_is_away(r))
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

static enum ctl_exit print(struct ctl *ctl)
{
    enum ctl_exit status = ctl_connect(ctl);
    char *text;

    if (status)
        return status;
    if (kops_metrics(ctl->client, &text, &ctl->error))
        return ctl_failed("metrics", &ctl->error);
    if (ctl->json)
        JSON_MAP(NULL, json_text("text", text));
    else
        fputs(text, stdout);
    kops_metrics_free(text);
    return CTL_OK;
}

/* ---- to a file ---- */

/* A power cut may undo the change, not tear it, where the file system can be asked for that. */
static void sync_folder(const char *folder)
{
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    if (fd < 0)
        return;
    fsync(fd);
    close(fd);
}

/* Replaces the file as one step: a reader sees the whole old text or the whole new one. Returns 0 or a negative errno.
 */
static int replace_file(const char *path, const char *text)
{
    char *folder_of = strdup(path), *name_of = strdup(path), *temporary = NULL;
    const char *folder;
    FILE *to = NULL;
    int fd, r = -ENOMEM;

    if (!folder_of || !name_of)
        goto free_names;
    folder = dirname(folder_of);
    /* A name that cannot be foreseen, hidden, that no collector reads; made anew, never through a link. */
    if (asprintf(&temporary, "%s/.%s.XXXXXX", folder, basename(name_of)) < 0) {
        temporary = NULL;
        goto free_names;
    }
    fd = mkostemp(temporary, O_CLOEXEC);
    r = fd < 0 ? -errno : 0;
    if (r)
        goto free_names;
    to = fdopen(fd, "w");
    if (!to || fputs(text, to) < 0 || fflush(to) || fchmod(fd, S_IRUSR | S_IWUSR | S_IRGRP | S_IROTH) || fsync(fd))
        r = -errno;
    if ((to ? fclose(to) : close(fd)) && !r)
        r = -errno;
    if (!r && rename(temporary, path))
        r = -errno;
    if (r)
        unlink(temporary);
    else
        sync_folder(folder);
free_names:
    free(temporary);
    free(folder_of);
    free(name_of);
    return r;
}

static enum ctl_exit write_once(struct metrics_source *s, const char *path)
{
    bool up = true;
    char *text = read_metrics(s, &up);
    int r;

    if (!text)
        return ctl_failed("metrics", &s->ctl->error);
    r = replace_file(path, text);
    free(text);
    if (r)
        return ctl_complain("os_error", "writing %s: %s", path, strerror(-r));
    return up ? CTL_OK : CTL_NO_DAEMON;
}

static enum ctl_exit write_repeatedly(struct metrics_source *s, const char *path, double interval_s)
{
    enum ctl_exit status;
    sigset_t ending;

    ctl_block_ending(&ending);
    status = write_once(s, path);
    if (status == CTL_FAILED)
        return status; /* a failure of the first time is a wrong argument; a later one, such as a full disk, may pass */
    while (!ctl_wait(&ending, ctl_clock_ns() + (uint64_t)(interval_s * 1e9)))
        write_once(s, path);
    return CTL_OK;
}

#ifndef KOPS_CTL_HTTP
enum ctl_exit metrics_listen(struct metrics_source *s, const char *address, bool allow_remote)
{
    (void)s;
    (void)address;
    (void)allow_remote;
    return ctl_complain("unsupported",
                        "this kopsctl was built without libmicrohttpd and serves no port; `kopsctl metrics --textfile` "
                        "writes a file for node_exporter instead");
}
#endif

enum ctl_exit ctl_metrics(struct ctl *ctl, int argc, char **argv)
{
    struct metrics_source source = {.ctl = ctl, .read = read_metrics};
    const char *path = NULL, *address = NULL;
    bool allow_remote = false;
    double interval_s = 0;
    const struct ctl_option options[] = {
        {"--textfile", 0, OPTION_TEXT, &path},
        {"--interval", 0, OPTION_SECONDS, &interval_s, "takes seconds from 0.1 on", 0.1, 86400},
        {"--listen", 0, OPTION_TEXT, &address},
        {"--allow-remote", 0, OPTION_FLAG, &allow_remote},
        {0}};
    enum ctl_exit status;

    if (!ctl_parse(ctl, argc, argv, usage, options, 0, &status))
        return status;
    if (path && (address || !*path))
        return ctl_usage(address ? "metrics takes --textfile or --listen, not both" : "--textfile takes a path");
    if ((interval_s > 0 && !path) || (allow_remote && !address))
        return ctl_usage("%s needs %s", allow_remote ? "--allow-remote" : "--interval",
                         allow_remote ? "--listen" : "--textfile");
    if (ctl->json && (path || address))
        return ctl_usage("--json is for what is printed");
    if (!ctl->timeout_ms)
        ctl->timeout_ms = answer_ms;
    ctl->reconnect_ms = KOPS_NO_RECONNECT; /* report at once that no daemon answers */
    if (address)
        return metrics_listen(&source, address, allow_remote);
    if (!path)
        return print(ctl);
    return interval_s > 0 ? write_repeatedly(&source, path, interval_s) : write_once(&source, path);
}
