/* standard_descriptors.c - see standard_descriptors.h. */
#include "base/standard_descriptors.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

exf_code exf_standard_descriptors(exf_err *err)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
        if (fcntl(fd, F_GETFD) >= 0 || errno != EBADF) continue;
        /* The lowest free descriptor is taken: this one, since those below are open. */
        int got = open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
        if (got < 0) return exf_fail_errno(err, errno, "/dev/null: cannot open in place of the missing descriptor %d", fd);
    }
    return EXF_OK;
}
