/* kopsd: settings, the socket, the server's life. The only place that prints and exits. */
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "compile/helper.h"
#include "main/config.h"
#include "main/listen.h"
#include "server/server.h"
#include "util/log.h"

enum { EXIT_USAGE = 2, FLAGS_MAX = 64 };

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
    "      --spin-us N         poll that long for requests and completions before sleeping; 0: never\n"
    "      --set NAME=VALUE    any setting, as in --set host.threads=4\n"
    "      --check-config      check the settings, print nothing but errors, and exit\n"
    "      --print-config      print every setting with its value and meaning, and exit\n"
    "  -V, --version\n"
    "  -h, --help\n"
    "\n"
    "Settings come from the file, then KOPSD_<SECTION>_<KEY> in the environment, then flags.\n"
    "Exit status: 0 ended by SIGTERM; 1 cannot start; 2 wrong usage; 75 a device was lost, start again.\n";

/* Flags are applied last, so they are remembered until the file has been read. */
struct flags {
    const char *file;
    const char *names[FLAGS_MAX], *values[FLAGS_MAX];
    unsigned count;
    bool check, print;
};

static int remember(struct flags *f, const char *name, const char *value)
{
    if (f->count == FLAGS_MAX)
        return -1;
    f->names[f->count] = name;
    f->values[f->count++] = value;
    return 0;
}

static int remember_backend(struct flags *f, const char *name)
{
    bool host = !strcmp(name, "host"), cuda = !strcmp(name, "cuda");

    if (!host && !cuda && strcmp(name, "auto") != 0) {
        fprintf(stderr, "kopsd: --backend is host, cuda or auto, not \"%s\"\n", name);
        return -1;
    }
    return remember(f, "host.enabled", cuda ? "false" : "true") < 0 ||
                   remember(f, "cuda.enabled", host ? "false" : "true") < 0
               ? -1
               : 0;
}

static int remember_setting(struct flags *f, char *text)
{
    char *equals = strchr(text, '=');

    if (!equals) {
        fprintf(stderr, "kopsd: --set takes NAME=VALUE, as in --set host.threads=4\n");
        return -1;
    }
    *equals = '\0';
    return remember(f, text, equals + 1);
}

