#include "main/flags.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const char default_file[] = "/etc/kopsd/kopsd.conf";

static const char usage[] =
    "usage: kopsd [options]\n"
    "\n"
    "Serves compiled kernels to the processes of this machine over a Unix socket.\n"
    "\n"
    "  -s, --socket PATH       where to listen (or KOPS_SOCKET)\n"
    "  -c, --config FILE       read settings from FILE, not from /etc/kopsd/kopsd.conf\n"
    "  -b, --backend NAME      serve only \"host\" or only \"cuda\" devices; \"auto\": both\n"
    "  -l, --log-level LEVEL   error, warning, info or debug\n"
    "      --supervise         keep the socket, and start the server again when it ends on its own\n"
    "      --autostart         for clients: start a daemon for this user unless one answers, wait until it is ready, "
    "and\n"
    "                          print its socket; further options are the daemon's\n"
    "      --spin-us N         microseconds of polling for requests and completions before sleeping; 0: none\n"
    "      --set NAME=VALUE    any setting, as in --set host.threads=4\n"
    "      --cache-keygen FILE  make a key that signs code for cache.remote, print its public half, and exit\n"
    "      --check-config      check the settings, print nothing but errors, and exit\n"
    "      --print-config      print every setting with its value and meaning, and exit\n"
    "  -V, --version\n"
    "  -h, --help\n"
    "\n"
    "Settings come from the file, then KOPSD_<SECTION>_<KEY> in the environment, then flags.\n"
    "SIGHUP: read them again; the log lists those that need a restart.\n"
    "SIGTERM, SIGINT: finish running work, then end.\n"
    "Exit status: 0 ended on request; 1 cannot start; 2 wrong usage; 70 the server hung; 75 a GPU has gone.\n"
    "After 70 and 75 start it again: systemd's Restart=on-failure does, or --supervise.\n";

static int remember(struct flags *f, const char *name, const char *value)
{
    if (f->count == FLAGS_MAX) {
        fprintf(stderr, "kopsd: more than %d settings\n", FLAGS_MAX);
        return -1;
    }
    snprintf(f->names[f->count], FLAG_NAME_MAX, "%s", name);
    f->values[f->count++] = value;
    return 0;
}

static int remember_setting(struct flags *f, const char *text)
{
    const char *equals = strchr(text, '=');
    char name[FLAG_NAME_MAX];

    if (!equals) {
        fprintf(stderr, "kopsd: --set takes NAME=VALUE, as in --set host.threads=4\n");
        return -1;
    }
    snprintf(name, sizeof(name), "%.*s", (int)(equals - text), text);
    return remember(f, name, equals + 1);
}

int flags_parse(int argc, char **argv, struct flags *f)
{
    enum { CHECK = 256, PRINT, SET, SPIN, SUPERVISE, AUTOSTART, KEYGEN };
    static const struct option options[] = {
        {"socket", required_argument, NULL, 's'},    {"config", required_argument, NULL, 'c'},
        {"backend", required_argument, NULL, 'b'},   {"log-level", required_argument, NULL, 'l'},
        {"set", required_argument, NULL, SET},       {"cache-keygen", required_argument, NULL, KEYGEN},
        {"check-config", no_argument, NULL, CHECK},  {"print-config", no_argument, NULL, PRINT},
        {"version", no_argument, NULL, 'V'},         {"help", no_argument, NULL, 'h'},
        {"spin-us", required_argument, NULL, SPIN},  {"supervise", no_argument, NULL, SUPERVISE},
        {"autostart", no_argument, NULL, AUTOSTART}, {0}};
    int option, r = 0;

    *f = (struct flags){.argc = argc, .argv = argv, .root = geteuid() == 0};
    while (r == 0 && (option = getopt_long(argc, argv, "s:c:b:l:Vh", options, NULL)) != -1) {
        switch (option) {
        case 's':
            r = remember(f, "server.socket", optarg);
            break;
        case 'c':
            f->file = optarg;
            break;
        case 'b':
            r = remember(f, "server.backend", optarg);
            break;
        case 'l':
            r = remember(f, "server.log_level", optarg);
            break;
        case SPIN:
            r = remember(f, "server.spin_us", optarg);
            break;
        case SET:
            r = remember_setting(f, optarg);
            break;
        case KEYGEN:
            f->keygen = optarg;
            break;
        case CHECK:
            f->check = true;
            break;
        case PRINT:
            f->print = true;
            break;
        case SUPERVISE:
            f->supervise = true;
            f->supervise_argument = argv[optind - 1]; /* the supervisor may shorten this argument */
            break;
        case AUTOSTART:
            f->autostart = true;
            f->autostart_argument = argv[optind - 1];
            break;
        case 'V':
            printf("kopsd %s\n", KOPS_VERSION);
            return 0;
        case 'h':
            fputs(usage, stdout);
            return 0;
        default:
            r = -1;
        }
    }
    if (r == 0 && optind < argc) {
        fprintf(stderr, "kopsd: \"%s\" is no option\n", argv[optind]);
        r = -1;
    }
    if (r < 0) {
        fputs("Try kopsd --help.\n", stderr);
        return EXIT_USAGE;
    }
    return -1;
}

/* Tells whether the default file is there. A file that cannot be read counts: its settings would be lost unseen. */
static bool has_default_file(void)
{
    return access(default_file, F_OK) == 0 || errno != ENOENT;
}

int flags_load(const struct flags *f, struct config *config, struct error *e)
{
    if (config_init(config, e) < 0)
        return -1;
    config->root = f->root;
    if (f->file || has_default_file())
        if (config_read_file(config, f->file ? f->file : default_file, e) < 0)
            return -1;
    if (config_read_environment(config, e) < 0)
        return -1;
    for (unsigned i = 0; i < f->count; i++)
        if (config_set(config, f->names[i], f->values[i], e) < 0)
            return -1;
    return config_finish(config, e) < 0 ? -1 : config_resolve_names(config, e);
}
