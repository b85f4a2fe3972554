/* kopsctl metrics */
#include "metrics.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/complain.h"
#include "base/ending.h"
#include "base/json.h"
#include "base/options.h"
#include "commands.h"

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

/* ---- printing ---- */

static enum ctl_exit print(struct ctl *ctl)
{
    enum ctl_exit status = ctl_connect(ctl);
    struct kops_error error;
    char *text;

    if (status)
        return status;
    if (kops_metrics(ctl->client, &text, &error))
        return ctl_failed("metrics", &error);
    if (ctl->json) {
        json_begin(NULL, '{');
        json_text("text", text);
        json_end('}');
    } else {
        fputs(text, stdout);
    }
    kops_metrics_free(text);
    return CTL_OK;
}

/* ---- to a file ---- */

static enum ctl_exit write_once(struct metrics_source *s, const char *path)
{
    struct kops_error error;
    bool up = true;
    char *text = metrics_read(s, &up, &error);
    int r;

    if (!text)
        return ctl_failed("metrics", &error);
    r = metrics_replace_file(path, text);
    free(text);
    if (r)
        return ctl_complain("os_error", "writing %s: %s", path, strerror(-r));
    return up ? CTL_OK : CTL_NO_DAEMON;
}

static enum ctl_exit write_repeatedly(struct metrics_source *s, const char *path, double interval_s)
{
    enum ctl_exit status;
    sigset_t ending;

    ending_block(&ending);
    status = write_once(s, path);
    if (status == CTL_FAILED)
        return status; /* a failure of the first time is a wrong argument; a later one, such as a full disk, may pass */
    while (!ending_wait(&ending, ending_clock_ns() + (uint64_t)(interval_s * 1e9)))
        write_once(s, path);
    return CTL_OK;
}

enum ctl_exit ctl_metrics(struct ctl *ctl, int argc, char **argv)
{
    static const struct option options[] = {{"textfile", required_argument, NULL, 't'},
                                            {"interval", required_argument, NULL, 'i'},
                                            {"listen", required_argument, NULL, 'l'},
                                            {"allow-remote", no_argument, NULL, 'r'},
                                            CTL_COMMON_OPTIONS};
    struct metrics_source source = {.ctl = ctl};
    const char *path = NULL, *address = NULL;
    bool allow_remote = false;
    double interval_s = 0;
    int option, end;

    while ((option = getopt_long(argc, argv, "h", options, NULL)) != -1) {
        if (option == 't')
            path = optarg;
        else if (option == 'i' && !ctl_parse_seconds(optarg, 0.1, 86400, &interval_s))
            return ctl_usage("--interval takes seconds from 0.1 on, not `%s`", optarg);
        else if (option == 'l')
            address = optarg;
        else if (option == 'r')
            allow_remote = true;
        else if (option != 'i' && (end = ctl_common(ctl, option, usage)) >= 0)
            return (enum ctl_exit)end;
    }
    if (optind < argc)
        return ctl_usage("metrics takes no `%s`", argv[optind]);
    if (path && (address || !*path))
        return ctl_usage(address ? "metrics takes --textfile or --listen, not both" : "--textfile takes a path");
    if ((interval_s > 0 && !path) || (allow_remote && !address))
        return ctl_usage("%s needs %s", allow_remote ? "--allow-remote" : "--interval",
                         allow_remote ? "--listen" : "--textfile");
    if (ctl->json && (path || address))
        return ctl_usage("--json is for what is printed");
    if (!ctl->timeout_ms)
        ctl->timeout_ms = answer_ms;
    ctl->reconnect_ms = KOPS_NO_RECONNECT; /* that a daemon is away is news of its own */
    if (address)
        return metrics_listen(&source, address, allow_remote);
    if (!path)
        return print(ctl);
    return interval_s > 0 ? write_repeatedly(&source, path, interval_s) : write_once(&source, path);
}