/* Returns -1 to go on, or an exit status. */
static int parse_flags(int argc, char **argv, struct flags *f)
{
    enum { CHECK = 256, PRINT, SET, SPIN };
    static const struct option options[] = {{"socket", required_argument, NULL, 's'},
                                            {"config", required_argument, NULL, 'c'},
                                            {"backend", required_argument, NULL, 'b'},
                                            {"log-level", required_argument, NULL, 'l'},
                                            {"set", required_argument, NULL, SET},
                                            {"check-config", no_argument, NULL, CHECK},
                                            {"print-config", no_argument, NULL, PRINT},
                                            {"version", no_argument, NULL, 'V'},
                                            {"help", no_argument, NULL, 'h'},
                                            {"spin-us", required_argument, NULL, SPIN},
                                            {0}};
    int option, r = 0;

    while (r == 0 && (option = getopt_long(argc, argv, "s:c:b:l:Vh", options, NULL)) != -1) {
        switch (option) {
        case 's':
            r = remember(f, "server.socket", optarg);
            break;
        case 'c':
            f->file = optarg;
            break;
        case 'b':
            r = remember_backend(f, optarg);
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
        case CHECK:
            f->check = true;
            break;
        case PRINT:
            f->print = true;
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

static int load_config(struct config *config, const struct flags *f, struct error *e)
{
    if (config_init(config, e) < 0)
        return -1;
    if (f->file || access(default_file, R_OK) == 0)
        if (config_read_file(config, f->file ? f->file : default_file, e) < 0)
            return -1;
    if (config_read_environment(config, e) < 0)
        return -1;
    for (unsigned i = 0; i < f->count; i++)
        if (config_set(config, f->names[i], f->values[i], e) < 0)
            return -1;
    return config_finish(config, e);
}

static struct server_config server_config_of(const struct config *c)
{
    struct server_config s = {
        .default_device = c->default_device,
        .max_connections = c->max_connections,
        .message_bytes = c->message_bytes,
        .inflight = c->inflight,
        .buffers = c->buffers,
        .programs = c->programs,
        .stall_timeout_ms = c->stall_timeout_ms,
        .inline_mappings = c->inline_mappings,
        .output_bytes = c->output_bytes,
        .stuck_reader_s = c->stuck_reader_s,
        .partial_message_s = c->partial_message_s,
        .spin_us = c->spin_us,
        .idle_close_s = c->idle_close_s,
        .shutdown_grace_ms = c->shutdown_grace_ms,
        .job_timeout_s = c->job_timeout_s,
        .kernels = c->kernels,
        .user_kernels = (enum user_kernels)c->policy,
        .user_kernels_group = c->kernels_gid,
        .access = c->access,
        .quota = {.of = {[QUOTA_CONNECTIONS] = c->quota_connections,
                         [QUOTA_BUFFERS] = c->quota_buffers,
                         [QUOTA_MAPPED] = c->quota_mapped_mib << 20,
                         [QUOTA_ALLOCATED] = c->quota_allocated_mib << 20,
                         [QUOTA_INFLIGHT] = c->quota_inflight,
                         [QUOTA_FDS] = c->quota_fds,
                         [QUOTA_KERNEL] = c->quota_kernel_mib << 20},
                  .messages_per_s = c->quota_messages_per_s,
                  .device_share = c->quota_device_share},
        .code = {.compiler = {.nvrtc = c->policy == USER_KERNELS_OFF ? "none" : c->nvrtc,
                              .include = c->include,
                              .user = c->compile_user,
                              .sandbox = (enum compiler_sandbox)c->sandbox_mode,
                              .helpers = (unsigned)c->helpers,
                              .memory_mib = (unsigned)c->compile_memory_mib,
                              .time_s = (unsigned)c->compile_time_s,
                              .keep_s = (unsigned)c->compile_keep_s},
                 .directory = c->policy == USER_KERNELS_OFF || !*c->cache_directory ? NULL : c->cache_directory,
                 .disk_bytes = c->cache_disk_mib << 20,
                 .memory_bytes = c->cache_memory_mib << 20,
                 .source_bytes = c->source_bytes},
        .backend_config = {.host_threads = (unsigned)c->host_threads,
                           .host_blas = c->host_blas,
                           .cuda_driver = c->cuda_driver,
                           .cuda_blaslt = c->cuda_blaslt,
                           .cuda_workspace_bytes = c->cuda_workspace_bytes},
    };
    unsigned n = 0;

#ifdef KOPS_HAVE_CUDA
    if (c->cuda_enabled)
        s.backends[n++] = &cuda_backend;
#endif
    if (c->host_enabled)
        s.backends[n++] = &host_backend;
    return s;
}

static void prepare_process(void)
{
    struct rlimit files;

    signal(SIGPIPE, SIG_IGN);
    /* A connection takes two descriptors, each shared memory one on its way in. */
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    setenv("UV_THREADPOOL_SIZE", "8", 0); /* opens, copies and allocations that may all block */
}

static void on_ready(void *context)
{
    const struct config *config = context;

    log_info("ready", "version=%s socket=%s pid=%d", KOPS_VERSION, config->socket, (int)getpid());
    notify_manager("READY=1");
}

static int serve(struct config *config)
{
    const struct server_config settings = server_config_of(config);
    struct listener listener;
    struct server *server;
    struct error e;
    int status;

    prepare_process();
    if (listener_open(config, &listener, &e) < 0) {
        log_error("start", "why=\"%s\"", e.message);
        return SERVER_EXIT_FAILED;
    }
    if (server_new(&settings, listener.fd, &server, &e) < 0) {
        log_error("start", "why=\"%s\"", e.message);
        listener_close(&listener);
        return SERVER_EXIT_FAILED;
    }
    status = server_run(server, on_ready, config);
    notify_manager("STOPPING=1");
    listener_close(&listener);
    if (status == SERVER_EXIT_DEVICE_LOST) {
        /* Threads may be in calls of the driver that never return, and exit() would wait for them. */
        log_info("stopped", "status=%d", status);
        _exit(status);
    }
    server_free(server);
    log_info("stopped", "status=%d", status);
    return status;
}

int main(int argc, char **argv)
{
    struct flags flags = {0};
    struct config config = {0};
    struct error e;
    int status;

    /* Compilers are this program, too: so they are there wherever it is, and of the same version. */
    if (argc > 1 && !strcmp(argv[1], "--compile-helper"))
        return compile_helper_main(argc, argv);
    status = parse_flags(argc, argv, &flags);

    if (status >= 0)
        return status;
    if (load_config(&config, &flags, &e) < 0) {
        fprintf(stderr, "kopsd: %s\n", e.message);
        config_free(&config);
        return EXIT_USAGE;
    }
    if (flags.print)
        config_print(&config, stdout);
    else if (!flags.check)
        status = serve(&config);
    config_free(&config);
    return status > 0 ? status : 0;
}
