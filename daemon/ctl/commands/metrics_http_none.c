/* In place of the HTTP server, where kopsctl is built without libmicrohttpd. */
#include "base/complain.h"
#include "metrics.h"

enum ctl_exit metrics_listen(struct metrics_source *s, const char *address, bool allow_remote)
{
    (void)s;
    (void)address;
    (void)allow_remote;
    return ctl_complain("unsupported",
                        "this kopsctl was built without libmicrohttpd and serves no port; `kopsctl metrics --textfile` "
                        "writes a file for node_exporter instead");
}
